/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of several nodes: who forwards for whom, as device/ht/ht_layout.h has it. */
#include <stdlib.h>
#include "core/cuda.h"
#include "ep/ep.h"
#include "ep/ht/ht.h"

/* Input of the tables. All by rank. */
struct ht_nodes {
	const struct ep_ident *idents;
	const struct ep_roles *roles;
	uint32_t nranks;
	uint32_t *index; /* in the rank's node */
	uint32_t *size;  /* of the node */
	uint32_t *first; /* rank of the node */
};

/* Where each table lies, as byte offsets; flows first, since they are the largest items. */
struct ht_nodes_layout {
	uint64_t forwarders_off;
	uint64_t feeds_off;
	uint64_t return_rings_off;
	uint64_t node_off;
	uint64_t index_off;
	uint64_t near_off;
	uint64_t remote_off;
	uint64_t remote_first_off;
	uint64_t bytes;
};

static struct ht_nodes_layout ht_nodes_layout_make(const struct ep_shape *shape)
{
	uint64_t r = shape->nranks, f = shape->nodes.flows, at = 0;
	struct ht_nodes_layout l;

	l.forwarders_off = ep_group_heap_take(&at, f * sizeof(struct ep_ht_flow), 16);
	l.feeds_off = ep_group_heap_take(&at, f * sizeof(struct ep_ht_flow), 16);
	l.return_rings_off = ep_group_heap_take(&at, r * sizeof(struct ep_ht_return_ring), 16);
	l.node_off = ep_group_heap_take(&at, 4 * r, 16);
	l.index_off = ep_group_heap_take(&at, 4 * r, 16);
	l.near_off = ep_group_heap_take(&at, 4ull * shape->nodes.near, 16);
	l.remote_off = ep_group_heap_take(&at, 4 * r, 16);
	l.remote_first_off = ep_group_heap_take(&at, 4 * (f + 1), 16);
	l.bytes = at;
	return l;
}

uint64_t ep_ht_nodes_bytes(const struct ep_shape *shape)
{
	return shape->nodes.flows ? ht_nodes_layout_make(shape).bytes : 0;
}

/* `n` has room for three arrays. */
static void ht_nodes_find(struct ht_nodes *nodes)
{
	for (uint32_t r = 0; r < nodes->nranks; r++) {
		nodes->first[r] = r;
		for (uint32_t i = 0; i < nodes->nranks; i++) {
			bool same = nodes->idents[i].node == nodes->idents[r].node;

			nodes->index[r] += same && i < r;
			nodes->size[r] += same;
			if (same && i < nodes->first[r]) {
				nodes->first[r] = i;
			}
		}
	}
}

static bool ht_nodes_near(const struct ht_nodes *nodes, uint32_t a, uint32_t b)
{
	return nodes->first[a] == nodes->first[b];
}

/* Does rank f forward for rank s, if that brings tokens? */
static bool ht_nodes_forwards(const struct ht_nodes *nodes, uint32_t f, uint32_t s)
{
	return !ht_nodes_near(nodes, f, s) &&
	       ep_nodes_forwarder(nodes->index[s], nodes->size[f]) == nodes->index[f];
}

/* Sources, which bring tokens, are numbered in the order of ranks. */
static uint32_t ht_nodes_source(const struct ht_nodes *nodes, uint32_t f, uint32_t s)
{
	uint32_t number = 0;

	for (uint32_t r = 0; r < s; r++) {
		number += ht_nodes_forwards(nodes, f, r) && ep_roles_sends(nodes->roles, r);
	}
	return number;
}

/* So are other nodes, by their first ranks: rank r's among those of rank s. */
static uint32_t ht_nodes_number(const struct ht_nodes *nodes, uint32_t s, uint32_t r)
{
	uint32_t number = 0;

	for (uint32_t i = 0; i < nodes->first[r]; i++) {
		number += nodes->first[i] == i && !ht_nodes_near(nodes, i, s);
	}
	return number;
}

/* Rank `me`'s tables, in host memory as they will lie on the device. */
static void ht_nodes_fill(const struct ht_nodes *nodes, uint32_t me,
			  const struct ht_nodes_layout *layout, unsigned char *to,
			  struct ep_ht_remote *remote)
{
	struct ep_ht_flow *forwarders = (void *)(to + layout->forwarders_off);
	struct ep_ht_flow *feeds = (void *)(to + layout->feeds_off);
	struct ep_ht_return_ring *return_rings = (void *)(to + layout->return_rings_off);
	uint32_t *node = (void *)(to + layout->node_off), *index = (void *)(to + layout->index_off);
	uint32_t *near_ranks = (void *)(to + layout->near_off);

