/* SPDX-License-Identifier: Apache-2.0 */
/* A dispatch and a combine whose arguments mistakes spoil (mistake.h), of either algorithm. */
#ifndef TEST_PROTO_MISTAKE_CALL_H
#define TEST_PROTO_MISTAKE_CALL_H

#include "proto/mistake.h"

enum {
	IT, /* inputs of dispatch: tokens, weights, scales */
	IW,
	IS,
	OT, /* its outputs: tokens, weights, scales, ids */
	OW,
	OS,
	OX,
	CI, /* combine: tokens in and out, weights in and out, scales */
	CT,
	CG,
	CO,
	CS,
	NC, /* counters, offsets, total */
	NO,
	NT,
	MISTAKE_TENSORS
};

struct call {
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	cudaStream_t stream;
	ncclEpTensor_t *ids; /* of an update */
	size_t *elsewhere;   /* the extents of inputs->tokens, in another place */
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t config;
	ncclEpCombineInputs_t cin;
	ncclEpCombineOutputs_t cout;
	ncclEpCombineConfig_t cconfig;
	struct bench_tensor t[MISTAKE_TENSORS];
};

static inline void call_begin(struct call *c, ncclEpGroup_t group, ncclEpHandle_t handle,
			      cudaStream_t stream)
{
	memset(c, 0, sizeof(*c));
	c->group = group;
	c->handle = handle;
	c->stream = stream;
	c->in = NCCL_EP_DISPATCH_INPUTS_INIT;
	c->out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	c->info = NCCL_EP_LAYOUT_INFO_INIT;
	c->config = NCCL_EP_DISPATCH_CONFIG_INIT;
	c->cin = NCCL_EP_COMBINE_INPUTS_INIT;
	c->cout = NCCL_EP_COMBINE_OUTPUTS_INIT;
	c->cconfig = NCCL_EP_COMBINE_CONFIG_INIT;
}

static inline ncclEpTensor_t *copy(struct bench_tensor *to, const struct bench_tensor *from)
{
	*to = *from;
	to->t.sizes = to->sizes;
	return &to->t;
}

static inline ncclResult_t dispatch(struct call *c)
{
	return ncclEpDispatch(c->handle, &c->in, &c->out, &c->info, &c->config, c->stream);
}

static inline ncclResult_t combine(struct call *c)
{
	return ncclEpCombine(c->handle, &c->cin, &c->cout, &c->cconfig, c->stream);
}

/* Each mistake in a call that `fill` makes right, for a bench of either algorithm. */
static inline void mistakes_try(const struct mistake *list, size_t n, const char *where, void *b,
				void (*fill)(struct call *, void *b),
				ncclResult_t (*fn)(struct call *))
{
	struct call c;

	for (size_t i = 0; i < n; i++) {
		check_context("%s, %s", where, list[i].name);
		fill(&c, b);
		list[i].spoil(&c);
		watch_start();
		CHECK_REASON(fn(&c), list[i].want, list[i].part);
		CHECK_LAST(c.group, list[i].want, list[i].part);
		CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	}
}

#endif
