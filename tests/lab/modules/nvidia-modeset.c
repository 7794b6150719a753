// SPDX-License-Identifier: GPL-3.0-or-later
#define NV_CHILD "nvidia-modeset"
#include "child.h"
