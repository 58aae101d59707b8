/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables, their members and what they say of devices, in the versions that NCCL knows; and a
 * machine where there is none.
 *   tables LIBRARY [none TEXT]    TEXT: what the only line says
 *   tables LIBRARY gin TEXT       the same for GIN alone
 *   tables LIBRARY closed         a device that cannot be opened, besides another one
 *   tables LIBRARY gin_own        in a process whose NCCL has its own GIN
 */
#include <dlfcn.h>
#include "net/gin_rig.h"

static void test_members(const char *library)
{
	static const int members[] = { [8] = 19, [9] = 20, [10] = 20, [11] = 22, [12] = 22 };
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	NET_NEED(lib, "%s", dlerror());
	CHECK(!dlsym(lib, "ncclNetPlugin_v7") && !dlsym(lib, "ncclNetPlugin_v13"));
	/* What is not offered is not there: NCCL would choose it. */
	CHECK(!dlsym(lib, "ncclGinPlugin_v10") && !dlsym(lib, "ncclGinPlugin_v12"));
	CHECK(!dlsym(lib, "ncclRmaPlugin_v14"));
	CHECK(!dlsym(lib, "ep_fail") && !dlsym(lib, "ep_net_isend"));
	for (int version = 8; version <= 12; version++) {
		struct net n;

		check_context("version %d", version);
		net_load(&n, library, version);
		CHECK_TEXT(n.table[NET_NAME], "EP");
		for (int i = NET_INIT; i < members[version]; i++) {
			bool may_lack = i == NET_DEVICE_MR || i == NET_CONSUMED ||
					i == NET_MAKE_VDEVICE || i == NET_SET_ATTR;

			CHECK(may_lack || n.table[i], "member %d", i);
		}
	}
}

static void test_devices(const char *library)
{
	for (int version = 8; version <= 12; version++) {
		struct net_props p;
		struct net n;
		int count = -1;

		check_context("version %d", version);
		net_load(&n, library, version);
		CHECK_INT(net_init(&n, -1), NET_OK);
		CHECK_HAS(net_log_find(2, "NCCL_IB_HCA"), "\"mlx5_7\" is none of the 4 active");
		CHECK_INT(net_devices(&n, &count), NET_OK);
		CHECK_INT(count, 3);
		for (int dev = 0; dev < count; dev++) {
			char name[24];

			snprintf(name, sizeof(name), "mlx5_%d", dev);
			CHECK_INT(net_properties(&n, dev, &p), NET_OK);
			CHECK_TEXT(p.name, name);
			CHECK(!p.path && p.guid, "the software NIC has a GUID and no PCI address");
			CHECK(p.ptr_support & NET_HOST && !(p.ptr_support & ~7));
			CHECK_INT(p.speed, 400000);
			CHECK_INT(p.port, 1);
			CHECK(p.latency == 0 && p.max_comms > 0 && p.global == 1);
			CHECK_INT(p.max_recvs, 8);
			CHECK(p.type == 0 && p.type_version == 0);
			CHECK(p.force_flush == (version == 8 ? -1 : 0));
			CHECK(p.ndevs == (version == 8 ? -1 : 1));
			CHECK(p.devs[0] == (version == 8 ? -1 : dev));
			CHECK(version == 8 || (p.max_p2p > 0 && p.max_p2p < 1ll << 31), "%lld",
			      p.max_p2p);
			CHECK(version == 8 || (p.max_coll > 0 && p.max_coll < 1ll << 31), "%lld",
			      p.max_coll);
			CHECK_INT(p.max_multi, version < 11 ? -1 : 1);
			CHECK(p.rail == -1 && p.plane == -1);
		}
		CHECK_INT(net_properties(&n, -1, &p), NET_ARGUMENT);
		CHECK_INT(net_properties(&n, count, &p), NET_ARGUMENT);
		CHECK_HAS(net_log_last(), "devices are 0..2");
		CHECK_INT(net_finalize(&n), NET_OK);
	}
}

/* NCCL 2.28 finalizes what was not initialized, and what is no longer there. */
static void test_contexts(const char *library)
{
	uint8_t handle[NET_HANDLE];
	struct net a, b, none;
	void *comm = NULL;

	check_context("contexts");
	net_load(&a, library, 11);
	net_load(&b, library, 12);
	net_load(&none, library, 11);
	CHECK_INT(net_finalize(&none), NET_OK);
	CHECK_INT(net_init(&a, 3), NET_OK);
	CHECK_INT(net_init(&b, -1), NET_OK);
	CHECK(a.ctx && b.ctx && a.ctx != b.ctx);
	CHECK_INT(net_finalize(&a), NET_OK);
	CHECK_INT(net_finalize(&a), NET_OK);
	CHECK_INT(net_listen(&a, 0, handle, &comm), NET_ARGUMENT);
	CHECK_INT(net_listen(&b, 0, handle, &comm), NET_OK);
	CHECK_INT(net_close(&b, NET_CLOSE_LISTEN, comm), NET_OK);
	CHECK_INT(net_finalize(&b), NET_OK);
	none.ctx = handle;
	CHECK_INT(net_finalize(&none), NET_OK);
	CHECK_INT(net_init(&a, -1), NET_OK);
	CHECK_INT(net_finalize(&a), NET_OK);
}

