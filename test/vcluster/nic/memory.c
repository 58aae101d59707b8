/* SPDX-License-Identifier: Apache-2.0 */
/* Protection domains, registered memory, umems, UAR pages, address handles. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "device/mlx5/mlx5_layout.h"
#include "nic/nic.h"

#define VN_UAR_PAGE 4096

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define VN_ACCESS_KNOWN                                                                            \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |               \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_RELAXED_ORDERING)

/* The low byte tells local keys from remote keys: mixing them up is an error here. */
#define VN_LKEY_TAG 0x1au
#define VN_RKEY_TAG 0x2bu

/* ------------------------------------------------------------------------ what is at an address */

static bool vn_is_mapped(uintptr_t start, uint64_t size)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = start & ~(page - 1);
	unsigned char present[512];

	while (at < start + size) {
		uint64_t pages = (start + size - at + page - 1) / page;

		pages = pages < sizeof(present) ? pages : sizeof(present);
		if (mincore((void *)at, pages * page, present)) {
			return false;
		}
		at += pages * page;
	}
	return true;
}

static int vn_memory_attach(struct vn_memory *m, void *addr, uint64_t size, bool queue)
{
	int rc;

	memset(m, 0, sizeof(*m));
	if (!addr || !size || (uintptr_t)addr > UINTPTR_MAX - size) {
		return EINVAL;
	}
	m->at = addr;
	m->size = size;
	rc = vn_gpu_attach(m, queue);
	if (rc < 0) {
		return -rc;
	}
	/* addresses that are reserved behind a device's memory are mapped, but hold none */
	if (vn_is_virtual_device(addr) != vn_is_virtual_device((uint8_t *)addr + size - 1)) {
		return EFAULT;
	}
	return rc || vn_is_mapped((uintptr_t)addr, size) ? 0 : EFAULT;
}

/*
 * The address where this process has mapped that part of the file: `at`, or any address if `at` is
 * 0. Returns 0 if it has not.
 */
static uint64_t vn_file_at(const struct stat *st, uint64_t offset, uint64_t size, uint64_t at)
{
	char line[512];
	FILE *f = fopen("/proc/self/maps", "r");
	uint64_t found = 0;

	while (f && !found && fgets(line, sizeof(line), f)) {
		/* start-end rwxp offset major:minor inode path; sscanf takes three times as long */
		char *p;
		uint64_t start = strtoull(line, &p, 16), end = strtoull(p + 1, &p, 16);
		uint64_t off = strtoull(p + strlen(" rwxp "), &p, 16);

		p = strchr(p + 1, ' ');
		if (p && strtoull(p, NULL, 10) == st->st_ino && off <= offset &&
		    offset + size <= off + (end - start) && (!at || at == start + (offset - off))) {
			found = start + (offset - off);
		}
	}
	if (f) {
		fclose(f);
	}
	return found;
}

/*
 * The NIC has its own mapping of the memory: what it has registered stays, also when the program
 * unmaps it and maps other memory there. But the race detector goes by addresses, which must be
 * those of the program.
 */
#ifdef VC_TSAN
#define VN_MAPPED_BY_PROGRAM true
#else
#define VN_MAPPED_BY_PROGRAM false
#endif

/*
 * A descriptor stands for memory that begins at its file position. A real DMA-BUF has none and
 * cannot be mapped: EOPNOTSUPP.
 */
static int vn_memory_attach_fd(struct vn_memory *m, int fd, uint64_t offset, uint64_t size,
			       uint64_t iova)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from;
	struct stat st;
	off_t base;

	memset(m, 0, sizeof(*m));
	if (fstat(fd, &st)) {
		return EBADF;
	}
	base = lseek(fd, 0, SEEK_CUR);
	if (base < 0 || !S_ISREG(st.st_mode)) {
		return EOPNOTSUPP;
	}
	from = (uint64_t)base + offset;
	if (!size || from + size > (uint64_t)st.st_size || from + size < from) {
		return EINVAL;
	}
	m->size = size;
	m->at = VN_MAPPED_BY_PROGRAM ? (uint8_t *)(uintptr_t)vn_file_at(&st, from, size, iova)
				     : NULL;
	if (m->at) {
		return 0;
	}
	m->map_size = size + from % page;
	m->map = mmap(NULL, m->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		      (off_t)(from - from % page));
	if (m->map == MAP_FAILED) {
		m->map = NULL;
		return EFAULT;
	}
	m->at = (uint8_t *)m->map + from % page;
	return 0;
}

