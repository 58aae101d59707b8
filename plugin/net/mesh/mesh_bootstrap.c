/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a mesh find each other. Each rank listens, and has the handles of all. It dials the
 * ranks below its own and sends which rank it is, and those above do the same to it. Then all exchange what
 * their ports are.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/abi/abi.h"
#include "net/base/base.h"
#include "net/link/link.h"
#include "net/mesh/mesh_bootstrap.h"

#define EP_NET_MESH_MAGIC 0x7465672d6d657368ull
#define EP_NET_MAX_JOINING 8 /* connections with the nonce, whose rank has not come yet */

struct ep_net_bootstrap {
	const struct ep_net_nic *nic;
	enum ep_net_use use;
	int tc;
	struct ep_net_acceptor acceptor;
};

_Static_assert(sizeof(struct ep_net_place) <= EP_NET_HANDLE_BYTES, "NCCL's handle");

struct ep_net_mesh_handshake {
	struct ep_net_head head;
	uint32_t rank, nranks;
};

struct ep_net_joining {
	struct ep_net_accepted accepted; /* fd -1: none */
	size_t at;
	struct ep_net_mesh_handshake handshake;
};

/* A mesh in the making. */
struct ep_net_making {
	struct ep_net_mesh *mesh;
	struct ep_net_acceptor *acceptor;
	const struct ep_net_place **place; /* of each rank */
	struct ep_net_joining joining[EP_NET_MAX_JOINING];
	uint64_t until;
	uint32_t missing;
};

/* ---- listening ---- */

ncclResult_t ep_net_bootstrap_open(int dev, int tc, enum ep_net_use use, void *handle,
				   void **listen_comm)
{
	struct ep_net_place place = { .number = use };
	struct ep_net_bootstrap *m = calloc(1, sizeof(*m));
	ncclResult_t result;

	if (!m) {
		return ep_fail(ncclSystemError, "out of host memory for a listener");
	}
	m->use = use;
	m->tc = tc;
	EP_CHECK_GOTO(ep_net_nic_get(dev, &m->nic), err_free);
	EP_CHECK_GOTO(ep_net_acceptor_open(&m->acceptor, EP_NET_MESH_MAGIC, &place), err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_BOOTSTRAP, m, listen_comm), err_close);
	memset(handle, 0, EP_NET_HANDLE_BYTES);
	memcpy(handle, &place, sizeof(place));
	return ncclSuccess;

err_close:
	ep_net_acceptor_close(&m->acceptor);
err_free:
	free(m);
	return result;
}

static void ep_net_bootstrap_free(void *object)
{
	struct ep_net_bootstrap *m = object;

	ep_net_acceptor_close(&m->acceptor);
	free(m);
}

ncclResult_t ep_net_bootstrap_close(void *listen_comm)
{
	return ep_net_handle_close(EP_NET_BOOTSTRAP, listen_comm, ep_net_bootstrap_free);
}

/* ---- ports ---- */

/* Whether a rank's values of its ports are possible. Which of them meet is seen when queue pairs are made. */
static ncclResult_t ep_net_ends_check(const struct ep_net_ends *ends, const char *who)
{
	if (ends->n < 1 || ends->n > EP_NET_NIC_PORTS) {
		return ep_fail(ncclRemoteError,
			       "%s claims to have %u ports, possible are 1..%d: do all ranks "
			       "use the same plugin?",
			       who, ends->n, EP_NET_NIC_PORTS);
	}
	for (uint32_t i = 0; i < ends->n; i++) {
		EP_CHECK(ep_net_end_check(&ends->port[i], NULL, 1, who));
	}
	return ncclSuccess;
}

/* ---- dialing ---- */

static ncclResult_t ep_net_dial_rank(const struct ep_net_making *making, uint32_t r)
{
	struct ep_net_mesh *mesh = making->mesh;
	const struct ep_net_mesh_handshake own = { .head = { .magic = EP_NET_MESH_MAGIC,
							     .version = EP_NET_VERSION,
							     .bytes = sizeof(own),
							     .nonce = making->place[r]->nonce },
						   .rank = mesh->rank,
						   .nranks = mesh->nranks };
	struct ep_net_dialing d;
	size_t at = 0;

	ep_net_dialing_begin(&d, &making->place[r]->addr, mesh->who[r], making->until);
	for (;;) {
		EP_CHECK(ep_net_dialing_step(&d, &mesh->fd[r]));
		if (mesh->fd[r] >= 0) {
			break;
		}
		poll(NULL, 0, 1);
	}
	/* A new connection has room for it. */
	return ep_net_put(mesh->fd[r], &own, sizeof(own), &at) == EP_NET_IO_DONE
		       ? ncclSuccess
		       : ep_fail(ncclRemoteError, "%s has gone away while ranks connected",
				 mesh->who[r]);
}

/* ---- ranks that connect ---- */

/* Takes a complete handshake. */
static ncclResult_t ep_net_joining_take(struct ep_net_making *making,
					struct ep_net_joining *joining)
{
	const struct ep_net_mesh_handshake *g = &joining->handshake;
	struct ep_net_mesh *mesh = making->mesh;

	if (g->nranks != mesh->nranks || g->rank >= mesh->nranks || g->rank <= mesh->rank ||
	    mesh->fd[g->rank] >= 0) {
		return ep_fail(ncclRemoteError,
			       "a peer claims to be rank %u of %u, which is none that rank %u "
			       "of %u expects: do all ranks give the same?",
			       g->rank, g->nranks, mesh->rank, mesh->nranks);
	}
	mesh->fd[g->rank] = joining->accepted.fd;
	joining->accepted.fd = -1;
	making->missing--;
	return ncclSuccess;
}

