/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ranks must have alike in an operation, as the numbers that its kernels compare; and in words
 * what two ranks have not.
 */
#include <stdio.h>
#include "ep/ht/ht.h"

/* EP_HT_FORM_KIND: the kind of the operation in two bits, and */
#define EP_HT_FORM_BACKWARD 4u
#define EP_HT_FORM_EXPERTS 8u
#define EP_HT_FORM_DIRECT 16u
#define EP_HT_FORM_TOPK(f) ((f) >> 5 & 0x3fu)
#define EP_HT_FORM_DTYPE(f) ((f) >> 11 & 3u)    /* combine */
#define EP_HT_FORM_ALIGN(f) ((f) >> 13 & 0x1fu) /* UpdateHandle: of zones, a power of two */

/* Two values have the same number once in 2^32. */
static uint32_t ep_ht_hash(uint64_t first, uint64_t second)
{
	uint64_t h = first * 0x9e3779b97f4a7c15u;

	h = (h ^ h >> 32 ^ second) * 0xd6e8feb86659fd93u;
	h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
	return (uint32_t)(h >> 32);
}

void ep_ht_form_make(const struct ncclEpHandle *h, const struct ep_ht_alike *a, uint32_t *form)
{
	uint32_t align = 0;

	while (a->alignment >> align > 1) {
		align++;
	}
	form[EP_HT_FORM_KIND] =
		(uint32_t)a->kind | (a->backward ? EP_HT_FORM_BACKWARD : 0) |
		(h->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? EP_HT_FORM_EXPERTS : 0) |
		(a->direct ? EP_HT_FORM_DIRECT : 0) | h->topk << 5 | (uint32_t)a->dtype << 11 |
		align << 13;
	form[EP_HT_FORM_ROW] = ep_ht_hash(a->token_bytes, a->scale_bytes);
	form[EP_HT_FORM_PLACE] = a->direct ? ep_ht_hash(a->offset, a->scale_offset) : 0;
}

/* Two forms of operations of one kind. */
static void ep_ht_kind_differs(uint32_t its, uint32_t ours, char *text, size_t size)
{
	static const char *const kinds[] = { "UpdateHandle", "dispatch", "combine", "nothing" };
	static const char *const types[] = { "bf16", "fp16", "fp32", "unknown" };
	uint32_t differ = its ^ ours;

	if (differ & 3) {
		snprintf(text, size, "it runs %s, and we run %s", kinds[its & 3], kinds[ours & 3]);
	} else if (differ & EP_HT_FORM_BACKWARD) {
		snprintf(text, size, "its pass_direction is %s, and ours is not",
			 its & EP_HT_FORM_BACKWARD ? "BWD" : "FWD");
	} else if (differ & EP_HT_FORM_EXPERTS) {
		snprintf(text, size, "its layout is %s, and ours is not",
			 its & EP_HT_FORM_EXPERTS ? "EXPERT_MAJOR" : "FLAT");
	} else if (EP_HT_FORM_TOPK(differ)) {
		snprintf(text, size, "its handle's num_topk is %u, and ours %u",
			 EP_HT_FORM_TOPK(its), EP_HT_FORM_TOPK(ours));
	} else if (EP_HT_FORM_DTYPE(differ)) {
		snprintf(text, size, "its tokens are %s, and ours %s", types[EP_HT_FORM_DTYPE(its)],
			 types[EP_HT_FORM_DTYPE(ours)]);
	} else if (EP_HT_FORM_ALIGN(differ)) {
		snprintf(text, size, "its dispatch_output_per_expert_alignment is %u, and ours %u",
			 1u << EP_HT_FORM_ALIGN(its), 1u << EP_HT_FORM_ALIGN(ours));
	} else {
		snprintf(text, size,
			 "%s has its rows in a window (also an empty tensor needs its one)",
			 its & EP_HT_FORM_DIRECT ? "only that rank" : "all but that rank");
	}
}

void ep_ht_mismatch(const struct ep_record *r, char *text, size_t size)
{
	uint32_t its = (uint32_t)r->value, ours = (uint32_t)r->expected;

	switch (r->k) {
	case EP_HT_FORM_KIND:
		ep_ht_kind_differs(its, ours, text, size);
		break;
	case EP_HT_FORM_ROW:
		snprintf(text, size, "bytes of a row or of its scales differ");
		break;
	case EP_HT_FORM_PLACE:
		snprintf(text, size, "its rows are at another win_offset than ours");
		break;
	default:
		snprintf(text, size,
			 "its handle_mem has the routing of UpdateHandle %u, and ours that of "
			 "UpdateHandle %u",
			 its, ours);
	}
}
