/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of nccl.h that the virtual cluster does not have. They fail with their name: where a symbol is missing, a
 * program would get it of a real NCCL that happens to be installed, and fail there for no reason that anybody sees.
 */
#include "nccl/comm.h"

#define VC_NCCL_MISSING(name)                                                                      \
	__attribute__((visibility("default")))                                                     \
	ncclResult_t vc_missing_##name(void) __asm__(#name);                                       \
	ncclResult_t vc_missing_##name(void)                                                       \
	{                                                                                          \
		return vc_nccl_error(NULL, ncclInvalidUsage, "the virtual cluster has no " #name); \
	}

VC_NCCL_MISSING(ncclAlltoAll)
VC_NCCL_MISSING(ncclBcast)
VC_NCCL_MISSING(ncclCommDeregister)
VC_NCCL_MISSING(ncclCommRegister)
VC_NCCL_MISSING(ncclCommRevoke)
VC_NCCL_MISSING(ncclCommShrink)
VC_NCCL_MISSING(ncclCommSplit)
VC_NCCL_MISSING(ncclGather)
VC_NCCL_MISSING(ncclGroupSimulateEnd)
VC_NCCL_MISSING(ncclRecv)
VC_NCCL_MISSING(ncclRedOpCreatePreMulSum)
VC_NCCL_MISSING(ncclRedOpDestroy)
VC_NCCL_MISSING(ncclReduce)
VC_NCCL_MISSING(ncclReduceScatter)
VC_NCCL_MISSING(ncclScatter)
VC_NCCL_MISSING(ncclSend)
