/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include "core/nccl_dyn.h"

static struct ep_nccl_dyn ep_nccl_calls;
static pthread_once_t ep_nccl_once = PTHREAD_ONCE_INIT;

/*
 * The library that ncclCommCount comes from: programs may have loaded it where a search of the
 * global scope does not find it.
 */
static void *ep_nccl_library(void)
{
	ncclResult_t (*known)(const ncclComm_t, int *) = ncclCommCount;
	Dl_info info;
	void *address;

	memcpy(&address, &known, sizeof(address));
	if (!dladdr(address, &info) || !info.dli_fname) {
		return NULL;
	}
	return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

/* ISO C does not convert object pointers to function pointers; their representations agree. */
static void ep_nccl_lookup(void *library, const char *name, void *call)
{
	void *address = library ? dlsym(library, name) : NULL;

	if (!address) {
		address = dlsym(RTLD_DEFAULT, name);
	}
	memcpy(call, &address, sizeof(address));
}

static void ep_nccl_dyn_init(void)
{
	void *library = ep_nccl_library();

	ep_nccl_lookup(library, "ncclWinGetUserPtr", &ep_nccl_calls.win_get_user_ptr);
	ep_nccl_lookup(library, "ncclMemAlloc", &ep_nccl_calls.mem_alloc);
	ep_nccl_lookup(library, "ncclMemFree", &ep_nccl_calls.mem_free);
	ep_nccl_lookup(library, "ncclCommWindowRegister", &ep_nccl_calls.window_register);
	ep_nccl_lookup(library, "ncclCommWindowDeregister", &ep_nccl_calls.window_deregister);
	ep_nccl_lookup(library, "ncclGetPeerDevicePointer", &ep_nccl_calls.get_peer_device_pointer);
	ep_nccl_lookup(library, "ncclGetLsaMultimemDevicePointer",
		       &ep_nccl_calls.get_lsa_multimem_device_pointer);
	ep_nccl_lookup(library, "ncclCommQueryProperties", &ep_nccl_calls.comm_query_properties);
	ep_nccl_lookup(library, "ncclTeamLsa", &ep_nccl_calls.team_lsa);
	ep_nccl_lookup(library, "ncclCommGetAsyncError", &ep_nccl_calls.comm_get_async_error);
	if (library) {
		dlclose(library); /* the program, or our own dependency, keeps it loaded */
	}
}

const struct ep_nccl_dyn *ep_nccl_dyn(void)
{
	pthread_once(&ep_nccl_once, ep_nccl_dyn_init);
	return &ep_nccl_calls;
}
