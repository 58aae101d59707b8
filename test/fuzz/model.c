/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz/ht_fuzz.h"

const char *model_import(void *own, const struct form *form, const void *caller)
{
	unsigned int prefix[2];

	memset(own, 0, form->size);
	if (!caller) {
		return form->optional ? NULL : "a struct is missing";
	}
	memcpy(prefix, caller, sizeof(prefix));
	if (prefix[0] < form->v1_size || prefix[1] != NCCL_EP_MAGIC) {
		return "size or magic of a struct";
	}
	memcpy(own, caller, prefix[0] < form->size ? prefix[0] : form->size);
	return NULL;
}

/* By ncclDataType_t. */
static const uint32_t type_bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 1 };

uint32_t model_elem(ncclDataType_t type)
{
	return type_bytes[type];
}

/* Bytes of a tensor; UINT64_MAX: more than there are numbers for. */
static uint64_t tensor_bytes(const ncclEpTensor_t *t)
{
	uint64_t n = type_bytes[t->datatype];
	bool over = false;

	for (unsigned int i = 0; i < t->ndim; i++) {
		if (t->sizes[i] == 0) {
			return 0;
		}
		over |= __builtin_mul_overflow(n, t->sizes[i], &n);
	}
	return over ? UINT64_MAX : n;
}

bool model_window(const struct fuzz *f, const ncclEpTensor_t *t, uint64_t *at)
{
	const struct ht_bench *b = f->ht ? &f->ht->b : NULL;
	const struct bench_tensor *with[] = { b ? &b->out_tokens : NULL, b ? &b->out_scales : NULL,
					      b ? &b->combine_in : NULL };
	uint64_t bytes = tensor_bytes(t), end;

	for (size_t i = 0; b && i < sizeof(with) / sizeof(with[0]); i++) {
		if (!t->win_hdl || with[i]->window != t->win_hdl) {
			continue;
		}
		*at = (uint64_t)(uintptr_t)with[i]->data - HT_WINDOW_OFFSET + t->win_offset;
		return !__builtin_add_overflow(t->win_offset, bytes ? bytes : 1, &end) &&
		       end <= HT_WINDOW_OFFSET + with[i]->bytes + HT_GUARD;
	}
	return false;
}

const char *model_tensor(const struct fuzz *f, const ncclEpTensor_t *t, unsigned int ndim,
			 struct model_tensor *out)
{
	if (!t) {
		return "a tensor is missing";
	}
	if (t->magic != NCCL_EP_TENSOR_MAGIC || t->size < NCCL_EP_TENSOR_V1_SIZE) {
		return "size or magic of a tensor";
	}
	if (t->ndim != ndim || !t->sizes || (unsigned int)t->datatype > 12) {
		return "dimensions or type of a tensor";
	}
	*out = (struct model_tensor){ .at = (uint64_t)(uintptr_t)t->data,
				      .elem = type_bytes[t->datatype],
				      .type = t->datatype };
	memcpy(out->size, t->sizes, ndim * sizeof(*t->sizes));
	if (!t->data && tensor_bytes(t) && !model_window(f, t, &out->at)) {
		return "a tensor has no storage";
	}
	return NULL;
}

const char *model_handle(const struct fuzz *f, ncclEpLayout_t layout, const void *config, int topk)
{
	const ncclEpGroupConfig_t *g = &f->config;
	uint64_t local = g->num_experts / FUZZ_RANKS, most;
	bool em = layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	ncclEpHandleConfig_t own;
	const char *wrong = model_import(&own, &form_handle_config, config);
	uint64_t align = own.dispatch_output_per_expert_alignment;

	if (wrong) {
		return wrong;
	}
	if ((unsigned int)layout > 31 || !(f->layouts >> layout & 1)) {
		return "layout";
	}
	if (topk < 1 || topk > 32 || (unsigned int)topk > g->num_experts) {
		return "num_topk";
	}
	if (g->algorithm == NCCL_EP_ALGO_LOW_LATENCY) {
		return NULL;
	}
	if (g->num_topk && (unsigned int)topk > g->num_topk) {
		return "num_topk above the group's";
	}
	if (!em) {
		return NULL;
	}
	if (!g->max_recv_tokens_per_rank && !g->num_topk) {
		return "eager and expert-major, and the group has no num_topk";
	}
	if (align > 1u << 30 || (align & (align - 1))) {
		return "alignment";
	}
	most = (uint64_t)FUZZ_RANKS * g->max_dispatch_tokens_per_rank *
	       ((uint64_t)topk < local ? (uint64_t)topk : local);
	most += local * (align ? align - 1 : 0);
	return most > INT32_MAX ? "rows with their padding" : NULL;
}

const char *model_group(const void *config)
{
	static const struct form form = {
		"config", NCCL_EP_GROUP_CONFIG_SIZE, NCCL_EP_GROUP_CONFIG_V1_SIZE, false, { { 0 } }
	};
	ncclEpGroupConfig_t c;
	const char *wrong = model_import(&c, &form, config);

	if (wrong) {
		return wrong;
	}
	if (!c.num_experts || c.num_experts % FUZZ_RANKS || !c.max_dispatch_tokens_per_rank ||
	    !c.max_token_bytes || c.num_topk > c.num_experts) {
		return "sizes";
	}
	if (c.algorithm == NCCL_EP_ALGO_LOW_LATENCY) {
		return c.max_dispatch_tokens_per_rank > 65535 ? "tokens" : NULL;
	}
	if (c.max_token_bytes % 16) {
		return "max_token_bytes";
	}
	if (c.max_recv_tokens_per_rank > INT32_MAX ||
	    (c.max_recv_tokens_per_rank &&
	     c.max_recv_tokens_per_rank < c.max_dispatch_tokens_per_rank)) {
		return "max_recv_tokens_per_rank";
	}
	return !c.max_recv_tokens_per_rank && c.overflow_policy == NCCL_EP_OVERFLOW_DROP
		       ? "DROP in eager mode"
		       : NULL;
}
