/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor descriptors of callers, checked and resolved to device pointers. */
#ifndef EP_EP_TENSOR_H
#define EP_EP_TENSOR_H

#include <stdbool.h>
#include "core/error.h"
#include "nccl_ep.h"

/* A checked descriptor: every field may be relied on. Extents are the caller's array. */
struct ep_view {
	void *data; /* NULL only if an extent is 0 */
	uint32_t elem_bytes;
	ncclDataType_t datatype;
	unsigned int ndim;
	const size_t *sizes;
};

/* A descriptor with room for its extents. */
ncclResult_t ep_tensor_alloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype,
			     const size_t *sizes, const ncclEpTensorAllocConfig_t *config);
ncclResult_t ep_tensor_destroy(ncclEpTensor_t *tensor);

/* Bytes of an element; 0: not a type of this API. */
uint32_t ep_dtype_bytes(ncclDataType_t datatype);
const char *ep_dtype_name(ncclDataType_t datatype);

/*
 * Checks that the tensor is an intact descriptor of `ndim` dimensions with storage, and finds the storage:
 * `data`, or the window's address on this rank. `name` is how errors call it.
 */
ncclResult_t ep_view_make(struct ep_view *view, ncclComm_t comm, const ncclEpTensor_t *tensor,
			  unsigned int ndim, const char *name);

/* Of all elements; UINT64_MAX: more than that. */
uint64_t ep_view_bytes(const struct ep_view *view);

/* Further demands on a view. `data` aligned to `align` bytes unless NULL. */
ncclResult_t ep_view_expect_type(const struct ep_view *view, ncclDataType_t datatype,
				 const char *name);
ncclResult_t ep_view_expect_dim(const struct ep_view *view, unsigned int dim, uint64_t extent,
				const char *meaning, const char *name);
ncclResult_t ep_view_expect_align(const struct ep_view *view, uint32_t align, const char *name);

/* Bytes of a row, dimension `dim`: a positive multiple of 16 that 32 bits hold. */
ncclResult_t ep_view_row_bytes(const struct ep_view *view, unsigned int dim, uint32_t *bytes,
			       const char *name);

/* NULL is fine, anything else is an error with the reason. */
ncclResult_t ep_tensor_expect_absent(const ncclEpTensor_t *tensor, const char *name,
				     const char *why);

#endif
