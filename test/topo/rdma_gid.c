/* SPDX-License-Identifier: Apache-2.0 */
/* Which entry of a port's GID table is taken. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/reason.h"
#include "rdma/rdma.h"
#include "ib_vars.h"

struct table {
	struct ep_gid gid[8];
	int n;
};

static void add(struct table *t, int index, int roce, const char *address)
{
	struct ep_gid *gid = &t->gid[t->n++];

	memset(gid, 0, sizeof(*gid));
	gid->index = index;
	gid->roce = roce;
	if (strchr(address, ':')) {
		CHECK(inet_pton(AF_INET6, address, gid->raw) == 1, "%s", address);
	} else {
		gid->raw[10] = gid->raw[11] = 0xff;
		CHECK(inet_pton(AF_INET, address, gid->raw + 12) == 1, "%s", address);
	}
}

/* As a RoCE port has them: each address twice, versions 1 and 2. */
static struct table usual(void)
{
	struct table t = { .n = 0 };

	add(&t, 0, 1, "fe80::1");
	add(&t, 1, 2, "fe80::1");
	add(&t, 2, 1, "2001:db8::5");
	add(&t, 3, 2, "2001:db8::5");
	add(&t, 4, 1, "10.1.2.3");
	add(&t, 5, 2, "10.1.2.3");
	add(&t, 6, 2, "192.168.7.7");
	return t;
}

/* The chosen index; or what the reason says. */
static void try_gid(const struct table *t, bool ethernet, int want, const char *reason)
{
	struct ep_ib_env env;
	int pos = -1;
	ncclResult_t rc;

	CHECK(ep_ib_env_read(&env) == ncclSuccess, "%s", last_text());
	rc = ep_gid_pick("mlx5_0:1", ethernet, t->gid, t->n, &env, &pos);
	if (reason) {
		CHECK(rc != ncclSuccess && strstr(last_text(), reason) &&
			      strstr(last_text(), "mlx5_0:1"),
		      "%d, %s", rc, last_text());
	} else {
		CHECK(rc == ncclSuccess, "%s", last_text());
		CHECK(pos >= 0 && t->gid[pos].index == want, "index %d instead of %d",
		      pos < 0 ? -1 : t->gid[pos].index, want);
	}
}

static void test_gids(void)
{
	struct table t = usual();
	char text[EP_GID_TEXT];

	ib_vars_clear();
	try_gid(&t, true, 5, NULL);
	try_gid(&t, false, 0, NULL);
	setenv("NCCL_IB_GID_INDEX", "3", 1);
	try_gid(&t, true, 3, NULL);
	try_gid(&t, false, 0, NULL); /* set for the cluster's RoCE machines */
	setenv("NCCL_IB_GID_INDEX", "7", 1);
	try_gid(&t, true, 0, "NCCL_IB_GID_INDEX=7");
	try_gid(&t, false, 0, NULL);
	ib_vars_clear();
	setenv("NCCL_IB_ROCE_VERSION_NUM", "1", 1);
	try_gid(&t, true, 4, NULL);
	ib_vars_clear();
	setenv("NCCL_IB_ADDR_FAMILY", "AF_INET6", 1);
	try_gid(&t, true, 3, NULL);
	setenv("NCCL_IB_ADDR_RANGE", "fe80::/10", 1);
	try_gid(&t, true, 1, NULL);
	setenv("NCCL_IB_ADDR_RANGE", "2001:db9::/32", 1);
	try_gid(&t, true, 0, "all outside NCCL_IB_ADDR_RANGE");
	ib_vars_clear();
	setenv("NCCL_IB_ADDR_RANGE", "192.168.0.0/16", 1);
	try_gid(&t, true, 6, NULL);
	setenv("NCCL_IB_ADDR_RANGE", "192.168.7.6/31", 1);
	try_gid(&t, true, 6, NULL);
	setenv("NCCL_IB_ADDR_RANGE", "192.168.7.6/32", 1);
	try_gid(&t, true, 0, "no usable GID");
	/* Addresses of the other family are not taken, whatever the range. */
	setenv("NCCL_IB_ADDR_FAMILY", "AF_INET6", 1);
	setenv("NCCL_IB_ADDR_RANGE", "::ffff:0:0/96", 1);
	try_gid(&t, true, 0, "all outside NCCL_IB_ADDR_RANGE");
	ib_vars_clear();
	t.n = 4; /* no IPv4 */
	try_gid(&t, true, 3, NULL);
	t.n = 2; /* link-local only */
	try_gid(&t, true, 1, NULL);
	t.n = 1; /* version 1 only */
	try_gid(&t, true, 0, "of 1 entries 0 are of RoCE version 2");
	t.n = 0;
	try_gid(&t, true, 0, "of 0 entries");
	try_gid(&t, false, 0, "is empty");
	add(&t, 0, 0, "fe80::"); /* what an unconfigured InfiniBand port has */
	try_gid(&t, false, 0, "is empty");
	t.n = 0;
	add(&t, 0, 0, "10.9.9.9"); /* nobody tells the version */
	try_gid(&t, true, 0, "reports the RoCE version of 1 of 1 entries; set NCCL_IB_GID_INDEX");
	t.n = 0;
	add(&t, 0, 2, "::");
	add(&t, 1, 2, "169.254.3.4");
	add(&t, 2, 2, "10.9.9.9");
	try_gid(&t, true, 2, NULL);
	CHECK(!strcmp(ep_gid_print(t.gid[2].raw, text), "10.9.9.9"), "%s", text);
	t = usual();
	CHECK(!strcmp(ep_gid_print(t.gid[2].raw, text), "2001:db8::5"), "%s", text);
}

/* InfiniBand whose subnets are routed: the entry with a FLID, wherever it is said to be. */
static void test_flid(void)
{
	struct table t = { .n = 0 };

	ib_vars_clear();
	add(&t, 0, 0, "fec0:0:0:7::1");
	add(&t, 1, 0, "fec0:0:4107:7::1");
	add(&t, 3, 0, "fec0:0:4109:7::1");
	try_gid(&t, false, 1, NULL);
	setenv("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "3", 1);
	try_gid(&t, false, 3, NULL);
	setenv("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "2", 1);
	try_gid(&t, false, 0, NULL);
	setenv("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "-1", 1);
	try_gid(&t, false, 0, NULL);
	CHECK(ep_gid_flid(t.gid[0].raw) == 0, "%x", ep_gid_flid(t.gid[0].raw));
	CHECK(ep_gid_flid(t.gid[1].raw) == 0x4107, "%x", ep_gid_flid(t.gid[1].raw));
	CHECK(ep_gid_same_subnet(t.gid[0].raw, t.gid[2].raw), "%s", "other FLIDs");
	add(&t, 4, 0, "fec0:0:4107:8::1");
	CHECK(!ep_gid_same_subnet(t.gid[1].raw, t.gid[3].raw), "%s", "other subnets");
}

int main(void)
{
	test_gids();
	test_flid();
	return check_end();
}
