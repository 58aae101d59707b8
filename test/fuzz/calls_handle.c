/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what both algorithms have alike. */
#include "fuzz/model.h"

#define DRAW(below) world_draw(&f->state, below)

/* A handle's arguments, of which some are wrong. */
struct wanted {
	ncclEpLayout_t layout;
	void *config;
	int topk;
	const char *wrong;
};

static struct wanted draw_handle(struct fuzz *f, struct mutation *m, uint32_t at)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct wanted h = { .layout = f->layout, .topk = (int)f->topk };

	config.dispatch_output_per_expert_alignment = f->alignment;
	h.config = mutate_struct(m, &form_handle_config, &config, at & 1);
	if (at & 2) {
		h.layout = (ncclEpLayout_t)mutate_number(m, "layout", (uint64_t)h.layout);
	}
	if (at & 4) {
		h.topk = (int)mutate_number(m, "num_topk", (uint64_t)h.topk);
	}
	h.wrong = model_handle(f, h.layout, h.config, h.topk);
	return h;
}

ncclResult_t fuzz_mem_size(struct fuzz *f)
{
	uint32_t at = fuzz_places(f, 3);
	size_t bytes = 12345;
	struct mutation m;
	ncclResult_t result;
	struct wanted h;

	mutation_begin(&m, &f->state, f->spare);
	h = draw_handle(f, &m, at);
	result = ncclEpHandleMemSize(f->group, h.layout, h.config, &bytes, h.topk);
	fuzz_judge(f, "mem size", result, &m);
	CHECK((result != ncclSuccess) == !!h.wrong, "%s", h.wrong ? h.wrong : "nothing is wrong");
	CHECK((bytes == 12345) == (result != ncclSuccess));
	fuzz_judge(f, "mem size to NULL", ncclEpHandleMemSize(f->group, f->layout, NULL, NULL, 1),
		   NULL);
	mutation_end(&m);
	return result;
}

/* Handles with more experts of a token need more memory; which other arguments do is not promised. */
static const char *wrong_memory(struct fuzz *f, const struct wanted *h, const ncclEpTensor_t *mem)
{
	struct model_tensor t;
	const char *wrong = model_tensor(f, mem, 1, &t);
	size_t bytes;

	if (wrong || h->wrong) {
		return wrong;
	}
	OK(ncclEpHandleMemSize(f->group, h->layout, h->config, &bytes, h->topk));
	return t.type != ncclUint8 || t.at % 16 || t.size[0] < bytes ? "handle_mem" : NULL;
}

ncclResult_t fuzz_init(struct fuzz *f)
{
	ncclEpHandle_t untouched = (ncclEpHandle_t)f, handle = untouched;
	ncclEpTensor_t mem = NCCL_EP_TENSOR_INIT, *given = NULL;
	uint32_t at = fuzz_places(f, 4);
	const char *wrong;
	struct mutation m;
	ncclResult_t result;
	struct wanted h;
	size_t bytes;

	NEED_OK(ncclEpHandleMemSize(f->group, f->layout, NULL, &bytes, (int)f->topk));
	NEED_CUDA(cudaMalloc(&mem.data, bytes + 16));
	mem.ndim = 1;
	mem.datatype = ncclUint8;
	mem.sizes = &bytes;
	mutation_begin(&m, &f->state, f->spare);
	h = draw_handle(f, &m, at);
	if (DRAW(3)) {
		given = mutate_tensor(&m, "handle_mem", &mem, true, at & 8);
	}
	if (!given) {
		m.sure = false; /* its absence is no mistake */
	}
	wrong = h.wrong ? h.wrong : given ? wrong_memory(f, &h, given) : NULL;
	result = ncclEpInitHandle(&handle, f->group, h.layout, h.config, h.topk, given);
	fuzz_judge(f, "init", result, &m);
	CHECK((result != ncclSuccess) == !!wrong, "%s", wrong ? wrong : "nothing is wrong");
	CHECK((handle != untouched) == (result == ncclSuccess));
	if (result == ncclSuccess) {
		OK(ncclEpHandleDestroy(handle));
	}
	mutation_end(&m);
	NEED_CUDA(cudaFree(mem.data));
	return result;
}
