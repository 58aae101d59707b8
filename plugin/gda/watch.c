/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures of queues, as the host notices them and finds their causes; and the thread that watches.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "core/cuda.h"
#include "core/log.h"
#include "device/mlx5/wqe.h"
#include "gda/prm.h"
#include "gda/state.h"

#define EP_GDA_READ_NS 50000000ull /* limit for a copy from the GPU */
#define EP_GDA_PATIENCE 6u /* logarithm of the longest time between two questions, in rounds */

/*
 * ---- failures of connections ----
 *
 * The first failure of a peer counts. Later ones, of flushed work and stopped queues, follow from
 * it. They are left out unless the first had no cause.
 */

#define EP_GDA_SUSPECT_NS 100000000ull /* time for others to find out why a queue pair failed */

/* Adds a failure. Returns its number + 1, or 0 without room. `lock` is held. */
static uint32_t failure_add(struct ep_gda *g, int peer, const char *text)
{
	struct ep_gda_failure *f;

	if (g->nfailures == EP_GDA_FAILURES(g->nranks)) {
		return 0;
	}
	f = &g->failure[g->nfailures++];
	f->peer = peer;
	snprintf(f->text, sizeof(f->text), "%s", text);
	return g->nfailures;
}

/* Gives a failure that is known without its cause the text with the cause. `lock` is held. */
static void failure_explain(struct ep_gda *g, int peer, const char *text)
{
	struct ep_gda_failure *known = &g->failure[g->known[peer] - 1];

	snprintf(known->text, sizeof(known->text), "%s", text);
	g->vague[peer] = false;
}

static void take_down(struct ep_gda *g, int peer)
{
	__atomic_store_n(&g->down[peer], 1, __ATOMIC_RELEASE);
}

/* Returns whether a failure is known without its cause. */
static bool cause_vague(const struct ep_gda_cause *c)
{
	return c->status == EP_MLX5_ERR_CQE && !c->note &&
	       (!c->syndrome || c->syndrome == EP_MLX5_SYND_FLUSHED);
}

/* Reports that the NIC's port is down, if it is: that is why a queue of the NIC has failed. */
static void blame_port(struct ep_gda_nic *nic, struct ep_gda *g)
{
	if (__atomic_exchange_n(&nic->port_down, 0, __ATOMIC_RELAXED)) {
		ep_gda_fail_port(nic, g, "the port went down: see the cable and the switch");
	}
}

void ep_gda_fail_queue(struct ep_gda_queue *queue, const struct ep_gda_cause *cause)
{
	struct ep_gda_cause all = *cause;
	struct ep_gda_failure f;
	struct ep_gda *g = queue->gda;
	bool vague, news;

	blame_port(queue->nic, g);
	if (!all.note) {
		all.note = __atomic_load_n(&queue->note, __ATOMIC_RELAXED);
	}
	vague = cause_vague(&all);
	ep_gda_cause_text(queue, &all, f.text, sizeof(f.text));
	pthread_mutex_lock(&g->lock);
	news = !queue->failed || (queue->vague && !vague);
	if (news) {
		__atomic_store_n(&queue->vague, vague, __ATOMIC_RELAXED);
		__atomic_store_n(&queue->failed, 1, __ATOMIC_RELAXED);
		queue->syndrome = all.syndrome;
		take_down(g, queue->peer);
	}
	if (news && !g->known[queue->peer]) {
		g->known[queue->peer] = failure_add(g, queue->peer, f.text);
		g->vague[queue->peer] = vague && g->known[queue->peer];
	} else if (news && g->vague[queue->peer] && !vague) {
		failure_explain(g, queue->peer, f.text);
	}
	pthread_mutex_unlock(&g->lock);
	if (news) {
		EP_INFO(EP_LOG_NET, "%s", f.text);
	}
}

void ep_gda_fail_port(struct ep_gda_nic *nic, struct ep_gda *g, const char *what)
{
	struct ep_gda_failure f;
	uint32_t peers = 0, entry;

	snprintf(f.text, sizeof(f.text), "RDMA on %s:%d failed: %s", nic->base.name, nic->base.port,
		 what);
	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; i < g->nqueues; i++) {
		peers += g->queue[i].nic == nic && !g->known[g->queue[i].peer];
	}
	entry = peers ? failure_add(g, -1, f.text) : 0;
	for (uint32_t i = 0; i < g->nqueues; i++) {
		if (g->queue[i].nic == nic) {
			int peer = g->queue[i].peer;

			take_down(g, peer);
			if (!g->known[peer]) {
				g->known[peer] = entry;
			} else if (g->vague[peer]) {
				failure_explain(g, peer, f.text);
			}
		}
	}
	pthread_mutex_unlock(&g->lock);
	EP_INFO(EP_LOG_NET, "%s", f.text);
}

