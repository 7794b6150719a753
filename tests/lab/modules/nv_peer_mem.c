// SPDX-License-Identifier: GPL-3.0-or-later
/* Stand-in for the legacy nv_peer_mem: takes the same client name as nvidia-peermem. */
#include <linux/init.h>
#include <linux/module.h>

#include "peer_mem.h"
#include "version.h"

static const struct peer_memory_client client = { .name = "nv_mem", .version = "1.3-0" };
static void *registration;

static int __init legacy_init(void)
{
	if (nvidia_standin_hold())
		return -ENODEV;
	registration = ib_register_peer_memory_client(&client, NULL);
	return registration ? 0 : -EINVAL;
}

static void __exit legacy_exit(void)
{
	ib_unregister_peer_memory_client(registration);
}

module_init(legacy_init);
module_exit(legacy_exit);

MODULE_DESCRIPTION("stand-in for the legacy nv_peer_mem of a test lab: pins no memory");
MODULE_VERSION("1.3-0");
MODULE_LICENSE("Dual BSD/GPL");