static void vn_memory_detach(struct vn_memory *m)
{
	vn_gpu_detach(m);
	if (m->map) {
		munmap(m->map, m->map_size);
	}
	memset(m, 0, sizeof(*m));
}

/* ---------------------------------------------------------------------------------- domains */

VN_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct vn_context *ctx = vn_context_of(c);
	struct vn_pd *pd = calloc(1, sizeof(*pd));
	int slot = -1;

	if (pd) {
		vn_lock();
		slot = vn_list_add(&vn.pds, pd);
		ctx->live += slot >= 0;
		vn_unlock();
	}
	if (slot < 0) {
		free(pd);
		errno = ENOMEM;
		return NULL;
	}
	pd->ctx = ctx;
	pd->number = (uint32_t)slot + 1;
	pd->ibv.context = c;
	pd->ibv.handle = pd->number;
	return &pd->ibv;
}

VN_EXPORT int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	struct vn_pd *pd = (struct vn_pd *)ibv;
	uint32_t users;

	vn_lock();
	users = pd->users;
	if (!users) {
		vn_list_drop(&vn.pds, pd->number - 1);
		pd->ctx->live--;
	}
	vn_unlock();
	if (users) {
		vn_log_once("ibv_dealloc_pd: %u users left", users);
		return EBUSY;
	}
	free(pd);
	return 0;
}

/* ---------------------------------------------------------------------------------- regions */

static struct ibv_mr *vn_mr_new(struct ibv_pd *ibv, struct vn_memory *mem, void *addr,
				uint64_t size, uint64_t iova, unsigned int access)
{
	struct vn_pd *pd = (struct vn_pd *)ibv;
	struct vn_mr *mr = calloc(1, sizeof(*mr));
	int slot;

	if (!mr) {
		errno = ENOMEM;
		return NULL;
	}
	mr->mem = *mem;
	mr->pd = pd;
	mr->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
	mr->access = access;
	mr->ibv = (struct ibv_mr){ pd->ibv.context, ibv, addr, size, 0, 0, 0 };
	vn_lock();
	slot = vn_list_add(&vn.mrs, mr);
	mr->fork_safe = vn_fork_safe();
	if (slot >= 0) {
		pd->users++;
		pd->ctx->live++;
	}
	vn_unlock();
	if (slot < 0) {
		free(mr);
		errno = ENOMEM;
		return NULL;
	}
	mr->slot = (uint32_t)slot;
	mr->ibv.handle = mr->slot;
	mr->ibv.lkey = ((uint32_t)slot + 0x11) << 8 | VN_LKEY_TAG;
	mr->ibv.rkey = ((uint32_t)slot + 0x11) << 8 | VN_RKEY_TAG;
	return &mr->ibv;
}

static int vn_access_check(const struct ibv_pd *pd, unsigned int access)
{
	const struct vn_context *ctx = ((const struct vn_pd *)pd)->ctx;
	const struct vn_nic *nic = ctx->nic;

	if (vn_context_failed(ctx)) {
		return EIO;
	}
	if (access & ~(unsigned int)VN_ACCESS_KNOWN) {
		vn_log_once("registration with unknown access bits 0x%x",
			    access & ~(unsigned int)VN_ACCESS_KNOWN);
		return EINVAL;
	}
	if ((vn_config.no_read_mr || (vn_config.one_read_mr && (nic - vn.nic) % 2)) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE)) {
		return ENOMEM;
	}
	if ((vn_config.no_atomics || (vn_config.odd_no_atomics && (nic - vn.nic) % 2)) &&
	    access & IBV_ACCESS_REMOTE_ATOMIC) {
		vn_log_once("registration for atomics, which this device does not have");
		return EINVAL;
	}
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE)) {
		vn_log_once("registration for remote writes without IBV_ACCESS_LOCAL_WRITE");
		return EINVAL;
	}
	return 0;
}

VN_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t size, uint64_t iova,
					  unsigned int access)
{
	struct vn_memory mem;
	struct ibv_mr *mr;
	int rc = vn_access_check(pd, access);

	if (vn_config.step && vn_step_fails()) {
		return NULL;
	}
	rc = rc ? rc : vn_memory_attach(&mem, addr, size, false);
	if (rc) {
		errno = rc;
		return NULL;
	}
	mr = vn_mr_new(pd, &mem, addr, size, iova, access);
	if (!mr) {
		vn_memory_detach(&mem);
	}
	return mr;
}

VN_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t size, int access)
{
	return ibv_reg_mr_iova2(pd, addr, size, (uintptr_t)addr, (unsigned int)access);
}

