/* SPDX-License-Identifier: Apache-2.0 */
/* Which NICs there are and how they behave; messages; bits of command buffers; numbered objects. */
#ifndef VN_ENV_H
#define VN_FEW_CQES 127
#define VN_ENV_H

#include <stdbool.h>
#include <stdint.h>

#define VN_EXPORT __attribute__((visibility("default")))
#define VN_EXIT 88 /* exit code: the program broke a rule of the hardware */
#define VN_NICS 16
#define VN_SEND_WR 32768 /* work requests that a verbs queue takes at most */

#define VN_FEW_RTR 3
#define VN_LATE_RTR 3
#define VN_MEMBERS 2 /* of a bond */

struct vn_config {
	int nics, node;
	bool mlx5;         /* false: a device that only knows plain verbs */
	bool ib;           /* link layer */
	bool routed;       /* each node is a subnet */
	bool rails;        /* NICs are two subnets, by even and odd numbers */
	bool gpu_umem;     /* device memory can hold queues */
	bool nc_dedicated; /* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED of newer libraries */
	bool ooo_rw, ooo_all, ooo_force;
	bool no_atomics;
	bool odd_no_atomics; /* of NICs with odd numbers */
	bool no_dmabuf;      /* DMA-BUFs are not taken */
	bool no_ece;         /* the device says nothing of what else it can */
	int own_ece; /* 1 or 2: NICs with even or odd numbers refuse what others have of that */
	bool gpu_dmabuf; /* VC_NIC_DMABUF: those of real GPUs are, by the address that comes with them */
	bool no_rtr;        /* queues made by commands cannot be connected */
	bool quiet;         /* the device does not say in what order it places data */
	bool scattered;     /* numbers of queue pairs follow in no order */
	bool few_rtr;       /* no more than VN_FEW_RTR queues made by commands can be connected */
	bool fatal_rtr;     /* the process is killed when it connects one more */
	bool old_fork;      /* a fork() takes the pages of registered memory away from NICs */
	bool few_cqes;      /* completion queues have room for few */
	bool late_rtr;      /* the first tries to find the path to a peer are in vain */
	bool no_wc;         /* BF pages are refused: no memory is write-combining */
	bool no_read_mr;    /* memory is not registered to be read alone */
	bool one_read_mr;   /* nor by NICs but the first of a pair */
	bool reports_order; /* it says no more than whether it places data in order */
	int tier;           /* order of placement that firmware chooses by itself */
	int init_rd;        /* READs and atomics that a verbs queue has in flight */
	uint32_t send_wr; /* work requests that a verbs queue takes; the device claims VN_SEND_WR */
	uint32_t ts;      /* formats of timestamps: 0 free running, 1 real time, 2 both */
	int mtu;          /* active */
	int strict;       /* VC_NIC_STRICT */
	uint32_t net;     /* addresses are net | node << 8 | nic + 1 */
	uint32_t run;     /* differs between runs: packets of another run are refused */
	uint16_t port;    /* of instance 0 */
	uint64_t seed;
	uint32_t piece;    /* least bytes of what relaxed ordering moves by itself */
	uint32_t retry_ms; /* of all retries together; 0: as the queue pair says */
	uint32_t link_gbps;
	bool verbose;
	bool stats;
	bool step;     /* no thread: vn_dv_step() */
	int lag;       /* members of the bond that each port is; 0: none */
	bool lag_late; /* what a queue pair is told before it is connected does not last */
	bool lag_hash; /* headers choose the member, not queue pairs */
};
extern struct vn_config vn_config;

void vn_config_load(void);
const char *vn_env(const char *name, const char *fallback);
long vn_env_long(const char *name, long fallback);
uint64_t vn_now(void); /* ns */
uint64_t vn_random(void);

/* A line on stderr. vn_log_once prints only the first line of each format. */
void vn_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void vn_log_once(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The program broke a rule: says so and, unless VC_NIC_STRICT is 0, ends the process with VN_EXIT. */
void vn_bug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* PRM bit fields: bit 0 is the most significant of the first big-endian word. */
uint32_t vn_get(const void *p, unsigned int bit, unsigned int width);
void vn_set(void *p, unsigned int bit, unsigned int width, uint32_t value);
uint64_t vn_get64(const void *p, unsigned int bit);

struct vn_list {
	void **item;
	uint32_t n, cap;
};
/*
 * Number of the item's slot, or -1. A slot is never used again: a number that the program still
 * holds after its object is gone must not name a new object.
 */
int vn_list_add(struct vn_list *list, void *item);
void *vn_list_get(const struct vn_list *list, uint32_t slot);
void vn_list_drop(struct vn_list *list, uint32_t slot);

#endif
