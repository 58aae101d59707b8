/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same as ht.c with ranks of several nodes and RDMA between them, posted in mode MODE or in any (0);
 * rings have RING bytes, or in some cases are as small as can be. NCCL_EP_NODE_SIZE, if it is set, says what
 * the nodes are.
 *
 *     ht_nodes KIND SEED COUNT [MODE [RING]]      KIND: see support/ht_bench.h
 */
#include "support/ht_bench.h"

static void draw_nodes(struct ht_case *c, const char *mode, const char *bytes, const char *given,
		       uint64_t state)
{
	static const char *const rings[] = { "0", "100000", NULL };
	uint64_t any = 1 + world_draw(&state, 4), posted = world_number(mode, 0);
	uint64_t depth = 64u << world_draw(&state, 4);
	const char *ring = rings[world_draw(&state, 3)];
	char nodes[64] = "", text[32];

	posted = posted ? posted : any;
	ring = bytes ? bytes : ring;
	if (world_nodes() == 1) {
		world_draw_nodes(&state, c->h.p.nranks, nodes, sizeof(nodes));
	}
	if (given) {
		snprintf(nodes, sizeof(nodes), "%s", given);
	}
	setenv("NCCL_EP_NODE_SIZE", nodes, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)posted);
	setenv("NCCL_EP_RDMA_MODE", text, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)depth);
	setenv("NCCL_EP_RDMA_DEPTH", text, 1);
	unsetenv("NCCL_EP_HT_RING_BYTES");
	if (ring) {
		setenv("NCCL_EP_HT_RING_BYTES", ring, 1);
	}
	snprintf(c->note, sizeof(c->note), ", nodes %s, mode %llu, depth %llu, ring %s", nodes,
		 (unsigned long long)posted, (unsigned long long)depth, ring ? ring : "as usual");
}

int main(int argc, char **argv)
{
	const char *set = getenv("NCCL_EP_NODE_SIZE");
	char *given = set ? strdup(set) : NULL;
	const char *kind = argc > 1 ? argv[1] : "flat";
	uint64_t seed = world_number(argc > 2 ? argv[2] : NULL, 1);
	uint64_t count = world_number(argc > 3 ? argv[3] : NULL, 10);

	for (uint64_t i = seed; i < seed + count; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(2 + (int)world_draw(&s, 5));
		struct ht_case c;

		nranks = strcmp(kind, "long") ? nranks : world_size(2 + (int)(i & 1));
		nranks = strcmp(kind, "crowd") ? nranks : world_size(40);
		c = ht_case_draw(nranks, kind, i);
		draw_nodes(&c, argc > 4 ? argv[4] : NULL, argc > 5 ? argv[5] : NULL, given, s);
		world_run(nranks, ht_case_run, &c);
	}
	free(given);
	return check_end();
}
