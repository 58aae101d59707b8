/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency kernels: failures, waiting, addresses. */
#ifndef EP_DEVICE_LL_COMMON_H
#define EP_DEVICE_LL_COMMON_H

#include "device/ll/layout.h"
#include "device/simt/simt.h"

/* What a kernel knows about its own step; equal in all blocks and on all ranks. */
struct ep_ll_op {
	uint32_t step;
	uint32_t epoch;   /* step of the send half */
	uint32_t bank;
	uint32_t release; /* step that released the bank before; 0: never used */
	uint32_t round;   /* of ep_ll_seq */
	bool staged;      /* false: a receiving half whose sending half never ran */
	bool is_combine;
	uint64_t start_ns; /* _net kernels: when it began, without its wait for the bank */
};

EP_DEV uint32_t ep_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

EP_DEV uint32_t ep_max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* Where peer r tells how far it is. */
EP_DEV const uint32_t *ep_ll_progress(const struct ep_ll_common &c, uint32_t r)
{
	return (const uint32_t *)(c.heap[c.rank] + c.progress_off) + 2 * r;
}

/* Is rank r reached by RDMA? */
EP_DEV bool ep_ll_remote(const struct ep_ll_common &c, uint32_t r)
{
	return c.remote >> r & 1;
}

EP_DEV bool ep_ll_aborted(const struct ep_ll_state *state)
{
	return ep_ld_relaxed_gpu_u32(&state->aborted) != 0;
}

/* The first failure of a class fills its record; the host reads it once `valid` is set. */
EP_DEV void ep_ll_record_write(struct ep_ll_state *state, struct ep_ll_record *records,
			       uint32_t record_class, const struct ep_ll_record &r)
{
	if (ep_atomic_cas_gpu_u32(&state->record_lock[record_class], 0, 1) != 0) {
		return;
	}
	struct ep_ll_record *out = &records[record_class];

	out->cause = r.cause;
	out->site = r.site;
	out->peer = r.peer;
	out->step = r.step;
	out->is_combine = r.is_combine;
	out->token = r.token;
	out->k = r.k;
	out->value = r.value;
	out->expected = r.expected;
	out->waited_ns = r.waited_ns;
	ep_st_release_sys_u32(&out->valid, 1);
}

EP_DEV bool ep_ll_active(const struct ep_ll_common &c, uint32_t r)
{
	return !c.mask_enabled || ep_ld_relaxed_gpu_u32((const uint32_t *)c.mask + r) != 0;
}

/* ep_ll_active(), for a warp: a mask may change while lanes look at it, so one of them decides. */
EP_DEV bool ep_ll_warp_active(const struct ep_ll_common &c, uint32_t r)
{
	return ep_shfl_u32(EP_FULL_MASK, ep_lane() == 0 && ep_ll_active(c, r), 0) != 0;
}

/* A wait for `peer` expired: masks it, or ends the group's operations. */
EP_DEV void ep_ll_peer_failed(const struct ep_ll_common &c, const struct ep_ll_op &op,
			      uint32_t cause, enum ep_wait_site site, uint32_t peer,
			      uint32_t value, uint32_t expected)
{
	struct ep_ll_record r = {};
	bool masked = c.mask_enabled && cause != EP_LL_CAUSE_MISMATCH &&
		      cause != EP_LL_CAUSE_UNENDED;

	r.cause = cause;
	r.site = site;
	r.peer = peer;
	r.step = op.step;
	r.is_combine = op.is_combine;
	r.value = value;
	r.expected = expected;
	r.waited_ns = c.timeout_ns;
	ep_ll_record_write(c.state, c.records, masked ? EP_LL_RECORD_MASKED : EP_LL_RECORD_FATAL, r);
	if (masked) {
		ep_st_relaxed_gpu_u32((uint32_t *)c.mask + peer, 0);
		ep_st_relaxed_sys_u32(c.async_error, 1);
	} else {
		ep_st_relaxed_gpu_u32(&c.state->aborted, 1);
	}
}

/* The host has given the connection with `peer` up: no use in waiting. */
EP_DEV bool ep_ll_given_up(const struct ep_ll_common &c, const struct ep_ll_op &op,
			   enum ep_wait_site site, uint32_t peer)
{
	if (!ep_ll_remote(c, peer) || !ep_ld_relaxed_sys_u32(c.down + peer)) {
		return false;
	}
	ep_ll_peer_failed(c, op, EP_LL_CAUSE_RDMA, site, peer, 0, 0);
	return true;
}

