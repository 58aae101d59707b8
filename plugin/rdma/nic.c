/* SPDX-License-Identifier: Apache-2.0 */
/* A port of a NIC: opened, its memory, paths from it to other ports, and its events. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "core/log.h"
#include "rdma/rdma.h"

const char *ep_nic_error_print(int error, char text[EP_NIC_ERROR_TEXT])
{
	struct rlimit limit = { .rlim_cur = 0 };

	if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
		snprintf(text, EP_NIC_ERROR_TEXT, "%s", strerror(error));
	} else if (limit.rlim_cur == RLIM_INFINITY) {
		snprintf(
			text, EP_NIC_ERROR_TEXT,
			"%s (RLIMIT_MEMLOCK is unlimited: it is the NIC or the host that has no more)",
			strerror(error));
	} else {
		snprintf(text, EP_NIC_ERROR_TEXT,
			 "%s (RLIMIT_MEMLOCK is %llu KiB: raise it, ulimit -l unlimited)",
			 strerror(error), (unsigned long long)limit.rlim_cur / 1024);
	}
	return text;
}

/* Registers GPU memory by its DMA-BUF. Returns NULL, with *why, on failure. */
static struct ibv_mr *nic_register_dmabuf(const struct ep_nic *nic,
					  const struct ep_nic_memory *memory, unsigned int access,
					  struct ep_reason *why)
{
	struct ibv_mr *mr;

	if (!nic->v->ibv_reg_dmabuf_mr) {
		ep_reason_set(why, "no DMA-BUF: libibverbs is too old");
		return NULL;
	}
	if (memory->fd < 0) {
		*why = memory->no_fd;
		return NULL;
	}
	mr = nic->v->ibv_reg_dmabuf_mr(nic->pd, memory->offset, memory->bytes, (uintptr_t)memory->p,
				       memory->fd, (int)access);
	if (!mr) {
		ep_reason_set(why, "DMA-BUF refused: %s", strerror(errno));
	}
	return mr;
}

bool ep_nic_peermem(void)
{
	static const char *const files[] = {
		"/sys/kernel/mm/memory_peers/nv_mem/version",
		"/sys/kernel/mm/memory_peers/nv_mem_nc/version",
		"/sys/module/nvidia_peermem/version",
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(files); i++) {
		if (access(files[i], F_OK) == 0) {
			return true;
		}
	}
	return false;
}

struct ibv_mr *ep_nic_register(const struct ep_nic *nic, const struct ep_nic_memory *memory,
			       unsigned int access, struct ep_reason *why)
{
	struct ep_reason first = { "" };
	char text[EP_NIC_ERROR_TEXT];
	struct ibv_mr *mr = NULL;

	if (memory->gpu) {
		mr = nic_register_dmabuf(nic, memory, access, &first);
	}
	if (!mr) {
		mr = ep_verbs_reg_mr(nic->v, nic->pd, memory->p, memory->bytes, access);
	}
	if (!mr) {
		ep_reason_set(why, "%s: %llu bytes of %s memory cannot be registered: %s%s%.150s",
			      nic->name, (unsigned long long)memory->bytes,
			      memory->gpu ? "GPU" : "host", ep_nic_error_print(errno, text),
			      memory->gpu ? " (is nvidia-peermem loaded?); " : "", first.text);
	}
	return mr;
}

/* ---- between two ports ---- */

bool ep_nic_path_check(const struct ep_nic_end *from, const struct ep_nic_end *to,
		       struct ep_reason *why)
{
	bool ethernet = from->link_layer == IBV_LINK_LAYER_ETHERNET;
	char mine[EP_GID_TEXT], theirs[EP_GID_TEXT];

