/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a size besides its times: bytes that must move, links, waits, clocks, routing.
 */
#include <dlfcn.h>
#include <math.h>
#include <nccl_ep/ext.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* ---- the driver's version and clocks, by NVML ---- */

struct nvml_device;

static struct {
	int there;
	int (*init)(void);
	int (*driver)(char *text, unsigned bytes);
	int (*by_bus_id)(const char *bus_id, struct nvml_device **device);
	int (*clock)(struct nvml_device *device, int type, unsigned *mhz);
	char version[80];
} nvml;

static void load(void)
{
	const struct {
		const char *symbol;
		void *slot;
	} table[] = {
		{ "nvmlInit_v2", &nvml.init },
		{ "nvmlSystemGetDriverVersion", &nvml.driver },
		{ "nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus_id },
		{ "nvmlDeviceGetClockInfo", &nvml.clock },
	};
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	for (size_t i = 0; lib && i < sizeof(table) / sizeof(table[0]); i++) {
		void *f = dlsym(lib, table[i].symbol);

		if (!f) {
			return;
		}
		memcpy(table[i].slot, &f, sizeof(f));
	}
	if (!lib || nvml.init()) {
		return;
	}
	nvml.there = 1;
	if (nvml.driver(nvml.version, sizeof(nvml.version))) {
		nvml.version[0] = '\0';
	}
}

static void load_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
}

const char *perf_driver_version(void)
{
	load_once();
	return nvml.version;
}

static void clocks_read(const struct perf_rank *rank, uint32_t mhz[PERF_CLOCKS])
{
	static const int types[PERF_CLOCKS] = { [PERF_CLOCK_SM] = 1, [PERF_CLOCK_MEMORY] = 2 };
	struct nvml_device *device;

	memset(mhz, 0, PERF_CLOCKS * sizeof(*mhz));
	load_once();
	if (!nvml.there || nvml.by_bus_id(rank->place.bus, &device)) {
		return;
	}
	for (int c = 0; c < PERF_CLOCKS; c++) {
		unsigned value = 0;

		if (nvml.clock(device, types[c], &value) == 0) {
			mhz[c] = value;
		}
	}
}

/* ---- which ranks reach each other by RDMA, and who waited ---- */

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

/* ---- clocks and routing ---- */

#define DIGEST_START UINT64_C(0xcbf29ce484222325) /* FNV-1a */
#define DIGEST_PRIME UINT64_C(0x100000001b3)

/* Adds the lowest `bytes` bytes of `value`, the lowest first: the same on every machine. */
static uint64_t digest(uint64_t state, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++) {
		state = (state ^ (value >> 8 * i & 0xff)) * DIGEST_PRIME;
	}
	return state;
}

/* The ids that this rank's tokens name: their digest first, then how many name each expert. */
static void count_ids(const struct perf_rank *rank, uint64_t *mine)
{
	const struct oracle_problem *p = &rank->problem;
	int32_t ids[ORACLE_MAX_TOPK];

	mine[0] = DIGEST_START;
	for (uint32_t t = 0; t < rank->tokens; t++) {
		oracle_route(p, rank->rank, t, ids);
		for (uint32_t k = 0; k < p->topk; k++) {
			mine[0] = digest(mine[0], (uint32_t)ids[k], 4);
			if (ids[k] >= 0) {
				mine[1 + ids[k]]++;
			}
		}
	}
}

void perf_detail_routing(struct perf_rank *rank, struct perf_detail *detail)
{
	uint32_t nranks = rank->perf->world.nranks, experts = rank->problem.experts;
	size_t words = 1 + (size_t)experts;
	uint64_t *mine = perf_alloc(rank, words, sizeof(*mine));
	uint64_t *all = perf_alloc(rank, nranks * words, sizeof(*all));

	count_ids(rank, mine);
	perf_gather(rank, mine, words * sizeof(*mine), all);
	if (rank->rank == 0) {
		detail->digest = DIGEST_START;
		detail->expert_ids = perf_alloc(rank, experts, sizeof(*detail->expert_ids));
		for (uint32_t n = 0; n < nranks; n++) {
			detail->digest = digest(detail->digest, all[n * words], 8);
			for (uint32_t e = 0; e < experts; e++) {
				detail->expert_ids[e] += all[n * words + 1 + e];
			}
		}
	}
	free(mine);
	free(all);
}

