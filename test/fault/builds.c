/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks with different builds of the library: all of them refuse the group, and say so. Builds may
 * have different messages, so the first one is as long in all of them, and begins with the same.
 */
#include <dlfcn.h>
#include "core/bootstrap.h"
#include "core/ident.h"
#include "support/reason.h"
#include "support/world.h"

#define RANKS 2

char ep_build_text[40]; /* in place of the library's */
static size_t first;    /* bytes of this rank's first message */

/* In place of NCCL's. Of another build all behind its name may mean something else. */
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	const size_t known = sizeof(struct ep_verdict) + sizeof(uint64_t);
	ncclResult_t (*gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
			       cudaStream_t);

	*(void **)&gather = dlsym(RTLD_NEXT, "ncclAllGather");
	if (!first && strstr(ep_build_text, "the other")) {
		memset((char *)(uintptr_t)send + known, 0xff, count - known);
	}
	first = first ? first : count;
	return gather(send, recv, count, type, comm, stream);
}

static ncclResult_t make(struct world *w, const char *build)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t group = NULL;
	ncclResult_t result;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = 4 * RANKS;
	config.max_dispatch_tokens_per_rank = 8;
	config.max_token_bytes = 256;
	strcpy(ep_build_text, build);
	first = 0;
	result = ncclEpCreateGroup(&group, w->comm, &config);
	CHECK_INT(first, EP_BOOT_BYTES);
	OK(ncclEpGroupDestroy(group));
	return result;
}

static void run(struct world *w, void *arg)
{
	/* messages of the other one are alike, or mean something else */
	static const char *const other[] = { "another build", "the other build" };

	OK(make(w, "one build"));
	for (int i = 0; i < 2; i++) {
		CHECK_REASON(make(w, w->rank ? other[i] : "one build"), ncclInvalidUsage,
			     "ranks 1 and 0 have different builds of the library: all ranks need "
			     "the same; this rank has ");
		CHECK_HAS(last_text(), ep_build_text);
	}
	OK(make(w, "one build"));
}

int main(void)
{
	NEED(world_launched());
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
