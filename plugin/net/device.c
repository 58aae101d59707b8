/* SPDX-License-Identifier: Apache-2.0 */
/* Ports, their events, and the thread that listens while NCCL does not call. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "core/error.h"
#include "core/log.h"
#include "core/timed_call.h"
#include "net/abi.h"
#include "net/net.h"
#include "rdma/rdma.h"
#include "topo/topo.h"

#define EP_NET_FLAP_NS 1000000000ull /* a port may be down for so long */

static struct {
	pthread_once_t once;
	struct ep_net_dev *dev;
	int n;
	struct ep_ib_env env;
	struct ep_reason why;
} devs_found = { .once = PTHREAD_ONCE_INIT };

/* ---- finding them ---- */

void ep_net_pci_path(const char *root, const char *name, char path[PATH_MAX])
{
	char link[512], target[PATH_MAX];
	const char *last;
	unsigned int part;
	char rest;

	path[0] = '\0';
	snprintf(link, sizeof(link), "%s/%s/device", root, name);
	if (!realpath(link, target)) {
		return;
	}
	last = strrchr(target, '/');
	if (last && sscanf(last + 1, "%*x:%*x:%*x.%x%c", &part, &rest) == 1) {
		strcpy(path, target);
	}
}

int ep_net_dev_compare(const void *dev_a, const void *dev_b)
{
	const struct ep_net_dev *a = dev_a, *b = dev_b;
	const char *pci_a = strrchr(a->path, '/'), *pci_b = strrchr(b->path, '/');
	int order;

	if (!pci_a != !pci_b) {
		return pci_a ? -1 : 1;
	}
	order = pci_a ? strcmp(pci_a, pci_b) : 0;
	order = order ? order : strverscmp(a->port.name, b->port.name);
	return order ? order : a->port.port - b->port.port;
}

void ep_net_devs_arrange(struct ep_net_dev *dev, int n)
{
	qsort(dev, (size_t)n, sizeof(*dev), ep_net_dev_compare);
	for (int i = 0; i < n; i++) {
		bool several = false;

		dev[i].index = i;
		dev[i].adapter_port = 1;
		for (int k = 0; k < n; k++) {
			several |= k != i && !strcmp(dev[k].port.name, dev[i].port.name);
			dev[i].adapter_port += k < i && dev[k].guid == dev[i].guid;
		}
		snprintf(dev[i].label, sizeof(dev[i].label), several ? "%s:%d" : "%s",
			 dev[i].port.name, dev[i].port.port);
	}
}

/* Whether the kernel driver takes DMA-BUFs: if so, it looks at the descriptor, which is none. */
static bool has_dmabuf(const struct ep_nic *nic)
{
	struct ibv_mr *mr;

	if (!nic->v->ibv_reg_dmabuf_mr) {
		return false;
	}
	errno = 0;
	mr = nic->v->ibv_reg_dmabuf_mr(nic->pd, 0, 0, 0, -1, 0);
	if (mr) {
		nic->v->ibv_dereg_mr(mr);
		return false; /* a driver that takes anything shows nothing */
	}
	return errno == EBADF;
}

/* False: the port cannot be used; a line gives the reason. */
static bool dev_probe(struct ep_net_dev *dev, const struct ep_port_list *list,
		      const struct ep_port *port, const struct ep_ib_env *env)
{
	struct ep_reason why = { "" };
	ncclResult_t result = ncclSuccess;
	bool ok;

	memset(dev, 0, sizeof(*dev));
	pthread_mutex_init(&dev->lock, NULL);
	pthread_mutex_init(&dev->events, NULL);
	dev->port = *port;
	ok = ep_nic_open(&dev->nic, list, port, env, &why, &result);
	if (ok) {
		dev->guid = dev->nic.attr.sys_image_guid;
		dev->max_comms = dev->nic.attr.max_qp;
		dev->atomics = dev->nic.atomics;
		dev->ptr_support = EP_NET_PTR_HOST | (ep_nic_peermem() ? EP_NET_PTR_CUDA : 0) |
				   (has_dmabuf(&dev->nic) ? EP_NET_PTR_DMABUF : 0);
		ep_net_pci_path(EP_NIC_SYSFS, port->name, dev->path);
	} else {
		EP_INFO(EP_LOG_NET, "%s:%d is not used: %s", port->name, port->port,
			result == ncclSuccess ? why.text : "see above");
	}
	ep_nic_close(&dev->nic, false);
	memset(&dev->nic, 0, sizeof(dev->nic));
	return ok;
}

