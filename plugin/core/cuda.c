/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to CUDA and its driver: errors, contexts, pinned memory, and waits for the device that end.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "core/cuda.h"
#include "core/log.h"

/*
 * Before CUDA 12.5 one asks for the release of the runtime: what is asked for here is the same in
 * all of CUDA 12.
 */
#if CUDART_VERSION < 12050
#define cudaGetDriverEntryPointByVersion(name, call, version, flags, found)                        \
	cudaGetDriverEntryPoint(name, call, flags, found)
#endif

ncclResult_t ep_fail_cuda(cudaError_t err, const char *what)
{
	(void)cudaGetLastError(); /* the caller's next check must not find our error */
	return ep_fail(ncclUnhandledCudaError, "%s failed: %s (%s)", what, cudaGetErrorString(err),
		       cudaGetErrorName(err));
}

bool ep_driver_find(const char *name, void *call)
{
	enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
	void *address = NULL;

	if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found) !=
		    cudaSuccess ||
	    found != cudaDriverEntryPointSuccess) {
		(void)cudaGetLastError();
		address = NULL;
	}
	memcpy(call, &address, sizeof(address));
	return address != NULL;
}

static int cuda_device(void)
{
	int device = -1;

	(void)cudaGetDevice(&device);
	return device;
}

__attribute__((constructor)) static void cuda_init(void)
{
	ep_log_device = cuda_device;
}

static CUresult (*cu_context_id)(CUcontext context, unsigned long long *id);
static CUresult (*cu_primary_state)(CUdevice device, unsigned int *flags, int *active);
static CUresult (*cu_primary_retain)(CUcontext *context, CUdevice device);
static CUresult (*cu_primary_release)(CUdevice device);
static CUresult (*cu_stream_context)(CUstream stream, CUcontext *context);
static bool context_has_id, context_has_streams;
static pthread_once_t context_once = PTHREAD_ONCE_INIT;

static void context_init(void)
{
	context_has_id = ep_driver_find("cuCtxGetId", &cu_context_id) &&
			 ep_driver_find("cuDevicePrimaryCtxGetState", &cu_primary_state) &&
			 ep_driver_find("cuDevicePrimaryCtxRetain", &cu_primary_retain) &&
			 ep_driver_find("cuDevicePrimaryCtxRelease", &cu_primary_release);
	context_has_streams = context_has_id &&
			      ep_driver_find("cuStreamGetCtx", &cu_stream_context);
}

/*
 * *id: the number of the device's primary context; 0: it has none. False: the driver does not
 * report it.
 */
static bool context_primary(int device, unsigned long long *id)
{
	unsigned int flags;
	CUcontext context;
	int active = 0;
	bool known;

	*id = 0;
	if (cu_primary_state(device, &flags, &active) != CUDA_SUCCESS) {
		return false;
	}
	if (!active) {
		return true; /* to retain it would make one */
	}
	if (cu_primary_retain(&context, device) != CUDA_SUCCESS) {
		return false;
	}
	known = cu_context_id(context, id) == CUDA_SUCCESS;
	(void)cu_primary_release(device);
	return known;
}

struct ep_context ep_context_now(void)
{
	struct ep_context c = { 0, 0 };

	pthread_once(&context_once, context_init);
	if (!context_has_id) {
		return c;
	}
	if (cudaGetDevice(&c.device) != cudaSuccess || cudaSetDevice(c.device) != cudaSuccess) {
		(void)cudaGetLastError();
	} else if (!context_primary(c.device, &c.id)) {
		c.id = 0;
	}
	return c;
}

bool ep_context_ended(const struct ep_context *context)
{
	unsigned long long id = 0;

	if (!context->id) {
		return false;
	}
	/*
	 * Mostly it is this thread's. For a context that has been ended the driver reports no
	 * number.
	 */
	if (cu_context_id(NULL, &id) == CUDA_SUCCESS && id == context->id) {
		return false;
	}
	return context_primary(context->device, &id) && id != context->id;
}

int ep_context_stream_device(cudaStream_t stream)
{
	unsigned long long id, primary;
	CUcontext context;
	int devices = 0;

	pthread_once(&context_once, context_init);
	if (!context_has_streams || cu_stream_context(stream, &context) != CUDA_SUCCESS ||
	    cu_context_id(context, &id) != CUDA_SUCCESS) {
		return -1;
	}
	if (cudaGetDeviceCount(&devices) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	for (int device = 0; device < devices; device++) {
		if (context_primary(device, &primary) && primary == id) {
			return device;
		}
	}
	return -1;
}

unsigned long long ep_stream_capture(cudaStream_t stream)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	unsigned long long id = 0;
	cudaError_t err;

#if CUDART_VERSION >= 13000
	err = cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL);
