/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures: all that ranks must pass alike is in them, and the first field that differs is named
 * with both values.
 */
#include "ep/ep.h"
#include "support/check.h"

#define STEP 7

/* What the other rank has in a word, what this one has there, and the text of that. */
static const struct {
	uint32_t field, its, ours;
	bool halves;
	const char *text;
} words[] = {
	{ EP_SIGNATURE_CALL, EP_SIGNATURE_UPDATE, EP_SIGNATURE_DISPATCH, false,
	  "the call is UpdateHandle on rank 3, dispatch on rank 5" },
	{ EP_SIGNATURE_CALL, EP_SIGNATURE_DISPATCH_SEND, EP_SIGNATURE_DISPATCH_RECV, true,
	  "the call is send_only dispatch on rank 3, Complete of a dispatch on rank 5" },
	{ EP_SIGNATURE_CALL, EP_SIGNATURE_COMBINE_SEND, EP_SIGNATURE_COMBINE_RECV, true,
	  "the call is send_only combine on rank 3, Complete of a combine on rank 5" },
	{ EP_SIGNATURE_CALL, EP_SIGNATURE_COMBINE, 99, true,
	  "the call is combine on rank 3, 99 on rank 5" },
	{ EP_SIGNATURE_DIRECTION, NCCL_EP_FWD_PASS, NCCL_EP_BWD_PASS, false,
	  "config->pass_direction is FWD on rank 3, BWD on rank 5" },
	{ EP_SIGNATURE_LAYOUT, NCCL_EP_LAYOUT_EXPERT_MAJOR, NCCL_EP_LAYOUT_RANK_MAJOR, true,
	  "the handle's layout is EXPERT_MAJOR on rank 3, RANK_MAJOR on rank 5" },
	{ EP_SIGNATURE_LAYOUT, NCCL_EP_LAYOUT_FLAT, NCCL_EP_LAYOUT_UNSET, false,
	  "the handle's layout is FLAT on rank 3, UNSET on rank 5" },
	{ EP_SIGNATURE_TOPK, 8, 9, true, "the handle's num_topk is 8 on rank 3, 9 on rank 5" },
	{ EP_SIGNATURE_RECIPE, NCCL_EP_DISP_QUANT_NONE, NCCL_EP_DISP_QUANT_FWD, true,
	  "config->quant_recipe is NONE on rank 3, FWD on rank 5" },
	{ EP_SIGNATURE_RECIPE, NCCL_EP_DISP_QUANT_DS_FP8E3M4, NCCL_EP_DISP_QUANT_DS_FP8E3M4 | 16,
	  true,
	  "config->quant_recipe is DS_FP8E3M4 on rank 3, DS_FP8E3M4 with round_scales on rank 5" },
	{ EP_SIGNATURE_RECIPE, 7, 0, true, "config->quant_recipe is 7 on rank 3, NONE on rank 5" },
	{ EP_SIGNATURE_TOKENS_TYPE, ncclBfloat16 + 1, ncclFloat32 + 1, true,
	  "the type of tokens is bf16 on rank 3, fp32 on rank 5" },
	{ EP_SIGNATURE_TOKENS_EXTENT, 7168, 7184, true,
	  "the number of elements per token is 7168 on rank 3, 7184 on rank 5" },
	{ EP_SIGNATURE_SCALES_TYPE, 0, ncclFloat32 + 1, true,
	  "the type of inputs->scales is none on rank 3, fp32 on rank 5" },
	{ EP_SIGNATURE_SCALES_EXTENT, 56, 0, true,
	  "the number of scales per token is 56 on rank 3, 0 on rank 5" },
	{ EP_SIGNATURE_ALIGNMENT, 1, 64, false,
	  "the handle's dispatch_output_per_expert_alignment is 1 on rank 3, 64 on rank 5" },
	{ EP_SIGNATURE_WINDOW, 0, 1, false,
	  "whether received rows are in a window, as that of an empty tensor has to be, too, is no "
	  "on rank 3, yes on rank 5" },
	{ EP_SIGNATURE_TOKENS_OFFSET, 4096, 0, false,
	  "win_offset of the received tokens is 4096 on rank 3, 0 on rank 5" },
	{ EP_SIGNATURE_TOKENS_OFFSET + 1, 1, 0, false,
	  "win_offset of the received tokens is 4294967296 on rank 3, 0 on rank 5" },
	{ EP_SIGNATURE_SCALES_OFFSET, 0, 16, false,
	  "win_offset of the received scales is 0 on rank 3, 16 on rank 5" },
	{ EP_SIGNATURE_SCALES_OFFSET + 1, 0, 2, false,
	  "win_offset of the received scales is 0 on rank 3, 8589934592 on rank 5" },
	{ EP_SIGNATURE_ORIGIN, 4, 5, true,
	  "the number of the handle's last dispatch is 4 on rank 3, 5 on rank 5" },
	{ EP_SIGNATURE_ORIGIN, 0, 5, false,
	  "the number of the UpdateHandle whose routing is in handle_mem is none on rank 3, 5 on "
	  "rank 5" },
	{ EP_SIGNATURE_ORIGIN, EP_SIGNATURE_REFUSED, 5, false,
	  "is of no use (see the error of that rank) on rank 3, 5 on rank 5" },
};

