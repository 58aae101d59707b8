/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side end to end, over NICs: ranks connect, kernels post to peers' memory everything
 * there is to post, and what lies there afterwards is compared with what the poster says.
 *
 *     host [-b] [-c] [-p] [-q QUEUES] [-w WQES] MODE [RANKS] [ROUNDS] [TIMES] [TEXT...]
 *         MODE    auto, gpu, gpu_host, cpu_db, cpu_proxy
 *         TEXT    what rank 0 says of its NICs, like mlx5_0:1; !TEXT: what it does not
 *         -b      ports are bonds, whose members send alike
 *         -c      NICs are asked as little as watch.c says
 *         -p      only messages to and fro
 *         QUEUES  per peer
 *         WQES    that each queue has at least taken in the end
 *
 * Every rank is remote for every other. Each pair of ranks has a place in everybody's heap that
 * only the one writes, as source of what it posts, and in the other's heap as its target.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>
#include "gda/gda.h"
#include "gda/prm.h"
#include "gda/state.h"
#include "kernels.h"
#include "launch.h"
#include "nic/step.h"
#include "support/world.h"

#define DEPTH 128
#define HEAP_BYTES (2u << 20)
#define TIMEOUT_NS 20000000000ull
#define REST_S 10
#define CLOSED_WITHIN 1.9 /* seconds: a close that waits in vain takes 2 */

static enum ep_gda_mode mode;
static uint32_t rounds, times, queues = 2;
static uint64_t least;
static bool only_pass, bond, count;
static char **ports; /* NULL behind the last */

struct rank {
	struct world *w;
	struct ep_boot boot;
	struct ep_gda *gda;
	struct gda_warp *heap;
	struct gda_result *result; /* pinned, [ranks][ranks][queues], as the heap */
};

static size_t places(const struct rank *r)
{
	return (size_t)r->w->nranks * (size_t)r->w->nranks * queues;
}

static uint32_t place(const struct rank *r, int from, int to)
{
	return (uint32_t)(from * r->w->nranks + to) * queues;
}

static void make(struct rank *r, struct world *w)
{
	bool remote[WORLD_MAX];
	const char *host[WORLD_MAX];
	char bus_id[32], name[WORLD_MAX][32], text[512];
	struct ep_gda_config config = { .device = w->device,
					.bus_id = bus_id,
					.place = (uint32_t)w->device,
					.remote = remote,
					.host = host,
					.queues = queues,
					.depth = DEPTH,
					.mode = mode,
					.timeout_ns = TIMEOUT_NS };
	ncclResult_t mine = ncclSuccess;

	memset(r, 0, sizeof(*r));
	r->w = w;
	NEED_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), w->device));
	for (int i = 0; i < w->nranks; i++) {
		remote[i] = i != w->rank;
		snprintf(name[i], sizeof(name[i]), "host%d", i);
		host[i] = name[i];
	}
	NEED_OK(ep_boot_open(&r->boot, w->comm, TIMEOUT_NS, &mine));
	NEED_OK(mine);
	NEED_OK(ep_gda_open(&r->gda, &r->boot, &config, ncclSuccess));
	ep_gda_describe(r->gda, text, sizeof(text));
	for (int i = 0; w->rank == 0 && ports[i]; i++) {
		bool without = ports[i][0] == '!';

		CHECK(!strstr(text, ports[i] + without) == without, "%s", ports[i]);
	}
	if (w->rank == 0) {
		printf("%s\n", text);
	}
	CHECK(mode == EP_GDA_AUTO || strstr(text, ep_gda_mode_name(mode)));
	NEED_CUDA(cudaMalloc((void **)&r->heap, HEAP_BYTES));
	NEED_CUDA(cudaHostAlloc((void **)&r->result, places(r) * sizeof(*r->result),
				cudaHostAllocMapped | cudaHostAllocPortable));
	NEED(only_pass || places(r) * sizeof(*r->heap) + sizeof(struct gda_ball) <= HEAP_BYTES);
}

static void clear(struct rank *r)
{
	NEED_CUDA(cudaMemset(r->heap, 0, HEAP_BYTES));
	NEED_CUDA(cudaDeviceSynchronize());
	memset(r->result, 0, places(r) * sizeof(*r->result));
}

