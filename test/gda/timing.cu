/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs a warp to post. Each repetition is timed by lane 0 between two looks at the clock;
 * samples stay in shared memory until the end, so that no fence of an operation waits for them.
 */
#include "device/mlx5/qp.h"
#include "timing.h"

#ifdef __CUDACC__
EP_DEV uint64_t gda_clock(void)
{
	return (uint64_t)clock64();
}

/* The value is only known from here on: nothing is computed with it before. */
#define GDA_KEEP(v) asm volatile("" : "+l"(v)::"memory")
#else
EP_DEV uint64_t gda_clock(void)
{
	return ep_time_ns();
}

#define GDA_KEEP(v) __asm__ volatile("" : "+r"(v)::"memory")
#endif

struct gda_time {
	struct ep_mlx5_mem to, from, slot;
	uint64_t signal;
	bool one; /* only lane 0 */
};

EP_DEV void gda_time_nothing_op(struct ep_mlx5_post *p, struct gda_time &t)
{
}

EP_DEV void gda_time_poll_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	if (t.one) {
		uint32_t status = EP_MLX5_OK;

		t.signal += ep_mlx5_poll(p, EP_WAIT_RDMA_COMPLETION, &status);
		p->status |= status;
	}
}

EP_DEV void gda_time_store_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	ep_mlx5_put(p, t.one, t.to, t.from, GDA_TIME_BYTES, true);
}

EP_DEV void gda_time_store32_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	ep_mlx5_put(p, true, t.to, t.from, GDA_TIME_BYTES, true);
}

EP_DEV void gda_time_put_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	ep_mlx5_put(p, t.one, t.to, t.from, GDA_TIME_BYTES, false);
}

EP_DEV void gda_time_put32_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	ep_mlx5_put(p, true, t.to, t.from, GDA_TIME_BYTES, false);
}

EP_DEV void gda_time_signal_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	t.signal++;
	ep_mlx5_put_signal(p, t.one, t.to, t.from, GDA_TIME_BYTES,
			   ep_mlx5_signal_value(t.slot, t.signal - 1, t.signal));
}

EP_DEV void gda_time_signal32_op(struct ep_mlx5_post *p, struct gda_time &t)
{
	t.signal++;
	ep_mlx5_put_signal(p, true, t.to, t.from, GDA_TIME_BYTES,
			   ep_mlx5_signal_value(t.slot, t.signal - 1, t.signal));
}

EP_DEV void gda_time_end(const struct gda_time_args &a, const struct ep_mlx5_post &p,
			 const uint32_t *sample, const uint64_t span[4])
{
	uint32_t b = ep_block();

	ep_warp_sync(EP_FULL_MASK);
	for (uint32_t i = ep_lane(); i < a.reps; i += EP_WARP_SIZE) {
		a.sample[b * a.reps + i] = sample[i];
	}
	if (ep_lane() == 0) {
		for (int i = 0; i < 4; i++) {
			a.span[4 * b + i] = span[i];
		}
		a.status[b] = p.status;
	}
}

#define GDA_TIME_KERNEL(name, wqes, messages, text)                                                \
	EP_KERNEL(gda_time_##name, gda_time_args, 32)                                              \
	{                                                                                          \
		struct ep_mlx5_post p = ep_mlx5_open(a.qp + ep_block(), NULL, a.timeout_ns);       \
		uint32_t *sample = (uint32_t *)ep_dynamic_shared();                                \
		struct gda_time t = { ep_mlx5_remote(&p, EP_MLX5_REGION_HEAP, 0),                  \
				      ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, 0),                   \
				      ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, 0), 0,             \
				      ep_lane() == 0 };                                            \
		uint64_t span[4] = { gda_clock(), ep_time_ns(), 0, 0 };                            \
                                                                                                   \
		for (uint32_t i = 0; i < a.reps; i++) {                                            \
			uint64_t begin;                                                            \
                                                                                                   \
			ep_warp_sync(EP_FULL_MASK);                                                \
			begin = gda_clock();                                                       \
			GDA_KEEP(t.to.addr);                                                       \
			gda_time_##name##_op(&p, t);                                               \
			GDA_KEEP(t.signal);                                                        \
			if (t.one) {                                                               \
				sample[i] = (uint32_t)(gda_clock() - begin);                       \
			}                                                                          \
			t.to.addr += GDA_TIME_BYTES;                                               \
			t.from.addr += GDA_TIME_BYTES;                                             \
		}                                                                                  \
		span[2] = gda_clock();                                                             \
		span[3] = ep_time_ns();                                                            \
		ep_mlx5_flush(&p);                                                                 \
		gda_time_end(a, p, sample, span);                                                  \
	}
GDA_TIME_KERNELS(GDA_TIME_KERNEL)
