/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program opens the library, makes no group since a rank is late, and closes it: what the
 * library's threads have yet to do for that creation they do without harm.
 *
 *     unload LIBRARY
 */
#include <dlfcn.h>
#include <unistd.h>

#include "support/world.h"

#define LATE_MS "6000" /* than the bootstrap timeout and what follows it */

static void *library;
static __typeof__(&ncclEpExtGetLastError) last_error;

/* For the checks, which are linked to this program. */
ncclResult_t ncclEpExtGetLastError(ncclEpGroup_t group, ncclResult_t *code, const char **text)
{
	return last_error(group, code, text);
}

static void *find(const char *name)
{
	void *call = dlsym(library, name);

	NEED(call);
	return call;
}

static void run(struct world *w, void *path)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	__typeof__(&ncclEpCreateGroup) create;
	ncclEpGroup_t group = NULL;

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = 4 * (unsigned int)w->nranks;
	config.max_dispatch_tokens_per_rank = 8;
	config.max_token_bytes = 256;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	NEED(library);
	create = find("ncclEpCreateGroup");
	last_error = find("ncclEpExtGetLastError");
	if (w->rank == 1) {
		setenv("VC_WINDOW_LATE_MS", LATE_MS, 1);
	}
	CHECK_REASON(create(&group, w->comm, &config), ncclRemoteError, "waited 1500 ms");
	CHECK(!dlclose(library));
	world_meet(w);
	OK(ncclCommAbort(w->comm));
	w->comm = NULL;
	usleep(8000000);
}

int main(int argc, char **argv)
{
	NEED(argc == 2 && world_launched());
	world_run(world_size(2), run, argv[1]);
	return check_end();
}