/* How much the queues have taken. */
static void check_taken(struct rank *r)
{
	uint32_t n = (uint32_t)r->w->nranks * queues;
	struct ep_mlx5_qp *qps = calloc(n, sizeof(*qps));

	NEED(qps);
	NEED_CUDA(cudaMemcpy(qps, ep_gda_queues(r->gda), n * sizeof(*qps), cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < n; i++) {
		CHECK(i / queues == (uint32_t)r->w->rank || qps[i].rung >= least);
	}
	free(qps);
}

static void end(struct rank *r)
{
	double start;

	check_taken(r);
	world_meet(r->w);
	start = world_now();
	ep_gda_close(r->gda);
	CHECK(world_now() - start < CLOSED_WITHIN);
	ep_boot_close(&r->boot);
	NEED_CUDA(cudaFree(r->heap));
	NEED_CUDA(cudaFreeHost(r->result));
}

/* The heap's registration may allow the bus to reorder, whatever the tier. */
static uint32_t weakness(const struct ep_gda *g)
{
	const char *relaxed = getenv("NCCL_IB_PCI_RELAXED_ORDERING");
	uint32_t weak = !relaxed || strcmp(relaxed, "0") != 0;

	return (uint32_t)ep_max_u64(weak, g->queue[0].tier);
}

/* Posts to all peers at once, a warp for each queue. */
static void post(struct rank *r, uint32_t seed)
{
	struct world *w = r->w;

	for (int p = 0; p < w->nranks; p++) {
		uint32_t first = place(r, w->rank, p);
		struct gda_post_args args = {
			/* Warp `first` uses the first queue of the peer. */
			.qp = ep_gda_queues(r->gda) + (size_t)p * queues - first,
			.result = r->result,
			.heap = r->heap,
			.timeout_ns = TIMEOUT_NS,
			.first_warp = first,
			.rounds = rounds,
			.seed = seed + (uint32_t)w->rank * 977u,
			.weak = weakness(r->gda),
		};

		if (p != w->rank) {
			gda_launch(gda_post, 1, 32 * queues, &args, 0, w->stream);
		}
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
}

/* Neighbours pass a message to and fro, and look at it as soon as its signal says it is there. */
static void pass(struct rank *r)
{
	struct world *w = r->w;
	int peer = w->rank ^ 1;
	uint64_t at = HEAP_BYTES - sizeof(struct gda_ball);
	struct gda_pass_args args = {
		.qp = ep_gda_queues(r->gda) + (size_t)peer * queues + queues - 1,
		.ball = (struct gda_ball *)((unsigned char *)r->heap + at),
		.result = r->result,
		.at = at,
		.timeout_ns = TIMEOUT_NS,
		.rounds = rounds,
		.serves = (uint32_t)(w->rank & 1),
	};

	if (peer < w->nranks) {
		gda_launch(gda_pass, 1, 32, &args, 0, w->stream);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		check_context("rank %d with rank %d", w->rank, peer);
		CHECK_INT(r->result->status, EP_MLX5_OK);
		CHECK_INT(r->result->wrong, 0);
		CHECK_INT(r->result->posted, rounds);
		check_context("%s", "");
	}
}

/* What the peers wrote here is what they say they wrote. */
static void check(struct rank *r)
{
	struct world *w = r->w;
	struct gda_warp *seen = malloc(HEAP_BYTES);
	struct gda_result *all = calloc((size_t)w->nranks, sizeof(*all));

	NEED(seen && all);
	NEED_CUDA(cudaMemcpy(seen, r->heap, HEAP_BYTES, cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < places(r); i++) {
		int from = (int)(i / queues) / w->nranks, to = (int)(i / queues) % w->nranks;
		const struct gda_result *said = &all[from];

		NEED(ep_boot_allgather(&r->boot, &r->result[i], all, sizeof(*all), "test") ==
		     ncclSuccess);
		if (from == to || (from != w->rank && to != w->rank)) {
			continue;
		}
		check_context("rank %d, from %d to %d, queue %u", w->rank, from, to, i % queues);
		CHECK_INT(said->status, EP_MLX5_OK);
		CHECK(said->posted >= rounds);
		if (to == w->rank) {
			CHECK(memcmp(seen[i].tags, said->tags, sizeof(said->tags)) == 0);
			CHECK_INT(seen[i].signal, said->signal);
		}
	}
	check_context("%s", "");
	free(all);
	free(seen);
}

/* What the software NIC has that all ranks of the process share; `name` is one of nic/step.h. */
static void *of_nic(const char *name)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD), *found;

	NEED(lib);
	found = dlsym(lib, name);
	NEED(found);
	dlclose(lib);
	return found;
}

/*
 * Questions about queue pairs while the ranks rest: none before they have posted. What was posted
 * last may ask for no completion: NICs are asked about such queues after 1, 2, 4 and 8 seconds.
 */
static void check_questions(struct world *w, bool posted)
{
	uint64_t (*commands)(uint32_t opcode), before, n;
	uint32_t all = (uint32_t)(w->nranks * (w->nranks - 1)) * queues;

	world_meet(w);
	if (w->rank == 0) {
		*(void **)&commands = of_nic("vn_dv_commands");
		before = commands(EP_PRM_CMD_QUERY_QP);
		usleep(REST_S * 1000000);
		n = commands(EP_PRM_CMD_QUERY_QP) - before;
		printf("%u queue pairs of %d ranks, %s: %.2f questions in a second for each rank\n",
		       all, w->nranks, posted ? "with work that was posted" : "at rest",
		       (double)n / REST_S / w->nranks);
		CHECK(n <= (posted ? 4 * all : 0), "%llu", (unsigned long long)n);
	}
	world_meet(w);
}

/* Each member of the process's bond has sent its share. */
static void check_bond(void)
{
	void (*members)(int nic, struct vn_dv_member *member);
	struct vn_dv_member m[2];

	*(void **)&members = of_nic("vn_dv_members");
	members(0, m);
	printf("the members sent %llu and %llu packets\n", (unsigned long long)m[0].packets,
	       (unsigned long long)m[1].packets);
	CHECK(3 * m[0].packets > m[1].packets && 3 * m[1].packets > m[0].packets);
	CHECK(m[0].bytes && m[1].bytes);
}

/* Once opened and closed again, all files that are kept are there: the next time keeps no more. */
static void check_files(struct world *w, bool first)
{
	static int files;
	const struct dirent *entry;
	char target[16];
	DIR *dir;
	int n = 0;

	world_meet(w);
	if (w->rank == 0) {
		dir = opendir("/proc/self/fd");
		NEED(dir);
		while ((entry = readdir(dir))) {
			ssize_t size =
				readlinkat(dirfd(dir), entry->d_name, target, sizeof(target));

			/* the cluster's clock looks at threads, and may be through by now */
			n += size >= 0 && (size < 6 || memcmp(target, "/proc/", 6) != 0);
		}
		closedir(dir);
		files = first ? n : files;
		CHECK_INT(n, files);
	}
	world_meet(w);
}

static void run(struct world *w, void *arg)
{
	struct ep_gda_failure failure;
	struct rank r;

	for (uint32_t t = 0; t < times; t++) {
		make(&r, w);
		if (count) {
			check_questions(w, false);
		}
		/* A heap that is replaced, over the same connections. */
		for (uint32_t b = 0; b < 2; b++) {
			clear(&r);
			NEED(ep_gda_bind(r.gda, &r.boot, r.heap, HEAP_BYTES, ncclSuccess) ==
			     ncclSuccess);
			if (!only_pass) {
				post(&r, 1 + 2 * t + b);
				world_meet(w);
				check(&r);
			}
			pass(&r);
			world_meet(w);
			ep_gda_unbind(r.gda);
		}
		if (count) {
			check_questions(w, true);
		}
		CHECK(!ep_gda_poll(r.gda, &failure));
		for (int p = 0; p < w->nranks; p++) {
			CHECK(!ep_gda_explain(r.gda, p, &failure));
		}
		if (bond && w->rank == 0) {
			check_bond();
		}
		end(&r);
		check_files(w, t == 0);
	}
}

static bool options(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "+bcpq:w:")) != -1) {
		switch (option) {
		case 'b':
			bond = true;
			break;
		case 'c':
			count = true;
			break;
		case 'p':
			only_pass = true;
			break;
		case 'q':
			queues = (uint32_t)world_number(optarg, 2);
			break;
		case 'w':
			least = world_number(optarg, 0);
			break;
		default:
			return false;
		}
	}
	return true;
}