/* Of the active ports those that NCCL_IB_HCA permits and that can be opened. */
static void devs_probe(const struct ep_port_list *list, const struct ep_topo_hca *hca)
{
	struct ep_net_dev *dev = calloc((size_t)list->n, sizeof(*dev));
	int n = 0, permitted = 0;

	ep_nic_hca_warn(list, getenv("NCCL_IB_HCA"), hca);
	for (int i = 0; dev && i < list->n; i++) {
		const struct ep_port *port = &list->port[i];

		if (ep_topo_hca_match(hca, port->name, port->port)) {
			permitted++;
			if (dev_probe(&dev[n], list, port, &devs_found.env)) {
				ep_topo_hca_rail(hca, port->name, port->port, &dev[n].rail,
						 &dev[n].plane);
				n++;
			}
		}
	}
	if (n == 0) {
		ep_reason_set(&devs_found.why,
			      "%d active RDMA ports, %d of them permitted by "
			      "NCCL_IB_HCA, none can be used",
			      list->n, permitted);
		free(dev);
		return;
	}
	ep_net_devs_arrange(dev, n);
	devs_found.dev = dev;
	devs_found.n = n;
}

static void devs_find(void)
{
	struct ep_reason *why = &devs_found.why;
	struct ep_port_list list;
	struct ep_topo_hca hca;
	struct ep_topo_err err;
	struct ep_error error;

	if (ep_ib_env_read(&devs_found.env) != ncclSuccess) {
		ep_error_get(NULL, &error);
		ep_reason_set(why, "%.300s", error.text);
		return;
	}
	if (devs_found.env.disable) {
		ep_reason_set(why, "NCCL_IB_DISABLE=1");
		return;
	}
	if (ep_topo_hca_parse(getenv("NCCL_IB_HCA"), &hca, &err)) {
		ep_reason_set(why, "environment variable %.300s", err.text);
		return;
	}
	if (ep_port_list_open(&list, why)) {
		devs_probe(&list, &hca);
	}
	ep_port_list_close(&list);
}

bool ep_net_devs(struct ep_net_dev **dev, int *n, struct ep_reason *why)
{
	pthread_once(&devs_found.once, devs_find);
	*dev = devs_found.dev;
	*n = devs_found.n;
	*why = devs_found.why;
	return devs_found.n > 0;
}

const struct ep_ib_env *ep_net_env(void)
{
	pthread_once(&devs_found.once, devs_find);
	return &devs_found.env;
}

const char *ep_net_dev_lacks(const struct ep_net_dev *dev)
{
	return !(dev->ptr_support & (EP_NET_PTR_CUDA | EP_NET_PTR_DMABUF))
		       ? "does not reach memory of GPUs, there is neither DMA-BUF nor "
			 "nvidia-peermem"
	       : !dev->atomics ? "has no atomics"
			       : NULL;
}

/* ---- opening them ---- */

static ncclResult_t dev_open(struct ep_net_dev *dev, bool even_down)
{
	ncclResult_t result = ncclSuccess;
	struct ep_port_list list = { 0 };
	struct ep_reason why = { "" };
	const char *no_verbs;
	int error;

	list.v = ep_verbs(&no_verbs);
	if (!list.v) {
		return ep_fail(ncclSystemError, "%s", no_verbs);
	}
	list.dev = (list.v->ibv_get_device_list)(&list.ndevs);
	memset(&dev->nic, 0, sizeof(dev->nic));
	dev->nic.even_down = even_down;
	if (!ep_nic_open(&dev->nic, &list, &dev->port, &devs_found.env, &why, &result)) {
		ep_nic_close(&dev->nic, false);
		if (result == ncclSuccess) {
			result = ep_fail(ncclSystemError, "%s", why.text);
		}
	}
	ep_port_list_close(&list);
	if (result == ncclSuccess) {
		dev->port_down = dev->nic.down; /* (that is: for a long time) */
		dev->port_up = 0;
		dev->ask = dev->nic.homeless ? 0 : EP_NET_AS_OPENED;
		dev->broken = 0;
		error = ep_nic_events_open(&dev->nic);
		if (error) {
			ep_nic_close(&dev->nic, false);
			result = ep_fail(ncclSystemError, "%s: its events cannot be watched: %s",
					 dev->label, strerror(error));
		}
	}
	return result;
}

