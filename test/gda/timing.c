/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs a GPU to post: a table of clock cycles for building, storing and ringing, and what
 * rate of messages that makes of one queue. There is no NIC: the queue is larger than what is posted
 * to it, the doorbell is a word of memory. What was posted is checked afterwards, WQE by WQE.
 *
 *     gda_gpu_timing [GBIT [SAMPLES]]     line rate that should be filled, 400; at least so many
 *                                         samples for each line of the table, 1200 (8 or more)
 *
 * Ends within two minutes, whatever happens.
 */
#include <unistd.h>
#include "device/mlx5/wqe.h"
#include "launch.h"
#include "timing.h"

#define DEPTH 32768u
#define MAX_BLOCKS 16u
#define QPN 0x123456u
#define LIMIT_S 115

struct place {
	const char *name;
	bool host_sq, host_db;
	uint8_t handover;
};

struct kernel {
	const char *name, *text;
	void (*fn)(void);
	uint32_t wqes, messages; /* of one repetition; no messages: not handed over */
};

#define GDA_TIME_ENTRY(name, wqes, messages, text) { #name, text, gda_time_##name, wqes, messages },
static const struct kernel kernels[] = { GDA_TIME_KERNELS(GDA_TIME_ENTRY) };

/* Last: a thread of the host rings, or posts, by an index that kernels store (CPU modes). */
static const struct place places[] = {
	{ "queue GPU, doorbell GPU", false, false, EP_MLX5_HANDOVER_MMIO },
	{ "queue GPU, doorbell host", false, true, EP_MLX5_HANDOVER_MMIO },
	{ "queue host, doorbell host", true, true, EP_MLX5_HANDOVER_MMIO },
	{ "queue host, index host", true, true, EP_MLX5_HANDOVER_INDEX },
};

struct words { /* of one queue */
	struct ep_mlx5_cqe cqe;
	struct ep_mlx5_dbr dbr;
	uint64_t db;
	struct ep_mlx5_error record;
	uint32_t stop;
};

struct bed {
	struct ep_mlx5_wqe *sq[2]; /* in GPU memory, in host memory */
	struct words *words[2];
	struct ep_mlx5_qp *qp;
	struct ep_mlx5_region *regions;
	uint32_t *sample, *status;
	uint64_t *span;
	cudaStream_t stream;
};

struct result {
	uint32_t n, median, p99;
	double mean; /* cycles, over all repetitions without the looks at the clock between */
	double mhz;  /* of the SM, while it ran */
	double messages_us; /* of all queues */
};

static void *device_memory(size_t bytes)
{
	void *p = NULL;

	NEED_CUDA(cudaMalloc(&p, bytes));
	NEED_CUDA(cudaMemset(p, 0, bytes));
	return p;
}

