/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ports ep_info takes for those of each GPU: the library's choice.
 *
 *     info_gpus FILES
 */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "tools/ep_info.h"

static struct ep_info_facts facts;
static struct ep_info_nics nics;

static bool is_open(const void *arg, const char *name, int port)
{
	return ep_info_nics_find(arg, name, port) >= 0;
}

/* Ports 1 of mlx5_FIRST to mlx5_LAST; `rxe` of them is no mlx5 device. */
static void set_nics(int first, int last, int rxe)
{
	memset(&nics, 0, sizeof(nics));
	for (int i = first; i <= last; i++) {
		struct ep_port *port = &nics.port[nics.n];

		snprintf(port->name, sizeof(port->name), "mlx5_%d", i);
		port->port = 1;
		snprintf(nics.no_devx[nics.n], sizeof(nics.no_devx[0]), "%s",
			 i == rxe ? "is not an mlx5 device" : "");
		nics.n++;
	}
}

static void match(const char *dir, const char *file, const char *bus[], int n)
{
	struct ep_topo *topo = NULL;
	struct ep_topo_opts opts;
	struct ep_topo_err err;
	char path[4096];

	memset(&facts, 0, sizeof(facts));
	for (int i = 0; i < n; i++) {
		snprintf(facts.gpu[i].bus_id, sizeof(facts.gpu[i].bus_id), "%s", bus[i]);
	}
	facts.ngpus = n;
	if (file) {
		snprintf(path, sizeof(path), "%s/%s", dir, file);
		ep_topo_opts_env(&opts);
		opts.file = path;
		opts.file_only = true;
		opts.is_open = is_open;
		opts.is_open_arg = &nics;
		CHECK(ep_topo_load(&opts, &topo, &err) == 0, "%s", err.text);
	}
	ep_info_gpus_match(&facts, topo, &nics);
	ep_topo_free(topo);
}

int main(int argc, char **argv)
{
	const char *eight[] = { "0000:13:00.0", "0000:23:00.0", "0000:33:00.0", "0000:43:00.0" };
	const char *denied[] = { "0000:03:00.0" };
	const char *shared[] = { "0000:17:00.0", "0000:97:00.0" };

	if (argc != 2) {
		return 2;
	}
	/* Only the GPU whose own NIC lacks DevX. */
	set_nics(0, 7, 3);
	match(argv[1], "eight-own-nic.xml", eight, 4);
	for (int i = 0; i < 4; i++) {
		CHECK(facts.gpu[i].known && facts.gpu[i].port, "GPU %d", i);
		CHECK(facts.gpu[i].devx == (i != 3), "GPU %d: %s", i, facts.gpu[i].no_devx);
	}
	CHECK(strcmp(facts.gpu[3].no_devx,
		     "GPU 0000:43:00.0 has mlx5_3, which is not an mlx5 device") == 0,
	      "%s", facts.gpu[3].no_devx);
	/* Closed NICs do not count: 4 GPUs share 4 others. */
	set_nics(4, 7, 5);
	match(argv[1], "eight-own-nic.xml", eight, 4);
	for (int i = 0; i < 4; i++) {
		CHECK(facts.gpu[i].port && facts.gpu[i].devx == (i != 1), "GPU %d", i);
	}
	/* Too far. */
	set_nics(0, 0, -1);
	setenv("NCCL_NET_GDR_LEVEL", "PHB", 1);
	match(argv[1], "one-shared-nic.xml", shared, 2);
	CHECK(facts.gpu[0].port && facts.gpu[0].devx, "near GPU: %s", facts.gpu[0].no_port);
	CHECK(!facts.gpu[1].port && !facts.gpu[1].devx &&
		      strstr(facts.gpu[1].no_port, "NCCL_NET_GDR_LEVEL=PHB forbids GPU "
						   "0000:97:00.0 its nearest NIC mlx5_0:1") &&
		      strstr(facts.gpu[1].no_port, "set it to SYS"),
	      "far GPU: %s", facts.gpu[1].no_port);
	unsetenv("NCCL_NET_GDR_LEVEL");
	match(argv[1], "no-gdr.xml", denied, 1);
	CHECK(!facts.gpu[0].port && strstr(facts.gpu[0].no_port, "has gdr=\"0\" for mlx5_0:1"),
	      "denied: %s", facts.gpu[0].no_port);
	/* Without a topology, in turn; and so a GPU that it does not have. */
	set_nics(0, 1, 1);
	match(argv[1], NULL, eight, 4);
	for (int i = 0; i < 4; i++) {
		CHECK(!facts.gpu[i].known && facts.gpu[i].port && facts.gpu[i].devx == !(i % 2),
		      "GPU %d", i);
	}
	match(argv[1], "one-shared-nic.xml", eight, 2);
	CHECK(!facts.gpu[1].known && facts.gpu[1].port && !facts.gpu[1].devx, "strange GPU");
	/* No port at all. */
	set_nics(0, -1, -1);
	match(argv[1], "eight-own-nic.xml", eight, 1);
	CHECK(facts.gpu[0].known && !facts.gpu[0].port && !facts.gpu[0].devx, "no port");
	return check_end();
}
