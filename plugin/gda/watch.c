/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watcher: events of NICs as they come, error records and completions in host memory a few
 * dozen times a second, and questions to NICs about queues whose work is late (late.c).
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "core/idle.h"
#include "core/log.h"
#include "gda/address.h"
#include "gda/failure.h"
#include "gda/late.h"
#include "gda/queue.h"
#include "gda/watch.h"
#include "rdma/nic.h"

#define EP_GDA_TICK_MS 20

static void ep_gda_event_queue(struct ep_gda *g, const struct ibv_qp *qp, const char *note)
{
	struct ep_gda_cause cause = { .status = EP_MLX5_ERR_CQE, .note = note };

	for (uint32_t i = 0; i < g->nqueues; i++) {
		if (g->queue[i].verbs && g->queue[i].verbs == qp) {
			ep_gda_fail_queue(&g->queue[i], &cause);
		}
	}
}

struct ep_gda_place {
	struct ep_gda *gda;
	struct ep_gda_nic *nic;
};

static void ep_gda_event(void *arg, const struct ep_nic_report *report)
{
	struct ep_gda_place *at = arg;

	switch (report->event) {
	case EP_NIC_QP_FAILED:
		ep_gda_event_queue(at->gda, report->qp, report->text);
		break;
	case EP_NIC_PORT_DOWN:
	case EP_NIC_PORT_UP:
		/* A link may come back before the queues' retries are over: NCCL waits for it, too. */
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

static void ep_gda_events(struct ep_gda *g, struct ep_gda_nic *nic)
{
	struct ep_gda_place at = { g, nic };

	ep_nic_events_read(&nic->base, ep_gda_event, &at);
}

/*
 * A queue that kernels have given up without an error of the NIC's is ended: they wait for that
 * before they write memory that it may still send from.
 */
static void ep_gda_watch_queue(struct ep_gda_queue *queue)
{
	ep_gda_inspect(queue, EP_GDA_INSPECT_MEMORY);
	if (__atomic_load_n(&queue->record->valid, __ATOMIC_ACQUIRE) &&
	    queue->record->status != EP_MLX5_ERR_CQE) {
		ep_gda_queue_halt(queue);
	}
}

static void ep_gda_watch_round(struct ep_gda *g, uint64_t *round)
{
	uint64_t now = ep_now_ns();

	pthread_mutex_lock(&g->ask);
	for (uint32_t i = 0; i < g->nqueues; i++) {
		ep_gda_watch_queue(&g->queue[i]);
	}
	if (now - *round >= EP_GDA_ROUND_NS) {
		*round = now;
		ep_gda_late_mark(g, now);
	}
	ep_gda_late_ask(g);
	pthread_mutex_unlock(&g->ask);
}

static void *ep_gda_watch_main(void *arg)
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
				ep_gda_events(g, &g->nic[n]);
			}
		}
		ep_gda_watch_round(g, &round);
		ep_gda_address_find_moved(g);
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
	error = ep_thread_start(&g->watcher, ep_gda_watch_main, g);
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
