/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many steps of a bench without the host: the inputs of each step wait in device memory and its
 * outputs are kept there, all moved by the stream, and checked at the end.
 */
#ifndef TEST_SUPPORT_TAPE_H
#define TEST_SUPPORT_TAPE_H

#include "support/bench.h"

#define TAPE_INPUTS 5
#define TAPE_OUTPUTS 6

struct tape {
	struct bench *b;
	uint32_t steps;
	uint64_t seed;
	char *in[TAPE_INPUTS];
	char *out[TAPE_OUTPUTS];
};

/* Step i has the inputs of seed + i, and the experts' results for them. */
void tape_open(struct tape *t, struct bench *b, uint32_t steps, uint64_t seed);
void tape_close(struct tape *t);
/* Brings a step's inputs into the bench's buffers and poisons its outputs. */
void tape_load(struct tape *t, uint32_t step, cudaStream_t stream);
void tape_save(struct tape *t, uint32_t step, cudaStream_t stream);
/* When the stream is idle. */
void tape_check(struct tape *t, uint32_t step, bool dispatch, bool combine);

/* Work on one stream that is in order with work before it on another. */
struct chain {
	cudaStream_t stream[2];
	cudaEvent_t event;
	int last;
};

void chain_open(struct chain *c);
void chain_close(struct chain *c);
cudaStream_t chain_on(struct chain *c, int which);
void chain_sync(struct chain *c);

#endif
