/* SPDX-License-Identifier: Apache-2.0 */
/* Warps that post what the library's kernels post, in an order that a seed decides. */
#include "device/mlx5/qp.h"
#include "kernels.h"

enum gda_kind {
	GDA_PUT,
	GDA_INLINE,
	GDA_PUT_SIGNAL,
	GDA_SIGNAL,
	GDA_KINDS
};

EP_DEV uint32_t gda_random(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

struct gda_run {
	struct gda_warp *heap; /* of this warp */
	uint64_t at;           /* its offset in the regions */
	uint64_t tag;          /* per lane */
	uint64_t signal, posted;
	bool dirty; /* sources are in use by the NIC */
	bool weak;
};

EP_DEV struct ep_mlx5_mem gda_from(const struct ep_mlx5_post *p, const struct gda_run &g,
				   size_t field)
{
	return ep_mlx5_local(p, EP_MLX5_REGION_HEAP, g.at + field);
}

EP_DEV struct ep_mlx5_mem gda_to(const struct ep_mlx5_post *p, const struct gda_run &g,
				 size_t field)
{
	return ep_mlx5_remote(p, EP_MLX5_REGION_HEAP, g.at + field);
}

EP_DEV struct ep_mlx5_mem gda_slot(const struct ep_mlx5_post *p, const struct gda_run &g,
				   size_t field)
{
	return ep_mlx5_remote(p, EP_MLX5_REGION_SIGNAL, g.at + field);
}

/* Puts the next number of each lane that wants to. */
EP_DEV void gda_put(struct ep_mlx5_post *p, struct gda_run &g, bool want, bool signal, bool more)
{
	uint32_t lane = ep_lane();
	struct ep_mlx5_mem to = gda_to(p, g, offsetof(struct gda_warp, tags) + 8 * lane);
	struct ep_mlx5_mem from = gda_from(p, g, offsetof(struct gda_warp, source) + 8 * lane);

	if (g.dirty || g.weak) {
		ep_mlx5_quiet(p);
	}
	if (p->status) {
		return;
	}
	g.tag += want;
	g.heap->source[lane] = g.tag;
	if (signal) {
		struct ep_mlx5_mem slot = gda_slot(p, g, offsetof(struct gda_warp, signal));

		ep_mlx5_put_signal(p, want, to, from, 8,
				   ep_mlx5_signal_value(slot, g.signal, g.signal + 3));
		g.signal += 3;
	} else {
		ep_mlx5_put(p, want, to, from, 8, more);
	}
	g.dirty = true;
}

EP_DEV void gda_round(struct ep_mlx5_post *p, struct gda_run &g, uint32_t r, uint32_t mine)
{
	uint32_t lane = ep_lane(), kind = r % GDA_KINDS;
	bool want = (r >> 8 & 3) == 0 ? lane == (r >> 10) % 32 : mine & 1;
	bool more = (r >> 16 & 3) == 0;
	uint32_t n = ep_popc(ep_ballot(EP_FULL_MASK, want));
	struct ep_mlx5_mem slot = gda_slot(p, g, offsetof(struct gda_warp, signal));
	const uint32_t words[2] = { (uint32_t)(g.tag + 1), (uint32_t)((g.tag + 1) >> 32) };
	struct ep_mlx5_mem tag = gda_to(p, g, offsetof(struct gda_warp, tags) + 8 * lane);

	switch (kind) {
	case GDA_PUT:
	case GDA_PUT_SIGNAL:
		gda_put(p, g, want, kind == GDA_PUT_SIGNAL, more);
		g.posted += kind == GDA_PUT_SIGNAL;
		break;
	case GDA_INLINE:
		if (g.weak) {
			ep_mlx5_quiet(p);
		}
		ep_mlx5_put_inline(p, want, tag, words, 8, more);
		g.tag += want && !p->status;
		break;
	default:
		ep_mlx5_signal_add(p, ep_mlx5_signal_value(slot, g.signal, g.signal + 1), more);
		g.signal++;
		n = 1;
	}
	g.posted += n;
}

EP_KERNEL(gda_post, gda_post_args, GDA_THREADS)
{
	uint32_t local = ep_block() * ep_nwarps() + ep_warp();
	uint32_t warp = a.first_warp + local, lane = ep_lane();
	struct ep_mlx5_post p = ep_mlx5_open(a.qp + warp, a.aborted, a.timeout_ns);
	struct gda_result *out = a.result + warp;
	struct gda_run g = {};
	uint32_t all = (a.seed + warp) * 2654435761u | 1, mine = all * 747796405u + 97 * lane;

	g.heap = a.heap + warp;
	g.at = warp * sizeof(struct gda_warp);
	g.weak = a.weak != 0;
	g.tag = out->tags[lane];
	g.signal = out->signal;
	ep_warp_sync(EP_FULL_MASK);
	for (uint32_t i = 0; i < a.rounds && !p.status; i++) {
		gda_round(&p, g, gda_random(&all), gda_random(&mine) >> 7);
	}
	ep_mlx5_quiet(&p);
	out->tags[lane] = g.tag;
	if (lane == 0) {
		out->signal = g.signal;
		out->posted += g.posted;
		out->status = p.status;
	}
}

EP_DEV void gda_do(struct ep_mlx5_post *p, uint32_t what, bool want, bool more)
{
	struct gda_run g = {};
	uint32_t lane = ep_lane();
	struct ep_mlx5_mem from = gda_from(p, g, offsetof(struct gda_warp, source) + 8 * lane);
	struct ep_mlx5_mem to = gda_to(p, g, offsetof(struct gda_warp, tags) + 8 * lane);
	struct ep_mlx5_mem slot = gda_slot(p, g, offsetof(struct gda_warp, signal));
	const uint32_t words[7] = { 0x03020100, 0x07060504, 0x0b0a0908, 0x0f0e0d0c,
				    0x13121110, 0x17161514, 0x1b1a1918 };
	struct ep_mlx5_wqe q;

	switch (what) {
	case GDA_ONE_PUT:
		ep_mlx5_put(p, want, to, from, 8, more);
		break;
	case GDA_ONE_PUT_0:
		ep_mlx5_put(p, want, to, from, 0, more);
		break;
	case GDA_ONE_INLINE:
		ep_mlx5_put_inline(p, want, to, words, 28, more);
		break;
	case GDA_ONE_PUT_SIGNAL:
		ep_mlx5_put_signal(p, want, to, from, 8, ep_mlx5_signal_value(slot, 40, 47));
		break;
	case GDA_ONE_SIGNAL:
		ep_mlx5_signal_add(p, ep_mlx5_signal_value(slot, 40, 47), more);
		break;
	case GDA_ONE_UNKNOWN:
		ep_mlx5_build_ctrl(&q, 0, 0x15, p->qpn, 1, 0);
		ep_mlx5_submit(p, want, q, 1, q, 0, more);
		break;
	default:
		break;
	}
}

EP_KERNEL(gda_one, gda_one_args, 32)
{
	struct ep_mlx5_post p = ep_mlx5_open(a.qp, a.aborted, a.timeout_ns);
	uint64_t start = ep_time_ns();
	uint32_t done = 0;

	for (uint32_t i = 0; i < a.times && !p.status; i++) {
		gda_do(&p, a.what, a.lanes >> ep_lane() & 1, a.more != 0);
		done += !p.status;
	}
	if (a.quiet == GDA_QUIET_ALL) {
		if (!ep_mlx5_quiet_all(a.qp, 1, start, a.timeout_ns)) {
			p.status = ep_ld_relaxed_gpu_u32(&a.qp->error);
		}
	} else if (a.quiet) {
		ep_mlx5_quiet(&p);
	}
	bool ended = a.end_ns && ep_mlx5_wait_end(&p, p.end, a.end_ns);

	if (ep_lane() == 0) {
		a.result->status = p.status;
		a.result->posted = done;
		a.result->ended = ended;
	}
}

EP_DEV uint32_t gda_ball_word(uint32_t round, uint32_t lane, uint32_t i)
{
	return round * 2654435761u + lane * 977u + i;
}

EP_DEV void gda_throw(struct ep_mlx5_post *p, const gda_pass_args &a, uint32_t round)
{
	uint32_t lane = ep_lane();
	size_t piece = lane * sizeof(a.ball->in[0]);
	struct ep_mlx5_mem from = ep_mlx5_local(p, EP_MLX5_REGION_HEAP,
						a.at + offsetof(struct gda_ball, out) + piece);
	struct ep_mlx5_mem to = ep_mlx5_remote(p, EP_MLX5_REGION_HEAP,
					       a.at + offsetof(struct gda_ball, in) + piece);
	struct ep_mlx5_mem slot =
		ep_mlx5_remote(p, EP_MLX5_REGION_SIGNAL, a.at + offsetof(struct gda_ball, signal));

	if (!ep_mlx5_quiet(p)) {
		return;
	}
	for (uint32_t i = 0; i < GDA_BALL_WORDS; i++) {
		a.ball->out[lane][i] = gda_ball_word(round, lane, i);
	}
	ep_mlx5_put_signal(p, true, to, from, sizeof(a.ball->in[0]),
			   ep_mlx5_signal_value(slot, round < 2 ? 0 : round - 2, round));
}

/* False: it did not come. */
EP_DEV bool gda_catch(struct ep_mlx5_post *p, const gda_pass_args &a, uint32_t round,
		      uint32_t *wrong)
{
	struct ep_spin spin = ep_spin_start();
	uint32_t lane = ep_lane();
	bool late = false;

	while (!late && ep_ld_acquire_sys_u64(&a.ball->signal) < round) {
		late = ep_spin_expired(&spin, a.timeout_ns, EP_WAIT_RDMA_COMPLETION, p->qp->peer);
	}
	if (ep_any(EP_FULL_MASK, late)) {
		return false;
	}
	for (uint32_t i = 0; i < GDA_BALL_WORDS; i++) {
		*wrong += a.ball->in[lane][i] != gda_ball_word(round, lane, i);
	}
	return true;
}

EP_KERNEL(gda_pass, gda_pass_args, 32)
{
	struct ep_mlx5_post p = ep_mlx5_open(a.qp, nullptr, a.timeout_ns);
	uint32_t wrong = 0, round = 1;

	for (; round <= a.rounds && !p.status; round++) {
		if ((round & 1) == a.serves) {
			gda_throw(&p, a, round);
		} else if (!gda_catch(&p, a, round, &wrong)) {
			break;
		}
		ep_warp_sync(EP_FULL_MASK);
	}
	ep_mlx5_quiet(&p);
	wrong = ep_popc(ep_ballot(EP_FULL_MASK, wrong != 0));
	if (ep_lane() == 0) {
		a.result->wrong = wrong;
		a.result->posted = round - 1;
		a.result->status = p.status;
	}
}
