/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software mlx5 NIC: what stands behind the virtual cluster's libibverbs.so.1 and libmlx5.so.1.
 *
 * One instance per process: all its devices, contexts and queue pairs, served by one thread. One
 * lock protects all of it; only the words that the program shares with a NIC (doorbells, queues,
 * completions, registered memory) are touched by both sides without it.
 */
#ifndef VN_DEVICE_H
#define VN_DEVICE_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include "nic/env.h"
#include "nic/step.h"

#define VN_PKEYS 8
#define VN_OPCODES 0x1000

struct vn_nic {
	struct ibv_device device;
	int index;
	uint32_t ip; /* host order */
	uint16_t lid;
	uint8_t mac[6];
	uint64_t guid;
	bool down;
	int listen_fd;
	struct vn_context *contexts;
	struct vn_chunk *chunks; /* writes that the bus has not delivered (place.c) */
	uint32_t nchunks;
	uint32_t looks; /* when one of them was held last */
	struct vn_dv_member member[VN_MEMBERS];
	/*
	 * Its IPv4 address has gone. The kernel has taken it off the port's table; the NIC keeps it as long as an object
	 * of verbs refers to it.
	 */
	bool gid_gone;
	uint32_t gid_users;
	uint8_t mac_turn; /* how often its hardware address has changed */
};

struct vn_context {
	struct vn_nic *nic;
	struct vn_context *next;
	bool devx;
	int event_fd;               /* where events are written */
	uint32_t live;              /* objects that exist */
	uint32_t lag_turn;          /* of queue pairs of verbs */
	struct vn_uar *shared_uar;  /* MLX5DV_UAR_ALLOC_TYPE_NC: one per context */
	struct verbs_context verbs; /* last: it ends with the ibv_context */
};

struct vn {
	pthread_mutex_t lock;
	uint32_t waiting; /* callers that want the lock */
	uint32_t looks;   /* for completions, by programs */
	bool loaded;
	struct vn_nic nic[VN_NICS];
	uint32_t instance; /* of this process on its addresses */
	struct vn_list pds, mrs, umems, uars, cqs, qps;
	struct vn_qp *all;     /* queue pairs */
	struct vn_qp **active; /* those that have something to do; room for all of them */
	uint32_t nactive, active_cap;
	uint32_t qps_live, qps_made, rtr, late_rtr;
	uint64_t commands[VN_OPCODES]; /* that firmware was given */
	struct vn_link *links;
	pthread_t thread;
	bool running;
	bool hooked;                /* doorbells of GPU threads call vn_rung() */
	uint32_t by_hand;           /* doorbells that did not */
	_Atomic bool rung, napping; /* since the last turn; the thread sleeps until it is woken */
	int wake_fd, epoll_fd;
};
extern struct vn vn;

void vn_lock(void);
void vn_unlock(void);

static inline struct vn_context *vn_context_of(struct ibv_context *c)
{
	return (struct vn_context *)((char *)c - offsetof(struct vn_context, verbs.context));
}

/* Whether this is one of the first tries to find a peer, which find none (late_rtr). */
static inline bool vn_late(void)
{
	return vn_config.late_rtr &&
	       __atomic_fetch_add(&vn.late_rtr, 1, __ATOMIC_RELAXED) < VN_LATE_RTR;
}

struct ibv_context *vn_open(struct ibv_device *device, bool devx);
void vn_event(struct vn_context *ctx, enum ibv_event_type type, void *element, int port);
/* The NIC of this process that has this address, or NULL. */
struct vn_nic *vn_nic_of_ip(uint32_t ip);
void vn_port_set(struct vn_nic *nic, bool down);

/* False if the NIC has no GID of this index. */
bool vn_gid(const struct vn_nic *nic, int index, union ibv_gid *gid, uint32_t *type);
/* Address of the NIC that has this GID or LID; 0 if no NIC can have it. */
uint32_t vn_ip_of_gid(const union ibv_gid *gid, bool *ipv4);
uint32_t vn_ip_of_lid(uint16_t lid);
uint32_t vn_ip_of_path(uint16_t lid, const union ibv_gid *gid);
void vn_mac_of_ip(uint32_t ip, uint8_t mac[6]);
/* Whether the entry of the table that the kernel calls `index` is what the NIC sends with. */
bool vn_gid_works(const struct vn_nic *nic, int index);
/* An object of verbs refers to the entry, or no more. */
void vn_gid_use(struct vn_nic *nic, int index, bool use);
void vn_gid_lose(struct vn_nic *nic);
void vn_mac_move(struct vn_nic *nic);

#endif