#else
	err = cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL);
#endif
	if (err != cudaSuccess) {
		(void)cudaGetLastError(); /* whatever is wrong, the launch there will show it */
		return 0;
	}
	return status == cudaStreamCaptureStatusActive ? id : 0;
}

bool ep_pinned_take(struct ep_pinned *pinned, void *host, size_t bytes, struct ep_reason *why)
{
	const char *what = "cudaHostRegister";
	void *dev = NULL;
	cudaError_t err;

	err = cudaHostRegister(host, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
	if (err != cudaSuccess) {
		goto err_clear;
	}
	what = "cudaHostGetDevicePointer";
	err = cudaHostGetDevicePointer(&dev, host, 0);
	if (err != cudaSuccess) {
		goto err_unregister;
	}
	*pinned = (struct ep_pinned){ host, dev, bytes };
	return true;

err_unregister:
	(void)cudaHostUnregister(host);
err_clear:
	(void)cudaGetLastError();
	return ep_reason_set(why, "the GPU cannot have %zu bytes of host memory: %s: %s (%s)",
			     bytes, what, cudaGetErrorString(err), cudaGetErrorName(err));
}

bool ep_pinned_alloc(struct ep_pinned *pinned, size_t bytes, struct ep_reason *why)
{
	void *host;

	/*
	 * Shared, so that a child of the program does not get these pages and the program others.
	 */
	host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (host == MAP_FAILED) {
		return ep_reason_set(why, "no %zu bytes of host memory: %s", bytes,
				     strerror(errno));
	}
	if (!ep_pinned_take(pinned, host, bytes, why)) {
		munmap(host, bytes);
		return false;
	}
	return true;
}

void ep_pinned_free(struct ep_pinned *pinned, bool ended)
{
	if (!pinned->host) {
		return;
	}
	if (!ended && cudaHostUnregister(pinned->host) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	munmap(pinned->host, pinned->bytes);
	memset(pinned, 0, sizeof(*pinned));
}

/*
 * ---- a device at rest ----
 *
 * Whether the device has come to rest. CUDA's calls that free memory wait for everything on it, the
 * program's own kernels too, and CUDA can be asked without waiting about single streams only. So a
 * thread waits, and is left to itself where that takes too long.
 */

struct idler {
	int device;
	cudaError_t error;
};

/*
 * For a thread of the library. What it allocates, registers and frees leaves captures of other
 * threads alone.
 */
static cudaError_t device_take(int device)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

	(void)cudaThreadExchangeStreamCaptureMode(&mode);
	return cudaSetDevice(device);
}

cudaError_t ep_device_rest(int device)
{
	cudaError_t error = device_take(device);

	if (error == cudaSuccess) {
		error = cudaDeviceSynchronize();
	}
	(void)cudaGetLastError();
	return error;
}

static void idler_wait(void *arg)
{
	struct idler *w = arg;

	w->error = ep_device_rest(w->device);
}

int ep_device_wait(int device, uint64_t timeout_ns, cudaError_t *state)
{
	struct idler w = { device, cudaSuccess };
	int error = ep_timed_call(idler_wait, &w, sizeof(w), timeout_ns);

	*state = w.error;
	return error;
}

static int device_job_ready(void *arg)
{
	struct ep_device_job *job = arg;

	job->error = device_take(job->device);
	return job->error == cudaSuccess ? 0 : ECANCELED;
}

int ep_device_call_begin(struct ep_timed_call **out, void (*fn)(void *arg),
			 struct ep_device_job *job, size_t bytes)
{
	*out = NULL;
	job->error = cudaGetDevice(&job->device);
	if (job->error != cudaSuccess) {
		(void)cudaGetLastError();
		return ECANCELED;
	}
	return ep_timed_call_begin(out, device_job_ready, fn, job, bytes);
}

/*
 * The driver holds a lock of the context while a copy to such memory waits for the stream. A rank
 * that shares this GPU and process could not launch what the stream waits for, so nothing is copied
 * before that has come.
 */
ncclResult_t ep_device_read(void *host, const void *dev, size_t bytes, cudaStream_t stream)
{
	EP_CUDA(cudaStreamSynchronize(stream), "waiting for the stream");
	EP_CUDA(cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, stream),
		"reading device memory");
	EP_CUDA(cudaStreamSynchronize(stream), "reading device memory");
	return ncclSuccess;
}
