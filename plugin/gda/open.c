/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's NICs and their queues are opened in the best mode that works, closed, and described. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/ident.h"
#include "core/cuda.h"
#include "core/log.h"
#include "core/process.h"
#include "gda/state.h"

/*
 * Writes the UUID of the device as NVML spells it for MIG instances, which share their GPU's
 * address. "": unknown.
 */
static void mig_uuid(int device, char text[48])
{
	struct cudaDeviceProp prop;
	size_t at;

	text[0] = '\0';
	if (cudaGetDeviceProperties(&prop, device) != cudaSuccess) {
		(void)cudaGetLastError();
		return;
	}
	at = (size_t)snprintf(text, 48, "MIG-");
	for (int i = 0; i < 16; i++) {
		at += (size_t)snprintf(text + at, 48 - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				       (unsigned char)prop.uuid.bytes[i]);
	}
}

/*
 * Opens the NICs that ep_nic_choose() names. Returns false on failure: either *result has an error
 * that was recorded, or *why has the reason.
 */
static bool nics_open(struct ep_gda *g, const struct ep_gda_config *c, struct ep_reason *why,
		      ncclResult_t *result)
{
	char uuid[48];
	struct ep_nic_user who = { c->bus_id, uuid, c->device, c->place };
	struct ep_port chosen[EP_GDA_MAX_NICS];
	struct ep_port_list list;
	int n = EP_GDA_MAX_NICS;
	bool ok = ep_port_list_open(&list, why);

	if (ok) {
		mig_uuid(c->device, uuid);
		*result = ep_nic_choose(&who, &list, chosen, &n);
		ok = *result == ncclSuccess;
	}
	for (int i = 0; ok && i < n; i++) {
		struct ep_nic *base = &g->nic[i].base;

		g->nnics = i + 1;
		ok = ep_nic_open(base, &list, &chosen[i], &g->env, why, result);
		base->devx = ok && base->devx && ep_gda_devx_open(&g->nic[i], &base->no_devx);
	}
	ep_port_list_close(&list);
	return ok;
}

#define EP_GDA_STALL_NS 2000000000ull /* without progress, draining ends earlier */
#define EP_GDA_REST_NS 500000000ull   /* for the device, however long draining took */

/* ---- making ---- */

/* Creates a queue. Returns false, with *why, on failure. */
static bool create_one(struct ep_gda_queue *queue, void *arg, struct ep_reason *why)
{
	struct ep_reason inner = { "" };

	return ep_gda_queue_create(queue, &inner) ||
	       ep_reason_set(why, "%s:%d, queue %u with rank %d: %.240s", queue->nic->base.name,
			     queue->nic->base.port, queue->index, queue->peer, inner.text);
}

static void queues_destroy(struct ep_gda *g)
{
	for (uint32_t i = 0; i < g->nqueues; i++) {
		ep_gda_queue_destroy(&g->queue[i]);
	}
}

/*
 * Connects a queue of the NIC with itself, and makes it again. Returns false, with *why, if
 * firmware refuses: another mode can still be chosen then.
 */
static bool try_out(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why)
{
	struct ep_nic_end self = nic->base.end;
	struct ep_gda_queue *q = &g->queue[nic->first];
	bool connected;

	self.psn = g->psn;
	q->remote_qpn = q->qpn;
	q->mtu = self.mtu;
	q->atomics = nic->base.atomics;
	q->ece = nic->ece.options;
	q->ece_agreed = false;
	connected = ep_gda_queue_connect(q, &self, why);
	ep_gda_queue_destroy(q);
	if (!q->ece) { /* the NIC refuses its own extensions: peers are not asked for theirs */
		nic->caps.ece = false;
		nic->ece = (struct ep_ece){ 0 };
	}
	if (!connected) {
		g->trial = *why;
		return false;
	}
	return create_one(q, NULL, why);
}

/*
 * Makes memory and queues in a mode, and tries each NIC out. Returns false, with *why, on failure.
 */
