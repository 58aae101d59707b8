/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs: devices, ports, addresses, asynchronous events. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "nic/nic.h"

#undef ibv_get_device_list
#undef ibv_query_port

/* RoCE: link-local and IPv4-mapped, each as RoCE v1 and v2, in the order of a real port. */
#define VN_GIDS 4
#define VN_GIDS_LINK 2 /* those below are link-local */

/* Routed InfiniBand: node n is subnet n + 1, which routers know by this LID and n. */
#define VN_SITE_LOCAL 0xfec0000000000000ull
#define VN_LINK_LOCAL 0xfe80000000000000ull
#define VN_FLID 0x4100u

struct vn vn = { .lock = PTHREAD_MUTEX_INITIALIZER };

void vn_lock(void)
{
	__atomic_add_fetch(&vn.waiting, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&vn.lock);
	__atomic_sub_fetch(&vn.waiting, 1, __ATOMIC_RELAXED);
}

void vn_unlock(void)
{
	pthread_mutex_unlock(&vn.lock);
}

void vn_mac_of_ip(uint32_t ip, uint8_t mac[6])
{
	const struct vn_nic *nic = vn_nic_of_ip(ip);
	const uint8_t bytes[6] = { (uint8_t)(0x02 | (nic ? nic->mac_turn << 2 : 0)),
				   0x5a,
				   (uint8_t)(ip >> 24),
				   (uint8_t)(ip >> 16),
				   (uint8_t)(ip >> 8),
				   (uint8_t)ip };

	memcpy(mac, bytes, 6);
}

static void vn_load(void)
{
	const char *kind;

	if (vn.loaded) {
		return;
	}
	vn_config_load();
	kind = vn_config.mlx5 ? "mlx5" : "rxe";
	for (int i = 0; i < vn_config.nics; i++) {
		struct vn_nic *nic = &vn.nic[i];
		struct ibv_device *d = &nic->device;

		nic->index = i;
		nic->listen_fd = -1;
		nic->ip = VN_NET | (uint32_t)vn_config.node << 8 | (uint32_t)(i + 1);
		nic->lid = (uint16_t)(1 + (vn_config.routed ? 0 : vn_config.node * 32) + i);
		vn_mac_of_ip(nic->ip, nic->mac);
		nic->guid = 0x025a000000000000ull | (uint64_t)nic->ip;
		d->node_type = IBV_NODE_CA;
		d->transport_type = IBV_TRANSPORT_IB;
		snprintf(d->name, sizeof(d->name), "%s_%d", kind, i);
		snprintf(d->dev_name, sizeof(d->dev_name), "uverbs%d", i);
		snprintf(d->dev_path, sizeof(d->dev_path), "/sys/class/infiniband_verbs/uverbs%d",
			 i);
		snprintf(d->ibdev_path, sizeof(d->ibdev_path), "/sys/class/infiniband/%s_%d", kind,
			 i);
	}
	vn.loaded = true;
}

VN_EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list;

	vn_lock();
	vn_load();
	list = calloc((size_t)vn_config.nics + 1, sizeof(*list));
	for (int i = 0; list && i < vn_config.nics; i++) {
		list[i] = &vn.nic[i].device;
	}
	vn_unlock();
	if (count) {
		*count = list ? vn_config.nics : 0;
	}
	return list;
}

VN_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