/* The slot of a rank that passes that to STEP. */
static struct ep_signature_slot slot_of(const struct ep_signature *s)
{
	struct ep_signature_slot slot = { .signature = *s };
	struct ep_dev_launch launch;

	ep_signature_launch(&launch, s);
	slot.mark = (uint64_t)STEP << 32 |
		    ep_signature_seal(launch.hash, s->word[EP_SIGNATURE_ORIGIN]);
	return slot;
}

static void test_words(void)
{
	uint32_t named = 0;

	for (size_t i = 0; i < EP_ARRAY_SIZE(words); i++) {
		struct ep_signature its = { { 0 } }, ours = { { 0 } };
		struct ep_signature_slot slot;
		char text[300];

		check_context("case %zu", i);
		its.word[words[i].field] = words[i].its;
		ours.word[words[i].field] = words[i].ours;
		ep_signature_explain(&its, 3, &ours, 5, words[i].halves, text, sizeof(text));
		if (words[i].its == EP_SIGNATURE_REFUSED) {
			CHECK_HAS(text, words[i].text);
		} else {
			CHECK_TEXT(text, words[i].text);
		}
		slot = slot_of(&its);
		CHECK(slot.mark != slot_of(&ours).mark);
		CHECK(ep_signature_whole(&slot, STEP) && !ep_signature_whole(&slot, STEP + 1));
		slot.signature = ours; /* has come in part */
		CHECK(!ep_signature_whole(&slot, STEP));
		named |= 1u << words[i].field;
	}
	CHECK_INT(named, (1u << EP_SIGNATURE_WORDS) - 1);
}

/* The first of several is named; a half that completes is told by what it completes. */
static void test_order(void)
{
	struct ep_signature its = { { 0 } }, ours = { { 0 } };
	char text[300];

	for (uint32_t i = EP_SIGNATURE_TOPK; i < EP_SIGNATURE_WORDS; i++) {
		its.word[i] = 1;
	}
	ep_signature_explain(&its, 0, &ours, 1, true, text, sizeof(text));
	CHECK_TEXT(text, "the handle's num_topk is 1 on rank 0, 0 on rank 1");
	for (uint32_t call = EP_SIGNATURE_DISPATCH_RECV; call <= EP_SIGNATURE_COMBINE_RECV;
	     call += EP_SIGNATURE_COMBINE_RECV - EP_SIGNATURE_DISPATCH_RECV) {
		memset(&its, 0, sizeof(its));
		its.word[EP_SIGNATURE_CALL] = ours.word[EP_SIGNATURE_CALL] = call;
		its.word[EP_SIGNATURE_ORIGIN] = 2;
		ep_signature_explain(&its, 0, &ours, 1, true, text, sizeof(text));
		CHECK_TEXT(text, "the number of the send_only operation is 2 on rank 0, none on "
				 "rank 1");
	}
	CHECK_TEXT(ep_signature_call(&ours), "Complete of a combine");
	ours.word[EP_SIGNATURE_CALL] = 1000;
	CHECK_TEXT(ep_signature_call(&ours), "operation");
}

#define MADE 11

/*
 * Signatures of a dispatch, of which each differs from the first one in one thing that it is made
 * of.
 */
