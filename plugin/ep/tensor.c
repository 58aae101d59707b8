/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of callers: descriptors are made, checked and resolved to views of device memory. */
#include <stdlib.h>
#include <string.h>
#include "core/nccl_dyn.h"
#include "core/registry.h"
#include "ep/ep.h"

#define EP_TENSOR_ALLOCATED 0xBEEFBEEFu
#define EP_TENSOR_MOST_DIMS 8 /* calls have tensors of 3 at most; so many extents are read */

/*
 * A descriptor of ncclEpTensorAlloc. Its `sizes` points into the same allocation, which
 * distinguishes it from one whose `sizes` was replaced; a copy of the struct is no registered
 * object.
 */
struct tensor {
	ncclEpTensor_t pub;
	size_t sizes[];
};

uint32_t ep_dtype_bytes(ncclDataType_t datatype)
{
	switch ((int)datatype) {
	case ncclInt8:
	case ncclUint8:
	case ncclFloat8e4m3:
	case ncclFloat8e5m2:
	case 12: /* two 4-bit floats */
		return 1;
	case ncclFloat16:
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	default:
		return 0;
	}
}

const char *ep_dtype_name(ncclDataType_t datatype)
{
	static const char *const names[] = { "int8",   "uint8", "int32", "uint32", "int64",
					     "uint64", "fp16",  "fp32",  "fp64",   "bf16",
					     "e4m3",   "e5m2",  "fp4x2" };

	return (unsigned int)datatype < EP_ARRAY_SIZE(names) ? names[datatype] : "unknown type";
}

static bool tensor_is_allocated(const ncclEpTensor_t *tensor)
{
	return tensor->magic == EP_TENSOR_ALLOCATED &&
	       ep_registry_has(tensor, EP_REGISTRY_TENSOR) &&
	       tensor->sizes == ((const struct tensor *)tensor)->sizes;
}

ncclResult_t ep_tensor_alloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype,
			     const size_t *sizes, const ncclEpTensorAllocConfig_t *config)
{
	ncclEpTensorAllocConfig_t own;
	struct tensor *t;

	EP_CHECK(EP_IMPORT_OPTIONAL(&own, config, NCCL_EP_TENSOR_ALLOC_CONFIG));
	if (!tensor || !sizes || ndim == 0) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpTensorAlloc: %s: pass an address for the "
			       "descriptor, at least one dimension and its extents",
			       !tensor  ? "tensor is NULL"
			       : !sizes ? "sizes is NULL"
					: "ndim is 0");
	}
	if (ndim > EP_TENSOR_MOST_DIMS) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpTensorAlloc: ndim is %u, the limit is %d: pass the number of "
			       "extents in sizes",
			       ndim, EP_TENSOR_MOST_DIMS);
	}
	t = calloc(1, sizeof(*t) + ndim * sizeof(size_t));
	if (!t || !ep_registry_add(t, EP_REGISTRY_TENSOR)) {
		free(t);
		return ep_fail(ncclSystemError, "ncclEpTensorAlloc: no memory for %u extents",
			       ndim);
	}
	t->pub.size = sizeof(t->pub);
	t->pub.magic = EP_TENSOR_ALLOCATED;
	t->pub.ndim = ndim;
	t->pub.datatype = datatype;
	t->pub.sizes = t->sizes;
	memcpy(t->sizes, sizes, ndim * sizeof(size_t));
	*tensor = &t->pub;
	return ncclSuccess;
}

ncclResult_t ep_tensor_destroy(ncclEpTensor_t *tensor)
{
	if (!ep_registry_has(tensor, EP_REGISTRY_TENSOR)) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpTensorDestroy: %p is not a descriptor of ncclEpTensorAlloc "
			       "(destroyed?)",
			       (void *)tensor);
	}
	if (!tensor_is_allocated(tensor)) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpTensorDestroy: magic 0x%x, sizes %p: the descriptor's "
			       "magic or its sizes pointer was replaced: restore it",
			       tensor->magic, (void *)tensor->sizes);
	}
	(void)ep_registry_remove(tensor, EP_REGISTRY_TENSOR);
	free(tensor);
	return ncclSuccess;
}

static ncclResult_t tensor_check(const ncclEpTensor_t *tensor, unsigned int ndim, const char *name)
{
	if (!tensor) {
		return ep_fail(ncclInvalidArgument, "%s is NULL: it is required here", name);
	}
	if (tensor->magic != NCCL_EP_TENSOR_MAGIC && !tensor_is_allocated(tensor)) {
		return ep_fail(
			ncclInvalidArgument,
			"%s: magic is 0x%x: initialise the descriptor with "
			"NCCL_EP_TENSOR_INIT, or leave the sizes pointer of an allocated one "
			"alone",
			name, tensor->magic);
	}
	if (tensor->size < NCCL_EP_TENSOR_V1_SIZE) {
		return ep_fail(ncclInvalidArgument,
			       "%s: size is %u instead of %u: initialise the descriptor with "
			       "NCCL_EP_TENSOR_INIT",
			       name, tensor->size, NCCL_EP_TENSOR_V1_SIZE);
	}
	if (tensor->ndim != ndim || !tensor->sizes) {
		return ep_fail(ncclInvalidArgument, "%s: %u dimensions%s, it needs %u", name,
			       tensor->ndim, tensor->sizes ? "" : " but sizes is NULL", ndim);
	}
	if (ep_dtype_bytes(tensor->datatype) == 0) {
		return ep_fail(ncclInvalidArgument, "%s: unknown data type %d", name,
			       (int)tensor->datatype);
	}
	return ncclSuccess;
}

