/* SPDX-License-Identifier: Apache-2.0 */
/* What is decided about a launch: some plans as they were tuned, and rules that all obey. */
#include <string.h>
#include "ep/ll/ll.h"
#include "support/check.h"

/* Eight ranks of an H200 node, 256 experts, top-8, rows of 7168 bf16. */
static const struct ep_ll_operation usual = {
	.shape = { .nranks = 8, .nlocal = 32, .max_tokens = 8192, .max_token_bytes = 14336 },
	.geometry = { 66, 66, 512, false },
	.lines = true,
	.layout = EP_LL_EXPERT_MAJOR,
	.topk = 8,
	.recv_limit = 132,
	.row_bytes = 14336,
};

static struct ep_ll_operation made(bool combine, uint32_t num_tokens, uint32_t hidden, bool lines)
{
	struct ep_ll_operation o = usual;

	o.combine = combine;
	o.num_tokens = num_tokens;
	o.hidden = hidden;
	o.lines = lines;
	return o;
}

static void test_golden(void)
{
	static const struct {
		bool combine;
		uint32_t tokens, hidden;
		bool lines;
		uint32_t quads, parts, part_quads, peer_parts, peer_part_quads;
		uint32_t combine_parts, send_blocks, recv_blocks;
	} rows[] = {
		{ false, 0, 0, true, 30, 8, 4, 10, 3, 8, 66, 66 },
		{ false, 1, 0, true, 30, 30, 1, 30, 1, 8, 33, 66 },
		{ false, 16, 0, true, 30, 30, 1, 10, 3, 8, 33, 66 },
		{ false, 17, 0, true, 30, 30, 1, 10, 3, 7, 33, 99 },
		{ false, 64, 0, true, 30, 8, 4, 10, 3, 2, 33, 99 },
		{ false, 128, 0, true, 30, 8, 4, 10, 3, 1, 33, 99 },
		{ false, 8192, 0, true, 30, 8, 4, 10, 3, 1, 33, 99 },
		{ false, 1, 7168, true, 16, 8, 2, 8, 2, 8, 33, 66 },
		{ false, 64, 7168, true, 16, 8, 2, 8, 2, 2, 33, 99 },
		{ true, 1, 0, true, 30, 30, 1, 30, 1, 0, 66, 33 },
		{ true, 17, 0, true, 30, 30, 1, 15, 2, 0, 66, 66 },
		{ true, 64, 0, true, 30, 30, 1, 8, 4, 0, 66, 66 },
		{ true, 128, 0, true, 30, 30, 1, 8, 4, 0, 49, 83 },
		{ true, 257, 0, true, 30, 15, 2, 8, 4, 0, 49, 83 },
		{ true, 8192, 0, true, 30, 15, 2, 8, 4, 0, 49, 83 },
		{ false, 1, 0, false, 30, 8, 4, 1, 30, 8, 33, 66 },
		{ false, 64, 0, false, 30, 8, 4, 1, 30, 2, 33, 99 },
		{ false, 128, 0, false, 30, 8, 4, 1, 30, 1, 33, 99 },
		{ false, 1, 7168, false, 16, 8, 2, 1, 16, 8, 33, 66 },
		{ false, 64, 7168, false, 16, 8, 2, 1, 16, 2, 33, 99 },
		{ false, 128, 7168, false, 16, 8, 2, 1, 16, 1, 33, 99 },
		{ true, 1, 0, false, 30, 8, 4, 1, 30, 0, 66, 33 },
		{ true, 64, 0, false, 30, 2, 15, 1, 30, 0, 66, 66 },
		{ true, 128, 0, false, 30, 1, 30, 1, 30, 0, 49, 83 },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct ep_ll_operation o =
			made(rows[i].combine, rows[i].tokens, rows[i].hidden, rows[i].lines);
		struct ep_ll_plan p = ep_ll_plan_make(&o);
		bool shape = p.row_quads == rows[i].quads && p.parts == rows[i].parts &&
			     p.part_quads == rows[i].part_quads &&
			     p.peer_parts == rows[i].peer_parts &&
			     p.peer_part_quads == rows[i].peer_part_quads;

		if (!shape || p.combine_parts != rows[i].combine_parts ||
		    p.send_blocks != rows[i].send_blocks || p.recv_blocks != rows[i].recv_blocks) {
			printf("row %zu: %u, %u x %u, %u x %u, %u, %u + %u\n", i, p.row_quads,
			       p.parts, p.part_quads, p.peer_parts, p.peer_part_quads,
			       p.combine_parts, p.send_blocks, p.recv_blocks);
			CHECK(!"the plan has changed");
		}
	}
}

static void test_kernels(void)
{
	struct ep_ll_operation o = made(false, 8, 0, true);

	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH);
	o.hidden = 7168;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH_FP8);
	o.remote = true;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_DISPATCH_FP8 + EP_LL_KERNEL_REMOTE);
	o = made(true, 8, 0, true);
	o.dtype = EP_FP32;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_COMBINE + 2);
	o.remote = true;
	CHECK(ep_ll_plan_make(&o).kernel == EP_LL_KERNEL_COMBINE + 2 + EP_LL_KERNEL_REMOTE);
}

/* Shared memory, spans and packets of dispatch; channels. */
static void test_dispatch(void)
{
	struct ep_ll_operation o = made(false, 100, 0, true);
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
	struct ep_ll_operation o = made(false, 4096, 0, true);

	o.geometry = (struct ep_ll_geometry){ 100, 32, 512, true };
	CHECK(ep_ll_plan_make(&o).send_blocks == 100 && ep_ll_plan_make(&o).recv_blocks == 32);
	o.geometry = (struct ep_ll_geometry){ 1, 1, 256, false };
	CHECK(ep_ll_plan_make(&o).send_blocks == 1 && ep_ll_plan_make(&o).recv_blocks == 1);
}

/* Other groups of the GPU leave fewer SMs to receivers; senders wait for nothing and keep theirs. */
static void test_shared_gpu(void)
{
	for (uint32_t limit = 1; limit < 132; limit += 13) {
		struct ep_ll_operation o = made(false, 128, 0, true);
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
	struct ep_ll_operation o = made(false, 8, 0, true);

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
			CHECK(d.parts >= 1 && d.parts <= EP_LL_MAX_PARTS && d.parts <= pieces);
			/* no warp is left idle while a row could be cut finer */
			CHECK(d.parts == pieces || d.parts == EP_LL_MAX_PARTS ||
			      (d.parts + 1) * (tokens + !tokens) > warps);
			CHECK(d.parts * d.part_quads >= pieces);
			CHECK(c.parts * c.part_quads >= c.row_quads);
		}
	}
}

int main(void)
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
