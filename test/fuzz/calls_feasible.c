/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a group, a handle and their operations are possible: asked, and then tried. */
#include "fuzz/calls.h"

#define DRAW(below) world_draw(&f->state, below)
#define AT(member) #member, offsetof(ncclEpExtShape_t, member)
#define ANY UINT64_MAX
#define UNTOUCHED 99

static const struct form form_shape = {
	"shape",
	sizeof(ncclEpExtShape_t),
	NCCL_EP_EXT_SHAPE_V1_SIZE,
	false,
	{ { AT(hidden), FIELD_U32, 1 << 24, false },
	  { AT(datatype), FIELD_U32, ncclFloat8e5m2, false },
	  { AT(quant_recipe), FIELD_U32, NCCL_EP_DISP_QUANT_DS_FP8E3M4, false },
	  { AT(remote_ranks), FIELD_U32, 1, false },
	  { AT(memory_bytes), FIELD_U64, ANY, false } },
};

/* The first failure of the calls themselves, with its reason; nothing stays. */
static ncclResult_t real(struct fuzz *f, const void *config, const ncclEpExtShape_t *shape,
			 char *text, size_t size)
{
	ncclEpHandleConfig_t own = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpGroup_t group = NULL;
	ncclEpHandle_t handle = NULL;
	const char *last = "";
	ncclResult_t result = ncclEpCreateGroup(&group, f->w->comm, config);

	own.dispatch_output_per_expert_alignment = shape->alignment;
	if (result == ncclSuccess) {
		result = ncclEpInitHandle(&handle, group, shape->layout, &own, shape->num_topk,
					  NULL);
	}
	text[0] = '\0';
	if (result != ncclSuccess) {
		OK(ncclEpExtGetLastError(NULL, NULL, &last));
		snprintf(text, size, "%s", last);
	}
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
	return result;
}

/* The group's config, or any that is not large: most are possible. */
static ncclEpGroupConfig_t draw_config(struct fuzz *f)
{
	ncclEpGroupConfig_t c = f->config;
	bool few = DRAW(4) != 0;

	if (DRAW(2)) {
		return c;
	}
	c.num_experts = few ? FUZZ_RANKS * (unsigned int)(1 + DRAW(40)) : (unsigned int)DRAW(4096);
	c.max_dispatch_tokens_per_rank = (unsigned int)DRAW(few ? 40 : 4);
	c.max_token_bytes = 16 + (unsigned int)(DRAW(4) ? 16 * DRAW(128) : DRAW(2048));
	c.max_recv_tokens_per_rank = DRAW(3) ? (unsigned int)DRAW(200) : NCCL_EP_AUTO;
	c.num_topk = DRAW(3) ? NCCL_EP_AUTO : (unsigned int)DRAW(40);
	c.overflow_policy = (ncclEpOverflowPolicy_t)DRAW(3);
	c.algorithm = DRAW(8) ? c.algorithm : (ncclEpAlgorithm_t)DRAW(4);
	return c;
}

/* A shape of which most are possible: a row is as long as the config allows, or shorter. */
static ncclEpExtShape_t draw_shape(struct fuzz *f, const ncclEpGroupConfig_t *config)
{
	unsigned int bytes = config->max_token_bytes;
	ncclEpExtShape_t s = NCCL_EP_EXT_SHAPE_INIT;

	s.layout = DRAW(4) ? f->layout : (ncclEpLayout_t)DRAW(4);
	s.num_topk = DRAW(4) ? (int)f->topk : (int)DRAW(0);
	s.hidden = bytes < 32 || DRAW(2) ? bytes / 2 : bytes / 4;
	s.hidden &= ~7u;
	s.datatype = ncclBfloat16;
	s.alignment = DRAW(4) ? (unsigned int)f->alignment : (unsigned int)DRAW(0);
	s.rows = UNTOUCHED;
	return s;
}

/*
 * A mistake in the config, in the shape, or in neither. With a shape of which rows are possible it
 * answers what the calls answer, in the same words.
 */
ncclResult_t fuzz_feasible(struct fuzz *f)
{
	ncclEpGroupConfig_t config = draw_config(f);
	ncclEpExtShape_t good = draw_shape(f, &config), *shape;
	struct form form = fuzz_group_form(&config);
	uint64_t which = DRAW(3), rows = UNTOUCHED;
	char asked[512] = "", tried[512];
	struct mutation m;
	ncclResult_t result, theirs;
	const char *last;
	void *c;

	mutation_begin(&m, &f->state, f->spare);
	c = mutate_struct(&m, &form, &config, which == 1);
	shape = mutate_struct(&m, &form_shape, &good, which == 2);
	result = ncclEpExtFeasible(c, FUZZ_RANKS, shape);
	if (m.sure && strstr(m.text, "max_num_sms")) {
		m.sure = false; /* it looks at no GPU */
	} else if (m.sure && strstr(m.text, "rdma_buffer_size")) {
		m.sure = false; /* as much as asked for, wherever it may come from */
	}
	fuzz_judge(f, "feasible", result, &m);
	if (result != ncclSuccess) {
		OK(ncclEpExtGetLastError(NULL, NULL, &last));
		snprintf(asked, sizeof(asked), "%s", last);
	}
	if (shape && !strstr(m.text, "shape->size")) {
		memcpy(&rows, (char *)shape + offsetof(ncclEpExtShape_t, rows), sizeof(rows));
		CHECK((rows == UNTOUCHED) == (result != ncclSuccess));
	}
	theirs = real(f, c, &good, tried, sizeof(tried));
	if (theirs == ncclSuccess) {
		/* a group has no rows yet that could be too long for it */
		CHECK(result == ncclSuccess || which == 2 || strstr(m.text, "max_token_bytes"),
		      "possible, and refused: %s", asked);
	} else if (!strstr(tried, "max_num_sms") && !strstr(tried, "memory")) {
		CHECK(result != ncclSuccess, "refused by the call: %s", tried);
		if (which != 2 && good.layout != NCCL_EP_LAYOUT_UNSET) {
			CHECK_INT(result, theirs);
			CHECK_TEXT(asked, tried);
		}
	}
	mutation_end(&m);
	return theirs;
}