VN_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t size, uint64_t iova,
					 int access)
{
	return ibv_reg_mr_iova2(pd, addr, size, iova, (unsigned int)access);
}

VN_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t size,
					   uint64_t iova, int fd, int access)
{
	struct vn_memory mem;
	struct ibv_mr *mr;
	int rc = vn_access_check(pd, (unsigned int)access);
	bool real = vn_gpu_driver();

	/*
	 * No descriptor: so programs ask whether DMA-BUFs are taken. Those of real GPUs are not,
	 * unless the environment says so: then this process has the memory at the address that is
	 * given, too.
	 */
	if (!rc && (vn_config.no_dmabuf || (real && fd < 0 && !vn_config.gpu_dmabuf))) {
		rc = EOPNOTSUPP;
	} else if (!rc && real && vn_config.gpu_dmabuf) {
		rc = fd < 0 ? EBADF : vn_memory_attach(&mem, (void *)(uintptr_t)iova, size, false);
	} else if (!rc) {
		rc = vn_memory_attach_fd(&mem, fd, offset, size, iova);
	}
	if (rc) {
		errno = rc;
		return NULL;
	}
	mr = vn_mr_new(pd, &mem, NULL, size, iova, (unsigned int)access);
	if (!mr) {
		vn_memory_detach(&mem);
	}
	return mr;
}

VN_EXPORT int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct vn_mr *mr = (struct vn_mr *)ibv;

	vn_lock();
	/* Data that was acknowledged must not come after the region is gone. */
	vn_place_flush(mr->pd->ctx->nic);
	vn_place_settle();
	vn_list_drop(&vn.mrs, mr->slot);
	mr->pd->users--;
	mr->pd->ctx->live--;
	vn_unlock();
	vn_memory_detach(&mr->mem);
	free(mr);
	return 0;
}

static struct vn_mr *vn_mr_find(uint32_t key, bool remote)
{
	uint32_t slot = (key >> 8) - 0x11;

	if ((key & 0xff) != (remote ? VN_RKEY_TAG : VN_LKEY_TAG)) {
		return NULL;
	}
	return vn_list_get(&vn.mrs, slot);
}

const char *vn_mr_check(uint32_t key, bool remote, const struct vn_pd *pd, uint64_t addr,
			uint64_t bytes, uint32_t need, struct vn_mr **out, uint8_t **at)
{
	struct vn_mr *mr = vn_mr_find(key, remote);

	if (!mr && vn_mr_find(key, !remote)) {
		return remote ? "that is an lkey" : "that is an rkey";
	}
	if (!mr) {
		return "no such key (any more)";
	}
	if (mr->pd != pd) {
		return mr->pd->ctx->nic == pd->ctx->nic ? "the key is of another protection domain"
							: "the key is of another device";
	}
	if (addr < mr->iova || bytes > mr->mem.size || addr - mr->iova > mr->mem.size - bytes) {
		return "not inside the memory region";
	}
	if (need & ~mr->access) {
		return "the memory region does not allow this access";
	}
	*out = mr;
	*at = mr->mem.at + (addr - mr->iova);
	return NULL;
}

VN_EXPORT uint32_t vn_dv_senders(const void *p)
{
	uint64_t at = (uintptr_t)p;
	uint32_t senders = 0;

	vn_lock();
	for (uint32_t i = 0; i < vn.mrs.n; i++) {
		const struct vn_mr *mr = vn_list_get(&vn.mrs, i);

		senders += mr && mr->sent && at - mr->iova < mr->mem.size;
	}
	vn_unlock();
	return senders;
}

/* ------------------------------------------------------------------------------------- umems */

/*
 * Size of the pages in which the device sees a umem: the largest that is allowed and not larger
 * than the umem; up to a huge page if the program allows all.
 */
static uint64_t vn_umem_page(const struct mlx5dv_devx_umem_in *in)
{
	uint64_t allowed = in->pgsz_bitmap ? in->pgsz_bitmap : UINT64_C(0x3ff000);
	uint64_t page = allowed & -allowed;

	for (uint64_t p = page; p && p <= in->size; p <<= 1) {
		page = allowed & p ? p : page;
	}
	return page;
}

