/* SPDX-License-Identifier: Apache-2.0 */
/* Where things lie in a heap and in handle memory. */
#include "peer/peer.h"
#include "ep/ep.h"
#include "ep/ll/ll.h"
#include "support/check.h"
#include "ep/ht/ht.h"

/* With so many senders, and of those, and holders, near and remote ones. */
#define ROLES(ranks, local, tokens, bytes, near_ranks, remote_ranks, queues, bank_count, sending,  \
	      near_sending, remote_sending, near_holding, remote_holding)                          \
	{                                                                                          \
		.nranks = ranks, .nlocal = local, .max_tokens = tokens, .max_token_bytes = bytes,  \
		.channels = queues, .banks = bank_count, .roles = { 0, ranks, 0, sending },        \
		.nodes = { .near = near_ranks,                                                     \
			   .remote = remote_ranks,                                                 \
			   .near_senders = near_sending,                                           \
			   .remote_senders = remote_sending,                                       \
			   .near_holders = near_holding,                                           \
			   .remote_holders = remote_holding },                                     \
	}
#define ALL_ROLES(nranks, nlocal, tokens, bytes, near, remote, channels, banks)                    \
	ROLES(nranks, nlocal, tokens, bytes, near, remote, channels, banks, nranks, near, remote,  \
	      (near)-1, remote)

static const struct ep_shape shapes[] = {
	ALL_ROLES(1, 1, 1, 480, 1, 0, 0, 3),
	ALL_ROLES(2, 4, 16, 1440, 2, 0, 0, 3),
	ALL_ROLES(3, 5, 7, 5280, 3, 0, 0, 3),
	ALL_ROLES(7, 1, 129, 14336, 7, 0, 0, 3),
	ALL_ROLES(8, 32, 128, 14336, 8, 0, 0, 3),
	ALL_ROLES(8, 32, 8192, 14336, 8, 0, 0, 3),
	ALL_ROLES(64, 256, 1, 480, 64, 0, 0, 3),
	ALL_ROLES(64, 4, 4096, 960, 64, 0, 0, 3),
	ALL_ROLES(8, 16383, 64, 48000, 8, 0, 0, 3),
	/* with remote ranks */
	ALL_ROLES(2, 1, 1, 480, 1, 1, 1, 2),
	ALL_ROLES(8, 32, 128, 14336, 4, 4, 8, 2),
	ALL_ROLES(64, 256, 33, 1440, 8, 56, 15, 2),
	ALL_ROLES(6, 3, 200, 3360, 3, 5, 3, 2),
	ALL_ROLES(8, 16383, 64, 4320, 4, 4, 4, 2),
	/* experts and tokens on different ranks, which may overlap */
	ROLES(8, 32, 128, 14336, 8, 0, 0, 3, 6, 6, 0, 2, 0),
	ROLES(8, 1, 7, 1440, 8, 0, 0, 3, 1, 1, 0, 8, 0),
	ROLES(16, 64, 64, 14336, 8, 8, 4, 2, 8, 0, 8, 0, 8),
	ROLES(16, 64, 64, 14336, 8, 8, 4, 2, 9, 1, 8, 7, 8),
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

	uint32_t senders = s->roles.senders;

	CHECK(p.count_off >= senders * EP_LL_CTRL_BYTES && aligned(p.count_off, 16));
	CHECK(p.header_off >= p.count_off + 8ull * senders * s->nlocal);
	CHECK(p.header_bytes >= 8 * words && aligned(p.header_bytes, 16));
	CHECK(p.header_bytes < 8 * words + 16);
	CHECK(aligned(p.header_off, 16));
	CHECK(p.bytes == p.header_off + (uint64_t)senders * s->max_tokens * p.header_bytes);
	CHECK(h->areas.packet_off + p.bytes <= h->areas.flag_off);
}