void perf_detail_clocks(struct perf_rank *rank, struct perf_detail *detail)
{
	uint32_t nranks = rank->perf->world.nranks;
	uint32_t(*all)[PERF_CLOCKS] = perf_alloc(rank, nranks, sizeof(*all));
	uint32_t mine[PERF_CLOCKS];

	clocks_read(rank, mine);
	perf_gather(rank, mine, sizeof(mine), all);
	for (int c = 0; c < PERF_CLOCKS; c++) {
		detail->mhz_least[c] = detail->mhz_most[c] = all[0][c];
		for (uint32_t n = 1; n < nranks; n++) {
			uint32_t mhz = all[n][c];

			detail->mhz_least[c] = mhz < detail->mhz_least[c] ? mhz
									  : detail->mhz_least[c];
			detail->mhz_most[c] = mhz > detail->mhz_most[c] ? mhz : detail->mhz_most[c];
		}
	}
	free(all);
}

void perf_row_free(struct perf_row *row)
{
	for (int op = 0; op < PERF_OPS; op++) {
		free(row->op[op].samples.most);
		free(row->op[op].samples.least);
		free(row->op[op].kernel_samples.most);
		free(row->op[op].kernel_samples.least);
	}
	free(row->detail.waits);
	free(row->detail.expert_ids);
}

/* ---- bytes and rates ---- */

/* Of all ranks together, and of the rank that has most. Means of steps. */
struct sums {
	double tokens, copies, squares;
	double rows, most_rows;               /* that ranks receive */
	double own[PERF_OPS], busy[PERF_OPS]; /* rows */
	double memory[PERF_OPS];              /* bytes */
};

/* The message of a rank to the others. */
struct share {
	struct oracle_traffic traffic;
	uint64_t memory[PERF_OPS];
};

/*
 * Low latency: dispatch moves a row once per (token, rank), combine expert-major once per (token,
 * expert) and rank-major once per (token, rank). High throughput: over links both move a row once
 * per (token, rank) in both layouts. own: the rows of one rank, those for itself included. busy:
 * rows that leave or enter the busiest rank.
 */
static void add_traffic(struct sums *sums, const struct oracle_traffic *traffic, int by_expert,
			int expert_rows)
{
	uint64_t in[PERF_OPS] = { [PERF_DISPATCH] = traffic->rank_copies_in,
				  [PERF_COMBINE] = traffic->rank_copies_remote };
	uint64_t out[PERF_OPS] = { [PERF_DISPATCH] = traffic->rank_copies_remote,
				   [PERF_COMBINE] = traffic->rank_copies_in };
	double received = (double)(traffic->rank_copies_in + traffic->rank_copies -
				   traffic->rank_copies_remote);
	double rows = expert_rows ? (double)(traffic->expert_copies_in + traffic->expert_copies -
					     traffic->expert_copies_remote)
				  : received;

	if (by_expert) {
		in[PERF_COMBINE] = traffic->expert_copies_remote;
		out[PERF_COMBINE] = traffic->expert_copies_in;
	}
	sums->tokens += (double)traffic->tokens;
	sums->copies += (double)traffic->rank_copies;
	sums->squares += received * received;
	sums->rows += rows;
	sums->most_rows = fmax(sums->most_rows, rows);
	sums->own[PERF_DISPATCH] += (double)traffic->rank_copies;
	sums->own[PERF_COMBINE] +=
		(double)(by_expert ? traffic->expert_copies : traffic->rank_copies);
	for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
		sums->busy[op] =
			fmax(sums->busy[op], (double)(in[op] > out[op] ? in[op] : out[op]));
	}
}

/* A row with the scales that travel with it. */
static double copy_bytes(const struct oracle_problem *problem, int op)
{
	return op == PERF_COMBINE
		       ? (double)oracle_return_bytes(problem)
		       : (double)oracle_output_bytes(problem) + 4.0 * oracle_scale_words(problem);
}

/*
 * High throughput: what the rank's memory must give and take, whatever the way. Dispatch loads each
 * token and stores each row of the output, padding too; combine loads the rows and stores the sums.
 */
static void memory_bytes(const struct perf_rank *rank, const struct oracle_ht_table *t,
			 uint64_t *bytes)
{
	uint64_t written = rank->tokens, read = rank->tokens;

	memset(bytes, 0, PERF_OPS * sizeof(*bytes));
	for (uint64_t i = 0; t && i < t->count; i++) {
		written += t->rows[i].kind != ORACLE_HT_UNTOUCHED;
		read += t->rows[i].kind == ORACLE_HT_ROW;
	}
	if (t) {
		bytes[PERF_DISPATCH] =
			written * (uint64_t)copy_bytes(&rank->problem, PERF_DISPATCH);
		bytes[PERF_COMBINE] = read * oracle_combine_bytes(&rank->problem);
	}
}

