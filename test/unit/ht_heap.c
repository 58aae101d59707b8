/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: where things lie in a heap, in handle memory and in the group's own. */
#include "peer/peer_state.h"
#include "ep/ep.h"
#include "ep/ht/ht.h"
#include "support/check.h"

static const struct ep_shape shapes[] = {
	{ 1, 1, 1, 16, 1, 0, 0, 1, EP_NO_LIMIT, 1 << 27, 0, 0 },
	{ 2, 4, 9, 1440, 2, 0, 0, 1, 9, 0, 0, 0 },
	{ 3, 5, 100, 5280, 3, 0, 0, 1, 250, 100000, 0, 0 },
	{ 8, 32, 4096, 14336, 8, 0, 0, 1, EP_NO_LIMIT, 1 << 27, 0, 0 },
	{ 8, 128, 16384, 16384, 8, 0, 0, 1, 100000, 1 << 27, 0, 0 },
	{ 64, 4, 8192, 14336, 64, 0, 0, 1, EP_NO_LIMIT, 1 << 27, 0, 0 },
	{ 72, 14, 1024, 4096, 72, 0, 0, 1, EP_NO_LIMIT, 1 << 27, 0, 0 },
	{ 1024, 1, 33, 1024, 1024, 0, 0, 1, EP_NO_LIMIT, 1 << 20, 0, 0 },
	/* of several nodes */
	{ 2, 3, 5, 48, 1, 1, 2, 1, EP_NO_LIMIT, 0, 1, 2 },
	{ 6, 2, 100, 5280, 3, 5, 3, 1, 250, 100000, 3, 9 },
	{ 16, 16, 4096, 14336, 8, 8, 5, 1, EP_NO_LIMIT, 1 << 27, 1, 16 },
	{ 64, 4, 8192, 14336, 8, 56, 2, 1, 100000, 1 << 27, 7, 64 },
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

	return s->flows ? 8 : b > 1024 ? most : b > 256 ? 4 : b > 128 ? 2 : 1;
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
		     s->flows ? s->ring_bytes / 2 : s->ring_bytes);
	return cut.ring_chunks * tokens;
}

/*
 * Bunches go round the queues; what a send warp waits for ends with one, and the stage has room for it and for what
 * is staged meanwhile.
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

static void check_heap(const struct ep_shape *s, uint32_t topk)
{
	uint64_t r = s->nranks, b = s->max_tokens, tokens = chunk_tokens(s, EP_HT_FLAT);
	uint64_t chunks = (b + tokens - 1) / tokens;
	uint64_t w = topk < s->nlocal ? topk : s->nlocal;
	struct ep_ht_heap h = ep_ht_heap_make(s, topk);
	const struct ep_ht_areas *a = &h.areas;
	uint64_t rings = r > s->return_rings ? r : s->return_rings, f = s->flows,
		 masks = f ? a->mask_stride : 0;
	uint64_t words = 8 * rings * a->ring_chunks * a->parts;
	uint64_t flat = check_cut(s, a, EP_HT_FLAT), major = check_cut(s, a, EP_HT_EXPERT_MAJOR);
	uint64_t chunk = tokens * a->row_stride, counts = 8 * (r * s->nlocal + r + 1);
	struct area areas[] = {
		{ 0, EP_HEAP_HEADER_BYTES(r), 1 },
		{ h.g.progress_off, 8 * r, 8 },
		{ h.g.clean_off, EP_CLEAN_BYTES(r), 8 },
		{ h.g.signature_off, 16 * 80 * r, 16 },
		{ a->done_off, 8 * r * (r <= 8 ? 512 : 1), 8 },
		{ a->sign_off, (f ? 12 : 8) * r, 8 },
		{ a->ended_off, 4, 4 },
		{ a->count_off, r * counts, 8 },
		{ a->table_off, 4 * r * EP_HT_ROUTE_BLOCKS, 16 },
		{ a->start_off, 4 * r * (chunks + 1), 16 },
		{ a->sel_off, 4 * r * b * w, 16 },
		{ a->weight_off, 4 * r * b * w, 16 },
		{ a->arrived_off, words, 8 },
		{ a->credit_off, words, 8 },
		{ a->ring_off, rings * (flat > major ? flat : major) * a->row_stride, 128 },
		{ a->net_off, f * a->net_chunks * chunk, 128 },
		{ a->stage_off, f * a->stage_chunks * chunk, 128 },
		{ a->staged_off, 8 * f * a->stage_chunks * a->parts, 8 },
		{ a->consumed_off, 8 * f * a->net_chunks * a->parts, 8 },
		{ a->released_off, 8 * f, 8 },
		{ a->posted_off, 8 * f * a->stage_chunks, 8 },
		{ a->mask_off, f * s->near_ranks * masks, 16 },
		{ a->out_off, f ? 4 * r * b * w : 0, 16 },
		{ a->out_start_off, f ? 4 * r * (chunks + 1) : 0, 16 },
		{ a->out_mask_off, r * masks, 16 },
		{ a->out_count_off, f ? counts : 0, 16 },
	};

	CHECK(h.g.topk == topk);
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

static void check_handle(const struct ep_shape *s, uint32_t layout, uint32_t topk)
{
	uint64_t tokens = chunk_tokens(s, layout);
	uint64_t r = s->nranks, b = s->max_tokens, starts = 4 * r * ((b + tokens - 1) / tokens + 1);
	uint64_t w = topk < s->nlocal ? topk : s->nlocal;
	uint64_t slots = r * b < s->limit ? r * b : s->limit;
	uint64_t masks = s->flows * (((b + 7) / 8 + 15) / 16 * 16);
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
		{ h.node_masks_off, masks * s->near_ranks, 16 },
	};

	check_areas(areas, EP_ARRAY_SIZE(areas), h.bytes);
	CHECK(h.bytes % 256 == 0);
}

static void test_shapes(void)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(shapes); i++) {
		for (uint32_t topk = 1; topk <= EP_HT_MAX_TOPK; topk++) {
			check_context("shape %zu, top-%u", i, topk);
			check_heap(&shapes[i], topk);
			check_handle(&shapes[i], EP_HT_FLAT, topk);
			check_handle(&shapes[i], EP_HT_EXPERT_MAJOR, topk);
		}
	}
}

/* 4096 tokens of 7168 bf16, 256 experts, top-8: what the group and two handles take. */
static void test_budget(void)
{
	struct ep_group_config c = {
		.algo = &ep_ht_algo,
		.num_experts = 256,
		.shape = shapes[3],
	};
	uint64_t handle, all;

	check_context("budget");
	ep_group_config_size(&c, ep_nodes_alike(8, 0, 8));
	CHECK(c.heap.topk == 32 && c.shape.banks == 1);
	handle = ep_ht_algo.handle_bytes(&c.shape, NCCL_EP_LAYOUT_EXPERT_MAJOR, 8);
	all = c.heap_bytes + ep_ht_algo.group_bytes(&c.shape) + 2 * handle;
	CHECK(all < 160000000);
	check_context("top-k of the config");
	c.num_topk = 8;
	ep_group_config_size(&c, ep_nodes_alike(8, 0, 8));
	CHECK(c.heap.topk == 8);
}

static void test_most_rows(void)
{
	const struct ep_shape *s = &shapes[2];

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

int main(void)
{
	test_entries();
	test_shapes();
	test_budget();
	test_most_rows();
	return check_end();
}