	if (from->link_layer != to->link_layer) {
		return ep_reason_set(why,
				     "one port is Ethernet, the other InfiniBand: choose alike "
				     "ports with NCCL_IB_HCA");
	}
	if (ethernet && from->roce != to->roce) {
		return ep_reason_set(why,
				     "one port uses RoCE v%u, the other v%u: set "
				     "NCCL_IB_GID_INDEX or NCCL_IB_ROCE_VERSION_NUM alike",
				     from->roce, to->roce);
	}
	if (ethernet) {
		if (ep_gid_is_ipv4(from->gid) != ep_gid_is_ipv4(to->gid)) {
			return ep_reason_set(why,
					     "addresses of different families, %s and %s: set "
					     "NCCL_IB_ADDR_FAMILY or NCCL_IB_GID_INDEX",
					     ep_gid_print(from->gid, mine),
					     ep_gid_print(to->gid, theirs));
		}
	} else if (!ep_gid_same_subnet(from->gid, to->gid) && !ep_gid_flid(to->gid)) {
		return ep_reason_set(
			why,
			"from %s to %s of another subnet, which has no FLID for routers: see "
			"NCCL_IB_ROUTABLE_FLID_GID_INDEX, or NCCL_IB_HCA for ports of one subnet",
			ep_gid_print(from->gid, mine), ep_gid_print(to->gid, theirs));
	} else if ((from->pkey & 0x7fff) != (to->pkey & 0x7fff)) {
		return ep_reason_set(why,
				     "partition keys 0x%04x and 0x%04x: set NCCL_IB_PKEY so that "
				     "both ports are in one partition",
				     from->pkey, to->pkey);
	} else if (!(from->pkey & 0x8000) && !(to->pkey & 0x8000)) {
		return ep_reason_set(why, "both ports are limited members of partition 0x%04x",
				     from->pkey);
	}
	return true;
}

bool ep_nic_path_global(const struct ep_nic_end *from, const struct ep_nic_end *to)
{
	return to->link_layer == IBV_LINK_LAYER_ETHERNET || from->grh || to->grh ||
	       !ep_gid_same_subnet(from->gid, to->gid);
}

uint16_t ep_nic_path_lid(const struct ep_nic_end *from, const struct ep_nic_end *to)
{
	bool near = to->link_layer == IBV_LINK_LAYER_ETHERNET ||
		    ep_gid_same_subnet(from->gid, to->gid);

	return near ? to->lid : ep_gid_flid(to->gid);
}

static const struct nic_kind {
	enum ibv_event_type type;
	enum ep_nic_event event;
	bool port; /* it concerns one port of the device */
	const char *text;
} nic_kinds[] = {
	{ IBV_EVENT_PORT_ERR, EP_NIC_PORT_DOWN, true, "the port is down" },
	{ IBV_EVENT_PORT_ACTIVE, EP_NIC_PORT_UP, true, "the port is up again" },
	{ IBV_EVENT_GID_CHANGE, EP_NIC_ADDRESS, true, "the port's table of GIDs has changed" },
	{ IBV_EVENT_LID_CHANGE, EP_NIC_ADDRESS, true, "the port's LID has changed" },
	{ IBV_EVENT_PKEY_CHANGE, EP_NIC_ADDRESS, true,
	  "the port's table of partition keys has changed" },
	{ IBV_EVENT_DEVICE_FATAL, EP_NIC_DEVICE_FAILED, false, "the device reports a fatal error" },
	{ IBV_EVENT_CQ_ERR, EP_NIC_CQ_FAILED, false,
	  "a completion queue was overrun or has failed" },
	{ IBV_EVENT_QP_FATAL, EP_NIC_QP_FAILED, false, "the NIC reports a fatal queue error" },
	{ IBV_EVENT_QP_REQ_ERR, EP_NIC_QP_FAILED, false, "the NIC reports an invalid request" },
	{ IBV_EVENT_QP_ACCESS_ERR, EP_NIC_QP_FAILED, false,
	  "the peer reached for memory that is not registered" },
};

int ep_nic_events_open(const struct ep_nic *nic)
{
	int fd = nic->ctx->async_fd;

	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0 ? 0 : errno;
}

void ep_nic_events_read(const struct ep_nic *nic,
			void (*fn)(void *arg, const struct ep_nic_report *report), void *arg)
{
	struct ibv_async_event event;

	while (nic->v->ibv_get_async_event(nic->ctx, &event) == 0) {
		const struct nic_kind *kind = NULL;

		for (size_t i = 0; i < EP_ARRAY_SIZE(nic_kinds); i++) {
			if (nic_kinds[i].type == event.event_type) {
				kind = &nic_kinds[i];
			}
		}
		if (!kind) {
			EP_INFO(EP_LOG_NET, "%s:%d: event %d", nic->name, nic->port,
				(int)event.event_type);
		} else if (!kind->port || event.element.port_num == nic->port) {
			struct ep_nic_report report = {
				.event = kind->event,
				.text = kind->text,
				.cq = kind->event == EP_NIC_CQ_FAILED ? event.element.cq : NULL,
				.qp = kind->event == EP_NIC_QP_FAILED ? event.element.qp : NULL,
			};

			EP_INFO(EP_LOG_NET, "%s:%d: %s", nic->name, nic->port, kind->text);
			fn(arg, &report);
		}
		nic->v->ibv_ack_async_event(&event);
	}
}