/* What remote ranks' rows and counts leave through. Returns its end. */
static uint64_t check_stage(const struct ep_shape *s, const struct ep_ll_heap *h, uint32_t most,
			    uint64_t end)
{
	CHECK(h->g.stage_off >= end && aligned(h->g.stage_off, 128));
	CHECK(h->areas.stage_header_off >=
	      32ull * ep_ll_max_quads(s->max_token_bytes) * EP_QUAD_BYTES);
	CHECK(aligned(h->areas.stage_header_off, 16) && aligned(h->g.stage_side_bytes, 128));
	for (uint32_t topk = 1; topk <= most; topk++) {
		uint64_t words = 2 * topk > 1 + topk ? 2 * topk : 1 + topk;

		CHECK(h->areas.stage_header_off +
			      32ull * s->nodes.remote_holders * ep_round_up(8 * words, 16) <=
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
		uint64_t near = (uint64_t)s->nodes.near_senders * s->max_tokens;
		uint64_t remote = (uint64_t)s->nodes.remote_senders * s->max_tokens;
		uint64_t rows = near < c && s->nodes.near_holders ? c : near;

		check_dispatch(s, &h, EP_LL_EXPERT_MAJOR, topk);
		check_dispatch(s, &h, EP_LL_RANK_MAJOR, topk);
		CHECK(h.areas.flag_off + rows * 8 * EP_LL_MAX_PARTS <= h.areas.row_off);
		CHECK(h.areas.row_off + rows * quads * EP_QUAD_LINE_BYTES <=
		      (s->channels ? h.areas.remote_row_off : h.bank_bytes));
		CHECK(!s->channels ||
		      (aligned(h.areas.remote_row_off, 128) &&
		       h.areas.remote_row_off + (remote > c ? remote : c) * quads * EP_QUAD_BYTES <=
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
				   .max_token_bytes = 14336,
				   .roles = { 0, n, 0, n } },
		};
		/* the API's formula for rdma_buffer_size, by ranks: by experts it gives more */
		uint64_t dispatch = (1 + n) * b * (bytes + (4 + 8 * k + 15) / 16 * 16);
		uint64_t combine = (n + k) * b * (bytes + 4 * (bytes / 256));
		uint64_t formula = 2 * ((4 * experts + 127) / 128 * 128) +
				   2 * (dispatch > combine ? dispatch : combine);

		ep_group_config_size(&c, ep_nodes_alike(near, n - near, (int)n, &c.shape.roles));
		check_context("%u ranks, %u tokens: heap of %llu bytes", n, budgets[i].tokens,
			      (unsigned long long)c.heap_bytes);
		CHECK(c.heap_bytes <= budgets[i].mb * 1000000);
		c.explicit_bytes = formula;
		ep_group_config_size(&c, ep_nodes_alike(near, n - near, (int)n, &c.shape.roles));
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
		ep_group_config_size(&c, shapes[i].nodes);
		CHECK(c.heap.topk >= 8 && c.heap.bytes <= c.heap_bytes);
		CHECK(c.heap.topk == EP_LL_MAX_TOPK ||
		      ep_ll_heap_make(&shapes[i], c.heap.topk + 1).g.bytes > c.heap_bytes);
	}
}

static void check_handle(const struct ep_shape *s, uint32_t layout, uint32_t topk)
{
	struct ep_ll_handle_layout h = ep_ll_handle_layout_make(s, layout, topk);
	uint64_t rows = (uint64_t)s->roles.senders * s->max_tokens;

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

/* Room for what max_token_bytes stands for: a copied row, or as much bf16, quantised. */
static void test_quads(void)
{
	for (uint32_t bytes = 16; bytes < 40000; bytes += 16) {
		for (int format = 0; format < EP_ROW_FORMATS; format++) {
			CHECK(ep_ll_max_quads(bytes) >=
			      ep_ll_row_quads((enum ep_row_format)format, bytes));
		}
	}
	for (uint32_t hidden = 128; hidden < 20000; hidden += 128) { /* or just a quantised one */
		CHECK(ep_ll_max_quads(hidden + hidden / 32) >=
		      ep_ll_row_quads(EP_ROW_FP8, 2 * hidden));
	}
	CHECK(ep_ll_max_quads(14336) == 30);
	CHECK(ep_ll_row_quads(EP_ROW_MXFP8, 14336) == 16);
	CHECK(ep_ll_row_quads(EP_ROW_MXFP8, 2 * 897) == 4);
	CHECK(ep_ll_row_quads(EP_ROW_NVFP4, 14336) == 9);
	CHECK(ep_ll_row_quads(EP_ROW_NVFP4, 2 * 832) == 1);
}

static int main_heap(int argc, char **argv)
{
	test_heaps();
	test_memory_budget();
	test_explicit_size();
	test_handles();
	test_quads();
	return check_end();
}

/* ---- high throughput: where things lie in a heap, in handle memory and in the group's own ---- */

/* With so many flows and return rings, holders and senders. */
#define HT_SHAPE(ranks, local, tokens, bytes, near_ranks, remote_ranks, queues, rows, ring,        \
		 flow_count, rings, first_holder, holding, first_sender, sending)                  \
	{                                                                                          \
		.nranks = ranks, .nlocal = local, .max_tokens = tokens, .max_token_bytes = bytes,  \
		.channels = queues, .banks = 1, .limit = rows, .ring_bytes = ring,                 \
		.roles = { first_holder, holding, first_sender, sending },                         \
		.nodes = { .near = near_ranks,                                                     \
			   .remote = remote_ranks,                                                 \
			   .flows = flow_count,                                                    \
			   .return_rings = rings },                                                \
	}

static const struct ep_shape ht_shapes[] = {
	HT_SHAPE(1, 1, 1, 16, 1, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 1, 0, 1),
	HT_SHAPE(2, 4, 9, 1440, 2, 0, 0, 9, 0, 0, 0, 0, 2, 0, 2),
	HT_SHAPE(3, 5, 100, 5280, 3, 0, 0, 250, 100000, 0, 0, 0, 3, 0, 3),
	HT_SHAPE(8, 32, 4096, 14336, 8, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 8, 0, 8),
	HT_SHAPE(8, 128, 16384, 16384, 8, 0, 0, 100000, 1 << 27, 0, 0, 0, 8, 0, 8),
	HT_SHAPE(64, 4, 8192, 14336, 64, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 64, 0, 64),
	HT_SHAPE(72, 14, 1024, 4096, 72, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 72, 0, 72),
	HT_SHAPE(1024, 1, 33, 1024, 1024, 0, 0, EP_NO_LIMIT, 1 << 20, 0, 0, 0, 1024, 0, 1024),
	/* of several nodes */
	HT_SHAPE(2, 3, 5, 48, 1, 1, 2, EP_NO_LIMIT, 0, 1, 2, 0, 2, 0, 2),
	HT_SHAPE(6, 2, 100, 5280, 3, 5, 3, 250, 100000, 3, 9, 0, 6, 0, 6),
	HT_SHAPE(16, 16, 4096, 14336, 8, 8, 5, EP_NO_LIMIT, 1 << 27, 1, 16, 0, 16, 0, 16),
	HT_SHAPE(64, 4, 8192, 14336, 8, 56, 2, 100000, 1 << 27, 7, 64, 0, 64, 0, 64),
	/* experts and tokens on different ranks */
	HT_SHAPE(8, 64, 4096, 14336, 8, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 6, 2, 0, 6),
	HT_SHAPE(7, 1, 100, 480, 7, 0, 0, 250, 100000, 0, 0, 0, 7, 3, 1),
	HT_SHAPE(16, 32, 4096, 14336, 8, 8, 5, EP_NO_LIMIT, 1 << 27, 1, 16, 8, 8, 0, 8),
	/* few tokens, whose rows travel as lines */
	HT_SHAPE(8, 32, 512, 14336, 8, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 8, 0, 8),
	HT_SHAPE(2, 4, 100, 5280, 2, 0, 0, 250, 1126400, 0, 0, 0, 2, 0, 2),
	HT_SHAPE(9, 3, 33, 496, 9, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 2, 7, 0, 4),
};

struct area {
	uint64_t off;
	uint64_t bytes;
	uint64_t align;
};

/* In any order, none lies in another, and all end before `end`. */
static void check_areas(const struct area *a, size_t n, uint64_t end)
{
	for (size_t i = 0; i < n; i++) {
		CHECK(a[i].off % a[i].align == 0 && a[i].off + a[i].bytes <= end);
		for (size_t j = 0; j < n; j++) {
			CHECK(i == j || a[i].off + a[i].bytes <= a[j].off ||
			      a[j].off + a[j].bytes <= a[i].off || !a[i].bytes || !a[j].bytes);
		}
	}
}

/* As many chunks, of the least and the most, as have room. */
static void check_chunks(uint64_t n, uint64_t least, uint64_t most, uint64_t bytes, uint64_t room)
{
	most = most < least ? least : most;
	CHECK(n >= least && n <= most);
	CHECK(n == least || n * bytes <= room);
	CHECK(n == most || (n + 1) * bytes > room);
}

/* Tokens of a chunk. */
static uint64_t chunk_tokens(const struct ep_shape *s, uint32_t layout)
{
	uint64_t b = s->max_tokens, most = layout == EP_HT_FLAT ? 4 : 8;

	return s->nodes.flows ? 8 : b > 1024 ? most : b > 256 ? 4 : b > 128 ? 2 : 1;
}

/* Expert-major operations cut the same rings into chunks of their own. Returns the rows of one. */
static uint64_t check_cut(const struct ep_shape *s, const struct ep_ht_areas *a, uint32_t layout)
{
	uint64_t tokens = chunk_tokens(s, layout), chunks = (s->max_tokens + tokens - 1) / tokens;
	struct ep_ht_areas cut = *a;

	ep_ht_areas_cut(&cut, s, layout);
	CHECK_INT(1 << cut.chunk_shift, tokens);
	CHECK(cut.ring_chunks <= a->ring_chunks && cut.rings == a->rings);
	check_chunks(cut.ring_chunks, chunks == 1 ? 1 : 2, chunks,
		     a->rings * tokens * a->row_stride,
		     s->nodes.flows ? s->ring_bytes / 2 : s->ring_bytes);
	return cut.ring_chunks * tokens;
}

/*
 * Bunches go round the queues; what a send warp waits for ends with one, and the stage has room for
 * it and for what is staged meanwhile.
 */
static void check_bunches(const struct ep_shape *s, const struct ep_ht_areas *a)
{
	uint32_t bunch = 1u << a->bunch_shift, window = ep_ht_window(a->stage_chunks);

	CHECK_INT(a->queue_mask + 1 + EP_HT_ROWS, s->channels);
	CHECK(bunch <= 16 && (bunch == 1 || 4 * bunch <= a->stage_chunks));
	CHECK(bunch == 16 || 8 * bunch > a->stage_chunks);
	CHECK(window >= bunch && window % bunch == 0 && window < a->stage_chunks);
	CHECK(2 * (window + bunch) > a->stage_chunks);
}

static void ht_check_heap(const struct ep_shape *s, uint32_t topk)
{
	uint64_t r = s->nranks, b = s->max_tokens, tokens = chunk_tokens(s, EP_HT_FLAT);
	uint64_t chunks = (b + tokens - 1) / tokens;
	uint64_t w = topk < s->nlocal ? topk : s->nlocal;
	struct ep_ht_heap h = ep_ht_heap_make(s, topk);
	const struct ep_ht_areas *a = &h.areas;
	uint64_t senders = s->roles.senders, holders = s->roles.holders, f = s->nodes.flows;
	uint64_t peers = senders > holders ? senders : holders;
	uint64_t rings = f && peers < s->nodes.return_rings ? s->nodes.return_rings : peers;
	uint64_t masks = f ? a->mask_stride : 0;
	uint64_t words = 8 * rings * a->ring_chunks * a->parts;
	uint64_t flat = check_cut(s, a, EP_HT_FLAT), major = check_cut(s, a, EP_HT_EXPERT_MAJOR);
	uint64_t chunk = tokens * a->row_stride, counts = 8 * (holders * s->nlocal + holders + 1);
	uint64_t lines = ep_ht_lines_fit(s) ? peers * b : 0; /* rows */
	struct area areas[] = {
		{ 0, EP_HEAP_HEADER_BYTES(r), 1 },
		{ h.g.progress_off, 8 * r, 8 },
		{ h.g.clean_off, EP_CLEAN_BYTES(r), 8 },
		{ h.g.signature_off, 16 * 80 * r, 16 },
		{ a->done_off, 8 * r * (r <= 8 ? 512 : 1), 8 },
		{ a->sign_off, (f ? 12 : 8) * r, 8 },
		{ a->ended_off, 4, 4 },
		{ a->count_off, 2 * senders * counts, 8 },
		{ a->start_off, 8 * senders * (chunks + 1), 16 },
		{ a->sel_off, 16 * senders * b * ((w + 1) / 2), 16 },
		{ a->weight_off, 4 * peers * b * w, 16 },
		{ a->arrived_off, words, 8 },
		{ a->credit_off, words, 8 },
		{ a->ring_off, rings * (flat > major ? flat : major) * a->row_stride, 128 },
		{ a->net_off, f * a->net_chunks * chunk, 128 },
		{ a->stage_off, f * a->stage_chunks * chunk, 128 },
		{ a->staged_off, 8 * f * a->stage_chunks * a->parts, 8 },
		{ a->consumed_off, 8 * f * a->net_chunks * a->parts, 8 },
		{ a->released_off, 8 * f, 8 },
		{ a->posted_off, 8 * f * a->stage_chunks, 8 },
		{ a->mask_off, f * s->nodes.near * masks, 16 },
		{ a->out_off, f ? 4 * peers * b * w : 0, 16 },
		{ a->out_start_off, f ? 4 * holders * (chunks + 1) : 0, 16 },
		{ a->out_mask_off, r * masks, 16 },
		{ a->out_count_off, f ? counts : 0, 16 },
		{ a->line_off, lines * a->line_quads * 512, 512 },
		{ a->line_weight_off, lines * 8 * w, 8 },
	};

	CHECK(h.g.topk == topk);
	CHECK(!lines == !a->line_quads);
	CHECK(!lines || (a->line_quads * 480 >= s->max_token_bytes &&
			 (a->line_quads - 1) * 480 < s->max_token_bytes));
	CHECK(lines || (!a->line_off && !a->line_weight_off));
	check_areas(areas, EP_ARRAY_SIZE(areas), h.g.bytes);
	CHECK(a->row_stride >= s->max_token_bytes && a->row_stride % 128 == 0);
	CHECK(!f || (a->mask_stride >= chunks && a->mask_stride % 16 == 0));
	if (f) {
		check_chunks(a->net_chunks, 2, chunks < 64 ? chunks : 64, f * chunk,
			     s->ring_bytes / 4);
		check_bunches(s, a);
		check_chunks(a->stage_chunks, 2, chunks < 64 ? chunks : 64, f * chunk,
			     s->ring_bytes / 4);
	}
}

static void ht_check_handle(const struct ep_shape *s, uint32_t layout, uint32_t topk)
{
	uint64_t tokens = chunk_tokens(s, layout);
	uint64_t r = s->nranks, b = s->max_tokens, starts = 4 * r * ((b + tokens - 1) / tokens + 1);
	uint64_t w = topk < s->nlocal ? topk : s->nlocal;
	uint64_t most = s->roles.senders * b, slots = most < s->limit ? most : s->limit;
	uint64_t masks = s->nodes.flows * (((b + 7) / 8 + 15) / 16 * 16);
	struct ep_ht_handle_layout h = ep_ht_handle_layout_make(s, layout, topk);
	bool em = layout == EP_HT_EXPERT_MAJOR;
	struct area areas[] = {
		{ h.head_off, sizeof(struct ep_ht_head), 256 },
		{ h.send_sel_off, 4 * b * topk, 16 },
		{ h.send_row_off, 4 * b * topk, 16 },
		{ h.send_place_off, em ? 4 * b * topk : 0, 16 },
		{ h.send_start_off, starts, 16 },
		{ h.send_base_off, 4 * r, 16 },
		{ h.recv_base_off, 4 * (r + 1), 16 },
		{ h.recv_start_off, starts, 16 },
		{ h.recv_sel_off, 4 * slots * w, 16 },
		{ h.zones_off, em ? s->nlocal * sizeof(struct ep_ht_zone) : 0, 16 },
		{ h.send_nodes_off, masks, 16 },
		{ h.node_masks_off, masks * s->nodes.near, 16 },
	};

	check_areas(areas, EP_ARRAY_SIZE(areas), h.bytes);
	CHECK(h.bytes % 256 == 0);
}

static void test_shapes(void)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ht_shapes); i++) {
		for (uint32_t topk = 1; topk <= EP_HT_MAX_TOPK; topk++) {
			check_context("shape %zu, top-%u", i, topk);
			ht_check_heap(&ht_shapes[i], topk);
			ht_check_handle(&ht_shapes[i], EP_HT_FLAT, topk);
			ht_check_handle(&ht_shapes[i], EP_HT_EXPERT_MAJOR, topk);
		}
	}
}

