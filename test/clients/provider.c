/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TransformerEngine's provider of the library: it opens a file for itself alone, and looks up the
 * functions that it calls. The process finds none of them otherwise. Two layers on memory of their
 * own, with the hidden size of DeepSeek-V3, go forward and backward; one of them goes on with
 * another handle. transformer_engine/common/ep of NVIDIA/TransformerEngine: nccl_ep_provider.cpp of
 * commit 0576af6a, ep_backend.cpp of commit 00145f7c.
 *
 *     provider LIBRARY
 */
#include <dlfcn.h>
#include <limits.h>

#include "support/ht_bench.h"

#define RANKS 3

static void *library;

static void *find(const char *name)
{
	void *call = dlsym(library, name);

	NEED(call);
	return call;
}

/* What the sources of the test's support call, which know nothing of a provider. */
#define PROVIDED(name, parameters, arguments)                                                      \
	ncclResult_t name parameters                                                               \
	{                                                                                          \
		__typeof__(name) *function = find(#name);                                          \
                                                                                                   \
		return function arguments;                                                         \
	}

PROVIDED(ncclEpCreateGroup,
	 (ncclEpGroup_t * group, ncclComm_t comm, const ncclEpGroupConfig_t *config),
	 (group, comm, config))
PROVIDED(ncclEpExtCreateGroup,
	 (ncclEpGroup_t * group, ncclComm_t comm, const ncclEpGroupConfig_t *config,
	  const ncclEpExtRoles_t *roles),
	 (group, comm, config, roles))
PROVIDED(ncclEpGroupDestroy, (ncclEpGroup_t group), (group))
PROVIDED(ncclEpHandleMemSize,
	 (ncclEpGroup_t group, ncclEpLayout_t layout, const ncclEpHandleConfig_t *config,
	  size_t *size, int topk),
	 (group, layout, config, size, topk))
PROVIDED(ncclEpInitHandle,
	 (ncclEpHandle_t * handle, ncclEpGroup_t group, ncclEpLayout_t layout,
	  const ncclEpHandleConfig_t *config, int topk, const ncclEpTensor_t *memory),
	 (handle, group, layout, config, topk, memory))
PROVIDED(ncclEpHandleDestroy, (ncclEpHandle_t handle), (handle))
PROVIDED(ncclEpUpdateHandle,
	 (ncclEpHandle_t handle, const ncclEpTensor_t *ids, const ncclEpLayoutInfo_t *info,
	  cudaStream_t stream),
	 (handle, ids, info, stream))
PROVIDED(ncclEpDispatch,
	 (ncclEpHandle_t handle, const ncclEpDispatchInputs_t *in,
	  const ncclEpDispatchOutputs_t *out, const ncclEpLayoutInfo_t *info,
	  const ncclEpDispatchConfig_t *config, cudaStream_t stream),
	 (handle, in, out, info, config, stream))
PROVIDED(ncclEpCombine,
	 (ncclEpHandle_t handle, const ncclEpCombineInputs_t *in, const ncclEpCombineOutputs_t *out,
	  const ncclEpCombineConfig_t *config, cudaStream_t stream),
	 (handle, in, out, config, stream))
PROVIDED(ncclEpExtGetLastError, (ncclEpGroup_t group, ncclResult_t *code, const char **text),
	 (group, code, text))

/* The file's version and name are what the provider looks at. */
static void open_library(const char *path)
{
	__typeof__(ncclEpGetVersion) *get_version;
	char real[PATH_MAX], found[PATH_MAX];
	int version = -1;
	Dl_info info;

	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	NEED(library);
	get_version = find("ncclEpGetVersion");
	OK(get_version(&version));
	CHECK_INT(version / 10000, NCCL_EP_MAJOR);
	NEED(dladdr((void *)get_version, &info) && realpath(info.dli_fname, found));
	NEED(realpath(path, real));
	CHECK_TEXT(found, real);
	CHECK(!dlsym(RTLD_DEFAULT, "ncclEpGetVersion"));
}

static void run(struct world *w, void *arg)
{
	const struct oracle_ht h = { .p = { .seed = 11,
					    .nranks = RANKS,
					    .experts = 4 * RANKS,
					    .topk = 3,
					    .hidden = 7168,
					    .tokens = 8,
					    .max_tokens = 8,
					    .dtype = ORACLE_BF16 },
				     .expert_major = 1,
				     .alignment = 4 };
	ncclEpGroup_t group;
	struct ht_bench layer[2];

	(void)arg;
	check_context("rank %d, seed %llu", w->rank, (unsigned long long)h.p.seed);
	group = ht_group(w, &h, HT_IDS64, 30000);
	for (int i = 0; i < 2; i++) {
		ht_open(&layer[i], w, group, &h, HT_IDS64 | HT_OWN_MEM);
		ht_load(&layer[i], h.p.seed + (uint64_t)i, 8 - (uint32_t)i);
	}
	for (int i = 0; i < 2; i++) {
		ht_step(&layer[i]);
	}
	ht_reopen(&layer[0]);
	ht_poison(&layer[0]);
	NEED_SYNC(ht_dispatch(&layer[0], false, w->stream), w->stream);
	ht_check_dispatch(&layer[0], false);
	for (int i = 0; i < 2; i++) {
		ht_close(&layer[i]);
	}
	OK(ncclEpGroupDestroy(group));
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	open_library(argv[1]);
	world_run(RANKS, run, NULL);
	return check_end();
}
