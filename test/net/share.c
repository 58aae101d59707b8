/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that has the plugin and the EP library: lines of the second go to the logger that NCCL
 * has given the first, and where they went before when the plugin is not there yet or is finalized.
 *   share LIBRARY
 */
#include <fcntl.h>
#include <unistd.h>
#include "net/rig.h"
#include "support/bench.h"

static char written[] = "/tmp/ep_net_share_XXXXXX"; /* NCCL_DEBUG_FILE */

/* How many lines of a new group NCCL's logger has got, and how many the file. */
static void make_group(struct world *w, void *arg)
{
	struct oracle_problem p =
		bench_problem(w->nranks, w->nranks * 2, 1, 128, 1, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, 0);
	ncclEpGroupConfig_t wrong = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t none;

	(void)arg;
	OK(ncclEpGroupDestroy(group));
	CHECK_RESULT(ncclEpCreateGroup(&none, w->comm, &wrong), ncclInvalidArgument);
}

static bool in_file(const char *text)
{
	static char all[1 << 16];
	int fd = open(written, O_RDONLY);
	ssize_t n;

	NEED(fd >= 0);
	n = read(fd, all, sizeof(all) - 1);
	NEED(n >= 0);
	all[n] = '\0';
	close(fd);
	return strstr(all, text);
}

static void expect(const char *when, bool by_logger)
{
	check_context("%s", when);
	net_log_clear();
	NEED(truncate(written, 0) == 0);
	world_run(2, make_group, NULL);
	CHECK((strncmp(net_log_find(3, "rank 1 of 2: low latency"), "EP group ", 9) == 0) ==
	      by_logger);
	CHECK(in_file("NCCL INFO EP group ") != by_logger);
	CHECK(in_file("rank 1 of 2: low latency") != by_logger);
}

int main(int argc, char **argv)
{
	struct net net;

	NEED(argc > 1);
	/* a descriptor that is open is what the library would write to */
	close(mkstemp(written));
	setenv("NCCL_DEBUG", "INFO", 1);
	setenv("NCCL_DEBUG_FILE", written, 1);
	expect("without the plugin", false);
	net_load(&net, argv[1], 11);
	expect("before NCCL has given it a logger", false);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	expect("with it", true);
	CHECK_INT(net_finalize(&net), NET_OK);
	expect("when it is finalized", false);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	expect("with it again", true);
	CHECK_INT(net_finalize(&net), NET_OK);
	unlink(written);
	return check_end();
}