/* ---- opening a port of a NIC, and its limits as verbs have them ---- */

#define EP_NIC_VENDOR_RXE 0xffffffu

/* Opens the device, for DevX commands if it can be. Returns false, with *why, on failure. */
static bool nic_context_open(struct ep_nic *nic, struct ibv_device *dev, struct ep_reason *why)
{
	const char *no_dv = "";

	nic->dv = ep_mlx5dv(&no_dv);
	if (!nic->dv) {
		ep_reason_set(&nic->no_devx, "%s", no_dv);
	} else if (!nic->dv->mlx5dv_is_supported(dev)) {
		ep_reason_set(&nic->no_devx, "it is not an mlx5 device");
	} else {
		struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };

		nic->ctx = nic->dv->mlx5dv_open_device(dev, &attr);
		nic->devx = nic->ctx != NULL;
		if (!nic->ctx) {
			ep_reason_set(&nic->no_devx, "DEVX is not available: %s", strerror(errno));
		}
	}
	if (!nic->ctx) {
		nic->ctx = nic->v->ibv_open_device(dev);
	}
	return nic->ctx ||
	       ep_reason_set(why, "%s cannot be opened: %s", nic->name, strerror(errno));
}

/* Returns the partition key at an index of the port's table, or 0 if there is none. */
static uint16_t nic_pkey(const struct ep_nic *nic, int index)
{
	__be16 pkey = 0;

	return nic->v->ibv_query_pkey(nic->ctx, (uint8_t)nic->port, index, &pkey) == 0
		       ? be16toh(pkey)
		       : 0;
}

/*
 * Chooses the port's partition key, by index or by value. Returns false, with *why, if the port
 * lacks it. The highest bit of a key says what the port may do in the partition, and is no part of
 * its number.
 */
static bool nic_pkey_choose(struct ep_nic *nic, const struct ep_ib_env *env, uint32_t entries,
			    struct ep_reason *why)
{
	uint16_t *pkey = &nic->end.pkey;

	nic->pkey_index = (uint32_t)env->pkey;
	*pkey = env->pkey_value < 0 ? nic_pkey(nic, env->pkey) : 0;
	for (uint32_t i = 0; env->pkey_value >= 0 && i < entries && !*pkey; i++) {
		uint16_t key = nic_pkey(nic, (int)i);

		if (key && (key & 0x7fff) == (env->pkey_value & 0x7fff)) {
			nic->pkey_index = i;
			*pkey = key;
		}
	}
	if (*pkey) {
		return true;
	}
	return env->pkey_value >= 0
		       ? ep_reason_set(why,
				       "%s:%d does not have the partition key 0x%04x among its %u: "
				       "set NCCL_IB_PKEY_VALUE",
				       nic->name, nic->port, (unsigned int)env->pkey_value, entries)
		       : ep_reason_set(why,
				       "%s:%d has no partition key at index %u of %u: set "
				       "NCCL_IB_PKEY",
				       nic->name, nic->port, nic->pkey_index, entries);
}

