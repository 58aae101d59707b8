/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of high throughput with mistakes. */
#ifndef TEST_FUZZ_HT_FUZZ_H
#define TEST_FUZZ_HT_FUZZ_H

#include "fuzz/model.h"
#include "support/ht_bench.h"

struct ht_fuzz {
	struct ht_bench b;
	bool unrouted;            /* the handle is new: only its memory has the routing */
	struct bench_tensor wide; /* ids: room for those of any top-k */
};

/* Group, handle and buffers of f->config and this problem. */
void ht_fuzz_open(struct fuzz *f, const struct oracle_ht *h, uint32_t flags);
void ht_fuzz_close(struct fuzz *f);

/* ht_calls.c */
ncclResult_t fuzz_ht_dispatch(struct fuzz *f);
ncclResult_t fuzz_ht_combine(struct fuzz *f);
ncclResult_t fuzz_ht_complete(struct fuzz *f);
ncclResult_t fuzz_ht_update(struct fuzz *f);
ncclResult_t fuzz_ht_create(struct fuzz *f);
ncclResult_t fuzz_ht_received(struct fuzz *f);

#endif
