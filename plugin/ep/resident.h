/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which share of a GPU's SMs the kernels of a group may hold while they wait for peers. Blocks that wait
 * are never preempted, so groups of one process that run on different streams can keep each other from
 * the SMs that their peers wait for. With S SMs, n groups of low latency whose receivers hold at most r
 * each, and groups of high throughput that hold at most H together, no order of launches on any rank
 * locks up if
 *
 *     H <= S            all blocks of high throughput wait for all of their peers' blocks
 *     H + (n - 1) r < S    an SM is left for the senders of each group of low latency, which wait for
 *                          nothing; its receivers come after its senders
 *
 * Groups whose config has AUTO share what others leave. Groups of other processes are not known here.
 */
#ifndef EP_EP_RESIDENT_H
#define EP_EP_RESIDENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A live group's part. */
struct ep_resident {
	struct ep_resident *next;
	int device;
	uint32_t sm_count; /* of the device; 0: the group is not counted */
	bool all_wait;     /* high throughput */
	bool auto_sms;     /* max_num_sms is AUTO */
	uint32_t most;     /* blocks of an operation that wait, at most */
	uint32_t limit;    /* the same beside the groups that live now; changes at any time */
};

/* Counts a group, whose fields up to `most` are set. Warns if groups can lock each other up. */
void ep_resident_add(struct ep_resident *group);

/* The group launches nothing any more. Does nothing for one that was not added. */
void ep_resident_remove(struct ep_resident *group);

/* Blocks that the next launch may have: all of high throughput, receivers of low latency. */
uint32_t ep_resident_limit(const struct ep_resident *group);

/* Appends to an error's text how many groups share the device, if it is more than one. */
void ep_resident_describe(const struct ep_resident *group, char *text, size_t size);

#endif
