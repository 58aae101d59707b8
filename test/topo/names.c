/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_IB_HCA's grammar, distance names, PCI addresses. */
#include <errno.h>
#include <string.h>

#include "support/check.h"
#include "topo/tree.h"

static const struct {
	const char *text, *name;
	int port;
	bool match;
} hca_cases[] = { { NULL, "mlx5_0", 1, true },
		  { "", "mlx5_0", 1, true },
		  { "mlx5", "mlx5_0", 1, true },
		  { "mlx5", "bnxt_re0", 1, false },
		  { "mlx5_1", "mlx5_10", 1, true },
		  { "=mlx5_1", "mlx5_10", 1, false },
		  { "=mlx5_10", "mlx5_1", 1, false },
		  { "=mlx5_1", "mlx5_1", 2, true },
		  { "mlx5_0:1", "mlx5_0", 1, true },
		  { "mlx5_0:1", "mlx5_0", 2, false },
		  { "=mlx5_0:1,mlx5_1:2", "mlx5_1", 2, true },
		  { "=mlx5_0:1,mlx5_1:2", "mlx5_1", 1, false },
		  { "=mlx5_0:1,mlx5_0:2", "mlx5_0", 2, true },
		  { "^mlx5_1", "mlx5_1", 1, false },
		  { "^mlx5_1", "mlx5_10", 1, false },
		  { "^=mlx5_1", "mlx5_10", 1, true },
		  { "^=mlx5_1,mlx5_4", "mlx5_4", 1, false },
		  { "^=mlx5_1:2", "mlx5_1", 1, true },
		  { "^=mlx5_1:2", "mlx5_1", 2, false },
		  { "^", "mlx5_0", 1, false },
		  { "=", "mlx5_0", 1, true },
		  { ",mlx5_3,,mlx5_4,", "mlx5_4", 1, true },
		  { ",mlx5_3,,mlx5_4,", "mlx5_5", 1, false },
		  { "mlx5_0:1:0:3", "mlx5_0", 1, true },
		  { "mlx5_0:1:0:3", "mlx5_0", 2, false },
		  { "mlx5_0:", "mlx5_0", 2, true },
		  { "=mlx5_0:", "mlx5_01", 2, false },
		  { "mlx5_0::0", "mlx5_0", 2, true },
		  { "mlx5_0::0:1", "mlx5_1", 2, false },
		  { "mlx5_0:1:", "mlx5_0", 1, true },
		  { "mlx5_0:1:", "mlx5_0", 2, false },
		  { "mlx5_0:1::2", "mlx5_0", 2, false },
		  { "mlx5_0:-1:2", "mlx5_0", 2, true },
		  { "mlx5_0:,mlx5_1:2", "mlx5_1", 1, false },
		  { ":1,mlx5_3", "mlx5_0", 1, false },
		  { ":1,mlx5_3", "mlx5_3", 2, true },
		  { ":1", "mlx5_0", 2, true },
		  { "=:1", "mlx5_0", 1, true },
		  { "^:1", "mlx5_0", 1, false },
		  { ":x", "mlx5_0", 1, true },
		  { "mlx5_1, mlx5_3", "mlx5_3", 1, true },
		  { "mlx5_1:1 ", "mlx5_1", 1, true },
		  { "mlx5_1:1 ", "mlx5_1", 2, false },
		  { " ^ = mlx5_1\t,\tmlx5_2:1\t", "mlx5_1", 1, false },
		  { " ^ = mlx5_1\t,\tmlx5_2:1\t", "mlx5_2", 1, false },
		  { " ^ = mlx5_1\t,\tmlx5_2:1\t", "mlx5_10", 1, true },
		  { "mlx5_1 , ,", "mlx5_2", 1, false },
		  { " ", "mlx5_0", 1, true } };

static const struct {
	const char *text;
	int rc;
} hca_errors[] = {
	{ "mlx5_0:x", -EINVAL },   { "mlx5_0:1x", -EINVAL },
	{ "mlx5_0:-", -EINVAL },   { "mlx5_0:-2", -EINVAL },
	{ "mlx5_0:-1x", -EINVAL }, { "mlx5_0: 1", -EINVAL },
	{ "mlx5_0::x", -EINVAL },  { "mlx5_0:256", -EINVAL },
	{ "mlx5_0:1:x", -EINVAL }, { "mlx5_0:1:16384", -EINVAL },
	{ "a,b:q,c", -EINVAL },    { "mlx5_0:99999999999999999999", -EINVAL },
};

static void test_hca(void)
{
	struct ep_topo_hca hca;
	struct ep_topo_err err;

	for (size_t i = 0; i < sizeof(hca_cases) / sizeof(hca_cases[0]); i++) {
		const char *text = hca_cases[i].text;
		int rc = ep_topo_hca_parse(text, &hca, &err);

		CHECK(rc == 0, "\"%s\": %s", text, err.text);
		CHECK(ep_topo_hca_match(&hca, hca_cases[i].name, hca_cases[i].port) ==
			      hca_cases[i].match,
		      "\"%s\" and %s:%d", text ? text : "(unset)", hca_cases[i].name,
		      hca_cases[i].port);
	}
	for (size_t i = 0; i < sizeof(hca_errors) / sizeof(hca_errors[0]); i++) {
		hca.n = -7;
		err.text[0] = '\0';
		int rc = ep_topo_hca_parse(hca_errors[i].text, &hca, &err);

		CHECK(rc == hca_errors[i].rc, "\"%s\" gave %d", hca_errors[i].text, rc);
		CHECK(hca.n == -7, "\"%s\": output written", hca_errors[i].text);
		CHECK(strstr(err.text, "NCCL_IB_HCA"), "\"%s\" says \"%s\"", hca_errors[i].text,
		      err.text);
	}
}

