/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks reach each other by RDMA, and how many bytes went by which path, by the library's count. */
#include <dlfcn.h>
#include <math.h>
#include <nccl_ep/ext.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* 0: a library that does not report it. */
static int ask(struct perf_rank *rank, ncclEpExtPeerStats_t *stats)
{
	__typeof__(&ncclEpExtPeerStats) call = dlsym(RTLD_DEFAULT, "ncclEpExtPeerStats");
	uint32_t nranks = rank->perf->world.nranks;

	memset(stats, 0, nranks * sizeof(*stats));
	for (uint32_t n = 0; n < nranks; n++) {
		stats[n] = (ncclEpExtPeerStats_t)NCCL_EP_EXT_PEER_STATS_INIT;
	}
	return call && rank->group &&
	       call(rank->group, stats, (int)nranks, rank->stream) == ncclSuccess;
}

void perf_links_learn(struct perf_rank *rank)
{
	ncclEpExtPeerStats_t stats[ORACLE_MAX_RANKS];
	struct perf *perf = rank->perf;

	if (!ask(rank, stats)) {
		return;
	}
	for (uint32_t n = 0; n < perf->world.nranks; n++) {
		uint32_t node = (uint32_t)stats[n].node, near = 0;

		rank->node[n] = node;
		for (uint32_t i = 0; i < perf->world.nranks; i++) {
			near += stats[i].node == stats[n].node;
		}
		rank->near_ranks = near > rank->near_ranks ? near : rank->near_ranks;
		if (perf->world.nranks - near > rank->remote_ranks) {
			rank->remote_ranks = perf->world.nranks - near;
		}
		if (rank->rank == 0 && node < ORACLE_MAX_RANKS) {
			perf->node_ranks[node]++;
			perf->nodes = node >= perf->nodes ? node + 1 : perf->nodes;
		}
	}
}

void perf_waits_begin(struct perf_rank *rank, struct perf_waits *waits)
{
	ncclEpExtPeerStats_t stats[ORACLE_MAX_RANKS];
	uint32_t nranks = rank->perf->world.nranks;

	waits->ns = perf_alloc(rank, nranks, sizeof(*waits->ns));
	waits->operations = perf_alloc(rank, nranks, sizeof(*waits->operations));
	waits->known = ask(rank, stats);
	for (uint32_t n = 0; n < nranks; n++) {
		waits->ns[n] = stats[n].wait_ns;
		waits->operations[n] = stats[n].operations;
	}
}

double *perf_waits_end(struct perf_rank *rank, struct perf_waits *waits)
{
	ncclEpExtPeerStats_t stats[ORACLE_MAX_RANKS];
	uint32_t nranks = rank->perf->world.nranks;
	double *mine = perf_alloc(rank, nranks, sizeof(*mine));
	double *all = perf_alloc(rank, (size_t)nranks * nranks, sizeof(*all));
	int known = waits->known && ask(rank, stats);

	for (uint32_t n = 0; n < nranks; n++) {
		uint64_t operations = known ? stats[n].operations - waits->operations[n] : 0;

		mine[n] = NAN;
		if (operations) {
			mine[n] = (double)(stats[n].wait_ns - waits->ns[n]) / 1e3 /
				  (double)operations;
		}
	}
	perf_gather(rank, mine, nranks * sizeof(*mine), all);
	free(mine);
	free(waits->ns);
	free(waits->operations);
	if (known && rank->rank == 0) {
		return all;
	}
	free(all);
	return NULL;
}

void perf_links_sum(struct perf_rank *rank, struct perf_links *sum)
{
	struct perf_links mine = { 0 }, all[ORACLE_MAX_RANKS];
	ncclEpExtPeerStats_t stats[ORACLE_MAX_RANKS];
	uint32_t nranks = rank->perf->world.nranks;

	mine.known = ask(rank, stats);
	for (uint32_t n = 0; mine.known && n < nranks; n++) {
		int path = stats[n].rdma ? PERF_LINK_RDMA : PERF_LINK_GPU;

		if (n != rank->rank && stats[n].tx_bytes) {
			mine.bytes[path] += stats[n].tx_bytes;
			mine.pairs[path]++;
		}
	}
	perf_gather(rank, &mine, sizeof(mine), all);
	memset(sum, 0, sizeof(*sum));
	sum->known = 1;
	for (uint32_t n = 0; n < nranks; n++) {
		sum->known &= all[n].known;
		for (int path = 0; path < PERF_LINKS; path++) {
			sum->bytes[path] += all[n].bytes[path];
			sum->pairs[path] += all[n].pairs[path];
		}
	}
}
