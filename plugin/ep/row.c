/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a dispatch: which recipes, types and sizes are possible. Dispatches ask, and ncclEpExtFeasible does. */
#include "ep/ep.h"

ncclResult_t ep_row_check_recipe(const struct ep_limits *limits, ncclEpDispQuant_t recipe)
{
	if ((unsigned int)recipe > NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		return ep_fail(ncclInvalidArgument,
			       "config->quant_recipe is %d, the largest value "
			       "is %d",
			       (int)recipe, NCCL_EP_DISP_QUANT_DS_FP8E3M4);
	}
	if (recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4 && !limits->quantises) {
		return ep_fail(ncclInvalidArgument,
			       "config->quant_recipe: %s mode does not have the recipe "
			       "DS_FP8E3M4: quantise tokens first, and use FWD",
			       limits->mode);
	}
	return ncclSuccess;
}

bool ep_dtype_is_token(ncclDataType_t type)
{
	return type == ncclBfloat16 || type == ncclFloat16 || type == ncclFloat32;
}

static bool dtype_is_packed(ncclDataType_t type)
{
	return type == ncclFloat8e4m3 || type == ncclFloat8e5m2 || type == ncclFloat4x2;
}

/* Rows are copied bit by bit; single bytes may be anything that the caller has packed into them. */
static bool dtype_is_copied(ncclDataType_t type, bool with_scales)
{
	if (type == ncclUint8 || type == ncclInt8) {
		return !with_scales;
	}
	return ep_dtype_is_token(type) || dtype_is_packed(type);
}

static ncclResult_t row_expect_type(ncclDataType_t type, ncclDataType_t want, const char *name)
{
	const struct ep_view view = { .datatype = type };

	return ep_view_expect_type(&view, want, name);
}

ncclResult_t ep_row_check_types(ncclEpDispQuant_t recipe, ncclDataType_t in, ncclDataType_t out)
{
	bool with_scales = recipe == NCCL_EP_DISP_QUANT_FWD;

	if (recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		EP_CHECK(row_expect_type(in, ncclBfloat16, "inputs->tokens"));
		return row_expect_type(out, ncclFloat8e4m3, "outputs->tokens");
	}
	if (!dtype_is_copied(in, with_scales) || in != out) {
		return ep_fail(
			ncclInvalidArgument,
			"inputs->tokens is %s and outputs->tokens %s: recipe %s takes bf16, fp16, "
			"fp32, e4m3, e5m2%s, the same for both",
			ep_dtype_name(in), ep_dtype_name(out), with_scales ? "FWD" : "NONE",
			with_scales ? " or fp4x2" : ", fp4x2, uint8 or int8");
	}
	return ncclSuccess;
}

ncclResult_t ep_row_check_quantised(size_t hidden)
{
	if (hidden % 128) {
		return ep_fail(ncclInvalidArgument,
			       "inputs->tokens: recipe DS_FP8E3M4 needs a "
			       "multiple of 128 elements per token, not %zu",
			       hidden);
	}
	return ncclSuccess;
}

uint64_t ep_row_quantised_bytes(size_t hidden)
{
	return hidden + 4 * (hidden / 128);
}

ncclResult_t ep_row_check_budget(const struct ep_group_config *config, ncclEpDispQuant_t recipe,
				 uint64_t bytes)
{
	uint32_t most = config->shape.max_token_bytes;

	if (bytes <= most) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument,
		       "a row takes %llu bytes%s, the group's max_token_bytes "
		       "is %u",
		       (unsigned long long)bytes,
		       recipe == NCCL_EP_DISP_QUANT_NONE ? "" : " with its scales", most);
}
