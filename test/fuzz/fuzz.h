/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers' structs and descriptors with mistakes. Everything that is passed is a copy of exactly
 * the bytes that it claims to have, so that AddressSanitizer sees any read beyond.
 */
#ifndef TEST_FUZZ_MUTATE_H
#define TEST_FUZZ_MUTATE_H

#include "support/bench.h"
#include "support/ht_bench.h"

#define MUTATE_BLOCKS 64
#define MUTATE_FIELDS 20

enum field_kind {
	FIELD_U32,
	FIELD_U64,
	FIELD_TENSOR
};

struct field {
	const char *name;
	uint32_t offset;
	enum field_kind kind;
	uint64_t most;   /* larger values are refused; UINT64_MAX: not known */
	bool any_extent; /* tensor: other extents may be right */
};

struct form {
	const char *name;
	unsigned int size, v1_size;
	bool optional; /* NULL is fine */
	struct field field[MUTATE_FIELDS];
};

/* One call's arguments in the making. */
struct mutation {
	uint64_t *state;
	const ncclEpTensor_t *spare; /* a good descriptor for places that have none */
	uint32_t count;              /* mistakes made */
	bool sure;                   /* this mistake must be refused, if it is the only one */
	char text[400];
	void *block[MUTATE_BLOCKS];
	uint32_t blocks;
};

void mutation_begin(struct mutation *m, uint64_t *state, const ncclEpTensor_t *spare);
void mutation_end(struct mutation *m);
/* Whether the call has to fail. */
bool mutation_sure(const struct mutation *m);

/* What to pass in place of `good`, whose descriptors are copied too; mistakes with `wrong` only. */
void *mutate_struct(struct mutation *m, const struct form *form, const void *good, bool wrong);
ncclEpTensor_t *mutate_tensor(struct mutation *m, const char *name, const ncclEpTensor_t *good,
			      bool any_extent, bool wrong);
uint64_t mutate_number(struct mutation *m, const char *name, uint64_t good);

/* ---- one call of the API with mistakes. All ranks make the same ones, from the same state ---- */

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
	/* the handle has ids that were passed with a mistake, which a kernel may find */
	bool odd_ids;
};

/* Returns what all ranks must agree on. */
typedef ncclResult_t (*fuzz_call_fn)(struct fuzz *f);

/* The result is a documented one, has a reason, and is not a success where that is impossible. */
void fuzz_judge(struct fuzz *f, const char *call, ncclResult_t result, const struct mutation *m);
/* How many mistakes, and at which of n places each: bit sets. */
uint32_t fuzz_places(struct fuzz *f, uint32_t n);
/* All ranks had the same arguments, so they have the same result. */
void fuzz_agree(struct fuzz *f, ncclResult_t result);
/* Calls as drawn, and between them `pair`, which must be right. */
void fuzz_run(struct fuzz *f, const fuzz_call_fn *calls, size_t n, void (*pair)(struct fuzz *f));

/* mutate.c */
extern const struct form form_in, form_out, form_info, form_config;
extern const struct form form_combine_in, form_combine_out, form_combine_config;
extern const struct form form_handle_config, form_complete;

/* structs.c: low latency */
ncclResult_t fuzz_dispatch(struct fuzz *f);
ncclResult_t fuzz_combine(struct fuzz *f);
ncclResult_t fuzz_complete(struct fuzz *f);
ncclResult_t fuzz_update(struct fuzz *f);
ncclResult_t fuzz_create(struct fuzz *f);

/* calls.c: both modes */
ncclResult_t fuzz_mem_size(struct fuzz *f);
ncclResult_t fuzz_init(struct fuzz *f);

/* A config, with the limits of its group. */
struct form fuzz_group_form(const ncclEpGroupConfig_t *config);
ncclResult_t fuzz_group(struct fuzz *f);
ncclResult_t fuzz_masks(struct fuzz *f);
ncclResult_t fuzz_tensors(struct fuzz *f);
ncclResult_t fuzz_version(struct fuzz *f);
ncclResult_t fuzz_nobody(struct fuzz *f);
ncclResult_t fuzz_memory(struct fuzz *f);
ncclResult_t fuzz_statistics(struct fuzz *f);

ncclResult_t fuzz_feasible(struct fuzz *f);

/*
 * Which arguments are right, as nccl_ep.h says it and without a line of the library. Functions
 * return why a call must fail, or NULL: then it must not.
 */

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

/* of high throughput */

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

/* ---- calls of high throughput with mistakes ---- */

struct ht_fuzz {
	struct ht_bench b;
	bool unrouted;            /* the handle is new: only its memory has the routing */
	struct bench_tensor wide; /* ids: room for those of any top-k */
};

/* Group, handle and buffers of f->config and this problem. */
void ht_fuzz_open(struct fuzz *f, const struct oracle_ht *h, uint32_t flags);
void ht_fuzz_close(struct fuzz *f);

/* ht_structs.c */
ncclResult_t fuzz_ht_dispatch(struct fuzz *f);
ncclResult_t fuzz_ht_combine(struct fuzz *f);
ncclResult_t fuzz_ht_complete(struct fuzz *f);
ncclResult_t fuzz_ht_update(struct fuzz *f);
ncclResult_t fuzz_ht_create(struct fuzz *f);
ncclResult_t fuzz_ht_received(struct fuzz *f);

#endif
