// SPDX-License-Identifier: Apache-2.0
/*
 * High throughput's dispatch kernel: every byte of its outputs, and that no other byte is touched, for
 * shapes that exhaust the ring's credits, drop rows, or cut rows and scales into parts.
 */
#include "ht_rig.h"
#include "device/simt/wait_site.h"
#include "support/check.h"

static void sync_all(struct ht_world *w)
{
	for (uint32_t r = 0; r < w->shape.ranks; r++) {
		NEED_CUDA(cudaStreamSynchronize(w->rank[r].stream));
	}
}

/* A rank's outputs are there when its own kernel is over. */
static void check_all(struct ht_world *w)
{
	for (uint32_t r = 0; r < w->shape.ranks; r++) {
		NEED_CUDA(cudaStreamSynchronize(w->rank[r].stream));
		ht_world_check(w, r);
	}
}

/* Several steps in one heap: words of the step before must not count. */
static void test_shape(const struct ht_shape *s)
{
	struct ht_world *w = ht_world_make(s);

	check_context("%s", s->name);
	ht_world_launch(w, -1);
	check_all(w);
	ht_world_poison(w);
	ht_world_launch(w, -1);
	ht_world_launch(w, -1);
	check_all(w);
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
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
	  .chunk_shift = 3,
	  .ring_chunks = 2,
	  .lag = 1,
	  .blocks = 1,
	  .warps = 2,
	  .stage_parts = 2,
	  .alignment = 16,
	  .to = { 1, 2 },
	  .backward = true },
};

/* 8 blocks at most, each of which may need an SM for itself. */
static struct ht_shape random_shape(uint32_t seed)
{
	uint32_t x = seed * 7919u + 5, row;
	struct ht_shape s = { .name = "random", .seed = seed };

	s.ranks = 1 + ht_random(&x) % 5;
	s.nlocal = 1 + ht_random(&x) % 6;
	s.topk = 1 + ht_random(&x) % (ht_random(&x) % 8 ? 8 : 32);
	s.layout = ht_random(&x) % 2 ? EP_HT_FLAT : EP_HT_EXPERT_MAJOR;
	s.max_tokens = 1 + ht_random(&x) % 90;
	for (uint32_t r = 0; r < s.ranks; r++) {
		s.tokens[r] = ht_random(&x) % (s.max_tokens + 1);
	}
	s.token_bytes = 16 * (1 + ht_random(&x) % (ht_random(&x) % 4 ? 64 : 2560));
	s.scale_bytes = ht_random(&x) % 2 ? 0 : 16 * (1 + ht_random(&x) % 20);
	row = s.token_bytes + s.scale_bytes;
	s.part_bytes = 16 * ((row / 16 + ht_random(&x) % 8) / (1 + ht_random(&x) % 8) + 1);
	s.ring_chunks = 1 + ht_random(&x) % 5;
	s.lag = ht_random(&x) % s.ring_chunks;
	s.blocks = 1 + ht_random(&x) % (8 / s.ranks < 3 ? 8 / s.ranks : 3);
	s.warps = 1 + ht_random(&x) % 4;
	s.stage_parts = 1 + ht_random(&x) % 5;
	while (ep_ht_stage_bytes(s.warps, s.stage_parts, s.part_bytes) > 200000) {
		s.part_bytes /= 32;
		s.part_bytes *= 16;
	}
	s.limit = ht_random(&x) % 3 ? 0 : s.max_tokens;
	s.alignment = 1u << ht_random(&x) % 6;
	s.fill_more = ht_random(&x) % 2 ? ht_random(&x) % 9 : 0;
	s.zero_more = ht_random(&x) % 2 ? ht_random(&x) % 9 : 0;
	s.direct = s.layout == EP_HT_FLAT && ht_random(&x) % 3 == 0;
	s.backward = ht_random(&x) % 4 == 0;
	s.chunk_shift = ht_random(&x) % 4;
	return s;
}

/* What is wrong with rank 1. */
enum fault {
	ABSENT,   /* it never starts */
	DEAD,     /* it dies when it has sent and received half */
	GREEDY,   /* all rows go to it, and it reads none */
	MISTAKEN, /* it passes something else */
	REROUTED, /* its handle memory has another routing of the same shape */
	UNROUTED  /* its handle memory knows another number of tokens */
};

static void fault_make(struct ht_world *w, enum fault fault)
{
	struct ep_ht_dispatch_args *a = &w->rank[1].args;
	struct ep_ht_head head;

	NEED_CUDA(cudaMemcpy(&head, a->c.h.head, sizeof(head), cudaMemcpyDeviceToHost));
	if (fault == DEAD) {
		head.num_tokens = a->c.num_tokens /= 2;
		head.chunks /= 2;
	} else if (fault == GREEDY) {
		head.chunks = 0;
	} else if (fault == MISTAKEN) {
		a->c.form[EP_HT_FORM_PLACE]++;
	} else if (fault == REROUTED) {
		head.routing++;
	} else if (fault == UNROUTED) {
		head.num_tokens++;
	}
	NEED_CUDA(cudaMemcpy(a->c.h.head, &head, sizeof(head), cudaMemcpyHostToDevice));
}

