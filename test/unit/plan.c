/* SPDX-License-Identifier: Apache-2.0 */
/* What is decided about a launch: some plans as they were tuned, and rules that all obey. */
#include "ep/ll/ll.h"
#include "support/check.h"
#include "ep/ht/ht.h"

/* Eight ranks of an H200 node, 256 experts, top-8, rows of 7168 bf16. */
static const struct ep_ll_operation usual = {
	.shape = { .nranks = 8,
		   .nlocal = 32,
		   .max_tokens = 8192,
		   .max_token_bytes = 14336,
		   .roles = { 0, 8, 0, 8 } },
	.geometry = { 66, 66, 512, false },
	.returns = { 66, 66, 512, false },
	.lines = true,
	.layout = EP_LL_EXPERT_MAJOR,
	.topk = 8,
	.recv_limit = 132,
	.row_bytes = 14336,
};

static struct ep_ll_operation made(bool combine, uint32_t num_tokens, enum ep_row_format format,
				   bool lines)
{
	struct ep_ll_operation o = usual;

	o.combine = combine;
	o.num_tokens = num_tokens;
	o.format = format;
	o.lines = lines;
	return o;
}

static void test_golden(void)
{
	static const struct {
		bool combine;
		uint32_t tokens;
		enum ep_row_format format;
		bool lines;
		uint32_t quads, parts, part_quads, peer_parts, peer_part_quads;
		uint32_t combine_parts, send_blocks, recv_blocks;
	} rows[] = {
		{ false, 0, EP_ROW_COPIED, true, 30, 8, 4, 10, 3, 8, 66, 66 },
		{ false, 1, EP_ROW_COPIED, true, 30, 30, 1, 30, 1, 8, 33, 66 },
		{ false, 16, EP_ROW_COPIED, true, 30, 30, 1, 10, 3, 8, 33, 66 },
		{ false, 17, EP_ROW_COPIED, true, 30, 30, 1, 10, 3, 7, 33, 99 },
		{ false, 64, EP_ROW_COPIED, true, 30, 8, 4, 10, 3, 2, 33, 99 },
		{ false, 128, EP_ROW_COPIED, true, 30, 8, 4, 10, 3, 1, 33, 99 },
		{ false, 8192, EP_ROW_COPIED, true, 30, 8, 4, 10, 3, 1, 33, 99 },
		{ false, 1, EP_ROW_FP8, true, 16, 8, 2, 16, 1, 8, 33, 66 },
		{ false, 64, EP_ROW_FP8, true, 16, 8, 2, 8, 2, 2, 33, 99 },
		{ true, 1, EP_ROW_COPIED, true, 30, 30, 1, 30, 1, 0, 66, 33 },
		{ true, 17, EP_ROW_COPIED, true, 30, 30, 1, 8, 4, 0, 33, 99 },
		{ true, 64, EP_ROW_COPIED, true, 30, 30, 1, 8, 4, 0, 33, 99 },
		{ true, 128, EP_ROW_COPIED, true, 30, 30, 1, 8, 4, 0, 33, 99 },
		{ true, 257, EP_ROW_COPIED, true, 30, 15, 2, 8, 4, 0, 33, 99 },
		{ true, 8192, EP_ROW_COPIED, true, 30, 15, 2, 8, 4, 0, 33, 99 },
		{ false, 1, EP_ROW_COPIED, false, 30, 8, 4, 1, 30, 8, 33, 66 },
		{ false, 64, EP_ROW_COPIED, false, 30, 8, 4, 1, 30, 2, 33, 99 },
		{ false, 128, EP_ROW_COPIED, false, 30, 8, 4, 1, 30, 1, 33, 99 },
		{ false, 1, EP_ROW_FP8, false, 16, 8, 2, 1, 16, 8, 33, 66 },
		{ false, 64, EP_ROW_FP8, false, 16, 8, 2, 1, 16, 2, 33, 99 },
		{ false, 128, EP_ROW_FP8, false, 16, 8, 2, 1, 16, 1, 33, 99 },
		{ true, 1, EP_ROW_COPIED, false, 30, 8, 4, 1, 30, 0, 66, 33 },
		{ true, 64, EP_ROW_COPIED, false, 30, 2, 15, 1, 30, 0, 33, 99 },
		{ true, 128, EP_ROW_COPIED, false, 30, 1, 30, 1, 30, 0, 33, 99 },
		{ false, 1, EP_ROW_MXFP8, true, 16, 8, 2, 16, 1, 8, 33, 66 },
		{ false, 16, EP_ROW_MXFP8, true, 16, 8, 2, 8, 2, 8, 33, 66 },
		{ false, 64, EP_ROW_MXFP8, true, 16, 8, 2, 8, 2, 2, 33, 99 },
		{ false, 128, EP_ROW_MXFP8, true, 16, 8, 2, 8, 2, 1, 33, 99 },
		{ false, 1, EP_ROW_NVFP4, true, 9, 9, 1, 9, 1, 8, 33, 66 },
		{ false, 16, EP_ROW_NVFP4, true, 9, 9, 1, 5, 2, 8, 33, 66 },
		{ false, 64, EP_ROW_NVFP4, true, 9, 9, 1, 5, 2, 2, 66, 66 },
		{ false, 128, EP_ROW_NVFP4, true, 9, 5, 2, 5, 2, 1, 66, 66 },
		{ true, 1, EP_ROW_FP8, true, 16, 16, 1, 8, 2, 0, 66, 66 },
		{ true, 17, EP_ROW_FP8, true, 16, 16, 1, 8, 2, 0, 33, 99 },
		{ true, 64, EP_ROW_FP8, true, 16, 16, 1, 4, 4, 0, 33, 99 },
		{ true, 128, EP_ROW_FP8, true, 16, 16, 1, 4, 4, 0, 33, 99 },
		{ true, 257, EP_ROW_FP8, true, 16, 8, 2, 4, 4, 0, 33, 99 },
		{ true, 1, EP_ROW_NVFP4, true, 9, 9, 1, 9, 1, 0, 66, 66 },
		{ true, 17, EP_ROW_NVFP4, true, 9, 9, 1, 5, 2, 0, 49, 83 },
		{ true, 64, EP_ROW_NVFP4, true, 9, 9, 1, 5, 2, 0, 49, 83 },
		{ true, 128, EP_ROW_NVFP4, true, 9, 9, 1, 3, 3, 0, 49, 83 },
		{ true, 257, EP_ROW_NVFP4, true, 9, 5, 2, 3, 3, 0, 49, 83 },
		{ false, 1, EP_ROW_MXFP8, false, 16, 8, 2, 1, 16, 8, 33, 66 },
		{ false, 16, EP_ROW_MXFP8, false, 16, 8, 2, 1, 16, 8, 33, 66 },
		{ false, 64, EP_ROW_MXFP8, false, 16, 8, 2, 1, 16, 2, 33, 99 },
		{ false, 128, EP_ROW_MXFP8, false, 16, 8, 2, 1, 16, 1, 33, 99 },
		{ false, 1, EP_ROW_NVFP4, false, 9, 8, 2, 1, 9, 8, 33, 66 },
		{ false, 16, EP_ROW_NVFP4, false, 9, 8, 2, 1, 9, 8, 33, 66 },
		{ false, 64, EP_ROW_NVFP4, false, 9, 8, 2, 1, 9, 2, 66, 66 },
		{ false, 128, EP_ROW_NVFP4, false, 9, 8, 2, 1, 9, 1, 66, 66 },
		{ true, 1, EP_ROW_FP8, false, 16, 8, 2, 1, 16, 0, 66, 66 },
		{ true, 17, EP_ROW_FP8, false, 16, 7, 4, 1, 16, 0, 33, 99 },
		{ true, 64, EP_ROW_FP8, false, 16, 2, 8, 1, 16, 0, 33, 99 },
		{ true, 128, EP_ROW_FP8, false, 16, 1, 16, 1, 16, 0, 33, 99 },
		{ true, 257, EP_ROW_FP8, false, 16, 1, 16, 1, 16, 0, 33, 99 },
		{ true, 1, EP_ROW_NVFP4, false, 9, 8, 2, 1, 9, 0, 66, 66 },
		{ true, 17, EP_ROW_NVFP4, false, 9, 7, 2, 1, 9, 0, 49, 83 },
		{ true, 64, EP_ROW_NVFP4, false, 9, 2, 5, 1, 9, 0, 49, 83 },
		{ true, 128, EP_ROW_NVFP4, false, 9, 1, 9, 1, 9, 0, 49, 83 },
		{ true, 257, EP_ROW_NVFP4, false, 9, 1, 9, 1, 9, 0, 49, 83 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ll_operation o =
			made(rows[i].combine, rows[i].tokens, rows[i].format, rows[i].lines);
		struct ep_ll_plan p;

		bool many = rows[i].lines && rows[i].format == EP_ROW_COPIED &&
			    (rows[i].tokens > 16 || (rows[i].combine && !rows[i].tokens));

		if (i % 2) { /* which changes nothing here */
			o.layout = EP_LL_RANK_MAJOR;
		}
		p = ep_ll_plan_make(&o);
		if (p.row_quads != rows[i].quads || p.parts != rows[i].parts ||
		    p.part_quads != rows[i].part_quads || p.peer_parts != rows[i].peer_parts ||
		    p.peer_part_quads != rows[i].peer_part_quads ||
		    p.combine_parts != rows[i].combine_parts ||
		    p.send_blocks != rows[i].send_blocks || p.recv_blocks != rows[i].recv_blocks) {
			printf("row %zu: %u, %u x %u, %u x %u, %u, %u + %u\n", i, p.row_quads,
			       p.parts, p.part_quads, p.peer_parts, p.peer_part_quads,
			       p.combine_parts, p.send_blocks, p.recv_blocks);
			CHECK(!"the plan has changed");
		}
		CHECK(p.own_direct == (many && !rows[i].combine));
		CHECK(p.listed == (many && rows[i].combine));
	}
}

static void test_kernels(void)
{
	struct ep_ll_operation o = made(false, 8, EP_ROW_COPIED, true);

	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH);
	o.format = EP_ROW_FP8;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH_FP8);
	o.remote = true;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH_FP8 + EP_LL_KERNEL_REMOTE);
	o = made(true, 8, EP_ROW_COPIED, true);
	o.dtype = EP_FP32;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_COMBINE + 2);
	o.remote = true;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_COMBINE + 2 + EP_LL_KERNEL_REMOTE);
	o = made(false, 8, EP_ROW_MXFP8, true);
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH_MXFP8);
	o.format = EP_ROW_NVFP4;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH_NVFP4);
	o.combine = true; /* of bf16 rows, each warp with room for a tile */
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_COMBINE_NVFP4);
	CHECK(ep_ll_plan_make(&o).shared_bytes == 16 * EP_LL_TILE_BYTES);
	o.format = EP_ROW_FP8;
	o.remote = true;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_COMBINE_FP8 + EP_LL_KERNEL_REMOTE);
	o.geometry.threads = 64;
	CHECK(ep_ll_plan_make(&o).shared_bytes == 2 * EP_LL_TILE_BYTES);
}

