/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives: operations on the caller's stream that exchange slots with the other ranks. */
#include <stdlib.h>
#include <string.h>
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "nccl/comm.h"
#include "nccl/reduce.h"

enum vc_coll_kind {
	VC_COLL_GATHER = 2,
	VC_COLL_REDUCE,
	VC_COLL_BROADCAST
};

struct vc_coll {
	struct ncclComm *comm;
	enum vc_coll_kind kind;
	const uint8_t *send;
	uint8_t *recv;
	size_t bytes; /* of one rank */
	ncclDataType_t type;
	ncclRedOp_t op;
	int root;
};

static uint64_t vc_coll_call(const struct vc_coll *coll)
{
	return (uint64_t)coll->kind << 56 | (uint64_t)coll->type << 48 | (uint64_t)coll->op << 44 |
	       ((uint64_t)coll->root & 0xfff) << 32 | (coll->bytes & 0xffffffffu);
}

/* One chunk: write the own slot, wait, read the others', wait. */
static ncclResult_t vc_coll_chunk(const struct vc_coll *coll, size_t at, size_t size)
{
	struct ncclComm *comm = coll->comm;
	uint8_t *mine = comm->slots + (size_t)comm->rank * VC_NCCL_SLOT;
	ncclResult_t result;

	if (coll->kind != VC_COLL_BROADCAST || comm->rank == coll->root) {
		memcpy(mine, coll->send + at, size);
	}
	result = vc_comm_barrier(comm, vc_coll_call(coll));
	if (result) {
		return result;
	}
	switch (coll->kind) {
	case VC_COLL_GATHER:
		for (int i = 0; i < comm->nranks; i++) {
			memcpy(coll->recv + (size_t)i * coll->bytes + at,
			       comm->slots + (size_t)i * VC_NCCL_SLOT, size);
		}
		break;
	case VC_COLL_REDUCE:
		vc_reduce(coll->recv + at, comm->slots, VC_NCCL_SLOT, comm->nranks,
			  size / vc_type_size(coll->type), coll->type, coll->op);
		break;
	case VC_COLL_BROADCAST:
		memcpy(coll->recv + at, comm->slots + (size_t)coll->root * VC_NCCL_SLOT, size);
		break;
	}
	return vc_comm_barrier(comm, 0);
}

static void vc_coll_run(void *arg)
{
	struct vc_coll *coll = arg;
	struct ncclComm *comm = coll->comm;
	ncclResult_t result = (ncclResult_t)atomic_load(&comm->error);

	pthread_mutex_lock(&comm->mutex);
	for (size_t at = 0; at < coll->bytes && !result; at += VC_NCCL_SLOT) {
		size_t size = coll->bytes - at < VC_NCCL_SLOT ? coll->bytes - at : VC_NCCL_SLOT;

		result = vc_coll_chunk(coll, at, size);
	}
	if (result) {
		vc_nccl_broken(comm, result);
	}
	pthread_mutex_unlock(&comm->mutex);
}

static bool vc_coll_memory(const void *p, size_t size)
{
	struct vc_mem mem;

	return !size || vc_mem_find(p, size, &mem);
}

static ncclResult_t vc_coll_submit(const struct vc_coll *coll, size_t recv_bytes,
				   cudaStream_t stream)
{
	struct vc_work work = { .kind = VC_WORK_CALL, .device = coll->comm->device };
	bool sends = coll->kind != VC_COLL_BROADCAST || coll->comm->rank == coll->root;
	cudaError_t error;

	if ((sends && !vc_coll_memory(coll->send, coll->bytes)) ||
	    !vc_coll_memory(coll->recv, recv_bytes)) {
		return vc_nccl_error(coll->comm, ncclInvalidArgument,
				     "send %p or receive %p is not memory a device can reach",
				     (const void *)coll->send, (void *)coll->recv);
	}
	work.call.fn = vc_coll_run;
	work.call.size = sizeof(*coll);
	work.call.arg = malloc(sizeof(*coll));
	if (!work.call.arg) {
		return vc_nccl_error(coll->comm, ncclSystemError, "out of memory");
	}
	memcpy(work.call.arg, coll, sizeof(*coll));
	error = vc_stream_submit(stream, &work);
	if (error) {
		return vc_nccl_error(coll->comm, ncclUnhandledCudaError, "stream %p: %s",
				     (void *)stream, cudaGetErrorString(error));
	}
	return ncclSuccess;
}

static ncclResult_t vc_coll_check(struct ncclComm *comm, ncclDataType_t type)
{
	ncclResult_t result = vc_comm_check(comm);

	if (!result && !vc_type_size(type)) {
		result = vc_nccl_error(comm, ncclInvalidArgument, "data type %d", (int)type);
	}
	if (!result && atomic_load(&comm->error)) {
		result = (ncclResult_t)atomic_load(&comm->error);
	}
	return result;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t result = vc_coll_check(comm, type);
	struct vc_coll coll = {
		.comm = comm, .kind = VC_COLL_GATHER, .send = send, .recv = recv, .type = type
	};

	if (result) {
		return result;
	}
	coll.bytes = count * vc_type_size(type);
	return vc_coll_submit(&coll, coll.bytes * (size_t)comm->nranks, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t result = vc_coll_check(comm, type);
	struct vc_coll coll = { .comm = comm,
				.kind = VC_COLL_REDUCE,
				.send = send,
				.recv = recv,
				.type = type,
				.op = op };

	if (result) {
		return result;
	}
	if ((unsigned int)op > ncclAvg) {
		return vc_nccl_error(comm, ncclInvalidArgument, "reduction %d", (int)op);
	}
	coll.bytes = count * vc_type_size(type);
	return vc_coll_submit(&coll, coll.bytes, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
			   int root, ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t result = vc_coll_check(comm, type);
	struct vc_coll coll = { .comm = comm,
				.kind = VC_COLL_BROADCAST,
				.send = send,
				.recv = recv,
				.type = type,
				.root = root };

	if (result) {
		return result;
	}
	if (root < 0 || root >= comm->nranks) {
		return vc_nccl_error(comm, ncclInvalidArgument, "root %d of %d ranks", root,
				     comm->nranks);
	}
	coll.bytes = count * vc_type_size(type);
	return vc_coll_submit(&coll, coll.bytes, stream);
}
