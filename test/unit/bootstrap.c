/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of the bootstrap that fail: on an error of CUDA while NCCL has the memory, and without the others. Which error stands, and what may be freed.
 */
#include <dlfcn.h>
#include "core/bootstrap.h"
#include "core/nccl_dyn.h"
#include "support/world.h"

#define RANKS 2
#define SECOND 1000000000ull

static __thread bool query_fails;

/* In place of the runtime's. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	cudaError_t (*query)(cudaStream_t) =
		(cudaError_t(*)(cudaStream_t))dlsym(RTLD_NEXT, "cudaStreamQuery");

	return query_fails ? cudaErrorUnknown : query(stream);
}

static void open_all(struct ep_boot *boot, ncclComm_t comm, uint64_t timeout_ns)
{
	ncclResult_t mine = ncclSuccess;

	NEED_OK(ep_boot_open(boot, comm, timeout_ns, &mine));
	NEED_OK(mine);
}

/* The other rank does not come: a rank that has an error of its own keeps that. */
static void own_error(struct world *w, ncclComm_t comm)
{
	struct ep_error last;
	struct ep_boot boot;

	check_context("an error of its own");
	open_all(&boot, comm, SECOND);
	if (w->rank == 0) {
		CHECK_INT(ep_boot_agree(&boot, ep_fail(ncclInvalidArgument, "mine is wrong"),
					"a test"),
			  ncclInvalidArgument);
		ep_error_get(NULL, &last);
		CHECK_INT(last.code, ncclInvalidArgument);
		CHECK_HAS(last.text, "mine is wrong");
		CHECK(boot.stuck);
	}
	world_meet(w);
	OK(ncclCommAbort(comm));
	ep_boot_rest(&boot, w->device);
	ep_boot_close(&boot);
}

/* CUDA fails to report whether NCCL is through with the memory: then it is not, for all that is known. */
static void unknown(struct world *w)
{
	uint32_t mine = 7;
	struct ep_boot boot;

	check_context("an error of CUDA");
	open_all(&boot, w->comm, 60 * SECOND);
	if (w->rank == 0) {
		query_fails = true;
		CHECK_REASON(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"),
			     ncclUnhandledCudaError, "a test failed");
		query_fails = false;
		CHECK(boot.stuck);
		CHECK_REASON(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"),
			     ncclUnhandledCudaError, "a test failed"); /* it stands */
	}
	world_meet(w);
	if (w->rank) {
		OK(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"));
		CHECK_INT(*(uint32_t *)boot.all, 7); /* of rank 0, whose memory was there */
	}
	ep_boot_rest(&boot, w->device);
	ep_boot_close(&boot);
}

static void run(struct world *w, void *arg)
{
	ncclComm_t absent = world_comm(w, (1u << RANKS) - 1);

	NEED_OK(ep_nccl_need("a test"));
	own_error(w, absent);
	unknown(w);
}

int main(void)
{
	world_run(RANKS, run, NULL);
	return check_end();
}
