/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tape.h"

static void inputs(struct bench *b, struct bench_tensor **list)
{
	list[0] = &b->in_tokens;
	list[1] = &b->in_scales;
	list[2] = &b->weights;
	list[3] = &b->ids;
	list[4] = &b->combine_in;
}

static void outputs(struct bench *b, struct bench_tensor **list)
{
	list[0] = &b->out_tokens;
	list[1] = &b->out_scales;
	list[2] = &b->out_weights;
	list[3] = &b->out_idx;
	list[4] = &b->counts;
	list[5] = &b->combine_out;
}

static char *room(const struct bench_tensor *t, uint32_t steps)
{
	void *data = NULL;

	if (t->t.data && t->bytes) {
		NEED_CUDA(cudaMalloc(&data, t->bytes * steps));
	}
	return data;
}

/* One way or the other between a tensor and its place on the tape. */
static void move(struct bench_tensor *t, char *tape, uint32_t step, bool to_tape, cudaStream_t s)
{
	if (tape) {
		char *place = tape + (size_t)step * t->bytes;

		NEED_CUDA(cudaMemcpyAsync(to_tape ? place : t->t.data, to_tape ? t->t.data : place,
					  t->bytes, cudaMemcpyDeviceToDevice, s));
	}
}

void tape_open(struct tape *t, struct bench *b, uint32_t steps, uint64_t seed)
{
	struct bench_tensor *in[TAPE_INPUTS], *out[TAPE_OUTPUTS];

	memset(t, 0, sizeof(*t));
	t->b = b;
	t->steps = steps;
	t->seed = seed;
	inputs(b, in);
	outputs(b, out);
	for (int i = 0; i < TAPE_INPUTS; i++) {
		t->in[i] = room(in[i], steps);
	}
	for (int i = 0; i < TAPE_OUTPUTS; i++) {
		t->out[i] = room(out[i], steps);
	}
	for (uint32_t step = 0; step < steps; step++) {
		bench_load(b, seed + step);
		bench_expert_work(b);
		for (int i = 0; i < TAPE_INPUTS; i++) {
			move(in[i], t->in[i], step, true, b->w->stream);
		}
		NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	}
}

void tape_close(struct tape *t)
{
	for (int i = 0; i < TAPE_INPUTS; i++) {
		NEED_CUDA(cudaFree(t->in[i]));
	}
	for (int i = 0; i < TAPE_OUTPUTS; i++) {
		NEED_CUDA(cudaFree(t->out[i]));
	}
}

void tape_load(struct tape *t, uint32_t step, cudaStream_t stream)
{
	struct bench_tensor *in[TAPE_INPUTS], *out[TAPE_OUTPUTS];

	inputs(t->b, in);
	outputs(t->b, out);
	for (int i = 0; i < TAPE_INPUTS; i++) {
		move(in[i], t->in[i], step, false, stream);
	}
	for (int i = 0; i < TAPE_OUTPUTS; i++) {
		if (t->out[i]) {
			NEED_CUDA(cudaMemsetAsync(out[i]->t.data, ORACLE_POISON, out[i]->bytes,
						  stream));
		}
	}
}

void tape_save(struct tape *t, uint32_t step, cudaStream_t stream)
{
	struct bench_tensor *out[TAPE_OUTPUTS];

	outputs(t->b, out);
	for (int i = 0; i < TAPE_OUTPUTS; i++) {
		move(out[i], t->out[i], step, true, stream);
	}
}

void tape_check(struct tape *t, uint32_t step, bool dispatch, bool combine)
{
	struct bench_tensor *out[TAPE_OUTPUTS];

	outputs(t->b, out);
	for (int i = 0; i < TAPE_OUTPUTS; i++) {
		move(out[i], t->out[i], step, false, t->b->w->stream);
	}
	NEED_CUDA(cudaStreamSynchronize(t->b->w->stream));
	bench_load(t->b, t->seed + step);
	if (dispatch) {
		bench_check_dispatch(t->b);
	}
	if (combine) {
		bench_check_combine(t->b);
	}
}

void chain_open(struct chain *c)
{
	memset(c, 0, sizeof(*c));
	NEED_CUDA(cudaStreamCreateWithFlags(&c->stream[0], cudaStreamNonBlocking));
	NEED_CUDA(cudaStreamCreateWithFlags(&c->stream[1], cudaStreamNonBlocking));
	NEED_CUDA(cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming));
}

void chain_close(struct chain *c)
{
	NEED_CUDA(cudaEventDestroy(c->event));
	NEED_CUDA(cudaStreamDestroy(c->stream[1]));
	NEED_CUDA(cudaStreamDestroy(c->stream[0]));
}

cudaStream_t chain_on(struct chain *c, int which)
{
	if (which != c->last) {
		NEED_CUDA(cudaEventRecord(c->event, c->stream[c->last]));
		NEED_CUDA(cudaStreamWaitEvent(c->stream[which], c->event, 0));
		c->last = which;
	}
	return c->stream[which];
}

void chain_sync(struct chain *c)
{
	NEED_CUDA(cudaStreamSynchronize(c->stream[c->last]));
}
