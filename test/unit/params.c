/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter table: values, limits, misspelt names. */
#include <stdlib.h>
#include "core/bootstrap.h"
#include "core/param.h"
#include "support/check_nccl.h"
#include "support/reason.h"

static char name[EP_PARAM_NAME_MAX + 1];
static const char *nearest;

static void test_table(void)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		const struct ep_param_def *d = &ep_param_table[i];

		CHECK(d->name && strncmp(d->name, "NCCL_EP_", 8) == 0 && d->help && d->help[0]);
		CHECK(d->min <= d->initial && d->initial <= d->max);
		CHECK(!ep_param_unknown(d->name, name, &nearest));
		CHECK_TEXT(nearest, d->name);
	}
}

static void test_values(void)
{
	struct ep_params p;
	int64_t v = -7;

	OK(ep_params_read(&p));
	for (int i = 0; i < EP_PARAMS; i++) {
		CHECK(!p.set[i] && p.value[i] == ep_param_table[i].initial);
	}
	setenv("NCCL_EP_TIMEOUT_MS", "250", 1);
	setenv("NCCL_EP_COMM_SMS", "", 1); /* empty counts as unset */
	OK(ep_params_read(&p));
	CHECK(p.set[EP_PARAM_TIMEOUT_MS] && p.value[EP_PARAM_TIMEOUT_MS] == 250);
	CHECK(!p.set[EP_PARAM_COMM_SMS] && p.value[EP_PARAM_COMM_SMS] == 0);

	setenv("NCCL_EP_TIMEOUT_MS", "soon", 1);
	CHECK_REASON(ep_params_read(&p), ncclInvalidUsage,
		     "NCCL_EP_TIMEOUT_MS=soon is not a number");
	setenv("NCCL_EP_TIMEOUT_MS", "12x", 1);
	CHECK(ep_params_read(&p) == ncclInvalidUsage);
	setenv("NCCL_EP_TIMEOUT_MS", "-1", 1);
	CHECK_REASON(ep_params_read(&p), ncclInvalidUsage,
		     "NCCL_EP_TIMEOUT_MS=-1 is out of range: set it to 0..86400000");
	setenv("NCCL_EP_TIMEOUT_MS", "99999999999999999999", 1);
	CHECK(ep_params_read(&p) == ncclInvalidUsage);
	unsetenv("NCCL_EP_TIMEOUT_MS");
	OK(ep_params_read(&p));

	CHECK(ep_param_parse(EP_PARAM_LL_THREADS, "33", &v) == ncclInvalidUsage && v == -7);
	CHECK_HAS(last_text(), "a multiple of 32");
	CHECK(ep_param_parse(EP_PARAM_LL_THREADS, "96", &v) == ncclSuccess && v == 96);
	CHECK(ep_param_parse(EP_PARAM_LL_LINES, "-1", &v) == ncclSuccess && v == -1);
}

static void test_switch(void)
{
	static const struct {
		const char *text;
		int on;
	} cases[] = { { "1", 1 },   { "yes", 1 },   { "", 0 },    { "0", 0 },
		      { "off", 0 }, { "FALSE", 0 }, { "TRUE", 1 } };
	int64_t v;

	for (size_t i = 0; i < EP_ARRAY_SIZE(cases); i++) {
		OK(ep_param_parse(EP_PARAM_DEBUG, cases[i].text, &v));
		CHECK(v == cases[i].on);
	}
}

static void test_names(void)
{
	CHECK(ep_param_unknown("NCCL_EP_TIMEOUT=5", name, &nearest));
	CHECK_TEXT(name, "NCCL_EP_TIMEOUT");
	CHECK_TEXT(nearest, "NCCL_EP_TIMEOUT_MS");
	CHECK(ep_param_unknown("NCCL_EP_LL_LINE", name, &nearest));
	CHECK_TEXT(nearest, "NCCL_EP_LL_LINES");
	CHECK(ep_param_unknown("NCCL_EP_COM_SMS", name, &nearest));
	CHECK_TEXT(nearest, "NCCL_EP_COMM_SMS");
	CHECK(ep_param_unknown("NCCL_EP_SOMETHING_ELSE_ENTIRELY", name, &nearest) && !nearest);
	/* other implementations' */
	CHECK(!ep_param_unknown("NCCL_EP_HOME=/", name, &nearest));
	CHECK(!ep_param_unknown("NCCL_EP_DISPATCH_COPY_MODE=1", name, &nearest));
	CHECK(!ep_param_unknown("NCCL_EP_HT_EM_PULL_PUSH=1", name, &nearest));
	CHECK(!ep_param_unknown("NCCL_EP_HT_UNFUSED_SYNC=1", name, &nearest));
	CHECK(!ep_param_unknown("NCCL_EP_HT_EM_AG_SCAN_MODE=1", name, &nearest));
	CHECK(!ep_param_unknown("NCCL_EP_HT_EM_COUNT_UNFUSED=1", name, &nearest));
	CHECK(!ep_param_unknown("NCCL_DEBUG=INFO", name, &nearest));
}

