// SPDX-License-Identifier: GPL-3.0-or-later
/*
 * Stand-in for nvidia-peermem. Like the real one it is built in one of two ways:
 *
 * with NV_PEER_SYMBOLS, against an RDMA stack that has the peer memory interface (the vendor's):
 *   loads there; elsewhere the kernel refuses it with "Unknown symbol", and against another build
 *   of that stack with "disagrees about version of symbol";
 * without, against the kernel's own RDMA stack: refuses with EINVAL and logs nothing, and needs no
 *   RDMA module (nvidia-peermem.c of the open kernel modules does the same).
 */
#include <linux/err.h>
#include <linux/init.h>
#include <linux/module.h>

#include "version.h"

#ifdef NV_PEER_SYMBOLS
#include <rdma/ib_verbs.h>

#include "peer_mem.h"

static const struct peer_memory_client client = { .name = "nv_mem", .version = NV_VERSION };
static void *registration;

static int __init peermem_init(void)
{
	int status = nvidia_standin_hold();

	if (status)
		return status;
	/* A call, so that ib_core is a module that this one needs. */
	if (!ib_event_msg(IB_EVENT_CQ_ERR))
		return -ENODEV;
	registration = ib_register_peer_memory_client(&client, NULL);
	return registration ? 0 : -EINVAL;
}

static void __exit peermem_exit(void)
{
	ib_unregister_peer_memory_client(registration);
}
#else
static int __init peermem_init(void)
{
	return nvidia_standin_hold() ? -ENODEV : -EINVAL;
}

static void __exit peermem_exit(void)
{
}
#endif

module_init(peermem_init);
module_exit(peermem_exit);

MODULE_DESCRIPTION("stand-in for nvidia-peermem of a test lab: pins no memory");
MODULE_VERSION(NV_VERSION);
MODULE_LICENSE(NV_LICENSE);
