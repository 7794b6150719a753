// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Stand-in for the part of a vendor's RDMA stack (OFED) that nvidia-peermem needs: the kernel's own
 * ib_core has no peer memory interface. One client of a name at a time, as in the real one.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <rdma/ib_verbs.h>

#include "peer_mem.h"

static DEFINE_MUTEX(lock);
static char registered[64];

void *ib_register_peer_memory_client(const struct peer_memory_client *client,
				     peer_callback *callback)
{
	void *handle = NULL;

	mutex_lock(&lock);
	if (!registered[0]) {
		strscpy(registered, client->name, sizeof(registered));
		handle = registered;
	}
	mutex_unlock(&lock);
	return handle;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *handle)
{
	mutex_lock(&lock);
	registered[0] = '\0';
	mutex_unlock(&lock);
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

static int __init compat_init(void)
{
	return ib_event_msg(IB_EVENT_CQ_ERR) ? 0 : -ENODEV;
}

static void __exit compat_exit(void)
{
}

module_init(compat_init);
module_exit(compat_exit);

MODULE_DESCRIPTION("stand-in for the peer memory interface of a vendor's RDMA stack in a test lab");
MODULE_VERSION(OFED_VERSION);
MODULE_LICENSE("Dual BSD/GPL");