/* Shared memory, spans and packets of dispatch; channels. */
static void test_dispatch(void)
{
	struct ep_ll_operation o = made(false, 100, EP_ROW_COPIED, true);
	struct ep_ll_plan p = ep_ll_plan_make(&o);

	CHECK(p.span == 256 && p.threads == 512 && p.channel_tokens == 1);
	CHECK(p.shared_bytes == 4 * (256 * 8 + 264 * 9) + 2 * 256 * 8 + 16 * EP_LL_TILE_BYTES + 64);
	CHECK(p.packets.count_off == 256 && p.packets.header_off == 256 + 8 * 32 * 8);
	CHECK(p.packets.header_bytes == 80);
	o.topk = 32;
	o.layout = EP_LL_RANK_MAJOR;
	o.shape.channels = 8;
	p = ep_ll_plan_make(&o);
	CHECK(p.span == 64 && p.packets.header_bytes == 512 && p.channel_tokens == 13);
	o.shape.nlocal = 4096;
	CHECK(ep_ll_plan_make(&o).span == 32);
	o.combine = true;
	CHECK(ep_ll_plan_make(&o).shared_bytes == 0);
}

static void test_fixed_blocks(void)
{
	struct ep_ll_operation o = made(false, 4096, EP_ROW_COPIED, true);

	o.geometry = (struct ep_ll_geometry){ 100, 32, 512, true };
	CHECK(ep_ll_plan_make(&o).send_blocks == 100 && ep_ll_plan_make(&o).recv_blocks == 32);
	o.geometry = (struct ep_ll_geometry){ 1, 1, 256, false };
	CHECK(ep_ll_plan_make(&o).send_blocks == 1 && ep_ll_plan_make(&o).recv_blocks == 1);
}

/*
 * Other groups of the GPU leave fewer SMs to receivers; senders wait for nothing and keep theirs.
 */
