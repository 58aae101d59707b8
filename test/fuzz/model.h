/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which arguments are right, as nccl_ep.h says it and without a line of the library. Functions return why
 * a call must fail, or NULL: then it must not.
 */
#ifndef TEST_FUZZ_MODEL_H
#define TEST_FUZZ_MODEL_H

#include "fuzz/calls.h"

/* A tensor as a call finds it. */
struct model_tensor {
	uint64_t at; /* address; 0: none, as it is empty */
	uint32_t elem;
	ncclDataType_t type;
	uint64_t size[2];
};

/* Bytes of an element. */
uint32_t model_elem(ncclDataType_t type);
/* Copies what the caller's struct has to `own`, of form->size bytes. */
const char *model_import(void *own, const struct form *form, const void *caller);
const char *model_tensor(const struct fuzz *f, const ncclEpTensor_t *t, unsigned int ndim,
			 struct model_tensor *out);
/* Is all of the tensor in a window of high throughput's bench? *at: where it is then. */
bool model_window(const struct fuzz *f, const ncclEpTensor_t *t, uint64_t *at);
/* Of InitHandle and its like. `config` as the caller passes it. */
const char *model_handle(const struct fuzz *f, ncclEpLayout_t layout, const void *config, int topk);
/* Of a created group: no other config makes one. */
const char *model_group(const void *config);

/* ht_model.c */

/* What becomes of the group if the call is taken. */
enum model_fate {
	FATE_FINE,
	FATE_PERHAPS,
	FATE_DOOMED
};

const char *model_ht_dispatch(const struct fuzz *f, void *const *args, enum model_fate *fate);
const char *model_ht_combine(const struct fuzz *f, void *const *args, enum model_fate *fate);
const char *model_ht_ids(const struct fuzz *f, const ncclEpTensor_t *ids, uint64_t topk);
const char *model_ht_info(const struct fuzz *f, ncclEpLayout_t layout, const void *info);

#endif
