/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the API with mistakes. All ranks make the same ones, from the same state. */
#ifndef TEST_FUZZ_CALLS_H
#define TEST_FUZZ_CALLS_H

#include "fuzz/mutate.h"

struct fuzz {
	struct world *w;
	struct bench *b;
	uint64_t number;
	uint64_t state;
	uint32_t calls;
	uint32_t made, failed;
	char last[1024]; /* error of the group before the operation */
};

/* Returns what all ranks must agree on. */
typedef ncclResult_t (*fuzz_call_fn)(struct fuzz *f);

/* The result is a documented one, has a reason, and is not a success where that is impossible. */
void fuzz_judge(struct fuzz *f, const char *call, ncclResult_t result, const struct mutation *m);

/* calls.c */
ncclResult_t fuzz_dispatch(struct fuzz *f);
ncclResult_t fuzz_combine(struct fuzz *f);
ncclResult_t fuzz_complete(struct fuzz *f);
ncclResult_t fuzz_update(struct fuzz *f);
ncclResult_t fuzz_init(struct fuzz *f);
ncclResult_t fuzz_create(struct fuzz *f);
ncclResult_t fuzz_mem_size(struct fuzz *f);

/* calls_group.c */
ncclResult_t fuzz_group(struct fuzz *f);
ncclResult_t fuzz_masks(struct fuzz *f);
ncclResult_t fuzz_tensors(struct fuzz *f);
ncclResult_t fuzz_version(struct fuzz *f);
ncclResult_t fuzz_nobody(struct fuzz *f);
ncclResult_t fuzz_memory(struct fuzz *f);
ncclResult_t fuzz_statistics(struct fuzz *f);

#endif
