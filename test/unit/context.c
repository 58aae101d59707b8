/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a device's context has ended, by what a driver says that is made here. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string.h>

#include "core/cuda.h"
#include "support/check.h"

#undef cudaGetDriverEntryPoint
#undef cudaGetDriverEntryPointByVersion

#define OURS 7
#define NEWER 8
#define OTHERS 3 /* of another device */

/* The contexts that there are: the thread's own, and the primary one of the group's device. */
static struct {
	unsigned long long current, primary; /* 0: none */
	CUresult state, retain, id;          /* what these calls say instead, if not CUDA_SUCCESS */
} driver;
static int calls, retained;

static CUresult get_id(CUcontext context, unsigned long long *id)
{
	unsigned long long is = context ? driver.primary : driver.current;

	calls++;
	if (driver.id || !is) {
		return driver.id ? driver.id : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	*id = is;
	return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice device, unsigned int *flags, int *active)
{
	calls++;
	*flags = 0;
	*active = driver.primary != 0;
	return driver.state;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
	CHECK(driver.primary, "retained where there is none: that makes one");
	*context = (CUcontext)&driver;
	retained += !driver.retain;
	return driver.retain;
}

static CUresult release(CUdevice device)
{
	retained--;
	return CUDA_SUCCESS;
}

/* Hides the one of the runtime. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *status)
{
	*call = !strcmp(name, "cuCtxGetId")                   ? (void *)get_id
		: !strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)get_state
		: !strcmp(name, "cuDevicePrimaryCtxRetain")   ? (void *)retain
		: !strcmp(name, "cuDevicePrimaryCtxRelease")  ? (void *)release
							      : NULL;
	*status = *call ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
	return cudaSuccess;
}

#if CUDART_VERSION < 12050 /* which core/cuda.c asks without a version */
cudaError_t cudaGetDriverEntryPoint(const char *name, void **call, unsigned long long flags,
				    enum cudaDriverEntryPointQueryResult *status)
{
	return cudaGetDriverEntryPointByVersion(name, call, CUDART_VERSION, flags, status);
}
#endif

static void expect(const struct ep_context *c, bool ended, unsigned long long current,
		   unsigned long long primary)
{
	driver.current = current;
	driver.primary = primary;
	calls = 0;
	CHECK_INT(ep_context_ended(c), ended);
	CHECK_INT(retained, 0);
}

int main(void)
{
	struct ep_context ours, unknown = { 0, 0 };

	driver.current = driver.primary = OURS;
	ours = ep_context_now();
	CHECK_INT(ours.id, OURS);
	expect(&ours, false, OURS, OURS);
	CHECK_INT(calls, 1); /* what each call of the library costs */
	expect(&ours, false, OTHERS, OURS);
	expect(&ours, false, 0, OURS);
	expect(&ours, true, 0, 0);
	expect(&ours, true, OTHERS, 0);
	expect(&ours, true, NEWER, NEWER);
	expect(&ours, true, 0, NEWER);
	expect(&unknown, false, 0, 0);
	/* A driver that fails has not said that the context ended. */
	driver.state = CUDA_ERROR_ILLEGAL_ADDRESS;
	expect(&ours, false, 0, OURS);
	driver.state = CUDA_SUCCESS;
	driver.retain = CUDA_ERROR_ILLEGAL_ADDRESS;
	expect(&ours, false, 0, OURS);
	driver.retain = CUDA_SUCCESS;
	driver.id = CUDA_ERROR_ILLEGAL_ADDRESS;
	expect(&ours, false, OURS, OURS);
	return check_end();
}
