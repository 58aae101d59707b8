/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the memory of a group is mapped, and which nodes that makes. Whichever it is, results are
 * right.
 *
 *     mappings host     processes of one host
 *     mappings threads  ranks of one process
 *     mappings old      NCCL without pointers to windows
 *     mappings domain   two hosts of four ranks each that are one NVLink domain
 *     mappings across   two GPUs with different bus ids on two hosts of a domain
 *     mappings apart    GPUs of ranks 0 and 2 of a host have no access to each other
 *     mappings in_host  the same, by the ways that are left: host memory, and NICs
 *     mappings teams    NCCL is told to make teams that are smaller than a host
 *     mappings mig      rank 1's GPU is a MIG instance
 *     mappings one_host two hosts with one NCCL_HOSTID
 *     mappings not_there  rank 1 makes no group
 *     mappings p2p      NCCL is told to do without peer access, by one variable or another
 *     mappings uneven   two hosts and a communicator of which NCCL makes teams that are smaller
 *                       than a host
 */
#include <sys/resource.h>
#include <unistd.h>

#include "ep/ep.h"
#include "peer/peer.h"
#include "support/bench.h"
#include "support/self.h"

static struct oracle_problem problem(const struct world *w)
{
	return bench_problem(w->nranks, 2 * (uint32_t)w->nranks, 2, 248, 9, ORACLE_EXPERT_MAJOR);
}

static void choose(const char *memory, const char *nodes)
{
	setenv("NCCL_EP_MEMORY", memory, 1);
	setenv("NCCL_EP_NODE_SIZE", nodes, 1);
}

/* A group works, has this mapping and so many nodes, and leaves no memory behind. */
static void works(struct world *w, const char *mapping, uint32_t nodes, const char *why)
{
	struct oracle_problem p = problem(w);
	size_t before = 0, after = 0, total;
	ncclEpGroup_t group;
	struct bench b;
	int maps;

	check_context("rank %d, %s, nodes %s", w->rank, getenv("NCCL_EP_MEMORY"),
		      getenv("NCCL_EP_NODE_SIZE"));
	world_meet(w);
	NEED_CUDA(cudaMemGetInfo(&before, &total));
	maps = self_maps("memfd:vcluster");
	world_meet(w);
	group = bench_group(w, &p, 0);
	NEED_CUDA(cudaMemGetInfo(&after, &total));
	/* nothing is there twice */
	CHECK((before - after >= group->peer_heap.bytes) != group->memory.mapping->in_host);
	CHECK(!group->memory.mapping->in_host || !group->lines);
	if (getenv("VC_SMS")) { /* all SMs, or those that leave the bus some room */
		CHECK((group->config.budget[EP_BUDGET_COMBINE].sms > 8) !=
		      group->memory.mapping->in_host);
	}
	CHECK(nodes > 1 || before - after < group->peer_heap.bytes + (1 << 20));
	CHECK_TEXT(group->memory.mapping->name, mapping);
	CHECK_INT(group->idents[w->nranks - 1].node + 1, nodes);
	if (!strstr(group->memory.no_window.text, why) ||
	    (!*why && *group->memory.no_window.text)) {
		check_fail(__FILE__, __LINE__, "\"%s\" is not \"%s\"", group->memory.no_window.text,
			   why);
	}
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_end(&b);
	world_meet(w);
	for (int i = 0; i < 5000 && after != before; i++) {
		NEED_CUDA(cudaMemGetInfo(&after, &total));
		usleep(1000);
	}
	CHECK_INT(after, before);
	CHECK(!w->processes || self_maps("memfd:vcluster") == maps);
}

/*
 * What an operation of a group in host memory has where the program asks for so many SMs; 0: it
 * does not.
 */
static void budgets(struct world *w, uint32_t all, uint32_t combine, uint32_t shared,
		    uint32_t least, uint32_t least_shared)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group;

	check_context("rank %d, %u SMs, %u for combine", w->rank, all, combine);
	world_meet(w);
	config.max_num_sms = all;
	config.combine_num_sms = combine;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	CHECK(group->memory.mapping->in_host);
	CHECK_INT(group->config.budget[EP_BUDGET_SHARED].sms, shared);
	CHECK_INT(group->config.budget[EP_BUDGET_DISPATCH].sms, shared);
	CHECK_INT(group->config.budget[EP_BUDGET_COMBINE].sms, combine ? combine : shared);
	CHECK_INT(group->config.least_sms[EP_BUDGET_COMBINE], least);
	CHECK_INT(group->config.least_sms[EP_BUDGET_DISPATCH], least_shared);
	OK(ncclEpGroupDestroy(group));
}

