/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of a rank: host, process, GPU. Exchanged as bytes at group creation. */
#ifndef EP_CORE_IDENT_H
#define EP_CORE_IDENT_H

#include <stdbool.h>
#include "core/error.h"

struct ep_ident {
	uint64_t host;       /* hash of NCCL_HOSTID, else of host name and boot id */
	uint64_t process[2]; /* random, one per process */
	uint64_t pid_ns;     /* pids compare only within one namespace */
	uint64_t start_time; /* of the process, clock ticks since boot */
	int32_t pid;
	int32_t device; /* CUDA ordinal in its own process */
	uint32_t mig;
	uint32_t domain; /* ranks with the same number can map each other's memory; and ... */
	uint32_t
		node; /* ... `node` are filled in when all are known: peer/peer.h, core/bootstrap.h */
	char hostname[64];
	char bus_id[24];
};

/* The calling rank, on CUDA device `device`. */
ncclResult_t ep_ident_make(struct ep_ident *ident, int device);

bool ep_ident_same_host(const struct ep_ident *a, const struct ep_ident *b);
/* Ranks of one node reach each other's memory, others need RDMA. */
bool ep_ident_same_node(const struct ep_ident *a, const struct ep_ident *b);
bool ep_ident_same_process(const struct ep_ident *a, const struct ep_ident *b);

/* Returns more for an error of two ranks of one host, whose names differ; "": they do not. */
#define EP_IDENT_HOSTS_TEXT 320
const char *ep_ident_hosts_print(const struct ep_ident *a, const struct ep_ident *b,
				 char text[EP_IDENT_HOSTS_TEXT]);

/* True only if the process of `other` is known to have ended. */
bool ep_ident_gone(const struct ep_ident *self, const struct ep_ident *other);

/* Why CUDA may have failed with what takes a descriptor, in words; NULL: there are some left. */
const char *ep_no_files(void);

#endif