static ncclResult_t ep_net_joining_poll(struct ep_net_making *making)
{
	bool done;

	for (int i = 0; i < EP_NET_MAX_JOINING; i++) {
		struct ep_net_joining *v = &making->joining[i];

		if (v->accepted.fd < 0) {
			EP_CHECK(ep_net_acceptor_poll(making->acceptor, &v->accepted));
			v->handshake.head = v->accepted.head;
			v->at = sizeof(v->handshake.head);
		}
		if (v->accepted.fd >= 0) {
			EP_CHECK(ep_net_message_recv(v->accepted.fd, &v->handshake.head,
						     sizeof(v->handshake), EP_NET_MESH_MAGIC,
						     &v->at, v->accepted.who, &done));
			EP_CHECK(done ? ep_net_joining_take(making, v) : ncclSuccess);
		}
	}
	return ncclSuccess;
}

/* ---- bootstrap ---- */

static ncclResult_t ep_net_making_late(const struct ep_net_making *making)
{
	uint32_t r = 0;

	while (r == making->mesh->rank || making->mesh->fd[r] >= 0) {
		r++;
	}
	return ep_fail(ncclRemoteError,
		       "waited %llu ms at %s for %u of %u ranks, the first is %s: is its process "
		       "stuck? (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
		       (unsigned long long)(ep_net_setup_ns() / 1000000), making->acceptor->where,
		       making->missing, making->mesh->nranks, making->mesh->who[r]);
}

/* Connects to all ranks. */
static ncclResult_t ep_net_make(struct ep_net_making *making)
{
	for (uint32_t r = 0; r < making->mesh->rank; r++) {
		EP_CHECK(ep_net_dial_rank(making, r));
	}
	while (making->missing) {
		uint32_t before = making->missing;

		EP_CHECK(ep_net_joining_poll(making));
		if (making->missing && ep_now_ns() > making->until) {
			return ep_net_making_late(making);
		}
		if (making->missing == before) {
			poll(NULL, 0, 1);
		}
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_making_run(struct ep_net_making *making)
{
	struct ep_net_mesh *mesh = making->mesh;
	const struct ep_net_ends own = mesh->ends[mesh->rank];
	ncclResult_t result;

	for (int i = 0; i < EP_NET_MAX_JOINING; i++) {
		making->joining[i].accepted.fd = -1;
	}
	result = ep_net_make(making);
	ep_net_acceptor_report(making->acceptor, result == ncclSuccess, "a rank");
	for (int i = 0; i < EP_NET_MAX_JOINING; i++) {
		if (making->joining[i].accepted.fd >= 0) {
			close(making->joining[i].accepted.fd);
		}
	}
	EP_CHECK(result);
	EP_CHECK(ep_net_mesh_exchange(mesh, EP_NET_ROUND_PORTS, ncclSuccess, &own, sizeof(own),
				      mesh->ends));
	for (uint32_t r = 0; r < mesh->nranks; r++) {
		EP_CHECK(ep_net_ends_check(&mesh->ends[r], mesh->who[r]));
	}
	return ncclSuccess;
}

ncclResult_t ep_net_bootstrap_run(void *const *handles, int nranks, int rank, enum ep_net_use use,
				  const void *listen_comm, struct ep_net_mesh **mesh)
{
	struct ep_net_making k = { .until = ep_now_ns() + ep_net_setup_ns() };
	struct ep_net_bootstrap *m = ep_net_handle_find(EP_NET_BOOTSTRAP, listen_comm);
	ncclResult_t result = ncclSuccess;
	char addr[EP_NET_ADDR_TEXT], who[EP_NET_WHO];

	if (!m) {
		return ncclInvalidArgument;
	}
	if (m->use != use) {
		return ep_fail(ncclInvalidArgument, "%p listens for another table of calls",
			       listen_comm);
	}
	if (nranks < 1 || (uint32_t)nranks > EP_NET_MESH_RANKS || rank < 0 || rank >= nranks) {
		return ep_fail(ncclInvalidArgument, "rank %d of %d: possible are 1 to %u ranks",
			       rank, nranks, EP_NET_MESH_RANKS);
	}
	for (int r = 0; r < nranks; r++) {
		const struct ep_net_place *place = handles[r];

		snprintf(who, sizeof(who), "rank %d", r);
		EP_CHECK(ep_net_place_check(place, EP_NET_MESH_MAGIC, who));
		if (place->number != use) {
			return ep_fail(ncclInvalidArgument, "the handle of %s is of another table",
				       who);
		}
	}
	k.place = (const struct ep_net_place **)handles;
	if (k.place[rank]->nonce != m->acceptor.nonce) {
		return ep_fail(ncclInvalidArgument, "the handle of rank %d is not its listener's",
			       rank);
	}
	EP_CHECK(ep_net_mesh_new(m->nic, use, (uint32_t)nranks, (uint32_t)rank, &k.mesh));
	k.mesh->tc = m->tc;
	for (int r = 0; r < nranks; r++) {
		snprintf(k.mesh->who[r], EP_NET_WHO, "rank %d (%s)", r,
			 ep_net_addr_print(&k.place[r]->addr, addr));
	}
	k.acceptor = &m->acceptor;
	k.missing = (uint32_t)(nranks - 1 - rank);
	result = ep_net_making_run(&k);
	if (result != ncclSuccess) {
		ep_net_mesh_put(k.mesh);
		return result;
	}
	*mesh = k.mesh;
	return ncclSuccess;
}