VN_EXPORT struct mlx5dv_devx_umem *vn_dv_umem_reg(struct ibv_context *c,
						  const struct mlx5dv_devx_umem_in *in)
{
	struct vn_context *ctx = vn_context_of(c);
	struct vn_umem *u = calloc(1, sizeof(*u));
	int slot = -1, rc = ENOMEM;

	if (!u) {
		errno = ENOMEM;
		return NULL;
	}
	if (!ctx->devx || in->comp_mask & ~(uint64_t)MLX5DV_UMEM_MASK_DMABUF) {
		rc = EOPNOTSUPP;
	} else if (in->access & ~(uint32_t)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
					    IBV_ACCESS_RELAXED_ORDERING)) {
		rc = EINVAL;
	} else if (in->comp_mask & MLX5DV_UMEM_MASK_DMABUF) {
		rc = vn_config.gpu_umem ? vn_memory_attach_fd(&u->mem, in->dmabuf_fd,
							      (uintptr_t)in->addr, in->size, 0)
					: EOPNOTSUPP;
	} else {
		rc = vn_memory_attach(&u->mem, in->addr, in->size, true);
	}
	if (rc) {
		goto err_free;
	}
	u->ctx = ctx;
	u->access = in->access;
	u->page = vn_umem_page(in);
	vn_lock();
	slot = vn_list_add(&vn.umems, u);
	ctx->live += slot >= 0;
	vn_unlock();
	if (slot < 0) {
		rc = ENOMEM;
		vn_memory_detach(&u->mem);
		goto err_free;
	}
	u->pub.umem_id = (uint32_t)slot + 1;
	return &u->pub;

err_free:
	free(u);
	errno = rc;
	return NULL;
}

VN_EXPORT int vn_dv_umem_dereg(struct mlx5dv_devx_umem *pub)
{
	struct vn_umem *u = (struct vn_umem *)pub;
	uint32_t users;

	vn_lock();
	users = u->users;
	if (!users) {
		vn_list_drop(&vn.umems, u->pub.umem_id - 1);
		u->ctx->live--;
	}
	vn_unlock();
	if (users) {
		vn_log_once("mlx5dv_devx_umem_dereg: %u queues still live in it", users);
		return EBUSY;
	}
	vn_memory_detach(&u->mem);
	free(u);
	return 0;
}

struct vn_umem *vn_umem_find(uint32_t id, const struct vn_context *ctx)
{
	struct vn_umem *u = vn_list_get(&vn.umems, id - 1);

	return u && u->ctx == ctx ? u : NULL;
}

/* -------------------------------------------------------------------------------------- UARs */