static bool set_up(struct ep_gda *g, enum ep_gda_mode mode, struct ep_reason *why)
{
	g->mode = mode;
	for (int n = 0; n < g->nnics; n++) {
		memset(&g->nic[n].ece, 0, sizeof(g->nic[n].ece));
		if (!ep_gda_queue_memory_open(g, &g->nic[n], why)) {
			goto err_refuse;
		}
	}
	if (!ep_gda_each(g, create_one, NULL, why)) {
		goto err_refuse;
	}
	for (int n = 0; n < g->nnics && mode != EP_GDA_CPU_PROXY; n++) {
		if (!g->nic[n].queues) {
			continue;
		}
		if (!ep_gda_address_hold(&g->nic[n], why)) {
			g->trial = *why;
			goto err_refuse;
		}
		if (!try_out(g, &g->nic[n], why)) {
			goto err_refuse;
		}
	}
	return true;

err_refuse:
	queues_destroy(g);
	for (int n = 0; n < g->nnics; n++) {
		ep_gda_queue_memory_refuse(&g->nic[n]);
	}
	return false;
}

/* Makes the queues in the best mode that works, or in the one that was asked for. */
static ncclResult_t choose_mode(struct ep_gda *g, enum ep_gda_mode wanted)
{
	enum ep_gda_mode mode = wanted == EP_GDA_AUTO ? EP_GDA_GPU : wanted;
	struct ep_reason why = { "" };

	for (;; mode++) {
		if (set_up(g, mode, &why)) {
			if (mode == EP_GDA_CPU_PROXY && g->trial.text[0]) {
				EP_WARN("a CPU thread posts to NICs in place of GPUs, which is slower: "
					"DevX works, but a trial connection fails: %s",
					g->trial.text);
			}
			return ncclSuccess;
		}
		if (wanted != EP_GDA_AUTO) {
			return ep_fail(ncclSystemError, "RDMA mode %s is not possible: %s",
				       ep_gda_mode_name(wanted), why.text);
		}
		EP_INFO(EP_LOG_NET, "RDMA mode %s is not possible: %s", ep_gda_mode_name(mode),
			why.text);
		if (mode == EP_GDA_GPU) {
			g->instead = why;
		}
		if (mode == EP_GDA_CPU_PROXY) {
			return ep_fail(ncclSystemError,
				       "no RDMA mode is possible; %s: %.200s; %s: %.200s",
				       ep_gda_mode_name(EP_GDA_GPU), g->instead.text,
				       ep_gda_mode_name(mode), why.text);
		}
	}
}

static ncclResult_t config_check(const struct ep_gda_config *c)
{
	if (c->queues < 1 || c->queues > EP_GDA_MAX_QUEUES) {
		return ep_fail(ncclInvalidArgument, "RDMA: %u queues per peer, possible are 1..%d",
			       c->queues, EP_GDA_MAX_QUEUES);
	}
	if (c->depth < EP_MLX5_MIN_DEPTH || c->depth > EP_MLX5_MAX_DEPTH ||
	    c->depth & (c->depth - 1)) {
		return ep_fail(ncclInvalidArgument,
			       "RDMA: send queues of %u entries, possible are powers of two from "
			       "%d to %d",
			       c->depth, EP_MLX5_MIN_DEPTH, EP_MLX5_MAX_DEPTH);
	}
	if ((unsigned int)c->mode >= EP_GDA_MODES) {
		return ep_fail(ncclInvalidArgument, "RDMA: mode %d is unknown", (int)c->mode);
	}
	return ncclSuccess;
}

static void gda_free(struct ep_gda *g)
{
	pthread_mutex_destroy(&g->ask);
	pthread_mutex_destroy(&g->lock);
	free(g->vague);
	free(g->known);
	free(g->failure);
	free(g->queue);
	free(g->host);
	free(g->remote);
	free(g);
}

static struct ep_gda *new (const struct ep_boot *boot, const struct ep_gda_config *c)
{
	struct ep_gda *g = calloc(1, sizeof(*g));
	size_t n = (size_t)boot->nranks;