EP_DEV uint64_t ep_ll_told(const struct ep_ll_common &c, uint32_t r)
{
	return ep_ld_retired_sys_u64((const uint64_t *)ep_ll_progress(c, r));
}

/*
 * By what it has told, peer r has masked this rank: it waits for us no more, and uses the banks. What
 * it told before it last took us in does not count: in an earlier round of MaskCleans, or when
 * MaskUpdate took r in here. (Rounds, since steps of ranks that have parted cannot be compared.)
 */
EP_DEV bool ep_ll_masked_by(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r,
			    uint64_t told)
{
	return told >> 32 & 1 && (int32_t)(((uint32_t)(told >> 33) - op.round) << 1) >= 0 &&
	       told != ep_ll_forgiven(c.mask, c.nranks)[r];
}

/* Peer r has masked us: no use in waiting for what it would have sent. */
EP_DEV bool ep_ll_masked_us(const struct ep_ll_common &c, const struct ep_ll_op &op,
			    enum ep_wait_site site, uint32_t r)
{
	uint64_t told = c.mask_enabled ? ep_ll_told(c, r) : 0;

	if (!ep_ll_masked_by(c, op, r, told)) {
		return false;
	}
	ep_ll_peer_failed(c, op, EP_LL_CAUSE_LEFT, site, r, (uint32_t)told - op.step, 0);
	return true;
}

#define EP_LL_LITTLE_NS 1000000000u /* more than all waits beyond the timeout together */

/*
 * Whether `peer` is waited for any more, now that the timeout has passed. It may be held up by
 * another rank, if that has not come as far. Else it may itself have waited for a message that was
 * lost on its way, since a little later than we: the further it is behind us, the more time it needs
 * to catch up, and more each time that it comes nearer. What it owes is lost when it has begun a
 * later step; but that news, by a queue of its own, may overtake rows. What was seen last is kept in
 * `polls`.
 */
EP_DEV bool ep_ll_patient(const struct ep_ll_common &c, const struct ep_ll_op &op,
			  struct ep_spin *s, uint32_t peer)
{
	uint32_t reached = ep_ld_retired_sys_u32(ep_ll_progress(c, peer));
	/* who has started the step waits for nothing but its bank before it sends */
	uint32_t needed = reached == op.epoch ? op.release + 1 : reached;
	uint32_t near = reached == op.epoch ? 2 : (int32_t)(reached - op.epoch) > 0 ? 3 : 1;
	uint64_t now = ep_time_ns(), grace = EP_LL_LITTLE_NS >> near;

	if (s->polls >> 30 != near) {
		s->polls = (s->polls & 0x3fffffff) | near << 30;
		s->start_ns = now - c.timeout_ns;
		return true;
	}
#pragma unroll 1 /* a wait that expires is rare: not worth the registers */
	for (uint32_t r = 0; r < c.nranks && needed != 1 && near < 3; r++) {
		if ((int32_t)(ep_ld_retired_sys_u32(ep_ll_progress(c, r)) - needed) < 0) {
			grace = c.timeout_ns;
		}
	}
	return now - s->start_ns - c.timeout_ns < grace;
}

/*
 * One poll of a wait has failed. True when waiting is over: the group is aborted, or the timeout
 * has passed, in which case the failure of `peer` is recorded here.
 *
 * A rank that fails holds up the others, whose waits for it expire at the same time as the waits
 * for them, this rank's own sending half included. So whoever is not the last is given the timeout
 * a second time: for its own wait, and for what it owes after that. The last may be held up too,
 * where a message was lost on its way to it alone: it is given a little.
 */
EP_DEV bool ep_ll_wait_over(const struct ep_ll_common &c, const struct ep_ll_op &op,
			    struct ep_spin *s, enum ep_wait_site site, uint32_t peer)
{
	if (ep_spin_expired(s, c.timeout_ns, site, peer) &&
	    !ep_ll_patient(c, op, s, peer)) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_TIMEOUT, site, peer, 0, 0);
		return true;
	}
	if ((s->polls & 63) != 0) {
		return false;
	}
	return ep_ll_aborted(c.state) || !ep_ll_active(c, peer) ||
	       ep_ll_given_up(c, op, site, peer) || ep_ll_masked_us(c, op, site, peer);
}

/* Waits for a flag to hold this operation's epoch; false when the peer failed. */
EP_DEV bool ep_ll_wait_flag(const struct ep_ll_common &c, const struct ep_ll_op &op,
			    const uint32_t *flag, enum ep_wait_site site, uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	while (ep_ld_acquire_sys_u32(flag) != op.epoch) {
		if (ep_ll_wait_over(c, op, &s, site, peer)) {
			return false;
		}
	}
	return true;
}