ncclResult_t ep_net_dev_hold(struct ep_net_dev *dev, bool even_down)
{
	ncclResult_t result = ncclSuccess;

	pthread_mutex_lock(&dev->lock);
	if (dev->users == 0) {
		result = dev_open(dev, even_down);
	}
	dev->users += result == ncclSuccess;
	pthread_mutex_unlock(&dev->lock);
	return result;
}

void ep_net_dev_hold_too(struct ep_net_dev *dev)
{
	dev->users++;
}

void ep_net_dev_drop(struct ep_net_dev *dev)
{
	pthread_mutex_lock(&dev->lock);
	if (--dev->users == 0) {
		free(dev->region);
		dev->region = NULL;
		dev->nregions = dev->room = 0;
		ep_nic_close(&dev->nic, false);
	}
	pthread_mutex_unlock(&dev->lock);
}

/* ---- events ---- */

bool ep_net_dev_broken(const struct ep_net_dev *dev)
{
	return __atomic_load_n(&dev->broken, __ATOMIC_RELAXED);
}

bool ep_net_dev_down(const struct ep_net_dev *dev)
{
	uint64_t down = __atomic_load_n(&dev->port_down, __ATOMIC_RELAXED);

	return down && ep_now_ns() >= down + EP_NET_FLAP_NS;
}

bool ep_net_dev_up(const struct ep_net_dev *dev, uint64_t ns)
{
	uint64_t up = __atomic_load_n(&dev->port_up, __ATOMIC_RELAXED);

	return !ep_net_dev_broken(dev) && !__atomic_load_n(&dev->port_down, __ATOMIC_RELAXED) &&
	       ep_now_ns() >= up + ns;
}

/* All connections ask, and each answer that there is none is a line: one is enough for so long. */
#define EP_NET_REFUSED_NS 1000000000ull

static bool port_ask(struct ep_net_dev *dev, struct ep_nic_end *end, struct ep_net_index *index)
{
	struct ep_nic nic = dev->nic; /* what is open stays as it is: others read it */
	ncclResult_t result = ncclSuccess;
	struct ep_reason why;

	nic.even_down = false;
	if (!ep_nic_port_open(&nic, ep_net_env(), &why, &result)) {
		__atomic_store_n(&dev->ask, ep_now_ns() + EP_NET_REFUSED_NS, __ATOMIC_RELAXED);
		EP_INFO(EP_LOG_NET, "%s cannot be used again yet: %s", dev->label,
			result == ncclSuccess ? why.text : "see above");
		return false;
	}
	*end = nic.end;
	*index = (struct ep_net_index){ nic.gid_index, nic.pkey_index };
	return true;
}

bool ep_net_dev_address(struct ep_net_dev *dev, struct ep_nic_end *end, struct ep_net_index *index)
{
	uint64_t ask;

	ep_net_dev_events(dev);
	ask = __atomic_load_n(&dev->ask, __ATOMIC_RELAXED);
	if (ep_net_dev_broken(dev) || __atomic_load_n(&dev->port_down, __ATOMIC_RELAXED)) {
		return false;
	}
	if (ask != EP_NET_AS_OPENED) {
		return ep_now_ns() >= ask && port_ask(dev, end, index);
	}
	*end = dev->nic.end;
	*index = (struct ep_net_index){ dev->nic.gid_index, dev->nic.pkey_index };
	return true;
}

static void dev_event(void *arg, const struct ep_nic_report *report)
{
	struct ep_net_dev *dev = arg;

	switch (report->event) {
	case EP_NIC_PORT_DOWN:
		/* Queue pairs try again for a while: the link may come back in time. */
		__atomic_store_n(&dev->port_down, ep_now_ns(), __ATOMIC_RELAXED);
		break;
	case EP_NIC_PORT_UP:
		__atomic_store_n(&dev->port_up, ep_now_ns(), __ATOMIC_RELAXED);
		__atomic_store_n(&dev->port_down, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&dev->ask, 0, __ATOMIC_RELAXED);
		break;
	case EP_NIC_ADDRESS:
		__atomic_store_n(&dev->ask, 0, __ATOMIC_RELAXED);
		break;
	case EP_NIC_DEVICE_FAILED:
		__atomic_store_n(&dev->broken, 1, __ATOMIC_RELAXED);
		break;
	case EP_NIC_CQ_FAILED:
		if (report->cq->cq_context) {
			__atomic_store_n((uint32_t *)report->cq->cq_context, 1, __ATOMIC_RELAXED);
		}
		break;
	default: /* completions report queue pairs */
		break;
	}
}