static void refused(struct world *w, const char *reason)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;

	world_meet(w);
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config), ncclInvalidUsage, reason);
	CHECK(!group);
}

/* A rank's files may not be as long as its heap: the call fails, and no signal comes. */
static void limited(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;
	struct rlimit before, limit;

	check_context("a limit of files, rank %d", w->rank);
	choose("host", "0");
	NEED(getrlimit(RLIMIT_FSIZE, &before) == 0);
	limit = before;
	limit.rlim_cur = w->rank == 1 ? 1 << 20 : before.rlim_cur;
	NEED(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	world_meet(w);
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config),
		     w->rank == 1 ? ncclUnhandledCudaError : ncclRemoteError,
		     "bytes of host memory: File too large (ulimit -f)");
	NEED(setrlimit(RLIMIT_FSIZE, &before) == 0);
	CHECK(!group);
}

static void host(struct world *w)
{
	choose("auto", "0");
	works(w, "NCCL windows", 1, "");
	choose("window", "0");
	works(w, "NCCL windows", 1, "");
	choose("ipc", "0");
	works(w, "CUDA IPC", 1, "rank 0");
	choose("host", "0");
	works(w, "host memory", 1, "");
	/* each decides for all */
	choose(w->rank == 2 ? "ipc" : "auto", "0");
	works(w, "CUDA IPC", 1, "rank 2");
	choose(w->rank == 2 ? "ipc" : w->rank == 3 ? "window" : "auto", "0");
	refused(w, "rank 2 (host ");
	refused(w, "rank 3 (host ");
	/* one that cannot */
	if (w->rank == 1) {
		setenv("NCCL_CUMEM_ENABLE", "0", 1);
	}
	choose("auto", "0");
	works(w, "CUDA IPC", 1, "NCCL_CUMEM_ENABLE=0?");
	works(w, "CUDA IPC", 1, "rank 1");
	choose(w->rank ? "auto" : "window", "0");
	refused(w, "NCCL_EP_MEMORY=window");
	refused(w, "rank 1 (host ");
	unsetenv("NCCL_CUMEM_ENABLE");
	choose("shared", "0");
	refused(w, "set it to one of auto|window|ipc|host");
	choose("auto", "0");
	works(w, "NCCL windows", 1, "");
}

/*
 * Memory that no GPU has: it serves GPUs without access to each other, and rows travel as bytes.
 * One rank decides for all that have not decided otherwise.
 */
static void in_host(struct world *w)
{
	choose("host", "0");
	works(w, "host memory", 1, "");
	world_setenv(w, "NCCL_EP_LL_LINES", "1");
	works(w, "host memory", 1, "");
	world_setenv(w, "NCCL_EP_LL_LINES", "-1");
	budgets(w, 0, 0, 8, 8, 8);
	budgets(w, 14, 0, 14, 14, 14);
	budgets(w, 0, 12, 8, 12, 8);
	budgets(w, w->rank == 1 ? 0 : 14, 0, w->rank == 1 ? 8 : 14, 8, 8);
	budgets(w, w->rank == 1 ? 0 : 5, 0, w->rank == 1 ? 8 : 5, 5, 5);
	if (w->processes) { /* in one process a variable is all ranks' */
		choose(w->rank == 1 ? "host" : "auto", "0");
		works(w, "host memory", 1, "");
		choose(w->rank == 1 ? "host" : "ipc", "0");
		refused(w, "by CUDA IPC (NCCL_EP_MEMORY=ipc), rank 1 (host ");
		refused(w, "by host memory (NCCL_EP_MEMORY=host), rank 0 (host ");
		limited(w);
	}
	world_meet(w);
	choose("host", "1");
	refused(w, "it serves one node, and these ranks are 3 nodes");
	/* each rank reaches the others by its NIC, */
	world_meet(w);
	choose("auto", "1");
	works(w, "plain pointers", 3, "");
	/* or only those that it must */
	world_meet(w);
	choose("auto", "2");
	works(w, w->processes ? "CUDA IPC" : "plain pointers", 2,
	      w->processes ? "GPUs without peer access?" : "");
}

