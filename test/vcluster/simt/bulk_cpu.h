/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/simt/bulk.h on the CPU, which includes this: the executor does it, and does it late.
 * test/vcluster/README.md has what it moves when, and which mistakes it names.
 */
#ifndef VC_BULK_CPU_H
#define VC_BULK_CPU_H

#define EP_BULK_ENGINE 0 /* that lanes give copies to: bulk.h */

enum ep_simt_bulk_op {
	EP_SIMT_MBAR_INIT,
	EP_SIMT_MBAR_FENCE_INIT,
	EP_SIMT_MBAR_ARRIVE,
	EP_SIMT_MBAR_ARRIVE_TX,
	EP_SIMT_MBAR_INVAL,
	EP_SIMT_BULK_LOAD,
	EP_SIMT_BULK_STORE,
	EP_SIMT_BULK_COMMIT,
	EP_SIMT_BULK_WAIT,
	EP_SIMT_BULK_WAIT_READ,
	EP_SIMT_BULK_FENCE_SHARED,
	EP_SIMT_BULK_OPS
};

/* One call of a warp; what an operation does not need is 0. */
struct ep_simt_bulk {
	uint32_t op;
	uint32_t n; /* bytes, warps or groups */
	void *to;
	const void *from;
	struct ep_mbar *bar;
};

#ifdef __cplusplus
extern "C" {
#endif

void ep_simt_bulk_call(const struct ep_simt_bulk *call);
bool ep_simt_mbar_over(struct ep_mbar *bar, uint32_t parity);

#ifdef __cplusplus
}
#endif

EP_DEV void ep_simt_bulk_do(uint32_t op, uint32_t n, void *to, const void *from,
			    struct ep_mbar *bar)
{
	struct ep_simt_bulk call = { op, n, to, from, bar };

	ep_simt_point();
	ep_simt_fence(0);
	ep_simt_bulk_call(&call);
}

EP_DEV struct ep_vec16 ep_shared_ld16(const void *p)
{
	return ep_simt_ld16(p);
}

EP_DEV struct ep_vec8 ep_shared_ld8(const void *p)
{
	return *(const struct ep_vec8 *)p;
}

EP_DEV uint32_t ep_shared_ld1(const void *p)
{
	return *(const uint8_t *)p;
}

EP_DEV void ep_shared_st16(void *p, struct ep_vec16 vec)
{
	ep_st16(p, vec);
}

EP_DEV void ep_mbar_init(struct ep_mbar *bar, uint32_t nwarps)
{
	ep_simt_bulk_do(EP_SIMT_MBAR_INIT, nwarps, NULL, NULL, bar);
}

EP_DEV void ep_mbar_inval(struct ep_mbar *bar)
{
	ep_simt_bulk_do(EP_SIMT_MBAR_INVAL, 0, NULL, NULL, bar);
}

EP_DEV void ep_mbar_fence_init(void)
{
	ep_simt_bulk_do(EP_SIMT_MBAR_FENCE_INIT, 0, NULL, NULL, NULL);
}

EP_DEV void ep_mbar_arrive(struct ep_mbar *bar)
{
	ep_simt_bulk_do(EP_SIMT_MBAR_ARRIVE, 0, NULL, NULL, bar);
}

EP_DEV void ep_mbar_arrive_tx(struct ep_mbar *bar, uint32_t bytes)
{
	ep_simt_bulk_do(EP_SIMT_MBAR_ARRIVE_TX, bytes, NULL, NULL, bar);
}

EP_DEV bool ep_mbar_try_wait(struct ep_mbar *bar, uint32_t parity)
{
	ep_simt_point();
	return ep_simt_mbar_over(bar, parity);
}

EP_DEV void ep_bulk_load(void *to, const void *from, uint32_t bytes, struct ep_mbar *bar)
{
	ep_simt_bulk_do(EP_SIMT_BULK_LOAD, bytes, to, from, bar);
}

EP_DEV void ep_bulk_store(void *to, const void *from, uint32_t bytes)
{
	ep_simt_bulk_do(EP_SIMT_BULK_STORE, bytes, to, from, NULL);
}

EP_DEV void ep_bulk_commit(void)
{
	ep_simt_bulk_do(EP_SIMT_BULK_COMMIT, 0, NULL, NULL, NULL);
}

EP_DEV void ep_bulk_wait(uint32_t n)
{
	ep_simt_bulk_do(EP_SIMT_BULK_WAIT, n, NULL, NULL, NULL);
}

EP_DEV void ep_bulk_wait_read(uint32_t n)
{
	ep_simt_bulk_do(EP_SIMT_BULK_WAIT_READ, n, NULL, NULL, NULL);
}

EP_DEV void ep_bulk_fence_shared(const void *p, uint32_t bytes)
{
	ep_simt_bulk_do(EP_SIMT_BULK_FENCE_SHARED, bytes, NULL, p, NULL);
}

/* Lane 0 issues the warp's copies, so its fence is good for what any lane has acquired. */
EP_DEV void ep_bulk_fence_global(void)
{
	uint32_t *acquired = ep_simt_self->acquired;
	uint32_t lane = ep_simt_self->lane, old = __atomic_load_n(acquired, __ATOMIC_RELAXED);

	__atomic_store_n(acquired, lane ? old & ~(1u << lane) : 0, __ATOMIC_RELAXED);
}

#endif
