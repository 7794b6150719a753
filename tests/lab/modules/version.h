/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What all stand-in modules share: the version that they were built as, given by the Makefile. */
#ifndef INFEROPS_LAB_VERSION_H
#define INFEROPS_LAB_VERSION_H

#ifndef NV_VERSION
#error "build with NV_VERSION=580.95.05 or another driver version"
#endif

/* The licence strings are those by which `modinfo -F license` tells the flavours apart. */
#ifdef NV_PROPRIETARY
#define NV_LICENSE "NVIDIA"
#define NV_ID "NVIDIA UNIX x86_64 Kernel Module  " NV_VERSION "  " NV_DATE
#else
#define NV_LICENSE "Dual MIT/GPL"
#define NV_ID                                                                                      \
	"NVIDIA UNIX Open Kernel Module for x86_64  " NV_VERSION                                   \
	"  Release Build  (inferops-lab@stand-in)  " NV_DATE
#endif

/* Exported by nvidia.ko: its children take it, so that unloading in the wrong order fails. */
int nvidia_standin_hold(void);

#endif