/*
 * Does the window end before the view does? NCCL reports it, if it knows where this one is at all.
 */
static bool tensor_beyond(ncclComm_t comm, const ncclEpTensor_t *tensor, const struct ep_view *view)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	uint64_t bytes = ep_view_bytes(view), last = tensor->win_offset + bytes - 1;
	void *end = NULL;
	int rank = 0;

	if (!nccl->get_peer_device_pointer || nccl->comm_user_rank(comm, &rank) != ncclSuccess) {
		return false;
	}
	return last < tensor->win_offset ||
	       (nccl->get_peer_device_pointer(tensor->win_hdl, last, rank, &end) != ncclSuccess &&
		nccl->get_peer_device_pointer(tensor->win_hdl, 0, rank, &end) == ncclSuccess);
}

/* The storage of a view that is not empty, of which the caller gives the window alone. */
static ncclResult_t tensor_window(struct ep_view *view, ncclComm_t comm,
				  const ncclEpTensor_t *tensor, const char *name)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	void *base = NULL;
	ncclResult_t result;

	if (!nccl->win_get_user_ptr) {
		return ep_fail(ncclInvalidUsage,
			       "%s: it has a window but no data, and this NCCL has no "
			       "ncclWinGetUserPtr: set data, or use NCCL 2.29 or later",
			       name);
	}
	result = nccl->win_get_user_ptr(comm, tensor->win_hdl, &base);
	if (result != ncclSuccess) {
		return ep_fail(ncclInvalidArgument,
			       "%s: ncclWinGetUserPtr knows no window %p of the communicator (%s): "
			       "pass one that is registered with it, or data",
			       name, (void *)tensor->win_hdl, ep_nccl_text(result));
	}
	if (!base) {
		return ep_fail(ncclInvalidUsage,
			       "%s: the window has no address on this rank: set data", name);
	}
	if (tensor_beyond(comm, tensor, view)) {
		return ep_fail(ncclInvalidArgument,
			       "%s: its %llu bytes at win_offset %llu do not lie in its window: "
			       "register all of it, or set data",
			       name, (unsigned long long)ep_view_bytes(view),
			       (unsigned long long)tensor->win_offset);
	}
	view->data = (char *)base + tensor->win_offset;
	return ncclSuccess;
}

ncclResult_t ep_view_make(struct ep_view *view, ncclComm_t comm, const ncclEpTensor_t *tensor,
			  unsigned int ndim, const char *name)
{
	bool empty = false;

	EP_CHECK(tensor_check(tensor, ndim, name));
	for (unsigned int i = 0; i < ndim; i++) {
		empty |= tensor->sizes[i] == 0;
	}
	view->data = tensor->data;
	view->elem_bytes = ep_dtype_bytes(tensor->datatype);
	view->datatype = tensor->datatype;
	view->ndim = ndim;
	view->sizes = tensor->sizes;
	if (empty || view->data) {
		return ncclSuccess;
	}
	if (!tensor->win_hdl) {
		return ep_fail(
			ncclInvalidArgument,
			"%s: neither data nor a window: only tensors with an extent of 0 need "
			"no storage",
			name);
	}
	return tensor_window(view, comm, tensor, name);
}

uint64_t ep_view_bytes(const struct ep_view *view)
{
	uint64_t n = view->elem_bytes;
	bool over = false;

	for (unsigned int i = 0; i < view->ndim; i++) {
		if (view->sizes[i] == 0) {
			return 0;
		}
		over |= __builtin_mul_overflow(n, view->sizes[i], &n);
	}
	return over ? UINT64_MAX : n;
}

ncclResult_t ep_view_expect_type(const struct ep_view *view, ncclDataType_t datatype,
				 const char *name)
{
	if (view->datatype == datatype) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument, "%s: data type %s, it needs %s", name,
		       ep_dtype_name(view->datatype), ep_dtype_name(datatype));
}

ncclResult_t ep_view_expect_dim(const struct ep_view *view, unsigned int dim, uint64_t extent,
				const char *meaning, const char *name)
{
	if (view->sizes[dim] == extent) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument, "%s: sizes[%u] is %zu, it needs %llu (%s)", name, dim,
		       view->sizes[dim], (unsigned long long)extent, meaning);
}

ncclResult_t ep_view_expect_align(const struct ep_view *view, uint32_t align, const char *name)
{
	if (((uintptr_t)view->data & (align - 1)) == 0) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument, "%s: address %p is not a multiple of %u bytes", name,
		       view->data, align);
}

ncclResult_t ep_view_row_bytes(const struct ep_view *view, unsigned int dim, uint32_t *bytes,
			       const char *name)
{
	size_t n = view->sizes[dim];

	if (n > 0 && n <= UINT32_MAX / view->elem_bytes && n * view->elem_bytes % 16 == 0) {
		*bytes = (uint32_t)(n * view->elem_bytes);
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument,
		       "%s: rows of %zu %s, %u bytes each: they need a positive multiple of 16 "
		       "bytes, less than 4 GiB%s",
		       name, n, ep_dtype_name(view->datatype), view->elem_bytes,
		       n ? "" : "; a rank without rows passes the others' number of elements");
}

ncclResult_t ep_tensor_expect_absent(const ncclEpTensor_t *tensor, const char *name,
				     const char *why)
{
	if (!tensor) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument, "%s must be NULL: %s", name, why);
}