static void test_shared_gpu(void)
{
	for (uint32_t limit = 1; limit < 132; limit += 13) {
		struct ep_ll_operation o = made(false, 128, EP_ROW_COPIED, true);
		struct ep_ll_plan p;

		o.recv_limit = limit;
		p = ep_ll_plan_make(&o);
		CHECK_INT(p.send_blocks, 33);
		CHECK_INT(p.recv_blocks, limit < 99 ? limit : 99);
		o.geometry = (struct ep_ll_geometry){ 100, 32, 512, true };
		CHECK_INT(ep_ll_plan_make(&o).recv_blocks, limit < 32 ? limit : 32);
	}
}

/* A quarter of the blocks takes our own rows if each of their quads can have a warp there. */
static void test_few_rows(void)
{
	struct ep_ll_operation o = made(false, 8, EP_ROW_COPIED, true);

	o.geometry = (struct ep_ll_geometry){ 32, 32, 512, false };
	CHECK(ep_ll_plan_make(&o).send_blocks == 16 && ep_ll_plan_make(&o).recv_blocks == 32);
	o.num_tokens = 9; /* 270 quads, and 15 blocks of 16 warps beside the one that counts */
	CHECK(ep_ll_plan_make(&o).send_blocks == 32 && ep_ll_plan_make(&o).recv_blocks == 32);
	o.combine = true;
	CHECK(ep_ll_plan_make(&o).send_blocks == 32 && ep_ll_plan_make(&o).recv_blocks == 32);
	o.num_tokens = 8;
	CHECK(ep_ll_plan_make(&o).send_blocks == 32 && ep_ll_plan_make(&o).recv_blocks == 16);
	o.remote = true; /* channels are spread over all blocks */
	CHECK(ep_ll_plan_make(&o).recv_blocks == 32);
}

/* Without lines, dispatch announces the parts that combine will have, whatever its rows are. */
static void test_parts(void)
{
	for (uint32_t tokens = 0; tokens < 3000; tokens = tokens * 2 + 1) {
		for (uint32_t bytes = 16; bytes <= 14336; bytes += 1040) {
			struct ep_ll_operation o = made(false, tokens, 0, false);
			struct ep_ll_plan d, c;
			uint32_t pieces, warps = 66 * 16;

			o.row_bytes = bytes;
			d = ep_ll_plan_make(&o);
			o.combine = true;
			o.row_bytes = 14336 - bytes + 16;
			c = ep_ll_plan_make(&o);
			pieces = d.row_quads;
			CHECK(d.combine_parts == c.parts && c.parts <= EP_LL_MAX_PARTS);
			o.combine = false; /* with SMs of its own */
			o.geometry = (struct ep_ll_geometry){ 3, 4, 128, false };
			CHECK_INT(ep_ll_plan_make(&o).combine_parts, c.parts);
			CHECK(d.parts >= 1 && d.parts <= EP_LL_MAX_PARTS && d.parts <= pieces);
			/* no warp is left idle while a row could be cut finer */
			CHECK(d.parts == pieces || d.parts == EP_LL_MAX_PARTS ||
			      (d.parts + 1) * (tokens + !tokens) > warps);
			CHECK(d.parts * d.part_quads >= pieces);
			CHECK(c.parts * c.part_quads >= c.row_quads);
		}
	}
}

static int main_plan(int argc, char **argv)
{
	test_golden();
	test_kernels();
	test_dispatch();
	test_fixed_blocks();
	test_shared_gpu();
	test_few_rows();
	test_parts();
	return check_end();
}

/* ---- high throughput: plans of launches as they were tuned, and rules for any shape ---- */

#define H200_SHARED 232448u

/* Eight ranks of an H200 node, 256 experts, top-8, 4096 tokens of 7168 bf16. */
static const struct ep_ht_operation ht_usual = {
	.shape = { .nranks = 8,
		   .nlocal = 32,
		   .max_tokens = 4096,
		   .max_token_bytes = 14336,
		   .nodes = { .near = 8 },
		   .banks = 1,
		   .limit = EP_NO_LIMIT,
		   .ring_bytes = 1 << 27,
		   .roles = { 0, 8, 0, 8 } },
	.least_sms = 64,
	.send_warps = -1,
	.device = { .max_blocks = 16, .shared_bytes = H200_SHARED },
	.layout = EP_HT_FLAT,
	.topk = 8,
	.row_bytes = 14336,
	.ring_chunks = 146,
};

static void ht_test_golden(void)
{
	static const struct {
		enum ep_ht_kind kind;
		uint32_t layout, ranks, tokens, row;
		bool direct;
		uint32_t blocks, threads, parts, part_bytes, stage_parts, lag;
	} rows[] = {
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 4096, 14336, false, 16, 256, 1, 14336, 2, 73 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 4096, 14336, true, 16, 256, 1, 14336, 2, 73 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 8, 4096, 14336, false, 16, 256, 1, 14336, 2,
		  73 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, false, 16, 256, 1, 14336, 2,
		  73 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 512, 14336, true, 16, 256, 1, 14336, 2, 256 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 1, 16, false, 8, 480, 1, 128, 32, 256 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 8, 4096, 14336, false, 16, 384, 4, 3584, 5, 73 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 14336, true, 16, 256, 2, 7168, 4, 73 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 512, 14336, true, 16, 256, 2, 7168, 4, 256 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 8, 14336, true, 16, 384, 7, 2048, 9, 256 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 14336, false, 16, 256, 1, 14336, 2, 73 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 512, 14336, false, 16, 384, 2, 7168, 2, 256 },
		{ EP_HT_COMBINE, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, false, 16, 512, 4, 3584, 4,
		  73 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o = ht_usual;
		struct ep_ht_plan p;

		o.kind = rows[i].kind;
		o.layout = rows[i].layout;
		o.shape.nranks = o.shape.roles.holders = rows[i].ranks;
		o.shape.max_tokens = rows[i].tokens;
		o.row_bytes = rows[i].row;
		o.direct = rows[i].direct;
		p = ep_ht_plan_make(&o);
		if (p.blocks != rows[i].blocks || p.threads != rows[i].threads ||
		    p.parts != rows[i].parts || p.part_bytes != rows[i].part_bytes ||
		    p.stage_parts != rows[i].stage_parts || p.lag != rows[i].lag) {
			printf("row %zu: %u x %u, %u x %u, %u, %u\n", i, p.blocks, p.threads,
			       p.parts, p.part_bytes, p.stage_parts, p.lag);
			CHECK(!"the plan has changed");
		}
	}
}

