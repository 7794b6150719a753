// SPDX-License-Identifier: GPL-3.0-or-later
#define NV_CHILD "nvidia-uvm"
#include "child.h"