VN_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static int vn_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr,
			 size_t size)
{
	struct vn_nic *nic = vn_context_of(c)->nic;
	struct ibv_port_attr a = { .state = IBV_PORT_ACTIVE,
				   .max_mtu = IBV_MTU_4096,
				   .active_mtu = (enum ibv_mtu)vn_config.mtu,
				   .gid_tbl_len = vn_config.ib ? 8 : 255,
				   .port_cap_flags = 0x04010000,
				   .max_msg_sz = 1u << 30,
				   .pkey_tbl_len = VN_PKEYS,
				   .max_vl_num = 4,
				   .subnet_timeout = 18,
				   .active_width = 2,
				   .active_speed = 128, /* NDR: 4 lanes, 400 Gb/s */
				   .phys_state = 5 };

	if (port != 1) {
		return EINVAL;
	}
	if (vn_context_failed(vn_context_of(c))) {
		return EIO;
	}
	vn_lock();
	if (vn_config.ib) {
		a.lid = nic->lid;
	}
	if (nic->down) {
		a.state = IBV_PORT_DOWN;
		a.phys_state = 3;
		a.lid = 0; /* the subnet manager gives one to ports that are up */
	}
	vn_unlock();
	if (vn_config.ib) {
		a.link_layer = IBV_LINK_LAYER_INFINIBAND;
		a.sm_lid = 1;
	} else {
		a.link_layer = IBV_LINK_LAYER_ETHERNET;
		a.flags = IBV_QPF_GRH_REQUIRED;
	}
	memset(attr, 0, size);
	memcpy(attr, &a, size < sizeof(a) ? size : sizeof(a));
	return 0;
}

VN_EXPORT int ibv_query_port(struct ibv_context *c, uint8_t port,
			     struct _compat_ibv_port_attr *attr)
{
	/* The old struct ends before port_cap_flags2. */
	return vn_query_port(c, port, (struct ibv_port_attr *)attr,
			     offsetof(struct ibv_port_attr, port_cap_flags2));
}

VN_EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *attr)
{
	struct vn_nic *nic = vn_context_of(c)->nic;

	memset(attr, 0, sizeof(*attr));
	snprintf(attr->fw_ver, sizeof(attr->fw_ver),
		 vn_config.ooo_all ? "40.45.1020" : "28.43.1014");
	attr->node_guid = htobe64(nic->guid);
	attr->sys_image_guid = attr->node_guid;
	attr->max_mr_size = ~0ull;
	attr->page_size_cap = 0xfffffffffffff000ull;
	attr->vendor_id = vn_config.mlx5 ? 0x02c9 : 0xffffff;
	attr->vendor_part_id = !vn_config.mlx5 ? 0 : vn_config.ooo_all ? 4131 : 4129;
	attr->max_qp = 65000;
	attr->max_qp_wr = VN_SEND_WR;
	attr->max_sge = 30;
	attr->max_sge_rd = 30;
	attr->max_cq = 65000;
	attr->max_cqe = vn_config.few_cqes ? VN_FEW_CQES : 4194303;
	attr->max_mr = 1 << 20;
	attr->max_pd = 1 << 16;
	attr->max_qp_rd_atom = 16;
	attr->max_res_rd_atom = 1 << 20;
	attr->max_qp_init_rd_atom = vn_config.init_rd;
	attr->atomic_cap = vn_config.no_atomics || (vn_config.odd_no_atomics && nic->index % 2)
				   ? IBV_ATOMIC_NONE
				   : IBV_ATOMIC_HCA;
	attr->max_ah = 1 << 20;
	attr->max_pkeys = VN_PKEYS;
	attr->local_ca_ack_delay = 16;
	attr->phys_port_cnt = 1;
	return 0;
}

/* ----------------------------------------------------------------------------- addresses */

bool vn_gid(const struct vn_nic *nic, int index, union ibv_gid *gid, uint32_t *type)
{
	uint32_t ip = htobe32(nic->ip);

	memset(gid, 0, sizeof(*gid));
	if (vn_config.ib) {
		uint64_t subnet = (uint64_t)vn_config.node + 1, flid = VN_FLID + subnet - 1;

		if (index < 0 || index > vn_config.routed) {
			return false;
		}
		*type = IBV_GID_TYPE_IB;
		gid->global.subnet_prefix = htobe64(
			vn_config.routed
				? VN_SITE_LOCAL | (index ? flid << 16 : 0) | subnet
				: VN_LINK_LOCAL |
					  (vn_config.rails ? (uint64_t)nic->index % 2 + 1 : 0));
		gid->global.interface_id = htobe64(nic->guid);
		return true;
	}
	if (index < 0 || index >= VN_GIDS || (index >= VN_GIDS_LINK && nic->gid_gone)) {
		return false;
	}
	*type = index % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
	if (index < 2) {
		gid->global.subnet_prefix = htobe64(0xfe80000000000000ull);
		gid->global.interface_id = htobe64(nic->guid);
	} else {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &ip, 4);
	}
	return true;
}