/* How many of the SMs an operation takes if the caller leaves it to the library. */
static void test_auto(void)
{
	static const struct {
		enum ep_ht_kind kind;
		uint32_t layout, flows, blocks, threads, threads_of_all;
	} rows[] = {
		{ EP_HT_DISPATCH, EP_HT_FLAT, 0, 105, 256, 256 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 0, 105, 256, 256 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 0, 64, 384, 384 },
		{ EP_HT_COMBINE, EP_HT_EXPERT_MAJOR, 0, 105, 320, 320 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 1, 16, 256, 256 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 1, 16, 384, 384 },
		{ EP_HT_COMBINE, EP_HT_EXPERT_MAJOR, 1, 16, 384, 384 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o = ht_usual, overlapping;
		struct ep_ht_plan same;

		o.kind = rows[i].kind;
		o.layout = rows[i].layout;
		o.shape.nodes.flows = rows[i].flows;
		o.net_chunks = 64;
		o.device.max_blocks = 105;
		CHECK_INT(ep_ht_plan_make(&o).blocks, 105);
		CHECK_INT(ep_ht_plan_make(&o).threads, rows[i].threads_of_all);
		o.overlap = true; /* the caller's own number stands */
		CHECK_INT(ep_ht_plan_make(&o).blocks, 105);
		o.overlap = false;
		o.device.auto_sms = true;
		CHECK_INT(ep_ht_plan_make(&o).blocks, rows[i].blocks);
		CHECK_INT(ep_ht_plan_make(&o).threads, rows[i].threads);
		o.overlap = true;
		overlapping = o;
		overlapping.device.auto_sms = false;
		overlapping.overlap = false;
		overlapping.device.max_blocks = overlapping.least_sms = ep_ht_plan_make(&o).blocks;
		CHECK_INT(ep_ht_plan_make(&o).blocks, rows[i].flows                  ? 16
						      : rows[i].layout == EP_HT_FLAT ? 20
										     : 40);
		/* rows are cut as if the caller had asked for so many */
		for (uint32_t tokens = 1; !rows[i].flows && tokens <= 4096; tokens *= 2) {
			o.shape.max_tokens = overlapping.shape.max_tokens = tokens;
			same = ep_ht_plan_make(&overlapping);
			CHECK_INT(ep_ht_plan_make(&o).threads, same.threads);
			CHECK_INT(ep_ht_plan_make(&o).part_bytes, same.part_bytes);
		}
		o.device.max_blocks = 7; /* so few are left by other groups */
		CHECK_INT(ep_ht_plan_make(&o).blocks, 7);
	}
}

/* Few tokens are cut for as many SMs as there are: four units for each. */
static void test_few_sms(void)
{
	static const uint32_t sms[] = { 64, 32, 16, 1 }, parts[] = { 2, 1, 1, 1 };
	struct ep_ht_operation o = ht_usual;

	o.kind = EP_HT_COMBINE;
	o.shape.nranks = o.shape.roles.holders = 2;
	o.shape.max_tokens = 512;
	for (size_t i = 0; i < EP_ARRAY_SIZE(sms); i++) {
		o.least_sms = sms[i];
		CHECK_INT(ep_ht_plan_make(&o).parts, parts[i]);
	}
}

/* An operation of so many tokens, of ranks that all hold experts and send. */
static struct ep_ht_operation operation_of(enum ep_ht_kind kind, uint32_t ranks, uint32_t tokens,
					   uint32_t layout, uint32_t flows)
{
	struct ep_ht_operation o = ht_usual;

	o.kind = kind;
	o.layout = layout;
	o.shape.nranks = ranks;
	o.shape.roles = (struct ep_roles){ 0, ranks, 0, ranks };
	o.shape.max_tokens = tokens;
	o.shape.nodes.flows = flows;
	return o;
}

/* Dispatch cuts expert-major rows in two where that takes over an eighth off the busiest SM. */
static void test_even(void)
{
	static const struct {
		uint32_t sms, ranks, tokens, layout, flows, row;
		bool arrivals, overlap;
		uint32_t parts;
	} rows[] = {
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 0, 14336, false, false, 2 },
		{ 105, 2, 128, EP_HT_EXPERT_MAJOR, 0, 7392, false, false, 2 },
		{ 105, 2, 1024, EP_HT_EXPERT_MAJOR, 0, 14336, false, false, 2 },
		{ 105, 2, 4096, EP_HT_EXPERT_MAJOR, 0, 14336, false, false, 1 },
		{ 64, 2, 512, EP_HT_EXPERT_MAJOR, 0, 14336, false, false, 1 },
		{ 105, 8, 512, EP_HT_EXPERT_MAJOR, 0, 14336, false, false, 1 },
		{ 105, 2, 512, EP_HT_FLAT, 0, 14336, false, false, 1 },
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 1, 14336, false, false, 1 },
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 0, 14336, true, false, 1 },
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 0, 14336, false, true, 1 },
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 0, 4080, false, false, 1 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o = operation_of(EP_HT_DISPATCH, rows[i].ranks,
							rows[i].tokens, rows[i].layout,
							rows[i].flows);

		o.least_sms = rows[i].sms;
		o.row_bytes = rows[i].row;
		o.arrivals = rows[i].arrivals;
		o.overlap = rows[i].overlap;
		check_context("row %zu", i);
		CHECK_INT(ep_ht_plan_make(&o).parts, rows[i].parts);
	}
	check_context("%s", "");
}

/* Combine of few expert-major tokens: a warp for each return, and for each piece of a sum. */
static void test_few_sums(void)
{
	static const struct {
		uint32_t sms, ranks, tokens, layout, flows;
		bool ring;
		uint32_t threads, sum_shift;
	} rows[] = {
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 0, true, 512, 1 },
		{ 105, 2, 300, EP_HT_EXPERT_MAJOR, 0, true, 512, 2 },
		{ 105, 2, 128, EP_HT_EXPERT_MAJOR, 0, true, 512, 0 },
		{ 105, 2, 1024, EP_HT_EXPERT_MAJOR, 0, true, 320, 0 },
		{ 105, 8, 512, EP_HT_EXPERT_MAJOR, 0, true, 320, 0 },
		{ 32, 2, 512, EP_HT_EXPERT_MAJOR, 0, true, 512, 0 },
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 0, false, 512, 0 },
		{ 105, 2, 512, EP_HT_EXPERT_MAJOR, 1, true, 384, 0 },
		{ 105, 2, 512, EP_HT_FLAT, 0, true, 384, 0 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o = operation_of(EP_HT_COMBINE, rows[i].ranks,
							rows[i].tokens, rows[i].layout,
							rows[i].flows);
		struct ep_ht_plan p;

		o.device.max_blocks = o.least_sms = rows[i].sms;
		o.ring_chunks = rows[i].ring ? 256 : 64;
		o.net_chunks = 64;
		p = ep_ht_plan_make(&o);
		check_context("row %zu", i);
		CHECK_INT(p.threads, rows[i].threads);
		CHECK_INT(p.sum_shift, rows[i].sum_shift);
	}
	check_context("%s", "");
}