/* Every item counts, where it stands: of a list of the most items, too. */
static void test_long_lists(void)
{
	int64_t value[2 * EP_PARAM_LIST_MAX];
	char text[6 * EP_PARAM_LIST_MAX];

	for (int i = 0; i < 2 * EP_PARAM_LIST_MAX; i++) {
		size_t n = 0;

		for (int k = 0; k < EP_PARAM_LIST_MAX; k++) {
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%d", k ? "," : "",
					      k == i / 2 ? 16 << i % 2 : 8);
		}
		OK(ep_param_parse(EP_PARAM_NODE_SIZE, text, &value[i]));
		for (int k = 0; k < i; k++) {
			CHECK(value[k] != value[i]);
		}
	}
}

static void test_lists(void)
{
	static const char *const wrong[] = { "x",      "1,",  ",1",   "1,,2",      "1,0,2", "1025",
					     "-1",     "1;2", "1 2",  "1,2x",      "0,1",   "",
					     "1,1025", "1,a", "0x10", "4294967297" };
	struct ep_params p;
	int64_t v = -7;

	setenv("NCCL_EP_NODE_SIZE", "1, 2,3 ", 1);
	CHECK(ep_params_read(&p) == ncclSuccess && p.value[EP_PARAM_NODE_SIZE] == 100020003);
	CHECK(p.node_size.count == 3 && p.node_size.item[0] == 1);
	CHECK(p.node_size.item[1] == 2 && p.node_size.item[2] == 3);
	setenv("NCCL_EP_NODE_SIZE", "1024", 1);
	CHECK(ep_params_read(&p) == ncclSuccess && p.node_size.count == 1);
	setenv("NCCL_EP_NODE_SIZE", "0", 1);
	CHECK(ep_params_read(&p) == ncclSuccess && p.node_size.count == 0);
	unsetenv("NCCL_EP_NODE_SIZE");
	CHECK(ep_params_read(&p) == ncclSuccess && p.node_size.count == 0);
	for (size_t i = 0; i < EP_ARRAY_SIZE(wrong); i++) {
		CHECK_REASON(ep_param_parse(EP_PARAM_NODE_SIZE, wrong[i], &v), ncclInvalidUsage,
			     "is not a number or a list of numbers from 1 to 1024, 64 at most");
	}
	CHECK(v == -7);
	for (int i = 0; i < EP_MEMORIES; i++) {
		static const char *const words[] = { "auto", "window", "ipc", "host" };
		char word[EP_PARAM_WORD_MAX];

		CHECK(ep_param_parse(EP_PARAM_MEMORY, words[i], &v) == ncclSuccess && v == i);
		CHECK_TEXT(ep_param_word(EP_PARAM_MEMORY, i, word), words[i]);
	}
	CHECK_REASON(ep_param_parse(EP_PARAM_MEMORY, "ip", &v), ncclInvalidUsage,
		     "NCCL_EP_MEMORY=ip: set it to one of auto|window|ipc|host, or unset it");
	CHECK(ep_param_parse(EP_PARAM_MEMORY, "auto|window", &v) == ncclInvalidUsage);
	CHECK_REASON(ep_param_parse(EP_PARAM_RDMA_DEPTH, "96", &v), ncclInvalidUsage,
		     "set it to 64..32768 (a power of two)");
	CHECK(ep_param_parse(EP_PARAM_RDMA_DEPTH, "32", &v) == ncclInvalidUsage);
	CHECK(ep_param_parse(EP_PARAM_RDMA_DEPTH, "64", &v) == ncclSuccess && v == 64);
	for (int i = 0; i < 5; i++) {
		static const char *const words[] = { "auto", "gpu", "gpu_host", "cpu_db",
						     "cpu_proxy" };
		char word[EP_PARAM_WORD_MAX], number[2] = { (char)('0' + i), '\0' };

		CHECK(ep_param_parse(EP_PARAM_RDMA_MODE, words[i], &v) == ncclSuccess && v == i);
		v = -7;
		CHECK(ep_param_parse(EP_PARAM_RDMA_MODE, number, &v) == ncclSuccess && v == i);
		CHECK_TEXT(ep_param_word(EP_PARAM_RDMA_MODE, i, word), words[i]);
	}
	v = -7;
	CHECK_REASON(ep_param_parse(EP_PARAM_RDMA_MODE, "5", &v), ncclInvalidUsage,
		     "NCCL_EP_RDMA_MODE=5: set it to one of auto|gpu|gpu_host|cpu_db|cpu_proxy "
		     "(0..4), or unset it");
	CHECK(ep_param_parse(EP_PARAM_RDMA_MODE, "-1", &v) == ncclInvalidUsage);
	CHECK(ep_param_parse(EP_PARAM_RDMA_MODE, "cpu", &v) == ncclInvalidUsage);
	CHECK(ep_param_parse(EP_PARAM_MEMORY, "1", &v) == ncclInvalidUsage && v == -7);
	CHECK(ep_param_parse(EP_PARAM_RDMA_QUEUES, "16", &v) == ncclInvalidUsage);
}