static uint32_t made_dispatches(struct ep_signature *s)
{
	struct ncclEpHandle h[4] = { { .layout = NCCL_EP_LAYOUT_FLAT, .topk = 8, .alignment = 1 } };
	static const size_t tokens[] = { 4, 128 }, scales[] = { 4, 8 };
	struct ep_dispatch d[MADE] = { { .h = h,
					 .recipe = ep_dispatch_recipes + 1,
					 .tokens = { .datatype = ncclFloat16, .sizes = tokens },
					 .scales = { .datatype = ncclFloat32, .sizes = scales } } };

	for (uint32_t i = 1; i < MADE; i++) {
		d[i] = d[0];
	}
	h[1] = h[2] = h[3] = h[0];
	h[1].layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
	h[2].topk = 9;
	h[3].alignment = 2;
	d[1].h = h + 1;
	d[2].h = h + 2;
	d[3].h = h + 3;
	d[4].config.pass_direction = NCCL_EP_BWD_PASS;
	d[5].config.send_only = 1;
	d[6].recipe = ep_dispatch_recipes + 2;
	d[7].tokens.datatype = ncclBfloat16;
	d[8].tokens.sizes = (const size_t[]){ 4, 256 };
	d[9].scales.datatype = ncclUint8;
	d[10].scales.sizes = (const size_t[]){ 4, 16 };
	for (uint32_t i = 0; i < MADE; i++) {
		s[i] = ep_signature_dispatch(d + i);
	}
	d[6].config.round_scales = 1;
	s[MADE] = ep_signature_dispatch(d + 6);
	d[0].config.round_scales = 1; /* says nothing without a recipe that makes scales */
	d[0].num_tokens = 77;
	s[MADE + 1] = ep_signature_dispatch(d);
	CHECK(!memcmp(s + MADE + 1, s, sizeof(*s)));
	return MADE + 1;
}

static uint32_t made_combines(struct ep_signature *s)
{
	struct ncclEpHandle h = { .layout = NCCL_EP_LAYOUT_FLAT, .topk = 8, .alignment = 1 };
	static const size_t sizes[] = { 4, 128 }, others[] = { 4, 256 };
	struct ep_combine c = { .h = &h,
				.recipe = ep_combine_recipes,
				.out_tokens = { .datatype = ncclFloat16, .sizes = sizes } };
	struct ep_combine of[6] = { c, c, c, c, c, c };

	of[1].config.pass_direction = NCCL_EP_BWD_PASS;
	of[2].config.send_only = 1;
	of[3].recipe = ep_combine_recipes + 1;
	of[4].out_tokens.datatype = ncclBfloat16;
	of[5].out_tokens.sizes = others;
	for (uint32_t i = 0; i < 6; i++) {
		s[i] = ep_signature_combine(of + i);
	}
	s[6] = s[7] = s[8] = s[0];
	ep_signature_windows(s + 6, 0, 0);
	ep_signature_windows(s + 7, UINT64_C(1) << 40, 0);
	ep_signature_windows(s + 8, 0, UINT64_C(1) << 40);
	s[9] = ep_signature_update(&h);
	return 10;
}

/* All that ranks must pass alike changes the hash, which is never 0. */
static void test_made(void)
{
	struct ep_signature s[2 * MADE + 10];
	struct ep_dev_launch a[2 * MADE + 10];
	uint32_t n = made_dispatches(s);

	n += made_combines(s + n);
	for (uint32_t i = 0; i < n; i++) {
		ep_signature_launch(a + i, s + i);
		check_context("signature %u", i);
		CHECK(a[i].hash != 0);
		CHECK_INT(a[i].sent_hash, a[i].hash);
		CHECK_INT(s[i].word[EP_SIGNATURE_ORIGIN], 0);
		for (uint32_t j = 0; j < i; j++) {
			CHECK(a[i].hash != a[j].hash, "%u", j);
		}
	}
	check_context("the receive half");
	ep_signature_complete(a + 5);
	CHECK_INT(a[5].signature.word[EP_SIGNATURE_CALL], EP_SIGNATURE_DISPATCH_RECV);
	CHECK(a[5].hash != a[5].sent_hash);
}

/* No two of the steps that ranks may be in, and that waits look back at, have a slot in common. */
static void test_slots(void)
{
	enum {
		RANKS = 3,
		STEPS = 2 * EP_GROUP_MAX_LEAD,
		FIRST = 0x7ffffff8
	};
	uint64_t off[STEPS * RANKS];

	for (uint32_t i = 0; i < STEPS * RANKS; i++) {
		off[i] = ep_signature_slot_off(RANKS, FIRST + i / RANKS, i % RANKS);
		CHECK(off[i] + sizeof(struct ep_signature_slot) <= EP_SIGNATURE_BYTES(RANKS));
		for (uint32_t j = 0; j < i; j++) {
			CHECK(off[i] >= off[j] + sizeof(struct ep_signature_slot) ||
			      off[j] >= off[i] + sizeof(struct ep_signature_slot));
		}
	}
}

int main(void)
{
	test_words();
	test_slots();
	test_order();
	test_made();
	return check_end();
}