/* The others end within the timeout, and name it. */
static void test_fault(const char *name, enum fault fault, uint32_t cause, uint32_t site)
{
	struct ht_shape s = { .name = name,
			      FLAT,
			      .ranks = 3,
			      .nlocal = 2,
			      .topk = 2,
			      .max_tokens = 64,
			      .tokens = { 64, 64, 64 },
			      .token_bytes = 256,
			      .part_bytes = 256,
			      .ring_chunks = 2,
			      .lag = 1,
			      .blocks = 2,
			      .warps = 3,
			      .stage_parts = 2,
			      .no_holes = true };
	struct ht_world *w;

	if (fault == GREEDY) {
		s.to[0] = 1;
		s.to[1] = 2;
	}
	w = ht_world_make(&s);
	check_context("%s", name);
	for (uint32_t r = 0; r < s.ranks; r++) {
		w->rank[r].args.c.g.timeout_ns = 300000000;
	}
	fault_make(w, fault);
	ht_world_launch(w, fault == ABSENT ? 1 : -1);
	sync_all(w);
	for (uint32_t r = 0; r < s.ranks; r += 2) {
		const struct ep_record *record = &w->rank[r].records[EP_RECORD_FATAL];

		CHECK_INT(record->valid, 1);
		CHECK_INT(record->cause, cause);
		if (fault == DEAD) { /* either may be what is missed first */
			CHECK(record->site == site || record->site == EP_WAIT_HT_CREDIT);
		} else {
			CHECK_INT(record->site, site);
		}
		CHECK_INT(record->peer, 1);
		CHECK_INT(record->k, fault == MISTAKEN   ? EP_HT_FORM_PLACE
				     : fault == REROUTED ? EP_HT_FORM_ROUTING
							 : 0);
	}
	if (fault == UNROUTED) {
		CHECK_INT(w->rank[1].records[EP_RECORD_FATAL].cause, EP_CAUSE_UNROUTED);
		CHECK_INT(w->rank[1].records[EP_RECORD_FATAL].value, 65);
	}
	ht_world_free(w);
}

/* Rank 1 has started `step`, as rank 0 sees it. */
static void pretend(struct ht_world *w, uint32_t step)
{
	const struct ep_ht_common *c = &w->rank[1].args.c;
	unsigned char *heap = w->memory[0];
	uint64_t words[EP_HT_FORM_WORDS], progress = ep_progress_word(step, 0, 0);

	for (uint32_t i = 0; i < EP_HT_FORM_WORDS; i++) {
		uint32_t form = i < EP_HT_FORM_ROUTING ? c->form[i] : w->t.head[1].routing;

		words[i] = (uint64_t)step << 32 | form;
	}
	NEED_CUDA(cudaMemcpy(heap + c->areas.form_off + sizeof(words) * ((step & 1) * 2 + 1), words,
			     sizeof(words), cudaMemcpyHostToDevice));
	NEED_CUDA(cudaMemcpy(heap + c->g.progress_off + 8, &progress, 8, cudaMemcpyHostToDevice));
}

/* Rank 0 is through with two steps before rank 1 looks for its words of the first. */
static void test_wrap(uint32_t before)
{
	struct ht_shape s = { .name = "no tokens",
			      FLAT,
			      .ranks = 2,
			      .nlocal = 1,
			      .topk = 1,
			      .max_tokens = 1,
			      .token_bytes = 16,
			      .part_bytes = 16,
			      .ring_chunks = 1,
			      .blocks = 1,
			      .warps = 1,
			      .stage_parts = 1 };
	struct ht_world *w = ht_world_make(&s);
	uint32_t step = before;

	check_context("steps after 0x%x", before);
	for (uint32_t r = 0; r < 2; r++) {
		struct ep_dev_seq *seq = w->rank[r].args.c.g.seq;

		w->rank[r].args.c.g.timeout_ns = 1000000000;
		NEED_CUDA(cudaMemcpy(&seq[0].step, &before, 4, cudaMemcpyHostToDevice));
	}
	for (int i = 0; i < 2; i++) {
		step = ep_step_after(step);
		pretend(w, step);
		ht_world_launch(w, 1);
		sync_all(w);
	}
	ht_world_launch(w, 0);
	ht_world_launch(w, 0);
	sync_all(w);
	for (uint32_t r = 0; r < 2; r++) {
		CHECK_INT(w->rank[r].records[EP_RECORD_FATAL].valid, 0);
	}
	ht_world_free(w);
}

/* With a number: only random shapes from that seed on. */
int main(int argc, char **argv)
{
	uint32_t first = argc > 1 ? (uint32_t)atoi(argv[1]) : 1, n = argc > 1 ? 200 : 25;

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && argc == 1; i++) {
		test_shape(&shapes[i]);
	}
	for (uint32_t seed = first; seed < first + n; seed++) {
		struct ht_shape s = random_shape(seed);
		char name[32];

		snprintf(name, sizeof(name), "random shape %u", seed);
		s.name = name;
		test_shape(&s);
	}
	if (argc == 1) {
		test_fault("a rank that never starts", ABSENT, EP_CAUSE_TIMEOUT, EP_WAIT_HT_FORM);
		test_fault("a rank that dies", DEAD, EP_CAUSE_TIMEOUT, EP_WAIT_HT_ROWS);
		test_fault("a rank that does not read", GREEDY, EP_CAUSE_TIMEOUT,
			   EP_WAIT_HT_CREDIT);
		test_fault("a rank with another form", MISTAKEN, EP_CAUSE_MISMATCH,
			   EP_WAIT_HT_FORM);
		test_fault("a rank with another routing", REROUTED, EP_CAUSE_MISMATCH,
			   EP_WAIT_HT_FORM);
		test_wrap(EP_STEP_LAST - 1);
		test_wrap(EP_STEP_LAST);
		test_fault("a rank without routing", UNROUTED, EP_CAUSE_TIMEOUT, EP_WAIT_HT_FORM);
	}
	return check_end();
}