/*
 * Microseconds that the bytes alone take: links between GPUs, and in high throughput the memory of
 * the busiest GPU. Ranks that share a GPU have no link between them.
 */
static double floor_us(const struct perf_options *opt, double link_bytes, double memory)
{
	double link = link_bytes / opt->floor_gbs / 1e3;

	if (!opt->ht) {
		return link;
	}
	return fmax(opt->ranks_per_gpu > 1 ? 0 : link, memory / opt->memory_gbs / 1e3);
}

static void rate(const struct perf_rank *rank, struct perf_row *row, const struct sums *sums)
{
	const struct perf_options *opt = &rank->perf->opt;

	for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
		struct perf_op_row *o = &row->op[op];
		double bytes = copy_bytes(&rank->problem, op);
		double time = isnan(o->kernel) ? o->p50 : o->kernel;

		o->algbw = sums->own[op] / rank->perf->world.nranks * bytes / time / 1e3;
		o->busbw = sums->busy[op] * bytes / time / 1e3;
		o->floor = floor_us(opt, sums->busy[op] * bytes, sums->memory[op]);
		o->floor_percent = 100 * o->floor / time;
	}
	row->op[PERF_UPDATE].algbw = row->op[PERF_UPDATE].busbw = NAN;
	row->op[PERF_UPDATE].floor = row->op[PERF_UPDATE].floor_percent = NAN;
}

/* What a step moves, of this rank. */
static void share_of(struct perf_rank *rank, uint32_t step, struct share *share)
{
	struct oracle_ht ht = rank->ht;
	struct oracle_ht_table *table = NULL;

	ht.p = rank->problem;
	ht.p.step = step;
	oracle_traffic(&ht.p, rank->rank, &share->traffic);
	if (rank->perf->opt.ht) {
		table = oracle_ht_table_create(&ht, rank->rank);
		if (!table) {
			perf_die(rank, "out of memory");
		}
	}
	memory_bytes(rank, table, share->memory);
	oracle_ht_table_free(table);
}

static void add_step(struct perf_rank *rank, const struct share *all, struct sums *s)
{
	const struct perf_options *opt = &rank->perf->opt;
	int by_expert = rank->problem.layout == ORACLE_EXPERT_MAJOR;
	double here[PERF_OPS] = { 0 };

	for (uint32_t n = 0; n < rank->perf->world.nranks; n++) {
		add_traffic(s, &all[n].traffic, by_expert && !opt->ht, by_expert && !opt->flat);
		for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
			/* ranks that share a GPU come one after the other */
			here[op] = n % opt->ranks_per_gpu ? here[op] : 0;
			here[op] += (double)all[n].memory[op];
			s->memory[op] = fmax(s->memory[op], here[op]);
		}
	}
}

void perf_account(struct perf_rank *rank, struct perf_row *row)
{
	uint32_t nranks = rank->perf->world.nranks, steps = rank->perf->opt.steps;
	struct share *all = perf_alloc(rank, nranks, sizeof(*all));
	const struct oracle_problem *p = &rank->problem;
	uint32_t holders = p->experts / oracle_local(p); /* ranks that receive rows */
	struct sums mean = { 0 };

	for (uint32_t step = 0; step < steps; step++) {
		struct sums s = { 0 };
		struct share mine;

		share_of(rank, step, &mine);
		perf_gather(rank, &mine, sizeof(mine), all);
		add_step(rank, all, &s);
		row->detail.step_load[step] = s.rows > 0 ? s.most_rows * holders / s.rows : NAN;
		row->load += row->detail.step_load[step] / steps;
		row->copies += (s.tokens > 0 ? s.copies / s.tokens : 0) / steps;
		if (s.copies > 0) {
			double square = s.squares * nranks / (s.copies * s.copies);

			row->load_cv += sqrt(fmax(0, square - 1)) / steps;
		}
		for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
			mean.own[op] += s.own[op] / steps;
			mean.busy[op] += s.busy[op] / steps;
			mean.memory[op] += s.memory[op] / steps;
		}
	}
	rate(rank, row, &mean);
	free(all);
}
