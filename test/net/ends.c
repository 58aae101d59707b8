/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include "net/ends.h"
#include "net/p2p.h"

bool ends_no_slots, ends_no_reads, ends_no_writes;

static bool tell(void *arg, const struct ibv_wc *wc)
{
	return !(ends_no_slots && EP_NET_WR_KIND(wc->wr_id) == EP_NET_WORK_SLOT) &&
	       !(ends_no_reads && wc->opcode == IBV_WC_RDMA_READ) &&
	       !(ends_no_writes && wc->opcode == IBV_WC_RDMA_WRITE);
}

void ends_begin(const char *profile)
{
	const struct vn_dv_watch watch = { .tell = tell };

	setenv("VC_NIC_STEP", "1", 1);
	setenv("VC_NICS", "4", 1);
	if (profile) {
		setenv("VC_NIC_PROFILE", profile, 1);
	}
	vn_dv_watch(&watch);
}

void ends_settle(void)
{
	while (vn_dv_step(0)) {
	}
}

struct ep_net_mr *ends_register(const struct ep_net_nic *nic, void *data, size_t size)
{
	const struct ep_net_memory memory = {
		.data = data, .size = size, .type = EP_NET_PTR_HOST, .fd = -1
	};
	struct ep_net_mr *mr;

	NEED(ep_net_mr_new(nic, &memory, &mr) == ncclSuccess);
	return mr;
}

static void add_port(struct ep_net_nic *nic, int device)
{
	struct ep_net_dev **dev = &nic->dev[nic->nports++];
	const struct ep_net_nic *port;

	NEED(ep_net_nic_get(device, &port) == ncclSuccess);
	*dev = port->dev[0];
	NEED(ep_net_dev_hold(*dev, false) == ncclSuccess);
}

struct ep_net_nic *ends_nic(int device)
{
	struct ep_net_nic *one = calloc(1, sizeof(*one));

	NEED(one);
	add_port(one, device);
	return one;
}

struct ep_net_nic *ends_nic_two(int device, int other)
{
	struct ep_net_nic *two = ends_nic(device);

	add_port(two, other);
	return two;
}

void ends_nic_drop(struct ep_net_nic *one)
{
	for (int i = 0; i < one->nports; i++) {
		CHECK_INT(one->dev[i]->users, 1);
		ep_net_dev_drop(one->dev[i]);
	}
	free(one);
}

/* The receiver first, as it answers the sender's request. */
static void connect_both(struct ep_net_comm *a, struct ep_net_comm *b)
{
	struct ep_net_comm *ends[2] = { b, a };

	for (int i = 0; i < 2; i++) {
		struct ep_net_comm *to = ends[!i];
		uint32_t qpn[EP_NET_MAX_QPS];
		struct ep_net_remote remote[EP_NET_NIC_PORTS];
		struct ep_net_peer peer = { .nremotes = to->nlocals,
					    .remote = remote,
					    .shared = (uintptr_t)to->shared,
					    .nqps = to->nqps,
					    .qpn = qpn,
					    .lost = i ? ep_net_paths_lost(to) : 0 };

		for (uint32_t k = 0; k < to->nlocals; k++) {
			remote[k] = (struct ep_net_remote){ .end = to->local[k].end,
							    .ece = to->local[k].ece,
							    .rkey = to->local[k].shared_mr->rkey };
		}
		for (uint32_t k = 0; k < to->nqps; k++) {
			qpn[k] = to->qp[k].qp->qp_num;
		}
		CHECK_INT(ep_net_comm_connect(ends[i], &peer), ncclSuccess);
	}
}

void pair_of_paths(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t paths, uint32_t nqps,
		   int tc, struct ep_net_comm *pair[2])
{
	struct ep_net_class class = { tc, tc };

	NEED(ep_net_comm_new(from, true, paths, nqps, &class, &pair[0]) == ncclSuccess);
	class = (struct ep_net_class){ pair[0]->local[0].tc, pair[0]->local[0].sl };
	NEED(ep_net_comm_new(to, false, paths, nqps, &class, &pair[1]) == ncclSuccess);
	connect_both(pair[0], pair[1]);
	for (int i = 0; i < 2; i++) {
		CHECK(ep_net_handle_new(i ? EP_NET_RECV : EP_NET_SEND, pair[i], &pair[i]->handle) ==
		      ncclSuccess);
		NEED(pair[i]->handle);
	}
}

void pair_make(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t nqps, int tc,
	       struct ep_net_comm *pair[2])
{
	pair_of_paths(from, to, 1, nqps, tc, pair);
}

void pair_free(struct ep_net_comm *pair[2])
{
	for (int i = 0; i < 2; i++) {
		CHECK(ep_net_handle_drop(i ? EP_NET_RECV : EP_NET_SEND, pair[i]->handle) ==
		      pair[i]);
		ep_net_comm_free(pair[i]);
	}
}

void pair_end(struct ep_net_comm *pair[2], struct ep_net_nic *from, struct ep_net_nic *to)
{
	pair_free(pair);
	ends_nic_drop(from);
	ends_nic_drop(to);
}