/* Rows have room as lines where there are few, of one node, and no more than the rings may take. */
static void test_lines(void)
{
	static const struct {
		struct ep_shape shape;
		uint64_t rows; /* 0: none */
	} all[] = {
		{ HT_SHAPE(8, 32, 512, 14336, 8, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 8, 0, 8),
		  8 * 512 },
		{ HT_SHAPE(2, 4, 2048, 14336, 2, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 2, 0, 2),
		  2 * 2048 },
		{ HT_SHAPE(2, 4, 2049, 14336, 2, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 2, 0, 2), 0 },
		{ HT_SHAPE(2, 4, 100, 5280, 2, 0, 0, 250, 1126400, 0, 0, 0, 2, 0, 2), 2 * 100 },
		{ HT_SHAPE(2, 4, 100, 5280, 2, 0, 0, 250, 1126399, 0, 0, 0, 2, 0, 2), 0 },
		{ HT_SHAPE(2, 4, 100, 5281, 2, 0, 0, 250, 1126400, 0, 0, 0, 2, 0, 2), 0 },
		{ HT_SHAPE(1, 1, 1, 16, 1, 0, 0, EP_NO_LIMIT, 512, 0, 0, 0, 1, 0, 1), 1 },
		{ HT_SHAPE(1, 1, 1, 16, 1, 0, 0, EP_NO_LIMIT, 0, 0, 0, 0, 1, 0, 1), 0 },
		{ HT_SHAPE(2, 3, 5, 48, 1, 1, 2, EP_NO_LIMIT, 1 << 27, 1, 2, 0, 2, 0, 2), 0 },
		/* of those who send, and of those who return rows, the more */
		{ HT_SHAPE(9, 3, 33, 480, 9, 0, 0, EP_NO_LIMIT, 4 * 33 * 512, 0, 0, 5, 4, 0, 3),
		  4 * 33 },
		{ HT_SHAPE(9, 3, 33, 480, 9, 0, 0, EP_NO_LIMIT, 4 * 33 * 512, 0, 0, 3, 2, 0, 5),
		  0 },
		/* more bytes than 32 bits count */
		{ HT_SHAPE(1024, 1, 512, 14336, 1024, 0, 0, EP_NO_LIMIT, 1 << 27, 0, 0, 0, 1024, 0,
			   1024),
		  0 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(all); i++) {
		struct ep_shape s = all[i].shape;
		struct ep_ht_heap h = ep_ht_heap_make(&s, 2);
		uint64_t width = s.nlocal < 2 ? 1 : 2, room;

		check_context("lines %zu", i);
		CHECK(ep_ht_lines_fit(&s) == (all[i].rows > 0));
		ht_check_heap(&s, 2);
		if (!all[i].rows) {
			CHECK(!h.areas.line_quads && !h.areas.line_off && !h.areas.line_weight_off);
			continue;
		}
		/* nothing else is behind the ring */
		room = h.g.bytes - h.areas.line_weight_off;
		CHECK(h.areas.line_weight_off > h.areas.ring_off);
		CHECK(room >= all[i].rows * (h.areas.line_quads * 512 + 8 * width));
		CHECK(room < all[i].rows * (h.areas.line_quads * 512 + 8 * width) + 8192);
	}
}

/* 4096 tokens of 7168 bf16, 256 experts, top-8: what the group and two handles take. */
static void test_budget(void)
{
	struct ep_group_config c = {
		.algo = &ep_ht_algo,
		.num_experts = 256,
		.shape = ht_shapes[3],
	};
	uint64_t handle, all;

	check_context("budget");
	ep_group_config_size(&c, ep_nodes_alike(8, 0, 8, &c.shape.roles));
	CHECK(c.heap.topk == 32 && c.shape.banks == 1);
	handle = ep_ht_algo.handle_bytes(&c.shape, NCCL_EP_LAYOUT_EXPERT_MAJOR, 8);
	all = c.heap_bytes + ep_ht_algo.group_bytes(&c.shape) + 2 * handle;
	CHECK(all < 160000000);
	check_context("top-k of the config");
	c.num_topk = 8;
	ep_group_config_size(&c, ep_nodes_alike(8, 0, 8, &c.shape.roles));
	CHECK(c.heap.topk == 8);
}

static void test_most_rows(void)
{
	const struct ep_shape *s = &ht_shapes[2];

	check_context("rows");
	CHECK(ep_ht_most_rows(s, EP_HT_FLAT, 8, 16) == 300);
	CHECK(ep_ht_most_rows(s, EP_HT_EXPERT_MAJOR, 8, 16) == 300 * 5 + 5 * 15);
	CHECK(ep_ht_most_rows(s, EP_HT_EXPERT_MAJOR, 2, 1) == 600);
}

/* Ids of a large tensor: 4 Gi of them. */
static void test_entries(void)
{
	CHECK(ep_ht_entries(1u << 28, 16) == UINT64_C(1) << 32);
	CHECK(ep_ht_entries(INT32_MAX, EP_HT_MAX_TOPK) == UINT64_C(0x7fffffff) * 32);
}

static int main_ht_heap(int argc, char **argv)
{
	test_entries();
	test_shapes();
	test_lines();
	test_budget();
	test_most_rows();
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "heap", main_heap },
		{ "ht_heap", main_ht_heap },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