/* Arrivals have an order of their own; some ranks bring no tokens, or hold no experts. */
static void check_undivided(struct ep_ht_operation o)
{
	o.arrivals = true;
	CHECK_INT(ep_ht_plan_make(&o).send_warps, 0);
	o.arrivals = false;
	o.shape.nranks++;
	o.shape.roles.holders++;
	CHECK_INT(ep_ht_plan_make(&o).send_warps, 0);
	o.shape.roles.holders--;
	o.shape.roles.senders++;
	CHECK_INT(ep_ht_plan_make(&o).send_warps, 0);
}

/* Which warps only send, by what two H200 have taken, and by the same rule for more ranks. */
static void test_senders(void)
{
	static const struct {
		enum ep_ht_kind kind;
		uint32_t layout, ranks, tokens, row, sms;
		uint32_t blocks, send_blocks, send_warps;
	} rows[] = {
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 14336, 23, 23, 0, 0 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 14336, 24, 24, 15, 8 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 14336, 84, 84, 15, 8 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 14336, 85, 85, 85, 2 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 14336, 105, 105, 105, 2 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 512, 14336, 24, 24, 0, 0 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 1024, 14336, 24, 24, 15, 8 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 7392, 24, 24, 15, 15 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 7392, 105, 105, 105, 4 },
		/* short rows take more SMs */
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 4096, 23, 23, 0, 0 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 4096, 24, 24, 16, 14 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 4096, 28, 28, 18, 14 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 4096, 84, 84, 21, 14 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 4096, 5760, 84, 84, 17, 13 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 4096, 14336, 24, 24, 11, 8 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 4096, 14336, 105, 105, 105, 2 },
		{ EP_HT_DISPATCH, EP_HT_FLAT, 1, 4096, 14336, 105, 105, 0, 0 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 14336, 20, 20, 0, 0 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 14336, 21, 21, 10, 8 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 512, 14336, 24, 24, 0, 0 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 1024, 14336, 24, 24, 10, 8 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 14336, 105, 105, 105, 2 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 4096, 24, 24, 11, 12 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 4096, 4096, 84, 84, 13, 12 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 8, 4096, 14336, 24, 24, 0, 0 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, 45, 45, 0, 0 },
		/* four rounds of 128 chunks, three of 171, three of 125 */
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, 46, 46, 43, 3 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, 56, 56, 43, 3 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, 57, 57, 57, 3 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, 105, 105, 57, 3 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 3000, 14336, 105, 105, 42, 3 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 2048, 14336, 105, 105, 43, 6 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 1200, 14336, 105, 105, 0, 0 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4096, 7392, 105, 105, 43, 6 },
		/* 511 chunks: one warp has one */
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 4088, 7392, 105, 105, 43, 6 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 8192, 7152, 105, 105, 0, 0 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 8192, 7168, 105, 105, 57, 6 },
		{ EP_HT_COMBINE, EP_HT_EXPERT_MAJOR, 2, 4096, 14336, 105, 105, 0, 0 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o = operation_of(rows[i].kind, rows[i].ranks, rows[i].tokens,
							rows[i].layout, 0);
		struct ep_ht_plan p;

		o.device.max_blocks = o.least_sms = rows[i].sms;
		o.row_bytes = rows[i].row;
		p = ep_ht_plan_make(&o);
		check_context("row %zu", i);
		CHECK_INT(p.blocks, rows[i].blocks);
		CHECK_INT(p.send_blocks, rows[i].send_blocks);
		CHECK_INT(p.send_warps, rows[i].send_warps);
		check_undivided(o);
	}
	check_context("%s", "");
}

/* Flat rows beside computation: all warps do both. */
static void test_senders_overlap(void)
{
	struct ep_ht_operation o = operation_of(EP_HT_DISPATCH, 2, 4096, EP_HT_FLAT, 0);

	o.device.max_blocks = o.least_sms = 105;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 105);
	o.overlap = true;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 0);
	o.kind = EP_HT_COMBINE;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 0);
	o.kind = EP_HT_DISPATCH;
	o.layout = EP_HT_EXPERT_MAJOR;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 57);
}

/* In combine, flat alone: two contributions to a row are few, however many ranks there are. */
static void test_senders_topk(void)
{
	struct ep_ht_operation o = operation_of(EP_HT_COMBINE, 8, 4096, EP_HT_FLAT, 0);

	o.device.max_blocks = 105;
	o.topk = 2;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 105);
	o.topk = 3;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 0);
	o.topk = 1;
	o.layout = EP_HT_EXPERT_MAJOR;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 0);
}

/* The library takes more SMs for flat combine where some of them only send. */
static void test_auto_of_two(void)
{
	struct ep_ht_operation o = operation_of(EP_HT_COMBINE, 2, 4096, EP_HT_FLAT, 0);

	o.device = (struct ep_ht_device){ 105, true, H200_SHARED };
	CHECK_INT(ep_ht_plan_make(&o).blocks, 105);
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 105);
}

/* Into windows: few SMs, as many as nearly fill the links, or many more. */
static void test_windows(void)
{
	static const struct {
		enum ep_ht_kind kind;
		uint32_t ranks, row, sms, blocks;
	} rows[] = {
		{ EP_HT_DISPATCH, 2, 14336, 23, 23 }, { EP_HT_DISPATCH, 2, 14336, 24, 14 },
		{ EP_HT_DISPATCH, 2, 14336, 55, 14 }, { EP_HT_DISPATCH, 2, 14336, 56, 56 },
		{ EP_HT_DISPATCH, 2, 7168, 24, 14 },  { EP_HT_DISPATCH, 2, 7152, 24, 24 },
		{ EP_HT_DISPATCH, 8, 14336, 18, 18 }, { EP_HT_DISPATCH, 8, 14336, 19, 9 },
		{ EP_HT_DISPATCH, 1, 14336, 24, 24 }, { EP_HT_COMBINE, 2, 14336, 24, 24 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o =
			operation_of(rows[i].kind, rows[i].ranks, 4096, EP_HT_FLAT, 0);

		o.device.max_blocks = o.least_sms = rows[i].sms;
		o.direct = true;
		o.row_bytes = rows[i].row;
		check_context("row %zu", i);
		CHECK_INT(ep_ht_plan_make(&o).blocks, rows[i].blocks);
		o.overlap = true; /* computation pays for links that are full */
		CHECK_INT(ep_ht_plan_make(&o).blocks, rows[i].sms);
		o.overlap = false;
		o.shape.max_tokens = 513;
		CHECK_INT(ep_ht_plan_make(&o).blocks, rows[i].blocks);
		o.shape.max_tokens = 512; /* so few take what they may have */
		CHECK_INT(ep_ht_plan_make(&o).blocks, rows[i].sms);
	}
	check_context("%s", "");
}

/* A caller's own number of warps that only send. */
static void test_send_warps(void)
{
	struct ep_ht_operation o = operation_of(EP_HT_DISPATCH, 2, 4, EP_HT_FLAT, 0);

	o.device.max_blocks = 2;
	o.send_warps = 3;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 2);
	CHECK_INT(ep_ht_plan_make(&o).send_warps, 3);
	o.send_warps = 15; /* one is left to receive */
	CHECK_INT(ep_ht_plan_make(&o).send_warps, ep_ht_plan_make(&o).threads / 32 - 1);
	o.send_warps = 0;
	o.device.max_blocks = 105;
	CHECK_INT(ep_ht_plan_make(&o).send_blocks, 0);
}

