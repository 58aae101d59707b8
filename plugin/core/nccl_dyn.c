/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's functions, found in the process: the library links none, and does not load an NCCL of its
 * own.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include "core/error.h"
#include "core/nccl_dyn.h"

#define EP_NCCL_SONAME "libnccl.so.2"
#define EP_NCCL_LEAST 22800 /* the oldest release that is supported */
#define EP_NCCL_NEEDED 6    /* the first entries of the table, without which nothing works */

static const struct {
	const char *name;
	size_t at;
} nccl_names[] = {
#define EP_NCCL(member, name)                                                                      \
	{                                                                                          \
		name, offsetof(struct ep_nccl_dyn, member)                                         \
	}
	EP_NCCL(comm_count, "ncclCommCount"),
	EP_NCCL(comm_user_rank, "ncclCommUserRank"),
	EP_NCCL(comm_cu_device, "ncclCommCuDevice"),
	EP_NCCL(all_gather, "ncclAllGather"),
	EP_NCCL(get_version, "ncclGetVersion"),
	EP_NCCL(get_error_string, "ncclGetErrorString"),
	EP_NCCL(comm_get_async_error, "ncclCommGetAsyncError"),
	EP_NCCL(get_last_error, "ncclGetLastError"),
	EP_NCCL(win_get_user_ptr, "ncclWinGetUserPtr"),
	EP_NCCL(mem_alloc, "ncclMemAlloc"),
	EP_NCCL(mem_free, "ncclMemFree"),
	EP_NCCL(window_register, "ncclCommWindowRegister"),
	EP_NCCL(window_deregister, "ncclCommWindowDeregister"),
	EP_NCCL(get_peer_device_pointer, "ncclGetPeerDevicePointer"),
	EP_NCCL(get_lsa_multimem_device_pointer, "ncclGetLsaMultimemDevicePointer"),
	EP_NCCL(comm_query_properties, "ncclCommQueryProperties"),
	EP_NCCL(team_lsa, "ncclTeamLsa"),
#undef EP_NCCL
};

static struct ep_nccl_dyn nccl_calls;
static bool nccl_found;
static pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * Loads NCCL's functions from `scope`. Returns the first that is missing and must not be, or NULL.
 */
static const char *nccl_take(void *scope, struct ep_nccl_dyn *calls)
{
	const char *missing = NULL;

	memset(calls, 0, sizeof(*calls));
	for (size_t i = 0; i < EP_ARRAY_SIZE(nccl_names); i++) {
		void *address = dlsym(scope, nccl_names[i].name);

		/*
		 * ISO C does not convert object pointers to function pointers; their
		 * representations agree.
		 */
		memcpy((char *)calls + nccl_names[i].at, &address, sizeof(address));
		if (!address && i < EP_NCCL_NEEDED && !missing) {
			missing = nccl_names[i].name;
		}
	}
	return missing;
}

/*
 * First what the linker would take: of the program, of what it links or what was preloaded. Then
 * the library that the program has loaded for itself alone, as PyTorch does. None is loaded here: a
 * communicator of another would not fit.
 */
static const char *nccl_load(struct ep_nccl_dyn *calls)
{
	const char *missing = nccl_take(RTLD_DEFAULT, calls);
	void *library;

	if (!missing) {
		return NULL;
	}
	library = dlopen(EP_NCCL_SONAME, RTLD_LAZY | RTLD_NOLOAD);
	if (library) {
		missing = nccl_take(library, calls);
		dlclose(library); /* the program keeps it loaded */
	}
	return missing;
}

/* The first function that is missing; NULL: all that is needed is there, and stays so. */
static const char *nccl_find(void)
{
	struct ep_nccl_dyn calls;
	const char *missing = NULL;

	if (__atomic_load_n(&nccl_found, __ATOMIC_ACQUIRE)) {
		return NULL;
	}
	pthread_mutex_lock(&nccl_lock);
	if (!nccl_found) {
		missing = nccl_load(&calls);
		if (!missing) {
			nccl_calls = calls;
			__atomic_store_n(&nccl_found, true, __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&nccl_lock);
	return missing;
}

const struct ep_nccl_dyn *ep_nccl_dyn(void)
{
	(void)nccl_find();
	return &nccl_calls;
}

ncclResult_t ep_nccl_need(const char *call)
{
	const char *missing = nccl_find();

	if (!missing) {
		return ncclSuccess;
	}
	return ep_fail(ncclSystemError,
		       "%s: this process has no NCCL with %s: neither its global symbols nor a "
		       "loaded " EP_NCCL_SONAME " have it. Link the program with " EP_NCCL_SONAME
		       " of NCCL 2.28 or later, or load that before; an NCCL that is linked "
		       "statically must export its functions",
		       call, missing);
}

ncclResult_t ep_nccl_check_version(const char *call)
{
	int v = 0;

	if (!ep_nccl_version(&v) || v >= EP_NCCL_LEAST) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidUsage,
		       "%s: this process has NCCL %d.%d.%d, and %d.%d is the oldest that the "
		       "library works with: update NCCL",
		       call, v / 10000, v / 100 % 100, v % 100, EP_NCCL_LEAST / 10000,
		       EP_NCCL_LEAST / 100 % 100);
}

const char *ep_nccl_text(ncclResult_t result)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();

	return nccl->get_error_string ? nccl->get_error_string(result) : "no NCCL to explain it";
}

bool ep_nccl_version(int *version)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();

	return nccl->get_version && nccl->get_version(version) == ncclSuccess;
}