/*
 * Returns a queue of the next peer that does not answer and whose address was not checked yet, or
 * NULL.
 */
static struct ep_gda_queue *silent(struct ep_gda *g)
{
	struct ep_gda_queue *found = NULL;

	pthread_mutex_lock(&g->lock);
	for (uint32_t i = 0; i < g->nqueues; i++) {
		struct ep_gda_queue *q = &g->queue[i];

		if (!found && q->syndrome == EP_MLX5_SYND_RETRY_EXCEEDED && !q->address_checked) {
			found = q;
			i = -1u; /* all queues with that peer, from the first */
		} else if (found && q->peer == found->peer) {
			q->address_checked = true;
		}
	}
	pthread_mutex_unlock(&g->lock);
	return found;
}

/*
 * Checks once for each peer that does not answer whether it has another hardware address by now,
 * and adds that to the text of the failure. May wait for the kernel, which asks the network.
 */
static void address_find_moved(struct ep_gda *g)
{
	struct ep_gda_queue *q = silent(g);
	char more[192];

	if (!q || !ep_gda_address_moved(q, more, sizeof(more))) {
		return;
	}
	EP_WARN("RDMA with rank %d (%s): %s", q->peer, g->host[q->peer], more);
	pthread_mutex_lock(&g->lock);
	if (g->known[q->peer]) {
		struct ep_gda_failure *known = &g->failure[g->known[q->peer] - 1];
		size_t at = strlen(known->text);

		snprintf(known->text + at, sizeof(known->text) - at, "; %s", more);
	}
	pthread_mutex_unlock(&g->lock);
}

/* ---- finding out ---- */

bool ep_gda_cqe_read(struct ep_gda_queue *queue, struct ep_mlx5_cqe *cqe)
{
	struct ep_gda *g = queue->gda;
	cudaError_t error;

	if (queue->cqe) {
		uint32_t word = __atomic_load_n(
			(uint32_t *)((unsigned char *)queue->cqe + EP_MLX5_CQE_DONE_AT),
			__ATOMIC_ACQUIRE);

		memcpy(cqe, queue->cqe, EP_MLX5_CQE_DONE_AT);
		memcpy((unsigned char *)cqe + EP_MLX5_CQE_DONE_AT, &word, sizeof(word));
		return true;
	}
	if (ep_context_ended(&g->context)) {
		return false;
	}
	error = cudaMemcpyAsync(g->scratch, queue->shadow->cqe, sizeof(*cqe),
				cudaMemcpyDeviceToHost, g->stream);
	if (error != cudaSuccess) {
		(void)cudaGetLastError();
		return false;
	}
	if (!ep_gda_synchronize(g, EP_GDA_READ_NS)) {
		return false;
	}
	memcpy(cqe, g->scratch, sizeof(*cqe));
	return true;
}

/* Writes the error of a completion to *cause. Returns false if it is no error. */
static bool cqe_cause(const struct ep_mlx5_cqe *cqe, struct ep_gda_cause *cause)
{
	uint32_t opcode = cqe->op_own >> 4;

	if (opcode != EP_MLX5_CQE_REQ_ERR && opcode != EP_MLX5_CQE_RESP_ERR) {
		return false;
	}
	cause->status = EP_MLX5_ERR_CQE;
	cause->syndrome = cqe->u.error.syndrome;
	cause->vendor = cqe->u.error.vendor_syndrome;
	cause->index_known = opcode == EP_MLX5_CQE_REQ_ERR;
	cause->index = ep_gda_cqe_index(cqe);
	return true;
}

/* Writes the error that a kernel has recorded to *cause. Returns false if there is none. */
static bool record_cause(const struct ep_gda_queue *queue, struct ep_gda_cause *cause)
{
	const struct ep_mlx5_error *r = queue->record;

	if (!__atomic_load_n(&r->valid, __ATOMIC_ACQUIRE) || r->status == EP_MLX5_ERR_STOPPED) {
		return false;
	}
	cause->status = r->status;
	cause->waited_ns = r->waited_ns;
	if (r->status == EP_MLX5_ERR_CQE) {
		cause->syndrome = r->syndrome;
		cause->vendor = r->vendor_syndrome;
		cause->index_known = r->cqe_opcode == EP_MLX5_CQE_REQ_ERR;
		cause->index = r->wqe_counter;
	}
	return true;
}