/* Few tokens have small chunks, but not where NICs post them. */
static void test_chunks(void)
{
	static const uint32_t tokens[] = { 1, 128, 129, 256, 257, 1024, 1025, 65536 };
	static const uint32_t shift[] = { 0, 0, 1, 1, 2, 2, 3, 3 },
			      flat[] = { 0, 0, 1, 1, 2, 2, 2, 2 };

	for (size_t i = 0; i < EP_ARRAY_SIZE(tokens); i++) {
		struct ep_shape shape = { .max_tokens = tokens[i] };

		CHECK_INT(ep_ht_chunk_shift(&shape, EP_HT_EXPERT_MAJOR), shift[i]);
		CHECK_INT(ep_ht_chunk_shift(&shape, EP_HT_FLAT), flat[i]);
		shape.nodes.flows = 1;
		CHECK_INT(ep_ht_chunk_shift(&shape, EP_HT_FLAT), EP_HT_CHUNK_SHIFT);
	}
}

static void test_route(void)
{
	struct ep_ht_operation o = ht_usual;
	struct ep_ht_plan p = ep_ht_plan_make(&o);

	CHECK(p.blocks == 16 && p.threads == 512 && ep_ht_plan_fits(&o, &p));
	CHECK(p.shared_bytes == ep_ht_route_shared(8, 8, 256));
	o.device.max_blocks = 132;
	CHECK(ep_ht_plan_make(&o).blocks == EP_HT_ROUTE_BLOCKS);
	o.shape.max_tokens = 5;
	CHECK(ep_ht_plan_make(&o).blocks == 5);
	o.shape.max_tokens = 3 * EP_HT_CHUNK + 1;
	o.shape.nodes.flows = 1;
	CHECK(ep_ht_plan_make(&o).blocks == 4);
	o.device.shared_bytes = (uint32_t)p.shared_bytes - 1;
	p = ep_ht_plan_make(&o);
	CHECK(!ep_ht_plan_fits(&o, &p));
}

static uint32_t draw(uint32_t below)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

static struct ep_ht_operation random_operation(void)
{
	static const uint32_t shared[] = { 65536, 101376, 166912, H200_SHARED };
	struct ep_ht_operation o = ht_usual;

	o.kind = draw(2) ? EP_HT_DISPATCH : EP_HT_COMBINE;
	o.layout = draw(2) ? EP_HT_FLAT : EP_HT_EXPERT_MAJOR;
	o.direct = o.layout == EP_HT_FLAT && draw(2);
	o.send_warps = draw(2) ? -1 : (int)draw(16);
	o.topk = 1 + draw(32);
	o.shape.nranks = 1 + draw(draw(2) ? 8 : 1024);
	o.shape.roles.senders = draw(2) ? o.shape.nranks : 1 + draw(o.shape.nranks);
	o.shape.roles.holders = draw(4) ? o.shape.nranks : 1 + draw(o.shape.nranks);
	o.shape.nlocal = 1 + draw(64);
	o.shape.max_tokens = 1 + draw(draw(2) ? 64 : 20000);
	o.shape.max_token_bytes = 16 * (1 + draw(draw(2) ? 100 : 1 << 16));
	o.shape.ring_bytes = draw(1 << 28);
	o.least_sms = 1 + draw(140);
	o.device.max_blocks = 1 + draw(140);
	o.device.shared_bytes = shared[draw(4)];
	o.device.auto_sms = draw(2);
	o.overlap = draw(4) == 0;
	o.arrivals = o.kind == EP_HT_DISPATCH && !o.direct && draw(8) == 0;
	o.row_bytes = 16 * (1 + draw(o.shape.max_token_bytes / 16));
	if (o.shape.nranks > 1 && !o.direct && !o.arrivals && draw(2)) { /* several nodes */
		o.shape.nodes.near = 1 + draw(o.shape.nranks - 1);
		o.shape.nodes.remote = o.shape.nranks - 1;
		o.shape.nodes.flows = 1 + draw(o.shape.nranks - 1);
		o.shape.nodes.return_rings = o.shape.nodes.near * (1 + o.shape.nodes.flows);
	}
	o.ring_chunks = ep_ht_heap_make(&o.shape, o.topk).areas.ring_chunks;
	o.net_chunks = ep_ht_heap_make(&o.shape, o.topk).areas.net_chunks;
	return o;
}

/*
 * Across nodes a warp may be at three chunks, `lag` apart: whoever holds the first one up must not
 * need room in a ring that only the last one makes, nor a credit that is not sent yet.
 */
static void check_nodes(const struct ep_ht_operation *o, const struct ep_ht_plan *p)
{
	uint32_t late = o->net_chunks / 4 > 1 ? o->net_chunks / 4 : 1;

	CHECK(2 * p->lag < o->ring_chunks);
	CHECK(p->lag + late < o->net_chunks);
	CHECK(p->threads / 32 >= 4); /* a send warp, a credit warp, and others */
	CHECK(o->kind != EP_HT_COMBINE || p->part_bytes <= EP_HT_COMBINE_PART);
}

/* Warps that only send where the caller has not said how many. */
static void check_chosen(const struct ep_ht_operation *o, const struct ep_ht_plan *p)
{
	uint64_t units = ep_ht_chunks(o->shape.max_tokens, ep_ht_chunk_shift(&o->shape, o->layout));
	uint64_t senders = (uint64_t)p->send_blocks * p->send_warps,
		 fewer = senders - p->send_warps;

	units *= p->parts;
	CHECK(o->shape.roles.senders == o->shape.nranks && o->shape.roles.holders > 1);
	CHECK(o->shape.roles.holders == o->shape.nranks);
	if (o->layout == EP_HT_FLAT) {
		CHECK(!o->overlap);
		CHECK(units + 1 >= 2 * senders);
		return;
	}
	CHECK(o->kind == EP_HT_DISPATCH && o->row_bytes >= 7168);
	/* two rounds at least, and one more without one of the blocks */
	CHECK(ep_ceil_div(units, senders) >= 2);
	CHECK(!fewer || ep_ceil_div(units, fewer) > ep_ceil_div(units, senders));
}