static void *host_memory(size_t bytes)
{
	void *p = NULL;

	NEED_CUDA(cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
	memset(p, 0, bytes);
	return p;
}

static void bed_make(struct bed *bed)
{
	static const struct ep_mlx5_region regions[2 * EP_MLX5_REGIONS] = {
		{ 0x1000000000, 1ull << 36, 0x11a1, 0 },
		{ 0x1000000000, 1ull << 36, 0x11a2, 0 },
		{ 0x4000000000, 1ull << 36, 0, 0x22b2 },
		{ 0x8000000000, 1ull << 36, 0, 0x33c3 },
	};
	size_t bytes = (size_t)MAX_BLOCKS * DEPTH * sizeof(struct ep_mlx5_wqe);

	bed->sq[0] = device_memory(bytes);
	bed->sq[1] = host_memory(bytes);
	bed->words[0] = device_memory(MAX_BLOCKS * sizeof(struct words));
	bed->words[1] = host_memory(MAX_BLOCKS * sizeof(struct words));
	bed->qp = device_memory(MAX_BLOCKS * sizeof(struct ep_mlx5_qp));
	bed->regions = device_memory(sizeof(regions));
	bed->sample = host_memory(MAX_BLOCKS * DEPTH * sizeof(uint32_t));
	bed->span = host_memory(MAX_BLOCKS * 4 * sizeof(uint64_t));
	bed->status = host_memory(MAX_BLOCKS * sizeof(uint32_t));
	NEED_CUDA(cudaMemcpy(bed->regions, regions, sizeof(regions), cudaMemcpyHostToDevice));
	NEED_CUDA(cudaStreamCreateWithFlags(&bed->stream, cudaStreamNonBlocking));
}

/* Fresh queues: nothing posted, nothing completed. */
static void bed_reset(struct bed *bed, const struct place *place)
{
	struct ep_mlx5_qp qp[MAX_BLOCKS];
	struct words words[MAX_BLOCKS];
	struct words *sq_words = bed->words[place->host_sq];
	struct words *db_words = bed->words[place->host_db];

	memset(qp, 0, sizeof(qp));
	memset(words, 0, sizeof(words));
	for (uint32_t i = 0; i < MAX_BLOCKS; i++) {
		memset(&words[i].cqe, 0xff, sizeof(words[i].cqe));
		qp[i].sq = bed->sq[place->host_sq] + (size_t)i * DEPTH;
		qp[i].cqe = &sq_words[i].cqe;
		qp[i].dbr = &sq_words[i].dbr;
		qp[i].db = &db_words[i].db;
		qp[i].local = bed->regions;
		qp[i].remote = bed->regions + EP_MLX5_REGIONS;
		qp[i].record = &bed->words[1][i].record;
		qp[i].stop = &bed->words[1][i].stop;
		qp[i].qpn = QPN + i;
		qp[i].depth = DEPTH;
		qp[i].handover = place->handover;
		qp[i].in_host = place->host_sq;
		qp[i].signal = EP_MLX5_SIGNAL_WRITE;
	}
	for (int k = 0; k < 2; k++) {
		NEED_CUDA(cudaMemcpy(bed->words[k], words, sizeof(words), cudaMemcpyDefault));
	}
	NEED_CUDA(cudaMemcpy(bed->qp, qp, sizeof(qp), cudaMemcpyHostToDevice));
}

/* Every index below `posted` is there, once and in its place, and the doorbell says so. */
static void bed_check(struct bed *bed, const struct place *place, uint32_t queue, uint64_t posted)
{
	struct ep_mlx5_wqe *sq = malloc(DEPTH * sizeof(*sq));
	struct ep_mlx5_qp qp;
	struct words sq_words, db_words;
	uint64_t bad = 0;

	NEED(sq);
	NEED_CUDA(cudaMemcpy(&qp, bed->qp + queue, sizeof(qp), cudaMemcpyDeviceToHost));
	NEED_CUDA(cudaMemcpy(sq, qp.sq, DEPTH * sizeof(*sq), cudaMemcpyDefault));
	NEED_CUDA(cudaMemcpy(&sq_words, &bed->words[place->host_sq][queue], sizeof(sq_words),
			     cudaMemcpyDefault));
	NEED_CUDA(cudaMemcpy(&db_words, &bed->words[place->host_db][queue], sizeof(db_words),
			     cudaMemcpyDefault));
	CHECK_INT(qp.reserved, posted);
	CHECK_INT(qp.rung, posted);
	CHECK_INT(qp.error, EP_MLX5_OK);
	if (place->handover == EP_MLX5_HANDOVER_INDEX) {
		CHECK_INT(db_words.db, posted);
	} else if (posted) {
		CHECK_INT(db_words.db, ep_mlx5_doorbell_value(posted, QPN + queue));
		CHECK_INT(sq_words.dbr.send, ep_mlx5_dbr_value(posted));
	}
	for (uint64_t i = 0; i < posted; i++) {
		bad += sq[i].w[0] != ep_be32((uint32_t)i << 8 | EP_MLX5_OP_WRITE) ||
		       ep_be32(sq[i].w[1]) >> 8 != QPN + queue;
	}
	CHECK_INT(bad, 0);
	free(sq);
}

/* Polls, so that a kernel that hangs ends the program and not the reader's patience. */
static void bed_wait(struct bed *bed, const char *what)
{
	cudaError_t error;

	for (int i = 0; (error = cudaStreamQuery(bed->stream)) == cudaErrorNotReady; i++) {
		if (i > 20000) {
			fprintf(stderr, "%s does not end\n", what);
			_exit(1);
		}
		usleep(1000);
	}
	if (error != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
		exit(1);
	}
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* One launch: appends its samples, without the first ones, to all. */
static uint32_t bed_run(struct bed *bed, const struct kernel *k, const struct place *place,
			uint32_t blocks, uint32_t reps, uint32_t *all, struct result *r)
{
	struct gda_time_args args = { .qp = bed->qp,
				      .sample = bed->sample,
				      .span = bed->span,
				      .status = bed->status,
				      .timeout_ns = 2000000000,
				      .reps = reps };
	uint32_t warm = reps / 8, n = 0;
	uint64_t first = ~0ull, last = 0, cycles = 0, ns = 0;

	bed_reset(bed, place);
	gda_launch(k->fn, blocks, 32, &args, reps * sizeof(uint32_t), bed->stream);
	bed_wait(bed, k->name);
	for (uint32_t b = 0; b < blocks; b++) {
		const uint64_t *span = bed->span + 4 * b;

		CHECK_INT(bed->status[b], EP_MLX5_OK);
		for (uint32_t i = warm; i < reps; i++) {
			all[n++] = bed->sample[b * reps + i];
		}
		first = span[1] < first ? span[1] : first;
		last = span[3] > last ? span[3] : last;
		cycles += span[2] - span[0];
		ns += span[3] - span[1];
	}
	for (uint32_t q = 0; q < blocks; q++) {
		bed_check(bed, place, q, (uint64_t)reps * k->wqes);
	}
	r->mean += (double)cycles / (double)reps / blocks;
	r->mhz += ns ? (double)cycles * 1000 / (double)ns : 0;
	r->messages_us +=
		last > first ? 1000.0 * reps * k->messages * blocks / (double)(last - first) : 0;
	return n;
}

static struct result bed_measure(struct bed *bed, const struct kernel *k, const struct place *place,
				 uint32_t blocks, uint32_t wanted)
{
	static uint32_t all[2 * MAX_BLOCKS * DEPTH];
	uint32_t per_rep = k->wqes ? k->wqes : 1;
	uint32_t reps = (DEPTH - EP_MLX5_MIN_DEPTH) / per_rep, runs = 0;
	struct result r = { .n = 0 };

	reps = reps > 1000 ? 1000 : reps;
	reps = reps > wanted ? wanted : reps;
	bed_run(bed, k, place, blocks, reps, all, &r); /* warms up code and addresses */
	r = (struct result){ .n = 0 };
	while (r.n < wanted) {
		r.n += bed_run(bed, k, place, blocks, reps, all + r.n, &r);
		runs++;
	}
	r.mean /= runs;
	r.mhz /= runs;
	r.messages_us /= runs;
	qsort(all, r.n, sizeof(*all), compare);
	r.median = all[r.n / 2];
	r.p99 = all[(uint64_t)r.n * 99 / 100];
	return r;
}

static void print_line(const struct kernel *k, uint32_t blocks, const struct result *r, double gbit)
{
	double rate = r->messages_us / blocks, need = gbit * 1e3 / 8 / GDA_TIME_BYTES;

	printf("  %-38s %5u %6u %6u %8.1f %7.0f", k->text, blocks, r->median, r->p99, r->mean,
	       r->mhz ? r->median * 1000.0 / r->mhz : 0);
	if (k->messages) {
		printf(" %8.2f %7.1f\n", rate, rate > 0 ? need / rate : 0);
	} else {
		printf(" %8s %7s\n", "-", "-");
	}
}

int main(int argc, char **argv)
{
	double gbit = argc > 1 ? atof(argv[1]) : 400;
	int samples = argc > 2 ? atoi(argv[2]) : 1200;
	struct cudaDeviceProp prop;
	struct bed bed;
	int devices;

	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no GPU\n");
		return 77;
	}
	if (gbit <= 0 || samples < 8 || samples > (int)(MAX_BLOCKS * DEPTH)) {
		fprintf(stderr, "usage: %s [GBIT [SAMPLES]]\n", argv[0]);
		return 2;
	}
	alarm(LIMIT_S);
	NEED_CUDA(cudaGetDeviceProperties(&prop, 0));
	bed_make(&bed);
	printf("%s, sm_%d%d. Cycles of an SM: median and 99th percentile of single operations, mean\n"
	       "of operations back to back; ns of the median. Rate: million messages/s of a queue;\n"
	       "queues for %g Gb/s in messages of %d bytes.\n",
	       prop.name, prop.major, prop.minor, gbit, GDA_TIME_BYTES);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		printf("\n%s\n  %-38s %5s %6s %6s %8s %7s %8s %7s\n", places[i].name, "operation",
		       "warps", "median", "p99", "mean", "ns", "rate", "queues");
		for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++) {
			for (uint32_t blocks = 1; blocks <= (kernels[k].messages ? MAX_BLOCKS : 1);
			     blocks *= MAX_BLOCKS) {
				struct result r = bed_measure(&bed, &kernels[k], &places[i], blocks,
							      (uint32_t)samples);

				print_line(&kernels[k], blocks, &r, gbit);
			}
		}
		fflush(stdout);
	}
	return check_end();
}