VN_EXPORT struct mlx5dv_devx_uar *vn_dv_alloc_uar(struct ibv_context *c, uint32_t flags)
{
	struct vn_context *ctx = vn_context_of(c);
	bool shared = flags == MLX5DV_UAR_ALLOC_TYPE_NC;
	struct vn_uar *u;
	int slot;

	if (!ctx->devx || (flags == MLX5DV_UAR_ALLOC_TYPE_BF && vn_config.no_wc) ||
	    (flags > 1 && !(flags == VN_UAR_NC_DEDICATED && vn_config.nc_dedicated))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	vn_lock();
	u = shared ? ctx->shared_uar : NULL;
	if (u) {
		u->refs++;
		vn_unlock();
		return &u->pub;
	}
	u = calloc(1, sizeof(*u));
	if (!u) {
		goto err_unlock;
	}
	u->page =
		mmap(NULL, VN_UAR_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	slot = u->page == MAP_FAILED ? -1 : vn_list_add(&vn.uars, u);
	if (slot < 0) {
		goto err_free;
	}
	u->ctx = ctx;
	u->refs = 1;
	u->pub.base_addr = u->page;
	u->pub.reg_addr = u->page + EP_MLX5_UAR_DOORBELL;
	u->pub.page_id = (uint32_t)slot + 1;
	u->pub.mmap_off = (off_t)(slot + 1) * VN_UAR_PAGE;
	ctx->live++;
	if (shared) {
		ctx->shared_uar = u;
	}
	vn_unlock();
	return &u->pub;

err_free:
	if (u->page != MAP_FAILED) {
		munmap(u->page, VN_UAR_PAGE);
	}
	free(u);
err_unlock:
	vn_unlock();
	errno = ENOMEM;
	return NULL;
}

VN_EXPORT void vn_dv_free_uar(struct mlx5dv_devx_uar *pub)
{
	struct vn_uar *u = (struct vn_uar *)pub;

	vn_lock();
	if (--u->refs) {
		vn_unlock();
		return;
	}
	if (u->users) {
		vn_bug("mlx5dv_devx_free_uar: %u queues still use the page", u->users);
	}
	if (u->ctx->shared_uar == u) {
		u->ctx->shared_uar = NULL;
	}
	vn_list_drop(&vn.uars, u->pub.page_id - 1);
	u->ctx->live--;
	vn_unlock();
	munmap(u->page, VN_UAR_PAGE);
	free(u);
}

struct vn_uar *vn_uar_find(uint32_t id, const struct vn_context *ctx)
{
	struct vn_uar *u = vn_list_get(&vn.uars, id - 1);

	return u && u->ctx == ctx ? u : NULL;
}

/* --------------------------------------------------------------------------- address handles */

VN_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct vn_nic *nic = vn_context_of(pd->context)->nic;
	union ibv_gid own;
	struct vn_ah *ah;
	uint32_t ip = 0, type;
	bool ipv4 = false;

	if (attr->port_num != 1 || (!vn_config.ib && !attr->is_global) ||
	    (attr->is_global && !vn_gid(nic, attr->grh.sgid_index, &own, &type))) {
		errno = EINVAL;
		return NULL;
	}
	if (attr->is_global) {
		ip = vn_ip_of_gid(&attr->grh.dgid, &ipv4);
	}
	if ((!vn_config.ib && !ip) ||
	    (attr->is_global && memcmp(own.raw, attr->grh.dgid.raw, 16) != 0 && vn_late())) {
		errno = ETIMEDOUT; /* as when nobody answers for the address */
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah) {
		errno = ENOMEM;
		return NULL;
	}
	ah->ibv.context = pd->context;
	ah->ibv.pd = pd;
	ah->av.stat_rate_sl = (uint8_t)(attr->static_rate << 4 | attr->sl);
	ah->av.fl_mlid = attr->src_path_bits & 0x7f;
	ah->av.rlid = htobe16(vn_config.ib ? attr->dlid : 0xc000);
	if (attr->is_global) {
		ah->av.tclass = attr->grh.traffic_class;
		ah->av.hop_limit = attr->grh.hop_limit;
		ah->av.grh_gid_fl = htobe32(1u << 30 | (uint32_t)attr->grh.sgid_index << 20 |
					    attr->grh.flow_label);
		memcpy(ah->av.rgid, attr->grh.dgid.raw, 16);
	}
	vn_lock();
	if (!vn_config.ib) {
		vn_mac_of_ip(ip, ah->av.rmac);
	}
	ah->gid_index = attr->is_global ? attr->grh.sgid_index : 0;
	vn_gid_use(nic, ah->gid_index, true);
	vn_unlock();
	return &ah->ibv;
}

VN_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	vn_lock();
	vn_gid_use(vn_context_of(ah->context)->nic, ((struct vn_ah *)ah)->gid_index, false);
	vn_unlock();
	free(ah);
	return 0;
}

/*
 * What fork() does to registered memory. Kernels from 5.12 on copy pinned pages for the child, and
 * nothing happens. Before (profile old_fork) parent and child share each page until one of them
 * writes: the parent gets a new page then, and the NIC keeps the old one. Here the parent gets its
 * new pages at once, whether it writes or not. ibv_fork_init() keeps pages from the child, and so
 * with the NIC.
 */

static bool vn_fork_asked, vn_fork_late;

VN_EXPORT int ibv_fork_init(void)
{
	bool late;

	vn_lock();
	late = vn_fork_late && !vn_fork_asked;
	vn_fork_asked |= !late;
	vn_unlock();
	return late ? EINVAL : 0;
}

VN_EXPORT enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return !vn_config.old_fork ? IBV_FORK_UNNEEDED
	       : vn_fork_asked     ? IBV_FORK_ENABLED
				   : IBV_FORK_DISABLED;
}

/* The NIC is left with the page as it is now. */
static void vn_fork_move(struct vn_memory *m)
{
	void *old;

	if (m->map || m->gpu) {
		return; /* shared memory stays where it is */
	}
	old = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (old != MAP_FAILED) {
		memcpy(old, m->at, m->size);
		m->at = m->map = old;
		m->map_size = m->size;
	}
}

static void vn_fork_parent(void)
{
	for (uint32_t i = 0; i < vn.mrs.n; i++) {
		struct vn_mr *mr = vn_list_get(&vn.mrs, i);

		if (mr && !mr->fork_safe) {
			vn_fork_move(&mr->mem);
		}
	}
	vn_unlock();
}

bool vn_fork_safe(void)
{
	static bool once;

	if (vn_config.old_fork && !once) {
		once = true;
		pthread_atfork(vn_lock, vn_fork_parent, vn_unlock);
	}
	vn_fork_late = true;
	return !vn_config.old_fork || vn_fork_asked;
}
