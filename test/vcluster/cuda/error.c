/* SPDX-License-Identifier: Apache-2.0 */
/* Error names and the last error of a thread. */
#include "cuda/device.h"

struct vc_error_text {
	cudaError_t code;
	const char *name, *text;
};

#define VC_ERROR(code, text)                                                                       \
	{                                                                                          \
		code, #code, text                                                                  \
	}

static const struct vc_error_text vc_errors[] = {
	VC_ERROR(cudaSuccess, "no error"),
	VC_ERROR(cudaErrorInvalidValue, "invalid argument"),
	VC_ERROR(cudaErrorMemoryAllocation, "out of memory"),
	VC_ERROR(cudaErrorInitializationError, "initialization error"),
	VC_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
	VC_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
	VC_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
	VC_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
	VC_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
	VC_ERROR(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
	VC_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
	VC_ERROR(cudaErrorPeerAccessUnsupported,
		 "peer access is not supported between these devices"),
	VC_ERROR(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
	VC_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
	VC_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
	VC_ERROR(cudaErrorNotReady, "device not ready"),
	VC_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
	VC_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
	VC_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
	VC_ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
	VC_ERROR(cudaErrorHostMemoryAlreadyRegistered, "memory is already mapped"),
	VC_ERROR(cudaErrorHostMemoryNotRegistered, "pointer is not a registered memory region"),
	VC_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
	VC_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
	VC_ERROR(cudaErrorNotPermitted, "operation not permitted"),
	VC_ERROR(cudaErrorNotSupported, "operation not supported"),
	VC_ERROR(cudaErrorStreamCaptureUnsupported,
		 "operation not permitted when stream is capturing"),
	VC_ERROR(cudaErrorStreamCaptureInvalidated,
		 "operation failed due to a previous error during capture"),
	VC_ERROR(cudaErrorStreamCaptureMerge,
		 "operation would result in a merge of separate capture sequences"),
	VC_ERROR(cudaErrorStreamCaptureUnmatched,
		 "capture was not ended in the same stream as it began"),
	VC_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
	VC_ERROR(cudaErrorStreamCaptureIsolation,
		 "dependency created on uncaptured work in another stream"),
	VC_ERROR(cudaErrorStreamCaptureImplicit,
		 "operation would make the legacy stream depend on a capturing blocking stream"),
	VC_ERROR(cudaErrorCapturedEvent,
		 "operation not permitted on an event last recorded in a capturing stream"),
	VC_ERROR(cudaErrorStreamCaptureWrongThread,
		 "attempt to terminate a thread-local capture sequence from another thread"),
	VC_ERROR(cudaErrorGraphExecUpdateFailure,
		 "the graph update was not performed because it included unsupported changes"),
	VC_ERROR(cudaErrorUnknown, "unknown error"),
};

static __thread cudaError_t vc_last_error;

cudaError_t vc_error(cudaError_t error)
{
	if (error && error != cudaErrorNotReady) {
		vc_last_error = error;
	}
	return error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = vc_last_error;
	cudaError_t sticky = vc_device_sticky(vc_device_current());

	vc_last_error = cudaSuccess;
	return sticky ? sticky : error;
}

cudaError_t cudaPeekAtLastError(void)
{
	cudaError_t sticky = vc_device_sticky(vc_device_current());

	return sticky ? sticky : vc_last_error;
}

static const struct vc_error_text *vc_error_find(cudaError_t error)
{
	for (size_t i = 0; i < sizeof(vc_errors) / sizeof(*vc_errors); i++) {
		if (vc_errors[i].code == error) {
			return &vc_errors[i];
		}
	}
	return NULL;
}

const char *cudaGetErrorName(cudaError_t error)
{
	const struct vc_error_text *found = vc_error_find(error);

	return found ? found->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	const struct vc_error_text *found = vc_error_find(error);

	return found ? found->text : "unrecognized error code";
}