/*
 * A host stays one node, which CUDA IPC reaches; teams may be the nodes, but not more than one of
 * them.
 */
static void teams(struct world *w)
{
	setenv("NCCL_LSA_TEAM_SIZE", "2", 1);
	choose("auto", "0");
	works(w, "CUDA IPC", 1, "are in different LSA teams of NCCL, but their host makes them");
	choose("window", "0");
	refused(w, "are in different LSA teams of NCCL, but their host makes them one node");
	choose("window", "2");
	works(w, "NCCL windows", 2, "");
	choose("window", "1");
	works(w, "NCCL windows", 4, "");
	choose("window", "4");
	refused(w, "are in different LSA teams of NCCL, but NCCL_EP_NODE_SIZE makes them one node");
	unsetenv("NCCL_LSA_TEAM_SIZE");
}

static void threads(struct world *w)
{
	works(w, "plain pointers", 1, "");
	world_meet(w);
	choose("window", "0");
	world_meet(w);
	works(w, "NCCL windows", 1, "");
	world_meet(w);
	choose("ipc", "0");
	world_meet(w);
	works(w, "CUDA IPC", 1, "rank 0");
}

/* All ranks hear of it, with both GPUs, whoever looks first. */
static void mig(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;
	ncclResult_t code;
	const char *text;

	choose("auto", "0");
	world_meet(w);
	CHECK(ncclEpCreateGroup(&group, w->comm, &config) != ncclSuccess && !group);
	OK(ncclEpExtGetLastError(NULL, &code, &text));
	CHECK_HAS(text, " of rank 1 (a MIG instance)");
	CHECK_HAS(text, " of rank 0 ");
	CHECK_HAS(text, "cannot map each other's memory: disable MIG");
}

static void apart(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	const char *named = !getenv("CUDA_VISIBLE_DEVICES") ? "has no peer access to GPU"
							    : "cannot map memory of GPU";
	const char *what[] = { "auto", "ipc", "window" };
	ncclEpGroup_t group = NULL;

	for (int i = 0; i < 3; i++) {
		ncclResult_t result;
		const char *text = "";

		choose(what[i], "0");
		world_meet(w);
		result = ncclEpCreateGroup(&group, w->comm, &config);
		CHECK(result != ncclSuccess && !group);
		OK(ncclEpExtGetLastError(NULL, &result, &text));
		if (i == 2) {
			CHECK_HAS(text, "NCCL makes no windows of this communicator");
			continue;
		}
		CHECK_HAS(text, named);
		CHECK_HAS(text, "of rank 0");
		CHECK_HAS(text, "of rank 2");
		CHECK_HAS(text, "set NCCL_EP_MEMORY=host");
		CHECK_HAS(text, "or, with NICs, NCCL_EP_NODE_SIZE=1");
	}
}

/* One NCCL_HOSTID on hosts that share nothing: both names are in the error, and the variable. */
static void one_host(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;
	const char *text = "";
	ncclResult_t code;

	for (int i = 0; i < 2; i++) {
		choose(i ? "auto" : "ipc", "0");
		world_meet(w);
		CHECK(ncclEpCreateGroup(&group, w->comm, &config) != ncclSuccess && !group);
		OK(ncclEpExtGetLastError(NULL, &code, &text));
		CHECK_HAS(text, "vc-node-0");
		CHECK_HAS(text, "vc-node-1");
		CHECK_HAS(text, "count as one by NCCL_HOSTID");
	}
}

/*
 * Rank 1 does not come within NCCL's time, which is shorter than ours: the error has NCCL's words.
 */
static void not_there(struct world *w)
{
	struct oracle_problem p = problem(w);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;
	const char *text = "";
	ncclResult_t code;

	if (w->rank == 0) {
		CHECK(ncclEpCreateGroup(&group, w->comm, &config) != ncclSuccess && !group);
		OK(ncclEpExtGetLastError(NULL, &code, &text));
		CHECK_HAS(text,
			  "NCCL reports unhandled system error (waiting for all ranks: rank 1 "
			  "did not come within 1 s");
	}
	world_meet(w);
}

static void old(struct world *w)
{
	choose("auto", "0");
	works(w, "CUDA IPC", 1, "NCCL 2.28.9 has no pointers");
	choose("window", "0");
	refused(w, "NCCL 2.28.9 has no pointers to peers' windows, 2.29.2 has");
}

