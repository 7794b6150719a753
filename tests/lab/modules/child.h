/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A module that only needs nvidia.ko: include after defining NV_CHILD. */
#include <linux/init.h>
#include <linux/module.h>

#include "version.h"

static int __init child_init(void)
{
	return nvidia_standin_hold();
}

static void __exit child_exit(void)
{
}

module_init(child_init);
module_exit(child_exit);

MODULE_DESCRIPTION("stand-in for " NV_CHILD " of a test lab: drives no hardware");
MODULE_VERSION(NV_VERSION);
MODULE_LICENSE(NV_LICENSE);
MODULE_INFO(supported, "external");
