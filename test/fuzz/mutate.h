/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers' structs and descriptors with mistakes. Everything that is passed is a copy of exactly
 * the bytes that it claims to have, so that AddressSanitizer sees any read beyond.
 */
#ifndef TEST_FUZZ_MUTATE_H
#define TEST_FUZZ_MUTATE_H

#include "support/bench.h"

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

#endif