/*
 * Asks the NIC for the first cause, where flushed work has overwritten the completion that had it.
 */
static void cause_refine(struct ep_gda_queue *queue, struct ep_gda_cause *cause)
{
	struct ep_gda_cause nic = { 0 };
	uint32_t state;

	if (cause->syndrome != EP_MLX5_SYND_FLUSHED) {
		return;
	}
	cause->index_known = false;
	if (ep_gda_queue_query(queue, &state, &nic) && nic.syndrome && !nic.overwritten) {
		cause->syndrome = nic.syndrome;
		cause->vendor = nic.vendor;
	} else {
		cause->overwritten = true;
	}
}

/*
 * Asks the NIC whether the queue pair has failed, and writes its cause. Returns whether to report
 * it now. A failure without a cause waits for a moment: the proxy's thread or a kernel may be about
 * to report the completion.
 */
static bool nic_cause(struct ep_gda_queue *queue, int flags, struct ep_gda_cause *cause)
{
	struct ep_gda_cause nic = { 0 };
	uint64_t now = ep_now_ns();
	uint32_t state;

	if (!ep_gda_queue_query(queue, &state, &nic) ||
	    (state != EP_PRM_QP_ERR && state != EP_PRM_QP_SQER)) {
		queue->suspect = 0;
		return false;
	}
	nic.status = EP_MLX5_ERR_CQE;
	*cause = nic;
	if (!queue->suspect) {
		queue->suspect = now;
	}
	return !cause_vague(&nic) || (flags & EP_GDA_INSPECT_GPU && !queue->verbs) ||
	       now - queue->suspect >= EP_GDA_SUSPECT_NS;
}

bool ep_gda_inspect(struct ep_gda_queue *queue, int flags)
{
	bool failed = __atomic_load_n(&queue->failed, __ATOMIC_RELAXED), bad = false;
	struct ep_gda_cause cause = { 0 };
	struct ep_mlx5_cqe cqe;

	if (failed &&
	    (!__atomic_load_n(&queue->vague, __ATOMIC_RELAXED) || !(flags & EP_GDA_INSPECT_NIC))) {
		return true;
	}
	if (queue->suspect) {
		flags |= EP_GDA_INSPECT_NIC; /* it has failed without a cause so far */
	}
	if (queue->cqe || flags & EP_GDA_INSPECT_GPU) {
		bad = ep_gda_cqe_read(queue, &cqe) && cqe_cause(&cqe, &cause);
	}
	/* The record is older, perhaps of a completion that was overwritten. */
	bad |= record_cause(queue, &cause);
	if (!bad && flags & EP_GDA_INSPECT_NIC) {
		bad = nic_cause(queue, flags, &cause);
	}
	if (bad) {
		cause_refine(queue, &cause);
		ep_gda_fail_queue(queue, &cause);
	}
	return bad || failed;
}

/* ---- questions about queues whose work is late ---- */

/*
 * Copies the table of queues from the GPU. Returns false if the GPU does not answer or was reset.
 */
static bool table_read(struct ep_gda *g)
{
	if (ep_context_ended(&g->context)) {
		return false;
	}
	if (cudaMemcpyAsync(g->shadow, g->qps, ep_gda_table_bytes(g), cudaMemcpyDeviceToHost,
			    g->stream) != cudaSuccess) {
		(void)cudaGetLastError();
		return false;
	}
	return ep_gda_synchronize(g, EP_GDA_READ_NS);
}

/* Returns the index behind the last WQE that was handed over. */
static uint16_t gda_handed(const struct ep_gda_queue *queue)
{
	if (ep_gda_handover_index(queue->gda->mode)) {
		return (uint16_t)__atomic_load_n(queue->word, __ATOMIC_ACQUIRE);
	}
	return queue->dbr ? (uint16_t)ep_be32(__atomic_load_n(&queue->dbr->send, __ATOMIC_ACQUIRE))
			  : (uint16_t)queue->shadow->rung;
}

/* Returns whether work that was handed over a round ago has not completed, or has failed. */
static bool gda_late(struct ep_gda_queue *queue, int flags)
{
	uint16_t done = 0, left;
	struct ep_mlx5_cqe cqe;

	if (!queue->cqe && !(flags & EP_GDA_INSPECT_GPU)) {
		done = (uint16_t)queue->shadow->done; /* as far as a kernel has looked */
	} else if (!ep_gda_cqe_read(queue, &cqe)) {
		return true;
	} else if (cqe.op_own >> 4 == EP_MLX5_CQE_REQ) {
		done = (uint16_t)(ep_gda_cqe_index(&cqe) + 1);
	} else if (cqe.op_own >> 4 != EP_MLX5_CQE_INVALID) {
		return true;
	}
	left = (uint16_t)(queue->handed - done);
	return left && left <= queue->gda->depth;
}

