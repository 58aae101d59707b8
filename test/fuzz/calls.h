/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the API with mistakes. All ranks make the same ones, from the same state. */
#ifndef TEST_FUZZ_CALLS_H
#define TEST_FUZZ_CALLS_H

#include "fuzz/mutate.h"

#define FUZZ_RANKS 2

struct ht_fuzz;

struct fuzz {
	struct world *w;
	struct bench *b;    /* of low latency */
	struct ht_fuzz *ht; /* of high throughput */
	ncclEpGroup_t group;
	ncclEpGroupConfig_t config; /* the group's */
	bool masks;
	/* its handle */
	ncclEpLayout_t layout;
	uint32_t layouts; /* bits of those that there are */
	uint32_t topk;
	size_t alignment;
	const ncclEpTensor_t *spare, *ids; /* good descriptors: of weights and of expert ids */
	uint64_t number;
	uint64_t state;
	uint32_t calls;
	uint32_t made, failed;
	char last[1024]; /* error of the group before the operation */
	bool odd_ids; /* the handle has ids that were passed with a mistake, which a kernel may find */
};

/* Returns what all ranks must agree on. */
typedef ncclResult_t (*fuzz_call_fn)(struct fuzz *f);

/* judge.c */

/* The result is a documented one, has a reason, and is not a success where that is impossible. */
void fuzz_judge(struct fuzz *f, const char *call, ncclResult_t result, const struct mutation *m);
/* How many mistakes, and at which of n places each: bit sets. */
uint32_t fuzz_places(struct fuzz *f, uint32_t n);
/* All ranks had the same arguments, so they have the same result. */
void fuzz_agree(struct fuzz *f, ncclResult_t result);
/* Calls as drawn, and between them `pair`, which must be right. */
void fuzz_run(struct fuzz *f, const fuzz_call_fn *calls, size_t n, void (*pair)(struct fuzz *f));

/* forms.c */
extern const struct form form_in, form_out, form_info, form_config;
extern const struct form form_combine_in, form_combine_out, form_combine_config;
extern const struct form form_handle_config, form_complete;

/* calls.c: low latency */
ncclResult_t fuzz_dispatch(struct fuzz *f);
ncclResult_t fuzz_combine(struct fuzz *f);
ncclResult_t fuzz_complete(struct fuzz *f);
ncclResult_t fuzz_update(struct fuzz *f);
ncclResult_t fuzz_create(struct fuzz *f);

/* calls_handle.c */
ncclResult_t fuzz_mem_size(struct fuzz *f);
ncclResult_t fuzz_init(struct fuzz *f);

/* calls_group.c */
/* A config, with the limits of its group. */
struct form fuzz_group_form(const ncclEpGroupConfig_t *config);
ncclResult_t fuzz_group(struct fuzz *f);
ncclResult_t fuzz_masks(struct fuzz *f);
ncclResult_t fuzz_tensors(struct fuzz *f);
ncclResult_t fuzz_version(struct fuzz *f);
ncclResult_t fuzz_nobody(struct fuzz *f);
ncclResult_t fuzz_memory(struct fuzz *f);
ncclResult_t fuzz_statistics(struct fuzz *f);

/* calls_feasible.c */
ncclResult_t fuzz_feasible(struct fuzz *f);

#endif
