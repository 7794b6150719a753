/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The interface of the vendor's RDMA stack that the stand-ins speak about. */
#ifndef INFEROPS_LAB_PEER_MEM_H
#define INFEROPS_LAB_PEER_MEM_H

struct peer_memory_client {
	char name[64];
	char version[16];
};

/* Another type gives the symbol another checksum: "disagrees about version of symbol". */
#ifdef PEER_OTHER_BUILD
typedef int (*peer_callback)(void *handle, unsigned long context);
#else
typedef int (*peer_callback)(void *handle);
#endif

void *ib_register_peer_memory_client(const struct peer_memory_client *client,
				     peer_callback *callback);
void ib_unregister_peer_memory_client(void *handle);

#endif