bool vn_gid_works(const struct vn_nic *nic, int index)
{
	return vn_config.ib || index < VN_GIDS_LINK || !nic->gid_gone || nic->gid_users;
}

void vn_gid_use(struct vn_nic *nic, int index, bool use)
{
	if (!vn_config.ib && index >= VN_GIDS_LINK) {
		nic->gid_users += use ? 1u : -1u;
	}
}

void vn_gid_lose(struct vn_nic *nic)
{
	nic->gid_gone = true;
	for (struct vn_context *c = nic->contexts; c; c = c->next) {
		vn_event(c, IBV_EVENT_GID_CHANGE, NULL, 1);
	}
}

void vn_mac_move(struct vn_nic *nic)
{
	nic->mac_turn++;
	vn_mac_of_ip(nic->ip, nic->mac);
}

uint32_t vn_ip_of_gid(const union ibv_gid *gid, bool *ipv4)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	uint32_t ip;

	*ipv4 = !memcmp(gid->raw, mapped, sizeof(mapped));
	if (*ipv4) {
		memcpy(&ip, gid->raw + 12, 4);
		return be32toh(ip);
	}
	if ((!vn_config.routed &&
	     be64toh(gid->global.subnet_prefix) >> 16 != VN_LINK_LOCAL >> 16) ||
	    be64toh(gid->global.interface_id) >> 32 != 0x025a0000) {
		return 0;
	}
	return (uint32_t)be64toh(gid->global.interface_id);
}

uint32_t vn_ip_of_lid(uint16_t lid)
{
	if (vn_config.routed) {
		return lid && lid <= VN_NICS ? VN_NET | (uint32_t)vn_config.node << 8 | lid : 0;
	}
	return lid && lid <= 256 * 32
		       ? VN_NET | (uint32_t)(lid - 1) / 32 << 8 | ((lid - 1) % 32 + 1)
		       : 0;
}

/* As routers do: by the LID to a subnet, by the GID within it. */
uint32_t vn_ip_of_path(uint16_t lid, const union ibv_gid *gid)
{
	uint32_t subnet = (uint32_t)be64toh(gid->global.subnet_prefix) & 0xffff;
	bool ipv4;

	if (!vn_config.routed || subnet == (uint32_t)vn_config.node + 1) {
		return vn_ip_of_lid(lid) == vn_ip_of_gid(gid, &ipv4) ? vn_ip_of_lid(lid) : 0;
	}
	return lid == VN_FLID + subnet - 1 ? vn_ip_of_gid(gid, &ipv4) : 0;
}

VN_EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	uint32_t type;

	if (port != 1 || index < 0 || index >= (vn_config.ib ? 8 : 255)) {
		errno = EINVAL;
		return -1;
	}
	vn_gid(vn_context_of(c)->nic, index, gid, &type); /* all 0 if there is none */
	return 0;
}

VN_EXPORT int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index,
				struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	struct vn_nic *nic = vn_context_of(c)->nic;
	struct ibv_gid_entry e = { .gid_index = index,
				   .port_num = 1,
				   .ndev_ifindex = vn_config.ib ? 0 : (uint32_t)nic->index + 2 };

	if (flags || port != 1) {
		return EINVAL;
	}
	if (!vn_gid(nic, (int)index, &e.gid, &e.gid_type)) {
		return ENODATA;
	}
	memcpy(entry, &e, size < sizeof(e) ? size : sizeof(e));
	return 0;
}

VN_EXPORT int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	if (port != 1 || index < 0 || index >= VN_PKEYS) {
		errno = EINVAL;
		return -1;
	}
	vn_lock();
	/* The subnet manager fills the table of ports that are up. */
	*pkey = htobe16(!index                        ? 0xffff
			: vn_context_of(c)->nic->down ? 0
						      : (uint16_t)(0x8000 + index));
	vn_unlock();
	return 0;
}

