/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures, of all that ranks must pass to an operation alike: made at each launch, compared by kernels
 * (device/group/group_signature.h), and put into words where two ranks differ.
 */
#ifndef EP_EP_SIGNATURE_H
#define EP_EP_SIGNATURE_H

#include "ep/combine.h"
#include "ep/dispatch.h"

struct ep_signature ep_signature_update(const struct ncclEpHandle *handle);
struct ep_signature ep_signature_dispatch(const struct ep_dispatch *dispatch);
struct ep_signature ep_signature_combine(const struct ep_combine *combine);

/* The operation's rows go straight to or come from windows, at these offsets. */
void ep_signature_windows(struct ep_signature *signature, uint64_t offset, uint64_t scale_offset);

/* Puts it into a launch of the send half, or of both halves. */
void ep_signature_launch(struct ep_dev_launch *launch, const struct ep_signature *signature);

/* The same launch becomes one of the receive half. */
void ep_signature_complete(struct ep_dev_launch *launch);

/* Is that the whole signature of the step, as the rank passed it? */
bool ep_signature_whole(const struct ep_signature_slot *slot, uint32_t step);

/* The name of the call, by its signature. */
const char *ep_signature_call(const struct ep_signature *signature);

/* The first field that two ranks have not alike, with both values. `halves`: of low latency. */
void ep_signature_explain(const struct ep_signature *theirs, int rank,
			  const struct ep_signature *ours, int self, bool halves, char *text,
			  size_t size);

#endif