#define RANKS 8

static bool nodes_are(const char *text, int nranks, const char *expected)
{
	struct ep_ident idents[RANKS];
	uint32_t node[RANKS];
	const struct ep_roles roles = { 0, (uint32_t)nranks, 0, (uint32_t)nranks };
	struct ep_nodes_most most = { 0 }, found;
	struct ep_params p;

	setenv("NCCL_EP_NODE_SIZE", text, 1);
	OK(ep_params_read(&p));
	unsetenv("NCCL_EP_NODE_SIZE");
	memset(idents, 0, sizeof(idents));
	for (int r = 0; r < nranks; r++) {
		idents[r].domain = (uint32_t)r % 2; /* only counts without the parameter */
	}
	if (ep_nodes_assign(idents, &p.node_size, nranks) != ncclSuccess) {
		return false;
	}
	for (int r = 0; r < nranks; r++) {
		node[r] = idents[r].node;
		if (node[r] != (uint32_t)(expected[r] - '0')) {
			return false;
		}
	}
	for (int r = 0; r < nranks; r++) {
		uint32_t near = 0;

		for (int i = 0; i < nranks; i++) {
			near += node[i] == node[r];
		}
		most.near = near > most.near ? near : most.near;
		most.remote = nranks - near > most.remote ? nranks - near : most.remote;
	}
	found = ep_nodes_most(node, sizeof(*node), nranks, &roles);
	CHECK(found.near == most.near && found.near_senders == most.near);
	CHECK(found.remote == most.remote && found.remote_holders == most.remote);
	return true;
}

static void test_nodes(void)
{
	CHECK(nodes_are("4", 8, "00001111"));
	CHECK(nodes_are("3", 8, "00011122"));
	CHECK(nodes_are("8", 8, "00000000"));
	CHECK(nodes_are("9", 8, "00000000"));
	CHECK(nodes_are("1", 4, "0123"));
	CHECK(nodes_are("1,2,3", 6, "011222"));
	CHECK(nodes_are("6,2", 8, "00000011"));
	CHECK(nodes_are("", 5, "01010"));
	CHECK(!nodes_are("1,2,3", 7, ""));
	CHECK_HAS(last_text(), "has 3 nodes of 6 ranks in all, the communicator has 7 ranks");
	CHECK(!nodes_are("1,2,3", 5, ""));
}

/*
 * Peers count by their roles: of those that hold experts, others that bring tokens, and the other
 * way round.
 */
static void test_roles(void)
{
	static const uint32_t two[RANKS] = { 0, 0, 0, 0, 0, 1, 1, 1 }, one[RANKS];
	const struct ep_roles apart = { 0, 5, 5, 3 }, mixed = { 1, 3, 2, 3 }, lone = { 2, 1, 2, 1 };
	struct ep_nodes_most m = ep_nodes_most(two, sizeof(*two), RANKS, &apart);

	CHECK(m.near == 5 && m.remote == 5);
	CHECK(m.near_senders == 0 && m.remote_senders == 3);
	CHECK(m.near_holders == 0 && m.remote_holders == 5);
	CHECK(m.flows == 1 &&
	      m.return_rings == 10); /* three senders, of whom ranks of five forward one each */
	m = ep_nodes_most(one, sizeof(*one), RANKS, &mixed);
	CHECK(m.near_senders == 3 && m.near_holders == 3 && !m.remote_senders && !m.remote_holders);
	m = ep_nodes_most(one, sizeof(*one), RANKS, &lone);
	CHECK(m.near_senders == 1 && m.near_holders == 0);
}

int main(void)
{
	test_table();
	test_lists();
	test_long_lists();
	test_nodes();
	test_roles();
	test_values();
	test_switch();
	test_names();
	return check_end();
}