/* Some warps send, and some receive, or all do both, as where rows go into windows. */
static void check_senders(const struct ep_ht_operation *o, const struct ep_ht_plan *p)
{
	CHECK(!p->send_blocks == !p->send_warps);
	CHECK(p->send_blocks <= p->blocks && p->send_warps <= p->threads / 32);
	CHECK(!p->send_warps || p->send_blocks * p->send_warps < p->blocks * p->threads / 32);
	if (o->send_warps == 0 || o->direct || o->arrivals || o->shape.nodes.flows) {
		CHECK_INT(p->send_warps, 0);
	}
	if (o->send_warps < 0 && p->send_warps) {
		check_chosen(o, p);
	}
}

/* All of the row is cut into parts that have words in the heap, and a block can hold its stages. */
static void check_plan(const struct ep_ht_operation *o, const struct ep_ht_plan *p)
{
	uint32_t most = ep_ht_heap_make(&o->shape, o->topk).areas.parts, warps = p->threads / 32;

	CHECK(p->blocks >= 1 && p->blocks <= o->device.max_blocks);
	CHECK(p->parts >= 1 && p->parts <= most);
	CHECK((uint64_t)p->parts * p->part_bytes >= o->row_bytes);
	CHECK((uint64_t)(p->parts - 1) * p->part_bytes < o->row_bytes);
	CHECK(p->part_bytes % 128 == 0 && p->part_bytes <= 14336);
	CHECK(p->parts == 1 || p->part_bytes >= EP_HT_COMBINE_PART / 2);
	CHECK(warps >= 2 && warps <= 16 && p->threads % 32 == 0);
	CHECK(p->stage_parts >= (o->shape.nodes.flows ? 1 : 2) &&
	      p->stage_parts <= EP_HT_MAX_STAGE_PARTS);
	CHECK(p->shared_bytes == ep_ht_stage_bytes(warps, p->stage_parts, p->part_bytes));
	CHECK(ep_ht_plan_fits(o, p));
	check_senders(o, p);
	if (o->shape.nodes.flows) {
		check_nodes(o, p);
	} else {
		CHECK(p->lag >= 1 &&
		      (p->lag < o->ring_chunks ||
		       o->ring_chunks >= ep_ht_chunks(o->shape.max_tokens,
						      ep_ht_chunk_shift(&o->shape, o->layout))));
	}
	if (o->kind == EP_HT_COMBINE) {
		uint32_t added = o->shape.roles.holders, local = o->shape.nlocal;

		added = o->layout == EP_HT_EXPERT_MAJOR && local > added ? local : added;
		added = o->topk < added ? o->topk : added;
		CHECK(p->threads <= (o->layout == EP_HT_EXPERT_MAJOR && !o->shape.nodes.flows
					     ? EP_HT_EXPERTS_THREADS
					     : EP_HT_COMBINE_THREADS));
		CHECK(p->part_bytes <= EP_HT_COMBINE_MOST);
		CHECK(p->part_bytes <= EP_HT_COMBINE_PART || added <= p->stage_parts);
	}
}

static void test_random(void)
{
	for (int i = 0; i < 20000; i++) {
		struct ep_ht_operation o = random_operation(), other = o;
		struct ep_ht_plan p = ep_ht_plan_make(&o), q;

		check_context("plan %d", i);
		check_plan(&o, &p);
		/* ranks with other GPUs cut rows alike */
		other.device =
			(struct ep_ht_device){ 1 + draw(200), draw(2), 70000 + draw(200000) };
		q = ep_ht_plan_make(&other);
		CHECK(q.parts == p.parts && q.part_bytes == p.part_bytes);
	}
	check_context("%s", "");
}

/* Rows as lines: all quads are in a piece, a lane has room for one, and some warps send. */
static void check_lines(const struct ep_ht_operation *o, const struct ep_ht_plan *p)
{
	struct ep_ht_lines l = p->lines;
	uint32_t most = o->kind == EP_HT_DISPATCH ? EP_HT_MAX_THREADS : EP_HT_COMBINE_THREADS;

	CHECK(p->blocks >= 1 && p->blocks <= o->device.max_blocks);
	if (o->device.auto_sms && o->overlap) {
		CHECK(p->blocks <= (o->layout == EP_HT_FLAT ? 20 : 40));
	}
	CHECK(p->threads >= 64 && p->threads <= most && p->threads % 32 == 0);
	CHECK(l.send_warps >= 1 && l.send_warps < p->threads / 32);
	CHECK((uint64_t)l.quads * 480 >= o->row_bytes && (l.quads - 1) * 480ull < o->row_bytes);
	CHECK(l.piece_quads >= 1 && l.piece_quads <= 4);
	CHECK((uint64_t)l.by_pieces.d * l.piece_quads >= l.quads);
	CHECK((l.by_pieces.d - 1) * l.piece_quads < l.quads);
	CHECK(ep_ht_plan_fits(o, p));
}

static void test_lines(void)
{
	for (int i = 0; i < 20000; i++) {
		struct ep_ht_operation o = random_operation();
		struct ep_ht_plan p;
		bool by_lines;

		check_context("lines %d", i);
		o.lines = true;
		o.shape.nodes.flows = 0;
		o.direct = o.arrivals = false;
		o.overlap = draw(2);
		o.device.auto_sms = draw(2);
		o.shape.max_tokens = 1 + draw(512);
		p = ep_ht_plan_make(&o);
		by_lines = p.lines.quads > 0;
		if (by_lines) {
			check_lines(&o, &p);
		}
		/* whatever a rank's own GPU is */
		o.device = (struct ep_ht_device){ 1 + draw(200), draw(2), 70000 + draw(200000) };
		CHECK((ep_ht_plan_make(&o).lines.quads > 0) == by_lines);
		o.lines = false;
		CHECK(!ep_ht_plan_make(&o).lines.quads);
	}
	check_context("%s", "");
}