	if (!g) {
		return NULL;
	}
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->ask, NULL);
	g->stop_fd = -1;
	g->rank = boot->rank;
	g->nranks = boot->nranks;
	g->device = c->device;
	g->context = ep_context_now();
	g->queues = c->queues;
	g->depth = c->depth;
	g->timeout_ns = c->timeout_ns;
	g->psn = (uint32_t)ep_random_u64() & 0xffffff;
	g->remote = calloc(n, sizeof(*g->remote));
	g->host = calloc(n, sizeof(*g->host));
	g->queue = calloc(n * c->queues, sizeof(*g->queue));
	g->failure = calloc(EP_GDA_FAILURES(boot->nranks), sizeof(*g->failure));
	g->known = calloc(n, sizeof(*g->known));
	g->vague = calloc(n, sizeof(*g->vague));
	if (!g->remote || !g->host || !g->queue || !g->failure || !g->known || !g->vague) {
		gda_free(g);
		return NULL;
	}
	for (size_t r = 0; r < n; r++) {
		g->remote[r] = c->remote[r] && (int)r != boot->rank;
		g->node += !g->remote[r];
		snprintf(g->host[r], sizeof(g->host[r]), "%s",
			 c->host && c->host[r] ? c->host[r] : "?");
	}
	return g;
}

/*
 * Gives the queues of a NIC to their peers in order, and returns how many it has. Queue i of a peer
 * is on NIC i modulo the number of NICs.
 */
static uint32_t label(struct ep_gda *g, const struct ep_gda_nic *nic)
{
	struct ep_gda_queue *q = g->queue + nic->first;

	for (int p = 0; p < g->nranks; p++) {
		for (uint32_t i = (uint32_t)ep_gda_nic_index(g, nic); g->remote[p] && i < g->queues;
		     i += (uint32_t)g->nnics) {
			q->peer = p;
			q++->index = i;
		}
	}
	return (uint32_t)(q - g->queue) - nic->first;
}

/* Gives each NIC its queues in g->queue, NIC after NIC. */
static void lay_out(struct ep_gda *g)
{
	for (int n = 0; n < g->nnics; n++) {
		struct ep_gda_nic *nic = &g->nic[n];

		nic->first = g->nqueues;
		nic->queues = label(g, nic);
		g->nqueues += nic->queues;
		for (uint32_t i = 0; i < nic->queues; i++) {
			struct ep_gda_queue *q = &g->queue[nic->first + i];

			q->gda = g;
			q->nic = nic;
			q->slot = i;
		}
	}
}

/*
 * Returns the error, and names a lack of descriptors if there is one: libraries report that as a
 * lack of memory.
 */
static ncclResult_t fail(const char *what, const struct ep_reason *why)
{
	const char *files = ep_no_files();

	return ep_fail(ncclSystemError, "%s: %s%s%s", what, why->text, files ? "; " : "",
		       files ? files : "");
}

/*
 * Does this rank's own part: opens NICs, makes memory and queue pairs, and connects none of them.
 */
static ncclResult_t prepare(struct ep_gda *g, const struct ep_gda_config *c)
{
	struct ep_reason why = { "" };
	ncclResult_t result = ncclSuccess;

	EP_CHECK(ep_ib_env_read(&g->env));
	if (g->env.disable) {
		return ep_fail(ncclInvalidUsage,
			       "there are ranks on other nodes and NCCL_IB_DISABLE "
			       "forbids RDMA: unset it");
	}
	if (!ep_gda_ordering_check(g, &why)) {
		return fail("no RDMA", &why);
	}
	if (!nics_open(g, c, &why, &result)) {
		return result != ncclSuccess ? result : fail("no RDMA", &why);
	}
	lay_out(g);
	if (!ep_gda_pinned_open(g, &why)) {
		return fail("RDMA", &why);
	}
	return choose_mode(g, c->mode);
}

/* Returns whether a rank of another node is to be reached. */
static bool any(const struct ep_boot *boot, const bool *remote)
{
	for (int r = 0; r < boot->nranks; r++) {
		if (remote[r] && r != boot->rank) {
			return true;
		}
	}
	return false;
}

