/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "core/param.h"
#include "net/base/plugin.h"
#include "net/coll/coll.h"
#include "net/mesh/mesh_bootstrap.h"
#include "net/p2p/p2p.h"

static bool ep_net_coll_wanted(void)
{
	return ep_param_or_initial(EP_PARAM_COLLNET) != 0;
}

ncclResult_t ep_net_coll_init(ep_net_log_fn *log, void **ctx)
{
	if (!ep_net_coll_wanted()) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET,
			"not used for collectives, there is no hardware in the network for them "
			"(NCCL_EP_COLLNET=1: all-gather by direct writes)");
		return ncclSystemError;
	}
	return ctx ? ep_net_context_new(log, -1, ctx) : ep_net_init(log);
}

ncclResult_t ep_net_coll_count(int *ndevs)
{
	*ndevs = ep_net_coll_wanted() ? ep_net_nic_count(EP_NET_TABLE_COLL) : 0;
	return ncclSuccess;
}

ncclResult_t ep_net_coll_listen(int dev, int tc, void *handle, void **listen_comm)
{
	*listen_comm = NULL;
	return ep_net_bootstrap_open(dev, tc, EP_NET_FOR_COLL, handle, listen_comm);
}

ncclResult_t ep_net_coll_get(const void *handle, struct ep_net_coll **coll)
{
	*coll = ep_net_handle_find(EP_NET_COLL, handle);
	return *coll ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ep_net_coll_note(struct ep_net_coll *c, ncclResult_t result)
{
	if (result != ncclSuccess) {
		ep_error_get(NULL, &c->failed);
		ep_net_mesh_lose(c->mesh, c->failed.text);
	}
	return result;
}

/* ---- making ---- */

static ncclResult_t ep_net_coll_memory(struct ep_net_coll *c)
{
	size_t n = c->mesh->nranks;
	uint32_t use = ep_net_use_first();

	c->send = calloc(n, sizeof(*c->send));
	c->recv = calloc(n, sizeof(*c->recv));
	c->turn = calloc(n, sizeof(*c->turn));
	c->share = calloc(n * EP_NET_GATHERS, sizeof(*c->share));
	c->flush = calloc(n * EP_NET_FLUSHES, sizeof(*c->flush));
	for (uint32_t i = 0; i < EP_ARRAY_SIZE(c->use); i++) {
		c->use[i] = use;
	}
	return c->send && c->recv && c->turn && c->share && c->flush
		       ? ncclSuccess
		       : ep_fail(ncclSystemError, "out of host memory for collectives of %zu ranks",
				 n);
}

/* Takes steps of the connections that are missing. *missing: how many there are. */
static ncclResult_t ep_net_coll_step(struct ep_net_coll *c, void *listener,
				     struct ep_net_handle *handle, uint32_t *missing)
{
	struct ep_net_mesh *mesh = c->mesh;
	void *recv;

	*missing = 0;
	for (uint32_t r = 0; r < mesh->nranks; r++) {
		if (!c->send[r]) {
			EP_CHECK(ep_net_connect(NULL, mesh->nic->index, mesh->tc, &handle[r],
						&c->send[r]));
		}
		*missing += !c->send[r] + !c->recv[r];
	}
	EP_CHECK(ep_net_accept(listener, &recv));
	if (recv) {
		uint32_t r = ((struct ep_net_comm *)ep_net_handle_get(EP_NET_RECV, recv))->rank;

		if (r >= mesh->nranks || c->recv[r]) {
			ep_net_close_recv(recv);
			return ep_fail(ncclRemoteError,
				       "a peer claims to be rank %u of %u, which is connected "
				       "or is none",
				       r, mesh->nranks);
		}
		c->recv[r] = recv;
		*missing -= 1;
	}
	return ncclSuccess;
}

/* Names the peer in messages. The plugin's thread may print one now. */
static void ep_net_comm_name(struct ep_net_comm *comm, const char *who)
{
	ep_net_enter(comm);
	snprintf(comm->peer, sizeof(comm->peer), "%s", who);
	ep_net_leave(comm);
}

/* Connects to all ranks. handle: of each rank's listener. */
static ncclResult_t ep_net_coll_join(struct ep_net_coll *c, void *listener,
				     struct ep_net_handle *handle)
{
	struct ep_net_mesh *mesh = c->mesh;
	uint32_t missing = 1;

	for (uint32_t r = 0; r < mesh->nranks; r++) {
		handle[r].rank = mesh->rank;
	}
	while (missing) {
		EP_CHECK(ep_net_coll_step(c, listener, handle, &missing));
		if (missing) {
			EP_CHECK(ep_net_mesh_check(mesh));
			poll(NULL, 0, 1);
		}
	}
	for (uint32_t r = 0; r < mesh->nranks; r++) {
		ep_net_comm_name(ep_net_handle_get(EP_NET_SEND, c->send[r]), mesh->who[r]);
		ep_net_comm_name(ep_net_handle_get(EP_NET_RECV, c->recv[r]), mesh->who[r]);
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_coll_make(struct ep_net_coll *c)
{
	uint8_t own[EP_NET_HANDLE_BYTES] = { 0 };
	uint8_t *all = calloc(c->mesh->nranks, sizeof(own));
	struct ep_net_handle *handle = calloc(c->mesh->nranks, sizeof(*handle));
	void *listener = NULL;
	ncclResult_t result = ep_net_coll_memory(c);

	if (result == ncclSuccess && (!all || !handle)) {
		result = ep_fail(ncclSystemError, "out of host memory for %u ranks",
				 c->mesh->nranks);
	}
	if (result == ncclSuccess) {
		result = ep_net_listen(c->mesh->nic->index, own, &listener);
	}
	if (all) {
		result = ep_net_mesh_exchange(c->mesh, EP_NET_ROUND_QUEUES, result, own,
					      sizeof(own), all);
	}
	if (result == ncclSuccess) {
		for (uint32_t r = 0; r < c->mesh->nranks; r++) {
			memcpy(&handle[r], all + r * sizeof(own), sizeof(*handle));
		}
		result = ep_net_coll_join(c, listener, handle);
		ep_net_coll_note(c, result);
	}
	if (result == ncclSuccess) {
		result = ep_net_mesh_exchange(c->mesh, EP_NET_ROUND_READY, result, NULL, 0, NULL);
	}
	if (listener) {
		ep_net_close_listen(listener);
	}
	free(handle);
	free(all);
	return result;
}

static void ep_net_coll_free(void *object)
{
	struct ep_net_coll *c = object;

	for (uint32_t r = 0; c->mesh && r < c->mesh->nranks; r++) {
		if (c->send) {
			ep_net_close_send(c->send[r]);
		}
		if (c->recv) {
			ep_net_close_recv(c->recv[r]);
		}
	}
	ep_net_mesh_put(c->mesh);
	free(c->send);
	free(c->recv);
	free(c->turn);
	free(c->share);
	free(c->flush);
	free(c);
}

ncclResult_t ep_net_coll_connect(void *handles[], int nranks, int rank, void *listen_comm,
				 void **coll)
{
	struct ep_net_coll *c = calloc(1, sizeof(*c));
	ncclResult_t result;

	*coll = NULL;
	if (!c) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	EP_CHECK_GOTO(ep_net_bootstrap_run(handles, nranks, rank, EP_NET_FOR_COLL, listen_comm,
					   &c->mesh),
		      err_free);
	EP_CHECK_GOTO(ep_net_coll_make(c), err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_COLL, c, &c->handle), err_free);
	*coll = c->handle;
	EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s: all-gather between %d ranks, this is rank %d",
		c->mesh->nic->label, nranks, rank);
	return ncclSuccess;

err_free:
	ep_net_coll_free(c);
	return result;
}

ncclResult_t ep_net_coll_close(void *coll)
{
	return ep_net_handle_close(EP_NET_COLL, coll, ep_net_coll_free);
}

ncclResult_t ep_net_coll_reg(void *coll, const struct ep_net_memory *memory, void **mr)
{
	struct ep_net_coll *c;

	*mr = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	return ep_net_memory_reg(c->mesh->nic, memory, mr);
}
