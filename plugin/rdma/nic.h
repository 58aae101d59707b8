/* SPDX-License-Identifier: Apache-2.0 */
/* A port of a NIC, opened: what all queues of it need, whoever posts to them. */
#ifndef EP_RDMA_NIC_H
#define EP_RDMA_NIC_H

#include "rdma/gid.h"
#include "rdma/port.h"

/* A port, as peers must know it. Travels between ranks of one build. */
struct ep_nic_end {
	char name[32];
	uint8_t gid[16];
	uint8_t port;
	uint8_t link_layer; /* IBV_LINK_LAYER_* */
	uint8_t roce;       /* version; 0: InfiniBand */
	uint8_t mtu;        /* enum ibv_mtu, active */
	uint8_t grh;        /* the port requires a GRH */
	uint8_t log_rra;    /* READs and atomics it answers at once, logarithm */
	uint16_t lid;
	uint16_t pkey;
	uint32_t psn; /* queue pairs begin at this plus their number */
};

struct ep_nic {
	const struct ep_verbs *v;
	const struct ep_mlx5dv *dv; /* NULL: no libmlx5 */
	char name[EP_NIC_NAME];
	int port;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	bool devx; /* DevX commands may be tried, else `no_devx` has the reason */
	struct ep_reason no_devx;
	struct ibv_device_attr attr;
	bool atomics;
	bool fences; /* IBV_SEND_FENCE may be used; not so with rdma_rxe, see ep_nic_open() */
	uint32_t log_ra_req, log_ra_res; /* READs and atomics in flight: as requester, responder */
	uint32_t log_max_msg;
	bool even_down; /* set before ep_nic_open(): a port that is down is opened, too; */
	bool down;      /* it is that */
	uint32_t gid_index, pkey_index;
	uint8_t tc; /* traffic class */
	struct ep_nic_end end;
};

/*
 * Opens `port` of one of the devices of `list`. False: *result is a failure that was recorded, else
 * see why. To be closed in any case.
 */
bool ep_nic_open(struct ep_nic *nic, const struct ep_port_list *list, const struct ep_port *port,
		 const struct ep_ib_env *env, struct ep_reason *why, ncclResult_t *result);
/* Opens what depends on the port's state, of a NIC whose context is open; as ep_nic_open(). */
bool ep_nic_port_open(struct ep_nic *nic, const struct ep_ib_env *env, struct ep_reason *why,
		      ncclResult_t *result);
/* `keep`: something else has pages of the context mapped, so that this stays open. */
void ep_nic_close(struct ep_nic *nic, bool keep);

/* port_address.c: the GID that the port is reached by, of `entries` in its table. */
ncclResult_t ep_nic_address_choose(struct ep_nic *nic, const struct ep_ib_env *env, int entries);
/* RoCE version of an entry as the kernel has it in files under `root`; 0: it does not report it. */
int ep_gid_roce(const char *root, const char *device, int port, int index);
/* The traffic class of what the port sends: sets nic->tc. */
void ep_nic_class_choose(struct ep_nic *nic, const struct ep_ib_env *env, const char *root);

/* nic.c: whether two ports can reach each other. */
bool ep_nic_path_check(const struct ep_nic_end *from, const struct ep_nic_end *to,
		       struct ep_reason *why);
/* Whether packets to another port have a global route header, and the LID that they go to. */
bool ep_nic_path_global(const struct ep_nic_end *from, const struct ep_nic_end *to);
uint16_t ep_nic_path_lid(const struct ep_nic_end *from, const struct ep_nic_end *to);

/*
 * nic.c: memory to be registered. That of a GPU as a DMA-BUF if there is one and libibverbs takes
 * it; else its address as it is, which works where nvidia-peermem is loaded.
 */
struct ep_nic_memory {
	void *p;
	uint64_t bytes;
	bool gpu;
	int fd;          /* of the DMA-BUF; -1: none, `no_fd` has the reason */
	uint64_t offset; /* of p in it */
	struct ep_reason no_fd;
};

/*
 * The text of an error of a call that pins memory (registrations, queues). That there is not enough is
 * most often the limit of the process, which the text names.
 */
#define EP_NIC_ERROR_TEXT 200
const char *ep_nic_error_print(int error, char text[EP_NIC_ERROR_TEXT]);

struct ibv_mr *ep_nic_register(const struct ep_nic *nic, const struct ep_nic_memory *memory,
			       unsigned int access, struct ep_reason *why);

/* ---- nic.c: what a device reports without being asked ---- */

enum ep_nic_event {
	EP_NIC_PORT_DOWN,
	EP_NIC_PORT_UP,
	EP_NIC_ADDRESS, /* the port's table of GIDs has changed */
	EP_NIC_DEVICE_FAILED,
	EP_NIC_CQ_FAILED,
	EP_NIC_QP_FAILED,
};

struct ep_nic_report {
	enum ep_nic_event event;
	const char *text; /* static */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

/* Lets ep_nic_events_read() return when no event waits. Returns 0 or an errno value. */
int ep_nic_events_open(const struct ep_nic *nic);

/*
 * Takes up all events that wait, writes each into the log, and calls `fn` for those that the port or its
 * queues may suffer from.
 */
void ep_nic_events_read(const struct ep_nic *nic,
			void (*fn)(void *arg, const struct ep_nic_report *report), void *arg);

#endif