bool ep_nic_port_open(struct ep_nic *nic, const struct ep_ib_env *env, struct ep_reason *why,
		      ncclResult_t *result)
{
	struct ep_nic_end *end = &nic->end;
	struct ibv_port_attr attr;
	bool keyed = true;
	int error;

	error = ep_verbs_query_port(nic->v, nic->ctx, (uint8_t)nic->port, &attr);
	nic->down = !error && attr.state != IBV_PORT_ACTIVE;
	if (error || (nic->down && !nic->even_down)) {
		return ep_reason_set(why, "%s:%d is not active (%s)", nic->name, nic->port,
				     error ? strerror(error) : "its state has changed");
	}
	snprintf(end->name, sizeof(end->name), "%.31s", nic->name);
	end->port = (uint8_t)nic->port;
	end->link_layer = attr.link_layer ? attr.link_layer : IBV_LINK_LAYER_INFINIBAND;
	end->mtu = (uint8_t)attr.active_mtu;
	if (nic->down && (end->mtu < IBV_MTU_256 || end->mtu > IBV_MTU_4096)) {
		end->mtu = IBV_MTU_1024; /* the port does not report one */
	}
	end->lid = attr.lid;
	end->grh = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
	nic->pkey_index = 0; /* the only one of Ethernet */
	if (end->link_layer == IBV_LINK_LAYER_ETHERNET) {
		if (env->pkey || env->pkey_value >= 0) {
			EP_INFO(EP_LOG_NET,
				"%s:%d is RoCE, whose only partition key is at index 0: "
				"NCCL_IB_PKEY%s=%d has no effect there",
				nic->name, nic->port, env->pkey_value >= 0 ? "_VALUE" : "",
				env->pkey_value >= 0 ? env->pkey_value : env->pkey);
		}
	} else {
		/* (the subnet manager fills the table of a port that is up) */
		keyed = nic_pkey_choose(nic, env, attr.pkey_tbl_len, why);
		if (!keyed && !nic->even_down) {
			return false;
		}
	}
	ep_nic_class_choose(nic, env, EP_NIC_SYSFS);
	*result = ep_nic_address_choose(nic, env, attr.gid_tbl_len);
	nic->homeless = !nic->down && (!keyed || *result != ncclSuccess);
	if (nic->homeless && !keyed) {
		EP_WARN("%s", why->text);
	}
	if (nic->even_down) {
		*result = ncclSuccess; /* it may have lost its address with its carrier */
	}
	return *result == ncclSuccess;
}

/* Returns the logarithm of a limit on READs and atomics in flight, 16 at most. */
static uint32_t nic_log_atomics(int limit)
{
	uint32_t log = 0;

	while (log < 4 && 2 << log <= limit) {
		log++;
	}
	return log;
}

bool ep_nic_open(struct ep_nic *nic, const struct ep_port_list *list, const struct ep_port *port,
		 const struct ep_ib_env *env, struct ep_reason *why, ncclResult_t *result)
{
	struct ibv_device *dev = ep_port_list_device(list, port->name);

	nic->v = list->v;
	memcpy(nic->name, port->name, sizeof(nic->name));
	nic->port = port->port;
	if (!dev) {
		return ep_reason_set(why, "%s was chosen, but is not present", nic->name);
	}
	if (!nic_context_open(nic, dev, why)) {
		return false;
	}
	if (nic->v->ibv_query_device(nic->ctx, &nic->attr) != 0) {
		return ep_reason_set(why, "%s does not report its limits: %s", nic->name,
				     strerror(errno));
	}
	nic->pd = nic->v->ibv_alloc_pd(nic->ctx);
	if (!nic->pd) {
		return ep_reason_set(why, "%s: no protection domain: %s", nic->name,
				     strerror(errno));
	}
	if (!ep_nic_port_open(nic, env, why, result)) {
		return false;
	}
	/* The kernel driver reports atomics only if operands are in the host's byte order. */
	nic->atomics = nic->attr.atomic_cap != IBV_ATOMIC_NONE;
	/*
	 * rdma_rxe (Linux 6.1 and 6.12 at least) never sends a fenced atomic again after a loss:
	 * the atomic waits for the credit that it took itself, and no error completion reports it.
	 * It needs no fence: it executes requests in the order in which they were posted.
	 */
	nic->fences = nic->attr.vendor_id != EP_NIC_VENDOR_RXE;
	nic->log_ra_req = nic_log_atomics(nic->attr.max_qp_init_rd_atom);
	nic->log_ra_res = nic_log_atomics(nic->attr.max_qp_rd_atom);
	nic->log_max_msg = 30;
	nic->end.log_rra = (uint8_t)nic->log_ra_res;
	return true;
}

void ep_nic_close(struct ep_nic *nic, bool keep)
{
	if (nic->pd && nic->v->ibv_dealloc_pd(nic->pd) != 0) {
		EP_INFO(EP_LOG_NET, "%s: its protection domain is still in use: %s", nic->name,
			strerror(errno));
	}
	if (nic->ctx && !keep) {
		nic->v->ibv_close_device(nic->ctx);
	}
}