static void test_none(const char *library, const char *text, int warnings)
{
	for (int version = 8; version <= 12; version++) {
		struct net n;
		int count = -1;

		check_context("version %d", version);
		net_load(&n, library, version);
		net_log_clear();
		CHECK(net_init(&n, -1) != NET_OK);
		CHECK_INT(net_log_count(2), version == 8 ? warnings : 0);
		CHECK(*net_log_find(3, text), "%s", net_log_last());
		if (version > 8) {
			CHECK_INT(net_log_count(3), 1);
		}
		CHECK_INT(net_devices(&n, &count), NET_OK);
		CHECK_INT(count, 0);
		CHECK_INT(net_finalize(&n), NET_OK);
	}
}

/* ---- GIN ---- */

static void test_gin_members(const char *library)
{
	struct gin g;

	check_context("table for GIN");
	gin_load(&g, library);
	CHECK_TEXT(g.table[0], "EP");
	for (int part = GIN_INIT; part < GIN_PARTS; part++) {
		/* NCCL 2.28 needs none of these of type PROXY. */
		bool may_lack = part == GIN_PROGRESS || part == GIN_CREATE || part == GIN_DESTROY ||
				part == GIN_LAST_ERROR;

		CHECK(!g.table[part] == may_lack, "part %d", part);
	}
}

static void test_gin_devices(const char *library)
{
	struct net_props p, q;
	struct net net;
	int count = -1;
	struct gin g;

	check_context("devices of GIN");
	net_load(&net, library, 12);
	gin_load(&g, library);
	CHECK_INT(gin_init(&g), NET_OK);
	CHECK_INT(((int (*)(int *))(uintptr_t)g.table[GIN_DEVICES])(&count), NET_OK);
	CHECK_INT(count, 3);
	for (int dev = 0; dev < count; dev++) {
		/* NCCL uses its numbers of the network's devices: they are the same. */
		CHECK_INT(gin_properties(&g, dev, &p), NET_OK);
		CHECK_INT(net_properties(&net, dev, &q), NET_OK);
		CHECK(p.type == 2 && q.type == 0, "PROXY");
		CHECK(p.name == q.name && p.guid == q.guid && p.max_recvs == q.max_recvs);
	}
	CHECK_INT(gin_properties(&g, count, &p), NET_ARGUMENT);
	CHECK_INT(gin_finalize(&g), NET_OK);
	/* (2.28.9 finalizes a context of GIN that it never had) */
	g.instance = NULL;
	CHECK_INT(gin_finalize(&g), NET_OK);
}

/* NCCL that has a GIN of its own: the plugin's would stand in its way. */
static void test_gin_declines(const char *library)
{
	struct gin g;

	check_context("NCCL 2.29");
	gin_load(&g, library);
	net_log_clear();
	g.instance = &g;
	CHECK(gin_init(&g) != NET_OK && !g.instance);
	CHECK_INT(net_log_count(2), 0);
	CHECK_INT(net_log_count(3), 1);
	CHECK_HAS(net_log_last(), "GIN is left to NCCL's own");
	CHECK_INT(gin_finalize(&g), NET_OK);
}

/* NICs that cannot: one line says why, and NCCL goes on without. */
static void test_gin_none(const char *library, const char *text)
{
	struct net net;
	struct gin g;

	check_context("no NIC for GIN");
	net_load(&net, library, 12);
	gin_load(&g, library);
	net_log_clear();
	CHECK(gin_init(&g) != NET_OK && !g.instance);
	CHECK(*net_log_find(3, text), "%s", net_log_last());
	CHECK_INT(net_log_count(2), 0);
	CHECK_INT(gin_finalize(&g), NET_OK);
	CHECK_INT(net_init(&net, -1), NET_OK);
	CHECK_INT(net_finalize(&net), NET_OK);
}

/* A device that cannot be opened is no device, and a line says why. */
static void test_closed(const char *library)
{
	struct net n;
	int count = -1;

	net_load(&n, library, 12);
	NET_NEED(net_init(&n, -1) == NET_OK, "%s", net_log_last());
	CHECK_INT(net_devices(&n, &count), NET_OK);
	CHECK_INT(count, 1);
	CHECK_HAS(net_log_find(3, "mlx5_1 "), "mlx5_1 could not be opened: Permission denied");
	CHECK_INT(net_finalize(&n), NET_OK);
}

int main(int argc, char **argv)
{
	if (argc > 3 && strcmp(argv[2], "gin") == 0) {
		test_gin_none(argv[1], argv[3]);
	} else if (argc > 2 && strcmp(argv[2], "closed") == 0) {
		test_closed(argv[1]);
	} else if (argc > 2 && strcmp(argv[2], "gin_own") == 0) {
		test_gin_declines(argv[1]);
	} else if (argc > 3) {
		test_none(argv[1], argv[3], strcmp(argv[2], "none") != 0);
	} else {
		test_members(argv[1]);
		test_devices(argv[1]);
		test_contexts(argv[1]);
		test_gin_members(argv[1]);
		test_gin_devices(argv[1]);
	}
	return check_end();
}