void ep_gda_late_mark(struct ep_gda *g, uint64_t now)
{
	bool known = g->mode != EP_GDA_GPU || table_read(g);

	for (uint32_t i = 0; i < g->nqueues; i++) {
		struct ep_gda_queue *queue = &g->queue[i];
		bool over = __atomic_load_n(&queue->failed, __ATOMIC_RELAXED) &&
			    !__atomic_load_n(&queue->vague, __ATOMIC_RELAXED);
		bool late = !known || gda_late(queue, EP_GDA_INSPECT_MEMORY);

		if (over || !late) {
			queue->due = false;
			queue->patience = 0;
		} else if (!queue->patience || now >= queue->ask_at) {
			queue->due = true;
			queue->ask_at = now + (EP_GDA_ROUND_NS << queue->patience);
			queue->patience += queue->patience < EP_GDA_PATIENCE;
		}
		if (known) {
			queue->handed = gda_handed(queue);
		}
	}
}

void ep_gda_late_ask(struct ep_gda *g)
{
	int flags = EP_GDA_INSPECT_NIC | (g->mode == EP_GDA_GPU ? EP_GDA_INSPECT_GPU : 0);
	uint64_t start = ep_now_ns(), now = start;

	for (uint32_t i = 0; i < g->nqueues && now - start < EP_GDA_ASK_NS; i++) {
		struct ep_gda_queue *q = &g->queue[g->next_query++ % g->nqueues];

		if (!q->due) {
			continue;
		}
		q->due = false;
		now = ep_now_ns();
		/* The host finds a completion by itself that no kernel has looked at. */
		if (g->mode == EP_GDA_GPU && !gda_late(q, flags)) {
			q->patience = 0;
			continue;
		}
		ep_gda_inspect(q, flags);
	}
}

/* ---- for the outside ---- */

bool ep_gda_poll(struct ep_gda *gda, struct ep_gda_failure *failure)
{
	bool any;

	pthread_mutex_lock(&gda->lock);
	any = gda->ntaken < gda->nfailures;
	if (any) {
		*failure = gda->failure[gda->ntaken++];
	}
	pthread_mutex_unlock(&gda->lock);
	return any;
}

bool ep_gda_explain(struct ep_gda *gda, int peer, struct ep_gda_failure *failure)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	bool settled = false; /* a failure is known with its cause */
	uint32_t known;

	pthread_mutex_lock(&gda->ask);
	cudaThreadExchangeStreamCaptureMode(&mode);
	for (uint32_t i = 0; i < gda->nqueues && !settled; i++) {
		struct ep_gda_queue *q = &gda->queue[i];

		if (q->peer != peer) {
			continue;
		}
		blame_port(q->nic, gda); /* a wait for the peer has expired */
		ep_gda_inspect(q, EP_GDA_INSPECT_NIC | EP_GDA_INSPECT_GPU);
		pthread_mutex_lock(&gda->lock);
		settled = gda->known[peer] && !gda->vague[peer];
		pthread_mutex_unlock(&gda->lock);
	}
	cudaThreadExchangeStreamCaptureMode(&mode);
	pthread_mutex_unlock(&gda->ask);
	pthread_mutex_lock(&gda->lock);
	known = peer >= 0 && peer < gda->nranks ? gda->known[peer] : 0;
	if (known) {
		*failure = gda->failure[known - 1];
	}
	pthread_mutex_unlock(&gda->lock);
	return known != 0;
}

/*
 * ---- the watcher ----
 *
 * A thread reads events of NICs as they come. Fifty times a second it looks at error records and at
 * completions in host memory. It asks NICs about queues whose work is late.
 */

#define EP_GDA_TICK_MS 20

struct place {
	struct ep_gda *gda;
	struct ep_gda_nic *nic;
};