/* No group is made with an NCCL that is too old for it, on any rank. */
static void ancient(struct world *w)
{
	choose("auto", "0");
	refused(w, "this process has NCCL 2.27.7, and 2.28 is the oldest");
}

static void domain(struct world *w)
{
	choose("auto", "0");
	works(w, "NCCL windows", 1, "");
	choose("ipc", "0");
	works(w, "CUDA IPC", 2, "rank 0");
	choose("auto", "4");
	works(w, "NCCL windows", 2, "");
	choose("auto", "2,6");
	works(w, "NCCL windows", 2, "");
	choose("ipc", "2,6");
	refused(w, "are on different hosts, but NCCL_EP_NODE_SIZE makes them one node");
	choose("ipc", "2");
	works(w, "CUDA IPC", 4, "rank 0");
}

/* The group works as ever, and one line says that the variable means nothing here. */
static void p2p(struct world *w)
{
	choose("auto", "0");
	works(w, "NCCL windows", 1, "");
	setenv("NCCL_P2P_DISABLE", "0", 1);
	setenv("NCCL_P2P_LEVEL", "NVL", 1);
	works(w, "NCCL windows", 1, "");
	if (w->rank == 1) {
		setenv("NCCL_P2P_LEVEL", "loc", 1);
	} else {
		setenv("NCCL_P2P_DISABLE", "1", 1);
	}
	choose("auto", "1");
	works(w, "plain pointers", 3, "");
	CHECK_INT(self_logged("NCCL_P2P", NULL, NULL), 0);
	choose("auto", "0");
	for (int i = 0; i < 2; i++) {
		works(w, "NCCL windows", 1, "");
		CHECK_INT(self_logged("NCCL_P2P", NULL, NULL), 1);
	}
	CHECK_INT(self_logged(w->rank == 1 ? "WARN EP NCCL_P2P_LEVEL=loc does not count here"
					   : "WARN EP NCCL_P2P_DISABLE=1 does not count here",
			      NULL, NULL),
		  1);
}

static void uneven(struct world *w)
{
	struct world some = *w;

	choose("auto", "0");
	some.comm = world_comm(w, 0x1f);
	some.nranks = 5;
	if (w->rank < 5) {
		struct oracle_problem p = problem(&some);
		ncclEpGroup_t group = bench_group(&some, &p, 0);

		CHECK_TEXT(group->memory.mapping->name, "CUDA IPC");
		CHECK_INT(group->idents[3].node, 0);
		CHECK_INT(group->idents[4].node, 1);
		CHECK(strstr(group->memory.no_window.text, "ranks 0 (host ") &&
		      strstr(group->memory.no_window.text, "in different LSA teams"));
		OK(ncclEpGroupDestroy(group));
		OK(ncclCommDestroy(some.comm));
	}
	world_meet(w);
}

/* A GPU of another host is not the one of this host with its bus id. */
static void across(struct world *w)
{
	struct world some = *w;

	some.comm = world_comm(w, 0x9);
	some.nranks = 2;
	if (some.comm) {
		struct oracle_problem p = problem(&some);
		ncclEpGroup_t group = bench_group(&some, &p, 0);

		CHECK_TEXT(group->memory.mapping->name, "NCCL windows");
		CHECK(group->lines);
		OK(ncclEpGroupDestroy(group));
		OK(ncclCommDestroy(some.comm));
	}
	world_meet(w);
}

static void run(struct world *w, void *name)
{
	static const struct {
		const char *name;
		void (*fn)(struct world *w);
	} table[] = {
		{ "host", host },       { "threads", threads },   { "old", old },
		{ "ancient", ancient }, { "domain", domain },     { "uneven", uneven },
		{ "across", across },   { "apart", apart },       { "mig", mig },
		{ "p2p", p2p },         { "one_host", one_host }, { "not_there", not_there },
		{ "in_host", in_host }, { "teams", teams },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		if (!strcmp(name, table[i].name)) {
			table[i].fn(w);
			return;
		}
	}
	check_fail(__FILE__, __LINE__, "what is '%s'?", (char *)name);
}

int main(int argc, char **argv)
{
	NEED(argc == 2);
	choose("auto", "0");
	if (!strcmp(argv[1], "p2p")) {
		self_log("WARN");
	}
	world_run(world_size(3), run, argv[1]);
	return check_end();
}