	for (uint32_t r = 0; r < nodes->nranks; r++) {
		uint32_t d = r; /* this rank's way to r */

		index[r] = nodes->index[r];
		if (ht_nodes_near(nodes, me, r)) {
			node[r] = EP_HT_NONE;
			near_ranks[remote->near++] = r;
			return_rings[r] = (struct ep_ht_return_ring){ r, nodes->index[me] };
			continue;
		}
		node[r] = ht_nodes_number(nodes, me, r);
		remote->nodes += nodes->first[r] == r;
		if (ht_nodes_forwards(nodes, r, me)) {
			forwarders[node[r]] =
				(struct ep_ht_flow){ r, ht_nodes_source(nodes, r, me) };
		}
		if (ht_nodes_forwards(nodes, me, r) && ep_roles_sends(nodes->roles, r)) {
			feeds[remote->sources++] =
				(struct ep_ht_flow){ r, ht_nodes_number(nodes, r, me) };
		}
		for (d = 0; !(ht_nodes_near(nodes, me, d) && ht_nodes_forwards(nodes, d, r)); d++) {
		}
		return_rings[r] = (struct ep_ht_return_ring){
			d, nodes->size[me] * (1 + ht_nodes_source(nodes, d, r)) + nodes->index[me]
		};
	}
}

/* The ranks of other nodes than rank `me`'s, one node after the other. */
static void ht_nodes_list(const struct ht_nodes *nodes, uint32_t me, uint32_t *ranks,
			  uint32_t *first)
{
	uint32_t node = 0, at = 0;

	for (uint32_t i = 0; i < nodes->nranks; i++) {
		if (nodes->first[i] != i || ht_nodes_near(nodes, i, me)) {
			continue;
		}
		first[node++] = at;
		for (uint32_t r = i; r < nodes->nranks; r++) {
			if (ht_nodes_near(nodes, r, i)) {
				ranks[at++] = r;
			}
		}
	}
	first[node] = at;
}

ncclResult_t ep_ht_nodes_bind(struct ncclEpGroup *g)
{
	const struct ep_shape *shape = &g->config.shape;
	struct ht_nodes_layout l = ht_nodes_layout_make(shape);
	unsigned char *to = (unsigned char *)g->algo_memory + ep_ht_group_scratch(shape);
	unsigned char *tables = calloc(1, l.bytes);
	uint32_t *lists = calloc(3 * (size_t)shape->nranks, sizeof(*lists));
	struct ht_nodes n = {
		.idents = g->idents,
		.roles = &shape->roles,
		.nranks = shape->nranks,
		.index = lists,
		.size = lists ? lists + shape->nranks : NULL,
		.first = lists ? lists + 2 * shape->nranks : NULL,
	};
	ncclResult_t result = ncclSuccess;

	if (!tables || !lists) {
		result = ep_fail(ncclSystemError, "out of host memory");
		goto out;
	}
	g->ht->remote = (struct ep_ht_remote){
		.forwarders = (void *)(to + l.forwarders_off),
		.feeds = (void *)(to + l.feeds_off),
		.return_rings = (void *)(to + l.return_rings_off),
		.node = (void *)(to + l.node_off),
		.index = (void *)(to + l.index_off),
		.near_ranks = (void *)(to + l.near_off),
		.remote_ranks = (void *)(to + l.remote_off),
		.remote_first = (void *)(to + l.remote_first_off),
		.most = shape->nodes.near,
	};
	ht_nodes_find(&n);
	ht_nodes_fill(&n, (uint32_t)g->rank, &l, tables, &g->ht->remote);
	ht_nodes_list(&n, (uint32_t)g->rank, (void *)(tables + l.remote_off),
		      (void *)(tables + l.remote_first_off));
	EP_CUDA_GOTO(cudaMemcpyAsync(to, tables, l.bytes, cudaMemcpyHostToDevice, g->stream),
		     "setting up the tables of nodes", out);
	EP_CUDA_GOTO(cudaStreamSynchronize(g->stream), "setting up the tables of nodes", out);
out:
	free(lists);
	free(tables);
	return result;
}
