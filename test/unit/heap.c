/* SPDX-License-Identifier: Apache-2.0 */
/* Where things lie in a heap and in handle memory. */
#include "peer/peer_state.h"
#include "ep/ep.h"
#include "ep/ll/ll.h"
#include "support/check.h"

static const struct ep_shape shapes[] = {
	{ 1, 1, 1, 480, 1, 0, 0, 3, 0, 0, 0, 0 },
	{ 2, 4, 16, 1440, 2, 0, 0, 3, 0, 0, 0, 0 },
	{ 3, 5, 7, 5280, 3, 0, 0, 3, 0, 0, 0, 0 },
	{ 7, 1, 129, 14336, 7, 0, 0, 3, 0, 0, 0, 0 },
	{ 8, 32, 128, 14336, 8, 0, 0, 3, 0, 0, 0, 0 },
	{ 8, 32, 8192, 14336, 8, 0, 0, 3, 0, 0, 0, 0 },
	{ 64, 256, 1, 480, 64, 0, 0, 3, 0, 0, 0, 0 },
	{ 64, 4, 4096, 960, 64, 0, 0, 3, 0, 0, 0, 0 },
	{ 8, 16383, 64, 48000, 8, 0, 0, 3, 0, 0, 0, 0 },
	/* with remote ranks */
	{ 2, 1, 1, 480, 1, 1, 1, 2, 0, 0, 0, 0 },
	{ 8, 32, 128, 14336, 4, 4, 8, 2, 0, 0, 0, 0 },
	{ 64, 256, 33, 1440, 8, 56, 15, 2, 0, 0, 0, 0 },
	{ 6, 3, 200, 3360, 3, 5, 3, 2, 0, 0, 0, 0 },
	{ 8, 16383, 64, 4320, 4, 4, 4, 2, 0, 0, 0, 0 },
};

static bool aligned(uint64_t v, uint64_t to)
{
	return v % to == 0;
}

static void check_dispatch(const struct ep_shape *s, const struct ep_ll_heap *h, uint32_t layout,
			   uint32_t topk)
{
	struct ep_ll_dispatch_packets p = ep_ll_dispatch_packets_make(s, layout, topk);
	uint64_t words = layout == EP_LL_EXPERT_MAJOR ? 1 + topk : 2 * topk;

	CHECK(p.count_off >= s->nranks * EP_LL_CTRL_BYTES && aligned(p.count_off, 16));
	CHECK(p.header_off >= p.count_off + 8ull * s->nranks * s->nlocal);
	CHECK(p.header_bytes >= 8 * words && aligned(p.header_bytes, 16));
	CHECK(p.header_bytes < 8 * words + 16);
	CHECK(aligned(p.header_off, 16));
	CHECK(p.bytes == p.header_off + (uint64_t)s->nranks * s->max_tokens * p.header_bytes);
	CHECK(h->areas.packet_off + p.bytes <= h->areas.flag_off);
}

/* What remote ranks' rows and counts leave through. Returns its end. */
static uint64_t check_stage(const struct ep_shape *s, const struct ep_ll_heap *h, uint32_t most,
			    uint64_t end)
{
	CHECK(h->g.stage_off >= end && aligned(h->g.stage_off, 128));
	CHECK(h->areas.stage_header_off >=
	      32ull * ep_ll_max_quads(s->max_token_bytes) * EP_LL_QUAD_BYTES);
	CHECK(aligned(h->areas.stage_header_off, 16) && aligned(h->g.stage_side_bytes, 128));
	for (uint32_t topk = 1; topk <= most; topk++) {
		uint64_t words = 2 * topk > 1 + topk ? 2 * topk : 1 + topk;

		CHECK(h->areas.stage_header_off +
			      32ull * s->remote_ranks * ep_round_up(8 * words, 16) <=
		      h->g.stage_side_bytes);
	}
	CHECK(h->areas.post_off >= h->g.stage_off + 2ull * s->channels * h->g.stage_side_bytes);
	CHECK(h->areas.post_stride >= EP_LL_CTRL_BYTES + 8 * s->nlocal);
	CHECK(aligned(h->areas.post_off, 128) && aligned(h->areas.post_stride, 128));
	return h->areas.post_off + s->nranks * h->areas.post_stride;
}