static void gda_event(void *arg, const struct ep_nic_report *report)
{
	struct ep_gda_cause cause = { .status = EP_MLX5_ERR_CQE, .note = report->text };
	struct place *at = arg;

	switch (report->event) {
	case EP_NIC_QP_FAILED:
		for (uint32_t i = 0; i < at->gda->nqueues; i++) {
			struct ep_gda_queue *queue = &at->gda->queue[i];

			if (queue->verbs && queue->verbs == report->qp) {
				ep_gda_fail_queue(queue, &cause);
			}
		}
		break;
	case EP_NIC_PORT_DOWN:
	case EP_NIC_PORT_UP:
		/*
		 * Queues try again for a while: the link may come back in time. NCCL waits for it,
		 * too.
		 */
		__atomic_store_n(&at->nic->port_down, report->event == EP_NIC_PORT_DOWN,
				 __ATOMIC_RELAXED);
		break;
	case EP_NIC_ADDRESS:
		ep_gda_address_check(at->nic);
		break;
	case EP_NIC_DEVICE_FAILED:
		ep_gda_fail_port(at->nic, at->gda,
				 "the device reports a fatal error: see the kernel's log");
		break;
	case EP_NIC_CQ_FAILED:
		ep_gda_fail_port(at->nic, at->gda, report->text);
		break;
	}
}

/*
 * Looks at a queue, and ends one that kernels have given up without an error of the NIC. They wait
 * for that before they write memory that it may still send from.
 */
static void watch_queue(struct ep_gda_queue *queue)
{
	ep_gda_inspect(queue, EP_GDA_INSPECT_MEMORY);
	if (__atomic_load_n(&queue->record->valid, __ATOMIC_ACQUIRE) &&
	    queue->record->status != EP_MLX5_ERR_CQE) {
		ep_gda_queue_halt(queue);
	}
}

/* Looks at all queues, and asks about those that are late. */
static void watch_round(struct ep_gda *g, uint64_t *round)
{
	uint64_t now = ep_now_ns();

	pthread_mutex_lock(&g->ask);
	for (uint32_t i = 0; i < g->nqueues; i++) {
		watch_queue(&g->queue[i]);
	}
	if (now - *round >= EP_GDA_ROUND_NS) {
		*round = now;
		ep_gda_late_mark(g, now);
	}
	ep_gda_late_ask(g);
	pthread_mutex_unlock(&g->ask);
}

static void *watch_main(void *arg)
{
	struct ep_gda *g = arg;
	struct pollfd fd[EP_GDA_MAX_NICS + 1];
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	uint64_t round = ep_now_ns();

	if (cudaSetDevice(g->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	cudaThreadExchangeStreamCaptureMode(&mode);
	fd[0] = (struct pollfd){ .fd = g->stop_fd, .events = POLLIN };
	for (int n = 0; n < g->nnics; n++) {
		fd[n + 1] = (struct pollfd){ .fd = g->nic[n].base.ctx->async_fd, .events = POLLIN };
	}
	for (;;) {
		int ready = poll(fd, (nfds_t)g->nnics + 1, EP_GDA_TICK_MS);

		if (ready > 0 && fd[0].revents) {
			return NULL;
		}
		for (int n = 0; ready > 0 && n < g->nnics; n++) {
			if (fd[n + 1].revents & (POLLERR | POLLHUP | POLLNVAL)) {
				ep_gda_fail_port(&g->nic[n], g, "the device was removed");
				fd[n + 1].fd = -1;
			} else if (fd[n + 1].revents) {
				struct place at = { g, &g->nic[n] };

				ep_nic_events_read(&g->nic[n].base, gda_event, &at);
			}
		}
		watch_round(g, &round);
		address_find_moved(g);
	}
}

bool ep_gda_watch_start(struct ep_gda *g, struct ep_reason *why)
{
	char text[EP_THREAD_ERROR_TEXT];
	int error;

	for (int n = 0; n < g->nnics; n++) {
		error = ep_nic_events_open(&g->nic[n].base);
		if (error) {
			return ep_reason_set(why, "%s: its events cannot be watched: %s",
					     g->nic[n].base.name, strerror(error));
		}
	}
	g->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (g->stop_fd < 0) {
		return ep_reason_set(why, "no eventfd: %s", strerror(errno));
	}
	error = ep_thread_start(&g->watcher, watch_main, g);
	if (error) {
		return ep_reason_set(why, "no thread to watch RDMA from: %s",
				     ep_thread_error_print(error, text));
	}
	g->watching = true;
	return true;
}

void ep_gda_watch_stop(struct ep_gda *g)
{
	uint64_t one = 1;

	if (g->watching) {
		while (write(g->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
		}
		pthread_join(g->watcher, NULL);
		g->watching = false;
	}
	if (g->stop_fd >= 0) {
		close(g->stop_fd);
		g->stop_fd = -1;
	}
}
