/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats of rows and the recipes that name them: what a caller gives and gets, what ranks compare,
 * and what a row takes. How an algorithm packs a row for its way is the algorithm's own.
 */
#include <stdio.h>
#include "ep/ep.h"

const struct ep_format ep_formats[EP_ROW_FORMATS] = {
	[EP_ROW_COPIED] = { NULL, 0, 0, 0, 0, 1 },
	[EP_ROW_FP8] = { "e4m3 with an fp32 scale per 128", ncclFloat8e4m3, ncclFloat32, 128, 0,
			 128 },
	[EP_ROW_MXFP8] = { "e4m3 with an e8m0 scale per 32", ncclFloat8e4m3, ncclUint8, 32, 0,
			   128 },
	[EP_ROW_NVFP4] = { "e2m1 with an e4m3 scale per 16", ncclFloat4x2, ncclFloat8e4m3, 16, 1,
			   64 },
};

const struct ep_recipe ep_dispatch_recipes[] = {
	{ NCCL_EP_DISP_QUANT_NONE, "NONE", EP_ROW_COPIED },
	{ NCCL_EP_DISP_QUANT_FWD, "FWD", EP_ROW_COPIED },
	{ NCCL_EP_DISP_QUANT_DS_FP8E3M4, "DS_FP8E3M4", EP_ROW_FP8 },
	{ NCCL_EP_EXT_DISP_QUANT_MXFP8, "MXFP8", EP_ROW_MXFP8 },
	{ NCCL_EP_EXT_DISP_QUANT_NVFP4, "NVFP4", EP_ROW_NVFP4 },
	{ 0 },
};

const struct ep_recipe ep_combine_recipes[] = {
	{ NCCL_EP_COMB_QUANT_NONE, "NONE", EP_ROW_COPIED },
	{ NCCL_EP_COMB_QUANT_NVFP4, "NVFP4", EP_ROW_NVFP4 },
	{ NCCL_EP_COMB_QUANT_MXFP8, "MXFP8", EP_ROW_MXFP8 },
	{ NCCL_EP_EXT_COMB_QUANT_FP8, "FP8", EP_ROW_FP8 },
	{ 0 },
};

ncclResult_t ep_recipe_find(const struct ep_recipe *recipes, const struct ep_limits *limits,
			    uint32_t formats, int value, const struct ep_recipe **out)
{
	char names[128] = "";
	size_t n = 0;

	for (const struct ep_recipe *r = recipes; r->name; r++) {
		bool has = formats >> r->format & 1;

		if (r->value == value && has) {
			*out = r;
			return ncclSuccess;
		}
		if (r->value == value) {
			return ep_fail(
				ncclInvalidArgument,
				"config->quant_recipe: %s mode does not have the recipe %s%s",
				limits->mode, r->name,
				recipes == ep_dispatch_recipes
					? ": quantise tokens first, and use FWD"
					: "");
		}
		if (has) {
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s (%d)",
					      n ? ", " : "", r->name, r->value);
		}
	}
	return ep_fail(ncclInvalidArgument, "config->quant_recipe is %d, %s mode has %s", value,
		       limits->mode, names);
}

bool ep_dtype_is_token(ncclDataType_t type)
{
	return type == ncclBfloat16 || type == ncclFloat16 || type == ncclFloat32;
}

/* Rows are copied bit by bit; single bytes may be anything that the caller has packed into them. */
static bool dtype_is_copied(ncclDataType_t type, bool with_scales)
{
	if (type == ncclUint8 || type == ncclInt8) {
		return !with_scales;
	}
	return ep_dtype_is_token(type) || type == ncclFloat8e4m3 || type == ncclFloat8e5m2 ||
	       type == ncclFloat4x2;
}

static ncclResult_t row_expect_type(ncclDataType_t type, ncclDataType_t want, const char *name)
{
	const struct ep_view view = { .datatype = type };

	return ep_view_expect_type(&view, want, name);
}

ncclResult_t ep_row_check_types(const struct ep_recipe *recipe, ncclDataType_t in,
				ncclDataType_t out)
{
	bool with_scales = recipe->value == NCCL_EP_DISP_QUANT_FWD;

	if (recipe->format != EP_ROW_COPIED) {
		EP_CHECK(row_expect_type(in, ncclBfloat16, "inputs->tokens"));
		return row_expect_type(out, ep_formats[recipe->format].tokens, "outputs->tokens");
	}
	if (!dtype_is_copied(in, with_scales) || in != out) {
		return ep_fail(
			ncclInvalidArgument,
			"inputs->tokens is %s and outputs->tokens %s: recipe %s takes bf16, fp16, "
			"fp32, e4m3, e5m2%s, the same for both",
			ep_dtype_name(in), ep_dtype_name(out), recipe->name,
			with_scales ? " or fp4x2" : ", fp4x2, uint8 or int8");
	}
	return ncclSuccess;
}

ncclResult_t ep_row_check_elements(const struct ep_recipe *recipe, size_t elements)
{
	uint32_t multiple = ep_formats[recipe->format].multiple;

	if (elements % multiple) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: recipe %s needs a multiple of %u elements per "
			       "token, not %zu",
			       recipe->name, multiple, elements);
	}
	return ncclSuccess;
}

size_t ep_format_token_extent(const struct ep_format *format, size_t elements)
{
	return elements >> format->halves;
}

uint64_t ep_format_scale_bytes(const struct ep_format *format, size_t elements)
{
	return elements / format->group * ep_dtype_bytes(format->scales);
}

uint64_t ep_format_bytes(const struct ep_format *format, size_t elements)
{
	return ep_format_token_extent(format, elements) + ep_format_scale_bytes(format, elements);
}

ncclResult_t ep_row_check_budget(const struct ep_group_config *config,
				 const struct ep_recipe *recipe, uint64_t bytes)
{
	uint32_t most = config->shape.max_token_bytes;

	if (bytes <= most) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument,
		       "a row takes %llu bytes%s, the group's max_token_bytes is %u",
		       (unsigned long long)bytes,
		       recipe && recipe->value != NCCL_EP_DISP_QUANT_NONE ? " with its scales" : "",
		       most);
}
