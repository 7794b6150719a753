// SPDX-License-Identifier: GPL-3.0-or-later
/* Stand-in for a driver library: can be loaded and named, does nothing. */
const char nvidia_standin_version[] = "stand-in for a library of driver " NV_VERSION " (test lab)";