ncclResult_t ep_gda_open(struct ep_gda **out, struct ep_boot *boot,
			 const struct ep_gda_config *config, ncclResult_t mine)
{
	struct ep_reason why = { "" };
	struct ep_gda *g = NULL;
	ncclResult_t result;
	char text[512];

	*out = NULL;
	if (mine == ncclSuccess) {
		mine = config_check(config);
	}
	if (mine == ncclSuccess && any(boot, config->remote)) {
		g = new (boot, config);
		mine = g ? prepare(g, config)
			 : ep_fail(ncclSystemError, "RDMA: out of host memory");
	}
	EP_CHECK_GOTO(ep_gda_connect(g, boot, config->queues, &mine), err_close);
	if (g && mine == ncclSuccess &&
	    (!ep_gda_publish(g, &why) || !ep_gda_proxy_start(g, &why) ||
	     !ep_gda_watch_start(g, &why))) {
		mine = fail("RDMA", &why);
	}
	EP_CHECK_GOTO(ep_boot_agree(boot, mine, "connecting queue pairs"), err_close);
	if (g) {
		ep_gda_describe(g, text, sizeof(text));
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s", text);
	}
	*out = g;
	return ncclSuccess;

err_close:
	if (boot->stuck) {
		*out = g;
	} else {
		ep_gda_close(g);
	}
	return result;
}

/* ---- ending ---- */

/*
 * Returns whether all work of the queue is over, as far as the host can see. Otherwise *moved grows
 * by the work that has completed, modulo 2^16.
 */
static bool drained(struct ep_gda_queue *queue, const struct ep_mlx5_qp *state, uint64_t *moved)
{
	struct ep_mlx5_cqe cqe;
	uint16_t done;

	if (!state->rung || state->error || state->unsignaled ||
	    __atomic_load_n(&queue->failed, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&queue->gda->down[queue->peer], __ATOMIC_RELAXED)) {
		return true;
	}
	if (!ep_gda_cqe_read(queue, &cqe)) {
		return false; /* the copy is late; if it always is, no progress is seen */
	}
	if (cqe.op_own >> 4 != EP_MLX5_CQE_REQ) {
		return cqe.op_own >> 4 != EP_MLX5_CQE_INVALID;
	}
	done = ep_gda_cqe_index(&cqe);
	*moved += done;
	return done == (uint16_t)(state->rung - 1);
}

/*
 * Waits for work that kernels have posted without waiting, because peers may wait for it. It ends
 * when no queue makes progress, as some peers may no longer answer.
 */
static void drain(struct ep_gda *g)
{
	size_t bytes = ep_gda_table_bytes(g);
	uint64_t start = ep_now_ns(), moved = start;
	uint64_t done = 0, before = ~0ull;
	uint32_t left = 0;

	if (cudaMemcpyAsync(g->shadow, g->qps, bytes, cudaMemcpyDeviceToHost, g->stream) !=
		    cudaSuccess ||
	    !ep_gda_synchronize(g, g->timeout_ns)) {
		(void)cudaGetLastError();
		return;
	}
	for (;;) {
		struct timespec nap = { 0, 200000 };
		uint64_t now = ep_now_ns();

		left = 0;
		done = 0;
		for (uint32_t i = 0; i < g->nqueues; i++) {
			if (ep_now_ns() - moved > EP_GDA_STALL_NS) {
				left += g->nqueues - i;
				break;
			}
			left += !drained(&g->queue[i], g->queue[i].shadow, &done);
		}
		if (done != before) {
			moved = now;
			before = done;
		}
		if (!left || now - start > g->timeout_ns || now - moved > EP_GDA_STALL_NS) {
			break;
		}
		nanosleep(&nap, NULL);
	}
	if (left) {
		EP_INFO(EP_LOG_NET, "RDMA: %u of %u queues end with work under way", left,
			g->nqueues);
	}
}

/*
 * Waits until the device is at rest. If it stays busy, the memory of queues is kept: freeing it
 * would wait for all that runs on the device. Where no thread can be started that waits, freeing
 * itself waits.
 */