/* The areas of a heap for `most` hold every operation of handles up to it. */
static void check_heap(const struct ep_shape *s, uint32_t most)
{
	struct ep_ll_heap h = ep_ll_heap_make(s, most);
	uint32_t quads = ep_ll_max_quads(s->max_token_bytes);
	uint64_t end = 0;

	CHECK(h.g.topk == most);
	CHECK(h.g.progress_off >= EP_HEAP_HEADER_BYTES(s->nranks) && aligned(h.g.progress_off, 8));
	CHECK(h.g.signature_off >= h.g.progress_off + 8 * s->nranks &&
	      aligned(h.g.signature_off, 16));
	CHECK(h.g.clean_off >= h.g.signature_off + 16 * 80 * s->nranks &&
	      aligned(h.g.clean_off, 8));
	CHECK(h.g.signal_off >= h.g.clean_off + 8 * s->nranks && aligned(h.g.signal_off, 8));
	end = h.g.signal_off + 8 * s->nranks * s->channels;
	for (uint32_t b = 0; b < s->banks; b++) {
		CHECK(h.areas.bank_off[b] >= end && aligned(h.areas.bank_off[b], 4096));
		end = h.areas.bank_off[b] + h.bank_bytes;
	}
	if (s->channels) {
		end = check_stage(s, &h, most, end);
	}
	CHECK(h.g.bytes >= end && h.g.bytes < end + 4096 && aligned(h.g.bytes, 4096));
	CHECK(aligned(h.areas.packet_off, 16) && aligned(h.areas.flag_off, 8) &&
	      aligned(h.areas.row_off, 128));
	for (uint32_t topk = 1; topk <= most; topk++) {
		uint64_t c = (uint64_t)s->max_tokens * topk;
		uint64_t near = (uint64_t)s->near_ranks * s->max_tokens;
		uint64_t remote = (uint64_t)s->remote_ranks * s->max_tokens;
		uint64_t rows = near < c && s->near_ranks > 1 ? c : near;

		check_dispatch(s, &h, EP_LL_EXPERT_MAJOR, topk);
		check_dispatch(s, &h, EP_LL_RANK_MAJOR, topk);
		CHECK(h.areas.flag_off + rows * 8 * EP_LL_MAX_PARTS <= h.areas.row_off);
		CHECK(h.areas.row_off + rows * quads * EP_LL_QUAD_LINE_BYTES <=
		      (s->channels ? h.areas.remote_row_off : h.bank_bytes));
		CHECK(!s->channels || (aligned(h.areas.remote_row_off, 128) &&
				       h.areas.remote_row_off + (remote > c ? remote : c) * quads *
									EP_LL_QUAD_BYTES <=
					       h.bank_bytes));
	}
}

static void test_heaps(void)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(shapes); i++) {
		check_heap(&shapes[i], 1);
		check_heap(&shapes[i], 8);
		check_heap(&shapes[i], EP_LL_MAX_TOPK);
	}
}