/* So many tokens travel as lines, and one more does not. */
static void test_lines_most(void)
{
	static const struct {
		enum ep_ht_kind kind;
		uint32_t layout, holders, topk, sms;
		bool overlap;
		uint32_t tokens;
	} rows[] = {
		{ EP_HT_DISPATCH, EP_HT_FLAT, 2, 8, 20, false, 480 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 8, 45, false, 1080 },
		{ EP_HT_DISPATCH, EP_HT_EXPERT_MAJOR, 2, 8, 105, true, 960 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 8, 20, false, 135 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 8, 45, false, 7920 },
		/* fewer SMs are left */
		{ EP_HT_COMBINE, EP_HT_FLAT, 2, 8, 105, true, 135 },
		/* a token has so many rows on other ranks, at most */
		{ EP_HT_DISPATCH, EP_HT_FLAT, 8, 8, 20, false, 68 },
		{ EP_HT_COMBINE, EP_HT_FLAT, 16, 3, 20, false, 45 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ht_operation o = ht_usual;

		check_context("row %zu", i);
		o.kind = rows[i].kind;
		o.layout = rows[i].layout;
		o.shape.roles.holders = rows[i].holders;
		o.topk = rows[i].topk;
		o.least_sms = rows[i].sms;
		o.overlap = rows[i].overlap;
		o.lines = true;
		o.shape.max_tokens = rows[i].tokens;
		CHECK(ep_ht_plan_make(&o).lines.quads == 30);
		o.shape.max_tokens++;
		CHECK(ep_ht_plan_make(&o).lines.quads == 0);
		o.lines_asked = true; /* but if the caller wants that */
		CHECK(ep_ht_plan_make(&o).lines.quads == 30);
		o.lines_asked = false;
		/* with so many SMs links decide */
		o.overlap = false;
		o.least_sms = 46;
		o.shape.max_tokens = 65535;
		CHECK(ep_ht_plan_make(&o).lines.quads == 30);
		/* a rank alone has nobody to send to */
		o.shape.roles.holders = 1;
		CHECK(ep_ht_plan_make(&o).lines.quads == 0);
	}
	check_context("%s", "");
}

/* Sums of expert-major rows go by rings. */
static void test_lines_sums(void)
{
	struct ep_ht_operation o = ht_usual;

	o.kind = EP_HT_COMBINE;
	o.layout = EP_HT_EXPERT_MAJOR;
	o.lines = true;
	o.shape.max_tokens = 1;
	CHECK(ep_ht_plan_make(&o).lines.quads == 0);
}

/* ht_pieces.cu: what a part of a row has of the token's bytes and of its scales' */
struct piece {
	uint32_t first, token_bytes, scale_first, scale_bytes;
};
extern struct piece ht_piece(uint32_t token_bytes, uint32_t scale_bytes, uint32_t part_bytes,
			     uint32_t part);

/* Each byte is in one part, in order; there may be more parts of scales than of the token. */
static void test_pieces(void)
{
	for (int i = 0; i < 5000; i++) {
		uint32_t token = 16 * (1 + draw(2600)), scale = 16 * draw(draw(2) ? 20 : 2600);
		uint32_t most = 128 * (1 + draw(112)), tokens = 0, scales = 0;

		check_context("row of %u and %u bytes, parts of %u", token, scale, most);
		for (uint32_t part = 0; part * most < token + scale; part++) {
			struct piece p = ht_piece(token, scale, most, part);

			CHECK(!p.token_bytes || p.first == tokens);
			CHECK(!p.scale_bytes || p.scale_first == scales);
			CHECK(p.scale_bytes == 0 || tokens + p.token_bytes == token);
			CHECK(p.token_bytes + p.scale_bytes <= most);
			tokens += p.token_bytes;
			scales += p.scale_bytes;
		}
		CHECK(tokens == token && scales == scale);
	}
}

/* ht_pieces.cu: a warp's first unit that it sends, and receives, and how far it is to the next */
struct deals {
	struct {
		uint32_t first, stride;
	} sent, received;
};
extern struct deals ht_deals(bool nodes, uint32_t send_blocks, uint32_t send_warps,
			     uint32_t nblocks, uint32_t nwarps, uint32_t block, uint32_t warp);

#define MOST_BLOCKS 20u
#define MOST_WARPS 16u

/* The warps that have a unit first have units 0, 1, ... */
static void check_dealt(const uint32_t *first, uint32_t warps, uint32_t stride)
{
	unsigned char has[MOST_BLOCKS * MOST_WARPS] = { 0 };
	uint32_t n = 0;

	for (uint32_t w = 0; w < warps; w++) {
		if (first[w] != EP_HT_NONE) {
			NEED(first[w] < stride && stride <= warps);
			CHECK(!has[first[w]]++);
			n++;
		}
	}
	CHECK_INT(n, stride);
}

/* Each unit is one warp's. Where some only send, all others only receive. */
static void test_deals(void)
{
	for (int i = 0; i < 2000; i++) {
		uint32_t blocks = 1 + draw(MOST_BLOCKS), warps = 2 + draw(MOST_WARPS - 1);
		bool nodes = warps > 2 && draw(4) == 0;
		uint32_t copy = warps - (nodes ? 2 : 0), send_blocks = 1 + draw(blocks);
		uint32_t send = draw(warps + (send_blocks < blocks));
		uint32_t sent[MOST_BLOCKS * MOST_WARPS], received[MOST_BLOCKS * MOST_WARPS];
		struct deals d = { { 0, 0 }, { 0, 0 } };

		check_context("%u blocks, %u warps%s, of which %u and %u send", blocks, warps,
			      nodes ? ", several nodes" : "", send_blocks, send);
		for (uint32_t w = 0; w < blocks * copy; w++) {
			uint32_t block = w % blocks, warp = w / blocks;
			bool sends = block < send_blocks && warp < send;

			d = ht_deals(nodes, send_blocks, send, blocks, warps, block, warp);
			sent[w] = d.sent.first;
			received[w] = d.received.first;
			CHECK((sent[w] != EP_HT_NONE) == (nodes || !send || sends));
			CHECK((received[w] != EP_HT_NONE) == (nodes || !send || !sends));
			/* neighbours are of different blocks */
			CHECK(sent[w] == EP_HT_NONE ||
			      sent[w] % (send && !nodes ? send_blocks : blocks) == block);
		}
		check_dealt(sent, blocks * copy, d.sent.stride);
		check_dealt(received, blocks * copy, d.received.stride);
	}
	check_context("%s", "");
}

static int main_ht_plan(int argc, char **argv)
{
	ht_test_golden();
	test_auto();
	test_few_sms();
	test_even();
	test_few_sums();
	test_senders();
	test_senders_overlap();
	test_senders_topk();
	test_auto_of_two();
	test_windows();
	test_send_warps();
	test_chunks();
	test_route();
	test_random();
	test_lines();
	test_lines_most();
	test_lines_sums();
	test_pieces();
	test_deals();
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "plan", main_plan },
		{ "ht_plan", main_ht_plan },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
