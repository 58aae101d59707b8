/* SPDX-License-Identifier: Apache-2.0 */
/* How a kernel reports a failure to the host: one record of each class, in pinned memory. */
#ifndef EP_DEVICE_GROUP_RECORD_H
#define EP_DEVICE_GROUP_RECORD_H

#include "device/group/group_layout.h"
#include "device/simt/simt.h"

/* A kernel's own step; equal in all blocks and on all ranks. */
struct ep_op {
	uint32_t step;
	uint32_t epoch; /* step of the send half */
	uint32_t bank;
	uint32_t freed; /* step that freed the bank; 0: never used */
	uint32_t clean_round;
	uint32_t
		fault; /* why the half must not run: EP_CAUSE_UNSENT to EP_CAUSE_CLEANED; 0: it may */
	uint32_t is_combine; /* as ep_record.is_combine */
	uint64_t start_ns;   /* remote kernels: when the step began, less its wait for the bank */
};

EP_DEV bool ep_aborted(const struct ep_dev_group &g)
{
	return ep_ld_relaxed_gpu_u32(&g.state->aborted) != 0;
}

/* Every wait of the group's kernels on this rank ends from now on. */
EP_DEV void ep_abort(const struct ep_dev_group &g)
{
	ep_st_relaxed_gpu_u32(&g.state->aborted, 1);
}

/* The first failure of a class fills its record; the host reads it once `valid` is set. */
EP_DEV void ep_record_write(const struct ep_dev_group &g, uint32_t record_class,
			    const struct ep_record &record)
{
	if (ep_atomic_cas_gpu_u32(&g.state->record_lock[record_class], 0, 1) != 0) {
		return;
	}
	struct ep_record *out = &g.records[record_class];

	out->cause = record.cause;
	out->site = record.site;
	out->peer = record.peer;
	out->step = record.step;
	out->is_combine = record.is_combine;
	out->token = record.token;
	out->k = record.k;
	out->value = record.value;
	out->expected = record.expected;
	ep_st_release_sys_u32(&out->valid, 1);
}

/* A record about `peer` in the present step; the caller adds the rest. */
EP_DEV struct ep_record ep_record_make(const struct ep_op &op, uint32_t cause, uint32_t peer)
{
	struct ep_record r = {};

	r.cause = cause;
	r.peer = peer;
	r.step = op.step;
	r.is_combine = op.is_combine;
	return r;
}

#endif