/* ------------------------------------------------------------------------------ contexts */

static void vn_context_fill(struct vn_context *ctx, struct ibv_device *device)
{
	struct verbs_context *v = &ctx->verbs;

	v->sz = sizeof(*v);
	v->query_port = vn_query_port;
	v->context.device = device;
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	v->context.cmd_fd = -1;
	v->context.num_comp_vectors = 1;
	v->context.ops.poll_cq = vn_poll_cq;
	v->context.ops.post_send = vn_post_send;
	v->context.ops.post_recv = vn_post_recv;
	pthread_mutex_init(&v->context.mutex, NULL);
}

struct ibv_context *vn_open(struct ibv_device *device, bool devx)
{
	struct vn_nic *nic = (struct vn_nic *)device;
	struct vn_context *ctx = calloc(1, sizeof(*ctx));
	int ends[2], rc;

	if (!ctx || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		rc = errno; /* EMFILE, as of the device's file */
		free(ctx);
		errno = rc;
		return NULL;
	}
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	vn_context_fill(ctx, device);
	ctx->nic = nic;
	ctx->devx = devx;
	ctx->verbs.context.async_fd = ends[0];
	ctx->event_fd = ends[1];
	vn_lock();
	rc = vn_thread_start();
	if (!rc) {
		ctx->next = nic->contexts;
		nic->contexts = ctx;
	}
	vn_unlock();
	if (rc) {
		close(ends[0]);
		close(ends[1]);
		free(ctx);
		errno = rc;
		return NULL;
	}
	return &ctx->verbs.context;
}

VN_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	if (vn_config.odd_closed && ((struct vn_nic *)device)->index % 2) {
		errno = EACCES;
		return NULL;
	}
	return vn_open(device, false);
}

VN_EXPORT int ibv_close_device(struct ibv_context *c)
{
	struct vn_context *ctx = vn_context_of(c), **at;

	vn_lock();
	for (at = &ctx->nic->contexts; *at && *at != ctx; at = &(*at)->next) {
	}
	if (*at) {
		*at = ctx->next;
	}
	vn_unlock();
	if (ctx->live) {
		vn_log_once("ibv_close_device(%s) with %u objects left", c->device->name,
			    ctx->live);
	}
	close(c->async_fd);
	close(ctx->event_fd);
	pthread_mutex_destroy(&c->mutex);
	free(ctx);
	return 0;
}

/* -------------------------------------------------------------------------------- events */

void vn_event(struct vn_context *ctx, enum ibv_event_type type, void *element, int port)
{
	struct ibv_async_event e = { .event_type = type };

	if (element) {
		e.element.qp = element;
	} else {
		e.element.port_num = port;
	}
	if (write(ctx->event_fd, &e, sizeof(e)) != sizeof(e)) {
		vn_log_once("nobody takes asynchronous events: one is lost");
	}
}

struct vn_nic *vn_nic_of_ip(uint32_t ip)
{
	uint32_t n = (ip & 0xff) - 1; /* see vn_load() */

	return n < (uint32_t)vn_config.nics && vn.nic[n].ip == ip ? &vn.nic[n] : NULL;
}

bool vn_ip_is_silent(const struct vn_nic *nic, uint32_t ip)
{
	const struct vn_nic *to = vn_nic_of_ip(ip);

	return nic->down || (to && to->down);
}

void vn_port_set(struct vn_nic *nic, bool down)
{
	if (nic->down == down) {
		return;
	}
	nic->down = down;
	for (struct vn_context *c = nic->contexts; c; c = c->next) {
		vn_event(c, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, NULL, 1);
	}
}

VN_EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event)
{
	ssize_t n = read(c->async_fd, event, sizeof(*event));

	return n == sizeof(*event) ? 0 : -1;
}

VN_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
	vn_step_acked();
}