static void rest(struct ep_gda *g, uint64_t start)
{
	uint64_t spent = ep_now_ns() - start, left = EP_GDA_REST_NS;
	cudaError_t state;

	if (spent < g->timeout_ns) {
		left = ep_max_u64(g->timeout_ns - spent, EP_GDA_REST_NS);
	}
	if (ep_device_wait(g->device, left, &state) == ETIMEDOUT) {
		EP_WARN("RDMA: GPU %d has been busy for %llu ms with work that is not this "
			"library's: the memory of %u queues stays allocated; see which kernel does not end",
			g->device, (unsigned long long)(left / 1000000), g->nqueues);
		g->keep_cuda = true;
	}
}

void ep_gda_close(struct ep_gda *gda)
{
	uint64_t start = ep_now_ns();

	if (!gda) {
		return;
	}
	ep_gda_watch_stop(gda);
	gda->ended = ep_context_ended(&gda->context);
	gda->keep_cuda |= gda->ended;
	if (!gda->keep_cuda && gda->qps && gda->nqueues && gda->queue[0].shadow) {
		drain(gda);
	}
	ep_gda_proxy_stop(gda);
	for (uint32_t i = 0; i < gda->nqueues; i++) {
		ep_gda_queue_halt(&gda->queue[i]);
	}
	if (!gda->keep_cuda) {
		rest(gda, start);
	}
	queues_destroy(gda);
	for (int n = 0; n < gda->nnics; n++) {
		ep_gda_queue_memory_close(gda, &gda->nic[n]);
	}
	ep_gda_unbind(gda);
	ep_gda_user_mrs_free(gda);
	ep_gda_pinned_close(gda);
	for (int i = gda->nnics - 1; i >= 0; i--) {
		ep_gda_address_release(&gda->nic[i]);
		ep_nic_close(&gda->nic[i].base, gda->nic[i].keep);
	}
	gda_free(gda);
}

/* ---- looking at them ---- */

struct ep_mlx5_qp *ep_gda_queues(const struct ep_gda *gda)
{
	return gda->qps;
}

const uint32_t *ep_gda_down(const struct ep_gda *gda)
{
	size_t at = (size_t)((unsigned char *)gda->down - gda->pinned.host);

	return (const uint32_t *)(gda->pinned.dev + at);
}

void ep_gda_describe(const struct ep_gda *gda, char *text, size_t size)
{
	static const char *const modes[EP_GDA_MODES] = {
		[EP_GDA_GPU] = "the GPU rings, queues in GPU memory",
		[EP_GDA_GPU_HOST] = "the GPU rings, queues in host memory",
		[EP_GDA_CPU_DB] = "the CPU rings, queues in host memory",
		[EP_GDA_CPU_PROXY] = "the CPU posts",
	};
	static const char *const tiers[] = { "in order", "out of order, atomics in order",
					     "out of order" };
	const char *order = gda->nqueues ? tiers[gda->queue[0].tier] : "";
	size_t n;

	if (gda->mode == EP_GDA_CPU_PROXY) {
		order = "in unknown order";
	}

	n = (size_t)snprintf(text, size, "RDMA: %s (%s), %u queues of %u entries, data placed %s",
			     modes[gda->mode], ep_gda_mode_name(gda->mode), gda->nqueues,
			     gda->depth, order);
	for (int i = 0; i < gda->nnics && n < size; i++) {
		const struct ep_gda_nic *nic = &gda->nic[i];
		uint32_t both = nic->queues ? gda->queue[nic->first].ece : 0;
		char gid[EP_GID_TEXT], bond[96], ece[24] = "";

		if (both) {
			snprintf(ece, sizeof(ece), " ECE 0x%x", both);
		}
		ep_gda_lag_describe(gda, nic, bond, sizeof(bond));
		n += (size_t)snprintf(
			text + n, size - n, "%s %s:%d %s %s MTU %u%s%s", i ? "," : ", on",
			nic->base.name, nic->base.port,
			nic->base.end.link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "IB",
			ep_gid_print(nic->base.end.gid, gid), 128u << nic->base.end.mtu, bond, ece);
	}
	if (gda->instead.text[0] && n < size) {
		snprintf(text + n, size - n, "; not gpu because %s", gda->instead.text);
	}
}