/* That a trial connection failed, and a CPU thread posts in place of GPUs, is a warning. */
static void check_warning(const char *log)
{
	static char all[1 << 16];
	FILE *file = fopen(log, "re");

	NEED(file);
	all[fread(all, 1, sizeof(all) - 1, file)] = '\0';
	fclose(file);
	unlink(log);
	CHECK_HAS(all, "NCCL WARN ");
	CHECK_HAS(all, "DevX works, but a trial connection fails: ");
}

int main(int argc, char **argv)
{
	const char *profile = getenv("VC_NIC_PROFILE");
	bool known = options(argc, argv), warns = profile && strcmp(profile, "no_rtr") == 0;
	char log[] = "/tmp/gda_host_XXXXXX";
	int ranks;

	argc -= optind - 1;
	argv += optind - 1;
	for (mode = EP_GDA_AUTO; mode < EP_GDA_MODES; mode++) {
		if (argc > 1 && strcmp(argv[1], ep_gda_mode_name(mode)) == 0) {
			break;
		}
	}
	if (mode == EP_GDA_MODES || !known) {
		fprintf(stderr,
			"usage: host [-b] [-c] [-p] [-q QUEUES] [-w WQES] MODE [RANKS] [ROUNDS] [TIMES] "
			"[TEXT...]\n");
		return 2;
	}
	ranks = world_size((int)world_number(argc > 2 ? argv[2] : NULL, 2));
	rounds = (uint32_t)world_number(argc > 3 ? argv[3] : NULL, 200);
	times = (uint32_t)world_number(argc > 4 ? argv[4] : NULL, 2);
	ports = argv + (argc < 5 ? argc : 5);
	if (warns) {
		close(mkstemp(log));
		setenv("NCCL_DEBUG", "WARN", 1);
		setenv("NCCL_DEBUG_FILE", log, 1);
	}
	world_run(ranks, run, NULL);
	if (warns) {
		check_warning(log);
	}
	return check_end();
}