/* Memory at usual sizes: hidden 7168 of bf16, top-8 of 256 experts. */
static void test_memory_budget(void)
{
	static const struct {
		uint32_t nranks, near, tokens;
		uint64_t mb;
	} budgets[] = {
		{ 8, 8, 128, 50 },
		{ 64, 8, 128, 250 },
		{ 256, 8, 128, 1000 },
		{ 64, 8, 1024, 2000 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(budgets); i++) {
		uint32_t n = budgets[i].nranks, near = budgets[i].near;
		uint64_t b = budgets[i].tokens, k = 8, bytes = 14336, experts = 256;
		struct ep_group_config c = {
			.algo = &ep_ll_algo,
			.num_experts = 256,
			.num_topk = 8,
			.shape = { .nranks = n,
				   .nlocal = 256 / n,
				   .max_tokens = budgets[i].tokens,
				   .max_token_bytes = 14336 },
		};
		/* the API's formula for rdma_buffer_size, by ranks: by experts it gives more */
		uint64_t dispatch = (1 + n) * b * (bytes + (4 + 8 * k + 15) / 16 * 16);
		uint64_t combine = (n + k) * b * (bytes + 4 * (bytes / 256));
		uint64_t formula = 2 * ((4 * experts + 127) / 128 * 128) +
				   2 * (dispatch > combine ? dispatch : combine);

		ep_group_config_size(&c, ep_nodes_alike(near, n - near, (int)n));
		check_context("%u ranks, %u tokens: heap of %llu bytes", n, budgets[i].tokens,
			      (unsigned long long)c.heap_bytes);
		CHECK(c.heap_bytes <= budgets[i].mb * 1000000);
		c.explicit_bytes = formula;
		ep_group_config_size(&c, ep_nodes_alike(near, n - near, (int)n));
		CHECK(c.heap.topk >= 8 && c.heap_bytes <= ep_heap_alloc_bytes(formula));
	}
}

static void test_explicit_size(void)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(shapes); i++) {
		struct ep_group_config c = {
			.algo = &ep_ll_algo,
			.shape = shapes[i],
			.explicit_bytes = ep_ll_heap_make(&shapes[i], 8).g.bytes,
		};

		c.rdma_queues = shapes[i].channels;
		ep_group_config_size(&c,
				     ep_nodes_alike(shapes[i].near_ranks, shapes[i].remote_ranks,
						    (int)shapes[i].nranks));
		CHECK(c.heap.topk >= 8 && c.heap.bytes <= c.heap_bytes);
		CHECK(c.heap.topk == EP_LL_MAX_TOPK ||
		      ep_ll_heap_make(&shapes[i], c.heap.topk + 1).g.bytes > c.heap_bytes);
	}
}

static void check_handle(const struct ep_shape *s, uint32_t layout, uint32_t topk)
{
	struct ep_ll_handle_layout h = ep_ll_handle_layout_make(s, layout, topk);
	uint64_t rows = (uint64_t)s->nranks * s->max_tokens;

	CHECK(h.src_rows_off >= h.head_off + sizeof(struct ep_dev_handle));
	CHECK(h.src_parts_off >= h.src_rows_off + 4ull * s->nranks);
	CHECK(h.counts_off >= h.src_parts_off + 4ull * s->nranks);
	CHECK(h.slot_token_off >= h.counts_off + 4ull * s->nlocal);
	CHECK(h.slot_row_off >= h.slot_token_off + 4 * rows);
	rows *= layout == EP_LL_EXPERT_MAJOR ? topk : 0;
	CHECK(h.route_off >= h.slot_row_off + 4 * rows);
	CHECK(h.sent_rows_off >= h.route_off + 4ull * s->max_tokens * topk);
	CHECK(h.bytes >= h.sent_rows_off + (s->channels ? 4ull * s->nranks : 0));
	CHECK(aligned(h.head_off | h.src_rows_off | h.src_parts_off | h.counts_off |
			      h.slot_token_off | h.slot_row_off | h.route_off | h.sent_rows_off |
			      h.bytes,
		      256));
}

static void test_handles(void)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(shapes); i++) {
		for (uint32_t topk = 1; topk <= EP_LL_MAX_TOPK; topk++) {
			check_handle(&shapes[i], EP_LL_EXPERT_MAJOR, topk);
			check_handle(&shapes[i], EP_LL_RANK_MAJOR, topk);
		}
	}
}

/* Room for what max_token_bytes stands for: a copied row, a quantised one of as much bf16. */
static void test_quads(void)
{
	for (uint32_t bytes = 16; bytes < 40000; bytes += 16) {
		uint32_t most = ep_ll_max_quads(bytes);

		CHECK(most >= ep_ll_copy_quads(bytes) && most >= ep_ll_fp8_quads(bytes / 2));
	}
	for (uint32_t hidden = 128; hidden < 20000; hidden += 128) { /* or just a quantised one */
		CHECK(ep_ll_max_quads(hidden + hidden / 32) >= ep_ll_fp8_quads(hidden));
	}
	CHECK(ep_ll_max_quads(14336) == 30);
}

int main(void)
{
	test_heaps();
	test_memory_budget();
	test_explicit_size();
	test_handles();
	test_quads();
	return check_end();
}