/* Waits for an 8-byte word; false when the peer failed. */
EP_DEV bool ep_ll_wait_word(const struct ep_ll_common &c, const struct ep_ll_op &op, const void *p,
			    uint32_t *d, enum ep_wait_site site, uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_word(p, op.epoch, d)) {
		if (ep_ll_wait_over(c, op, &s, site, peer)) {
			return false;
		}
	}
	return true;
}

/* Waits for a 16-byte packet; false when the peer failed. */
EP_DEV bool ep_ll_wait_packet(const struct ep_ll_common &c, const struct ep_ll_op &op,
			      const void *p, uint32_t *d0, uint32_t *d1, enum ep_wait_site site,
			      uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	while (!ep_ld_packet(p, op.epoch, d0, d1)) {
		if (ep_ll_wait_over(c, op, &s, site, peer)) {
			return false;
		}
	}
	return true;
}

/* Areas of this operation's bank in the heap of rank r. */
EP_DEV unsigned char *ep_ll_packets(const struct ep_ll_common &c, const struct ep_ll_op &op,
				    uint32_t r)
{
	return c.heap[r] + c.bank_off[op.bank] + c.packet_off;
}

EP_DEV uint32_t *ep_ll_flags(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r)
{
	return (uint32_t *)(c.heap[r] + c.bank_off[op.bank] + c.flag_off);
}

EP_DEV unsigned char *ep_ll_rows(const struct ep_ll_common &c, const struct ep_ll_op &op,
				 uint32_t r)
{
	return c.heap[r] + c.bank_off[op.bank] + c.row_off;
}

/* Row `at` of the rows area of rank r. */
EP_DEV unsigned char *ep_ll_row(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r,
				uint32_t at)
{
	return ep_ll_rows(c, op, r) + (size_t)at * ep_ll_row_stride(c.row_quads, c.lines);
}

EP_DEV uint32_t *ep_ll_row_flag(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r,
				uint32_t at, uint32_t part)
{
	return ep_ll_flags(c, op, r) + (size_t)at * EP_LL_MAX_PARTS + part;
}

/* Quads [first, end) of a row that part `part` covers. Late parts may be empty. */
EP_DEV void ep_ll_part(uint32_t quads, uint32_t chunk, uint32_t part, uint32_t *first,
		       uint32_t *end)
{
	*first = ep_min_u32(part * chunk, quads);
	*end = ep_min_u32(*first + chunk, quads);
}

/* Quads of a part when another rank chose the number of parts. */
EP_DEV uint32_t ep_ll_chunk(uint32_t quads, uint32_t parts, uint32_t unit)
{
	return ((quads + parts - 1) / parts + unit - 1) / unit * unit;
}

/*
 * Awaits the lines of a quad of which a first load failed. One warp; false when the peer failed.
 * The lanes poll in step, so what one of them decides holds for all.
 */
EP_DEV bool ep_ll_wait_quad(const struct ep_ll_common &c, const struct ep_ll_op &op,
			    const unsigned char *quad, struct ep_vec16 *v, enum ep_wait_site site,
			    uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	for (;;) {
		bool have = ep_ld_line(quad, op.epoch, v);

		if (ep_all(EP_FULL_MASK, have)) {
			break;
		}
		if (ep_any(EP_FULL_MASK, !have && ep_ll_wait_over(c, op, &s, site, peer))) {
			return false;
		}
	}
	ep_ld_line_settle(quad, v);
	return true;
}

/* Bits 0..lanes-1 of `hits`, turned so that bit 0 of the result is bit `turn`. */
EP_DEV uint32_t ep_ll_turned_hits(uint32_t hits, uint32_t turn, uint32_t lanes)
{
	uint64_t twice = (uint64_t)hits << lanes | hits;

	return (uint32_t)(twice >> turn) & (uint32_t)(((uint64_t)1 << lanes) - 1);
}

/* The lane that the lowest bit of turned hits stands for. */
EP_DEV uint32_t ep_ll_turned_lane(uint32_t m, uint32_t turn, uint32_t lanes)
{
	uint32_t l = ep_ctz(m) + turn;

	return l < lanes ? l : l - lanes;
}

/* Announces a part of a row of bytes that the warp has stored at rank r. One lane per row. */
EP_DEV void ep_ll_announce(const struct ep_ll_common &c, const struct ep_ll_op &op, uint32_t r,
			   uint32_t at, uint32_t part)
{
	ep_release_fence_sys();
	ep_st_fenced_sys_u32(ep_ll_row_flag(c, op, r, at, part), op.epoch);
}

#endif