static void test_hca_limits(void)
{
	struct ep_topo_hca hca;
	struct ep_topo_err err;
	char text[1024] = "";

	for (int i = 0; i < EP_TOPO_HCA_MAX; i++) {
		sprintf(text + strlen(text), "m%d,", i);
	}
	CHECK(ep_topo_hca_parse(text, &hca, &err) == 0, "%s", err.text);
	CHECK(hca.n == EP_TOPO_HCA_MAX && ep_topo_hca_match(&hca, "m63", 1), "n is %d", hca.n);
	strcat(text, "one_more");
	CHECK(ep_topo_hca_parse(text, &hca, &err) == -E2BIG, "65 names");
	memset(text, 'a', 64);
	text[64] = '\0';
	CHECK(ep_topo_hca_parse(text, &hca, &err) == -ENAMETOOLONG, "64 characters");
	text[63] = '\0';
	CHECK(ep_topo_hca_parse(text, &hca, &err) == 0, "63 characters");
}

static void test_level(void)
{
	static const struct {
		const char *text;
		int dist;
	} cases[] = { { "LOC", EP_TOPO_LOC },
		      { "PIX", EP_TOPO_PIX },
		      { "pxb", EP_TOPO_PXB },
		      { "PHB", EP_TOPO_NODE },
		      { "NODE", EP_TOPO_NODE },
		      { "SYS", EP_TOPO_SYS },
		      { "NVL", EP_TOPO_LOC },
		      { "NVB", EP_TOPO_LOC },
		      { "C2C", EP_TOPO_LOC },
		      { "P2C", EP_TOPO_PXB },
		      { "pxn", EP_TOPO_PXB },
		      { "0", EP_TOPO_LOC },
		      { "1", EP_TOPO_PIX },
		      { "2", EP_TOPO_PXB },
		      { "3", EP_TOPO_NODE },
		      { "4", EP_TOPO_SYS },
		      { "5", EP_TOPO_SYS },
		      { "9", EP_TOPO_SYS },
		      { "-1", -1 },
		      { "", -1 },
		      { "PI", -1 },
		      { "1x", -1 },
		      { "-", -1 },
		      { "NET", -1 },
		      { "DIS", -1 } };
	struct ep_topo_err err;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		enum ep_topo_dist dist = EP_TOPO_DISTANT;
		int rc = ep_topo_level_parse(cases[i].text, &dist, &err);

		CHECK(cases[i].dist < 0 ? rc == -EINVAL && dist == EP_TOPO_DISTANT
					: rc == 0 && (int)dist == cases[i].dist,
		      "\"%s\" gave rc %d distance %d", cases[i].text, rc, (int)dist);
	}
	for (int d = EP_TOPO_LOC; d < EP_TOPO_DISTANT; d++) {
		const char *name = ep_topo_level_name((enum ep_topo_dist)d);
		enum ep_topo_dist dist = EP_TOPO_DISTANT;

		CHECK(ep_topo_level_parse(name, &dist, &err) == 0 && (int)dist >= d &&
			      strcmp(name, "NODE") != 0,
		      "distance %d: \"%s\" permits %d", d, name, (int)dist);
	}
}

static void test_pci(void)
{
	static const struct {
		const char *text, *printed;
	} cases[] = { { "0000:17:00.0", "0000:17:00.0" },
		      { "00000000:17:00.0", "0000:17:00.0" },
		      { "17:00.1", "0000:17:00.1" },
		      { "10000:E1:1F.7", "10000:e1:1f.7" },
		      { "ffff:ff:01.0", "ffff:ff:01.0" },
		      { "", NULL },
		      { "17:00", NULL },
		      { "0000:17:00", NULL },
		      { "0000:17:00.8", NULL },
		      { "0000:17:20.0", NULL },
		      { "0000:100:00.0", NULL },
		      { "0000:17:00.0x", NULL },
		      { "1:0000:17:00.0", NULL },
		      { "17.00.0", NULL },
		      { "100000000:17:00.0", NULL },
		      { " 0000:17:00.0", NULL },
		      { "0000:17:00.", NULL },
		      { "mlx5_core.sf.2", NULL },
		      { "0000:17.00.0", NULL },
		      { "0:17:0.0.0", NULL } };

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ep_topo_pci pci = { .known = false };
		char buf[EP_TOPO_PCI_LEN] = "";
		bool ok = ep_topo_pci_parse(cases[i].text, &pci);

		CHECK(ok == (cases[i].printed != NULL), "\"%s\"", cases[i].text);
		CHECK(!ok || !cases[i].printed ||
			      strcmp(ep_topo_pci_print(&pci, buf), cases[i].printed) == 0,
		      "\"%s\" became \"%s\"", cases[i].text, buf);
	}
}

static void test_link(void)
{
	/* PCIe 3.0 x16 and 5.0 x16 carry 126 and 504 Gb/s, 2.0 x8 32. */
	CHECK(ep_topo_link_mbps(8, 16) == 126030, "%u", ep_topo_link_mbps(8, 16));
	CHECK(ep_topo_link_mbps(32, 16) == 504123, "%u", ep_topo_link_mbps(32, 16));
	CHECK(ep_topo_link_mbps(5, 8) == 32000, "%u", ep_topo_link_mbps(5, 8));
	CHECK(ep_topo_link_mbps(0, 16) == 0, "unknown speed");
	CHECK(ep_topo_link_mbps(16, 0) == 0, "unknown width");
}

int main(void)
{
	test_hca();
	test_hca_limits();
	test_level();
	test_pci();
	test_link();
	return check_end();
}
