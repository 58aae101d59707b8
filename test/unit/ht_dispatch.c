// SPDX-License-Identifier: Apache-2.0
/*
 * High throughput's dispatch kernel: every byte of its outputs, and that no other byte is touched, for
 * shapes that exhaust the ring's credits, drop rows, or cut rows and scales into parts.
 */
#include "ht_rig.h"
#include "support/check.h"

static void sync_all(struct ht_world *w)
{
	for (uint32_t r = 0; r < w->shape.ranks; r++) {
		NEED_CUDA(cudaStreamSynchronize(w->rank[r].stream));
	}
}

/* Several steps in one heap: words of the step before must not count. */
static void test_shape(const struct ht_shape *s)
{
	struct ht_world *w = ht_world_make(s);

	check_context("%s", s->name);
	ht_world_launch(w, -1);
	sync_all(w);
	ht_world_check(w);
	ht_world_poison(w);
	ht_world_launch(w, -1);
	ht_world_launch(w, -1);
	sync_all(w);
	ht_world_check(w);
	ht_world_free(w);
}

#define FLAT .layout = EP_HT_FLAT
#define MAJOR .layout = EP_HT_EXPERT_MAJOR

static const struct ht_shape shapes[] = {
	{ .name = "one rank, flat",
	  FLAT,
	  .ranks = 1,
	  .nlocal = 4,
	  .topk = 2,
	  .max_tokens = 9,
	  .tokens = { 9 },
	  .token_bytes = 16,
	  .part_bytes = 16,
	  .ring_chunks = 2,
	  .blocks = 1,
	  .warps = 2,
	  .stage_parts = 1 },
	{ .name = "flat, a ring of two chunks",
	  FLAT,
	  .ranks = 3,
	  .nlocal = 3,
	  .topk = 4,
	  .max_tokens = 80,
	  .tokens = { 80, 61, 77 },
	  .token_bytes = 240,
	  .part_bytes = 240,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 2,
	  .warps = 3,
	  .stage_parts = 2 },
	{ .name = "flat, a ring of one chunk, one warp of each",
	  FLAT,
	  .ranks = 2,
	  .nlocal = 2,
	  .topk = 3,
	  .max_tokens = 64,
	  .tokens = { 64, 40 },
	  .token_bytes = 64,
	  .part_bytes = 64,
	  .ring_chunks = 1,
	  .blocks = 1,
	  .warps = 2,
	  .stage_parts = 3 },
	{ .name = "flat, rows of 40 KiB and scales in parts",
	  FLAT,
	  .ranks = 2,
	  .nlocal = 2,
	  .topk = 2,
	  .max_tokens = 20,
	  .tokens = { 20, 3 },
	  .token_bytes = 40960,
	  .scale_bytes = 640,
	  .part_bytes = 8192,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 2,
	  .warps = 3,
	  .stage_parts = 2,
	  .fill_more = 4 },
	{ .name = "flat, direct, scales, dropped rows",
	  FLAT,
	  .ranks = 4,
	  .nlocal = 2,
	  .topk = 3,
	  .max_tokens = 33,
	  .tokens = { 33, 0, 20, 31 },
	  .token_bytes = 512,
	  .scale_bytes = 32,
	  .part_bytes = 512,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 2,
	  .warps = 3,
	  .stage_parts = 2,
	  .limit = 40,
	  .direct = true,
	  .fill_more = 3 },
	{ .name = "flat, direct, backward",
	  FLAT,
	  .ranks = 2,
	  .nlocal = 3,
	  .topk = 32,
	  .max_tokens = 17,
	  .tokens = { 17, 16 },
	  .token_bytes = 1024,
	  .part_bytes = 256,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 2,
	  .warps = 2,
	  .stage_parts = 4,
	  .direct = true,
	  .backward = true },
	{ .name = "flat, five ranks, most chunks empty",
	  FLAT,
	  .ranks = 5,
	  .nlocal = 1,
	  .topk = 1,
	  .max_tokens = 200,
	  .tokens = { 90, 0, 200, 8, 1 },
	  .token_bytes = 32,
	  .part_bytes = 32,
	  .ring_chunks = 3,
	  .lag = 2,
	  .blocks = 1,
	  .warps = 4,
	  .stage_parts = 2,
	  .backward = true },
	{ .name = "expert-major, zones of 8",
	  MAJOR,
	  .ranks = 3,
	  .nlocal = 4,
	  .topk = 4,
	  .max_tokens = 50,
	  .tokens = { 50, 41, 13 },
	  .token_bytes = 256,
	  .scale_bytes = 16,
	  .part_bytes = 256,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 2,
	  .warps = 3,
	  .stage_parts = 2,
	  .alignment = 8 },
	{ .name = "expert-major, dropped rows and places",
	  MAJOR,
	  .ranks = 2,
	  .nlocal = 5,
	  .topk = 6,
	  .max_tokens = 40,
	  .tokens = { 40, 40 },
	  .token_bytes = 512,
	  .part_bytes = 128,
	  .ring_chunks = 3,
	  .lag = 2,
	  .blocks = 1,
	  .warps = 4,
	  .stage_parts = 4,
	  .alignment = 4,
	  .limit = 50,
	  .zero_more = 7 },
	{ .name = "expert-major, backward, all to one rank",
	  MAJOR,
	  .ranks = 4,
	  .nlocal = 2,
	  .topk = 2,
	  .max_tokens = 30,
	  .tokens = { 30, 30, 30, 30 },
	  .token_bytes = 4096,
	  .part_bytes = 4096,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 1,
	  .warps = 2,
	  .stage_parts = 2,
	  .alignment = 16,
	  .to = { 1, 2 },
	  .backward = true },
};

int main(void)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		test_shape(&shapes[i]);
	}
	return check_end();
}