void ep_net_dev_events(struct ep_net_dev *dev)
{
	pthread_mutex_lock(&dev->events);
	ep_nic_events_read(&dev->nic, dev_event, dev);
	pthread_mutex_unlock(&dev->events);
}

/*
 * ---- the thread that reads sockets while NCCL does not call ----
 *
 * NCCL does not call for a connection on which it has nothing under way.
 * Its other end may have, if a path has failed: it waits for a control message. So a thread reads
 * the sockets of such connections. It sleeps until there is something to read, and ends with the
 * last one.
 */

#define EP_NET_EVENTS 16

struct ep_net_async {
	pthread_t thread;
	int epoll, wake; /* wake: it shall end */
	uint32_t n;      /* sockets */
	ep_net_async_fn *fn;
};

/* Held while the thread uses an object, so that none is freed then. */
static pthread_mutex_t async_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_net_async *async_now;

static void *async_main(void *arg)
{
	struct ep_net_async *a = arg;
	struct epoll_event event[EP_NET_EVENTS];

	for (;;) {
		int n = epoll_wait(a->epoll, event, EP_NET_EVENTS, -1);

		for (int i = 0; i < n; i++) {
			void *handle, *object;

			if (!event[i].data.u64) {
				return NULL;
			}
			handle = (void *)(uintptr_t)event[i].data.u64;
			pthread_mutex_lock(&async_lock);
			object = ep_net_handle_get(ep_net_kind_of(handle), handle);
			if (object) { /* (the handle may have ended) */
				a->fn(a, object);
			}
			pthread_mutex_unlock(&async_lock);
		}
	}
}

static void async_free(struct ep_net_async *a)
{
	if (a->wake >= 0) {
		close(a->wake);
	}
	if (a->epoll >= 0) {
		close(a->epoll);
	}
	free(a);
}

static struct ep_net_async *async_new(void)
{
	struct ep_net_async *a = calloc(1, sizeof(*a));
	struct epoll_event wake = { .events = EPOLLIN };

	if (!a) {
		return NULL;
	}
	a->epoll = epoll_create1(EPOLL_CLOEXEC);
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->epoll < 0 || a->wake < 0 ||
	    epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->wake, &wake) != 0) {
		goto err_free;
	}
	errno = ep_thread_start(&a->thread, async_main, a);
	if (errno) {
		goto err_free;
	}
	return a;

err_free:
	async_free(a);
	return NULL;
}

void ep_net_async_skip(const struct ep_net_async *a, int fd)
{
	(void)epoll_ctl(a->epoll, EPOLL_CTL_DEL, fd, NULL);
}

ncclResult_t ep_net_async_add(const void *handle, int fd, ep_net_async_fn *fn)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP,
				     .data.u64 = (uintptr_t)handle };
	char text[EP_THREAD_ERROR_TEXT];
	bool good = false;

	pthread_mutex_lock(&async_lock);
	if (!async_now) {
		async_now = async_new();
	}
	if (async_now) {
		async_now->fn = fn;
		good = epoll_ctl(async_now->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
		async_now->n += good;
	}
	pthread_mutex_unlock(&async_lock);
	return good ? ncclSuccess
		    : ep_fail(ncclSystemError, "no thread for control messages of a connection: %s",
			      ep_thread_error_print(errno, text));
}

void ep_net_async_remove(int fd)
{
	struct ep_net_async *last = NULL;
	uint64_t one = 1;

	pthread_mutex_lock(&async_lock);
	(void)epoll_ctl(async_now->epoll, EPOLL_CTL_DEL, fd, NULL);
	if (--async_now->n == 0) {
		last = async_now;
		async_now = NULL;
	}
	pthread_mutex_unlock(&async_lock);
	if (last) {
		if (write(last->wake, &one, sizeof(one)) == sizeof(one)) {
			pthread_join(last->thread, NULL);
		}
		async_free(last);
	}
}
