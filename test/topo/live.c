/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This machine as the readers see it, with a stand-in for NVML (found through LD_LIBRARY_PATH) and
 * a made-up /sys for the NICs; and a topology file laid over that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/check.h"
#include "root.h"
#include "topo/tree.h"

static void make_sysfs(void)
{
	root_make();
	root_put_nic("mlx5_0", "0000:29:00.0", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n",
		     "InfiniBand\n");
	root_put_nic("mlx5_1", "0000:2a:00.0", "1: DOWN\n", "10 Gb/sec (4X SDR)\n", "Ethernet\n");
	/* A sub-function hangs below its parent's address. */
	root_put_nic("mlx5_2", "0000:2b:00.0/mlx5_core.sf.4", "4: ACTIVE\n",
		     "200 Gb/sec (4X HDR)\n", "Ethernet\n");
	root_put_nic("rxe0", NULL, "4: ACTIVE\n", "2.5 Gb/sec (1X SDR)\n", "Ethernet\n");
}

static struct ep_topo *load(const char *file)
{
	struct ep_topo_opts opts = { .file = file, .sysfs_root = root_dir };
	struct ep_topo_err err;
	struct ep_topo *topo = NULL;

	CHECK(ep_topo_load(&opts, &topo, &err) == 0, "%s", err.text);
	if (!topo) {
		exit(1);
	}
	return topo;
}

static const struct ep_topo_nic *nic_named(const struct ep_topo *topo, const char *name)
{
	static const struct ep_topo_nic none;

	for (int i = 0; i < topo->nnics; i++) {
		if (strcmp(topo->nic[i].name, name) == 0) {
			return &topo->nic[i];
		}
	}
	CHECK(false, "no NIC %s", name);
	return &none;
}

static void test_nics(void)
{
	struct ep_topo *topo = load(NULL);
	const struct ep_topo_nic *nic = nic_named(topo, "mlx5_0");

	CHECK(topo->nnics == 4, "%d NICs", topo->nnics);
	CHECK(nic->guid == 0xa088c20300aa0001, "guid %llx", (unsigned long long)nic->guid);
	CHECK(nic->nports == 1 && nic->port[0].num == 1, "%d ports", nic->nports);
	CHECK(nic->port[0].state == EP_TOPO_STATE_ACTIVE, "state %d", nic->port[0].state);
	CHECK(nic->port[0].layer == EP_TOPO_LINK_IB, "layer %d", nic->port[0].layer);
	CHECK(nic->port[0].mbps == 400000, "%u Mb/s", nic->port[0].mbps);
	nic = nic_named(topo, "mlx5_1");
	CHECK(nic->port[0].state == EP_TOPO_STATE_DOWN, "state %d", nic->port[0].state);
	CHECK(nic->port[0].layer == EP_TOPO_LINK_ETHERNET, "layer %d", nic->port[0].layer);
	nic = nic_named(topo, "mlx5_2");
	CHECK(nic->pci.known && nic->pci.bus == 0x2b, "sub-function at bus %x", nic->pci.bus);
	nic = nic_named(topo, "rxe0");
	CHECK(!nic->pci.known && nic->numa == -1, "software device has a place");
	CHECK(nic->port[0].mbps == 2500, "%u Mb/s", nic->port[0].mbps);
	ep_topo_free(topo);
}

static void put_member(const char *name, const char *pci)
{
	char path[128], full[256], target[64];

	snprintf(path, sizeof(path), "/sys/class/net/%s/operstate", name);
	root_put(path, "up\n");
	snprintf(path, sizeof(path), "/sys/class/net/%s/speed", name);
	root_put(path, "200000\n");
	snprintf(full, sizeof(full), "%s/sys/class/net/%s/device", root_dir, name);
	snprintf(target, sizeof(target), "../../../%s", pci);
	NEED(symlink(target, full) == 0);
}

/* A port that is a bond of two, each of which has the rate that the port tells. */
static void test_bond(void)
{
	struct ep_topo *topo;

	root_put("/sys/0000:2c:00.0/vendor", "0x15b3\n");
	root_put("/sys/0000:2c:00.1/vendor", "0x15b3\n");
	root_put_nic("mlx5_bond_0", "0000:2c:00.0", "4: ACTIVE\n", "200 Gb/sec (4X HDR)\n",
		     "Ethernet\n");
	root_put("/sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0", "bond0\n");
	put_member("etha", "0000:2c:00.0");
	put_member("ethb", "0000:2c:00.1");
	root_put("/sys/class/net/bond0/bonding/slaves", "etha ethb\n");
	topo = load(NULL);
	CHECK_INT(nic_named(topo, "mlx5_bond_0")->port[0].mbps, 400000);
	ep_topo_free(topo);
}

static bool has_note(const struct ep_topo *topo, const char *text)
{
	for (int i = 0; i < topo->nnotes; i++) {
		if (strstr(topo->note[i], text)) {
			return true;
		}
	}
	return false;
}

/* One character per GPU: its domain, or - */
static void check_domains(const struct ep_topo *topo, const char *want)
{
	CHECK(topo->ngpus == (int)strlen(want), "%d GPUs", topo->ngpus);
	for (int g = 0; g < topo->ngpus && want[g]; g++) {
		CHECK(topo->gpu[g].domain == (want[g] == '-' ? -1 : want[g] - '0'),
		      "GPU %d: domain %d", g, topo->gpu[g].domain);
	}
}

/* What ep_topo_print_peers() prints. */
static void check_peers(const struct ep_topo *topo, const char *want)
{
	char text[1024] = "";
	FILE *f = fmemopen(text, sizeof(text), "w");

	NEED(f);
	ep_topo_print_peers(topo, f);
	fclose(f);
	CHECK_TEXT(text, want);
}

/* The same NVSwitches, but: another clique, a failed start, another fabric, none. */
static void test_cliques(void)
{
	setenv("FAKE_NVML", "cliques", 1);
	struct ep_topo *topo = load(NULL);
	int a = -1, b = -1;

	check_domains(topo, "0-0---");
	CHECK(ep_topo_linked(topo, 0, 2) && !ep_topo_linked(topo, 0, 3), "links");
	check_peers(topo, "# peers by NVLink: all GPUs\n");
	CHECK(!ep_topo_apart(topo, &a, &b), "%d and %d are apart", a, b);
	CHECK(has_note(topo, "0000:1a:00.0 has not joined its NVLink fabric (state 3, status 15)"),
	      "%d notes", topo->nnotes);
	ep_topo_free(topo);
}

/* Two pairs, joined without a switch; links to the CPU join nothing. */
static void test_peers(void)
{
	setenv("FAKE_NVML", "peers", 1);
	struct ep_topo *topo = load(NULL);
	int a, b;

	check_domains(topo, "0011");
	CHECK(topo->nvswitch == EP_TOPO_NO && topo->gpu[0].nvlinks == 5 && !topo->gpu[0].nvswitch,
	      "%d links", topo->gpu[0].nvlinks);
	check_peers(
		topo,
		"# peers by NVLink: 0-1 2-3\n"
		"# peers by PCIe: 0-2 1-2; a group with such a pair sends rows as bytes, not as "
		"lines\n"
		"# peers without access: 0-3 1-3; a group with such a pair needs "
		"NCCL_EP_MEMORY=host (slow) or, with NICs, NCCL_EP_NODE_SIZE=3\n");
	CHECK(ep_topo_apart(topo, &a, &b) && a == 0 && b == 3, "%d and %d are apart", a, b);
	/* the same, where PCI has the GPUs in another order than NVML: 1, 0, 3, 2 */
	ep_topo_free(topo);
	setenv("FAKE_NVML_GPUS", "0000:18:00.0 0000:17:00.0 0000:1a:00.0 0000:19:00.0", 1);
	topo = load(NULL);
	unsetenv("FAKE_NVML_GPUS");
	CHECK(ep_topo_apart(topo, &a, &b) && a == 0 && b == 2, "%d and %d are apart", a, b);
	CHECK(ep_topo_reach(topo, 0, 3) == EP_TOPO_REACH_PCIE &&
		      ep_topo_reach(topo, 2, 3) == EP_TOPO_REACH_NVLINK,
	      "reach");
	ep_topo_free(topo);
}

static void test_switch(void)
{
	setenv("FAKE_NVML", "switch", 1);
	struct ep_topo *topo = load(NULL);
	int a = -1, b = -1;

	CHECK(topo->ngpus == 4, "%d GPUs", topo->ngpus);
	CHECK(strcmp(topo->driver, "999.1") == 0, "driver \"%s\"", topo->driver);
	CHECK(topo->nvswitch == EP_TOPO_YES, "no NVSwitch");
	for (int g = 0; g < topo->ngpus; g++) {
		const struct ep_topo_gpu *gpu = &topo->gpu[g];

		CHECK(gpu->sm == 90 && gpu->nvlinks == 17 && gpu->nvswitch,
		      "gpu %d: sm %d, %d links", g, gpu->sm, gpu->nvlinks);
		CHECK(gpu->fabric == (g != 3), "gpu %d: fabric %d", g, gpu->fabric);
		CHECK(g == 3 || (gpu->fabric_clique == 5 && gpu->fabric_uuid[15] == 0xab),
		      "gpu %d: clique %u", g, gpu->fabric_clique);
		CHECK(!strchr(gpu->name, '\x1b'), "gpu %d: control characters in its name", g);
	}
	check_domains(topo, "000-");
	CHECK(ep_topo_linked(topo, 0, 1) && !ep_topo_linked(topo, 2, 2), "links");
	check_peers(topo, "# peers by NVLink: 0-1 0-2 1-2\n"
			  "# peers without access: 0-3 1-3 2-3; a group with such a pair needs "
			  "NCCL_EP_MEMORY=host (slow) or, with NICs, NCCL_EP_NODE_SIZE=3\n");
	CHECK(ep_topo_apart(topo, &a, &b) && a == 0 && b == 3, "%d and %d are apart", a, b);
	CHECK(ep_topo_find_gpu(topo, "0000:18:00.0", NULL) == 1, "GPU at 18:00.0");
	CHECK(ep_topo_find_gpu(topo, "0000:99:00.0", NULL) == -1, "GPU at 99:00.0");
	CHECK(ep_topo_find_gpu(topo, "nonsense", NULL) == -1, "GPU at nonsense");
	ep_topo_free(topo);
}

static void test_mig(void)
{
	setenv("FAKE_NVML", "mig", 1);
	struct ep_topo *topo = load(NULL);

	CHECK(topo->ngpus == 3, "%d GPUs", topo->ngpus);
	CHECK(topo->gpu[0].instance == 0 && topo->gpu[1].instance == 1, "instances");
	CHECK(topo->gpu[2].instance == -1, "the second GPU is whole");
	CHECK(ep_topo_find_gpu(topo, "0000:17:00.0", "MIG-2") == 1, "instance by UUID");
	CHECK(topo->gpu[0].domain == -1, "NVLink on an instance");
	check_peers(topo, "# peers without access: all GPUs; a group with such a pair needs "
			  "NCCL_EP_MEMORY=host (slow) or, with NICs, NCCL_EP_NODE_SIZE=1\n");
	ep_topo_free(topo);
}

/* Neither NVML nor PCI shows a GPU, whatever this machine has. */
static struct ep_topo *load_no_gpu(const char *file)
{
	struct ep_topo *topo;

	setenv("FAKE_NVML", "broken", 1);
	setenv("HWLOC_COMPONENTS", "-linux:pci", 1);
	topo = load(file);
	unsetenv("HWLOC_COMPONENTS");
	return topo;
}

static void test_broken(void)
{
	struct ep_topo *topo = load_no_gpu(NULL);

	CHECK(topo->ngpus == 0, "%d GPUs", topo->ngpus);
	ep_topo_free(topo);
}

/*
 * The file puts GPUs 17, 18 and NICs 29, 2a under one switch; 2b and GPUs 19.. are not in it; its
 * GPU 30 is not in the machine.
 */
static void test_merge(const char *file)
{
	setenv("FAKE_NVML", "switch", 1);
	struct ep_topo *topo = load(file);
	int nics_near = 0;

	CHECK(topo->merged, "not merged");
	CHECK(topo->ngpus == 4, "%d GPUs", topo->ngpus);
	CHECK(topo->nnics == 4, "%d NICs", topo->nnics);
	CHECK(topo->gpu[0].dist == EP_TOPO_PIX, "GPU 0 at %s",
	      ep_topo_dist_name(topo->gpu[0].dist));
	CHECK(topo->gpu[0].numa == 1, "GPU 0 on node %d", topo->gpu[0].numa);
	CHECK(topo->gpu[0].nvlinks == 17, "the driver's links, not the file's: %d",
	      topo->gpu[0].nvlinks);
	for (int n = 0; n < topo->nnics; n++) {
		nics_near += ep_topo_dist_gpu_nic(topo, 0, n) == EP_TOPO_PIX;
	}
	CHECK(nics_near == 2, "%d NICs under the switch", nics_near);
	/* mlx5_1 is down on this machine, whatever the file says. */
	for (int g = 0; g < 2; g++) {
		CHECK(topo->gpu[g].nrails == 1 &&
			      strcmp(topo->nic[topo->gpu[g].rail[0].nic].name, "mlx5_0") == 0,
		      "GPU %d uses %d NICs", g, topo->gpu[g].nrails);
	}
	/* What the file denies stays denied, as with NCCL. */
	CHECK(!ep_topo_gdr_allowed(topo, 0, topo->gpu[0].rail[0].nic), "GDR with mlx5_0");
	CHECK(topo->gpu[3].dist == EP_TOPO_SYS, "GPU 3 at %s",
	      ep_topo_dist_name(topo->gpu[3].dist));
	CHECK(topo->nnotes > 0 && strstr(topo->note[0], "1 of the file's 2 GPUs"), "note \"%s\"",
	      topo->nnotes ? topo->note[0] : "");
	ep_topo_free(topo);
}

static struct ep_topo *load_env(int *rc, struct ep_topo_err *err)
{
	struct ep_topo *topo = NULL;
	struct ep_topo_opts opts;

	ep_topo_opts_env(&opts);
	opts.sysfs_root = root_dir;
	*rc = ep_topo_load(&opts, &topo, err);
	CHECK(*rc || topo, "%s", err->text);
	return *rc ? NULL : topo;
}

/* HWLOC_XMLFILE must never reach hwloc, whose "this machine" it would become. */
static void test_hwloc_xmlfile(const char *nccl_file)
{
	static const char xml[] =
		"<topology version=\"2.0\"><object type=\"Machine\" nodeset=\"0x2\">"
		"<object type=\"Bridge\" bridge_type=\"0-1\">"
		"<object type=\"Bridge\" bridge_type=\"1-1\" pci_busid=\"0000:10:01.0\">"
		"<object type=\"PCIDev\" pci_busid=\"0000:17:00.0\" pci_type=\"0302 [10de:2330]\"/>"
		"<object type=\"PCIDev\" pci_busid=\"0000:29:00.0\" pci_type=\"0207 [15b3:1021]\"/>"
		"</object></object></object></topology>";
	char path[128];
	struct ep_topo_err err = { .text = "" };
	int rc;

	setenv("FAKE_NVML", "switch", 1);
	root_put("/hwloc.xml", xml);
	snprintf(path, sizeof(path), "%s/hwloc.xml", root_dir);
	setenv("HWLOC_XMLFILE", path, 1);
	unsetenv("NCCL_TOPO_FILE");
	struct ep_topo *topo = load_env(&rc, &err);

	CHECK(topo && topo->source == EP_TOPO_SOURCE_HWLOC_XML && topo->merged, "%s", err.text);
	if (topo) {
		CHECK(topo->ngpus == 4 && topo->gpu[0].dist == EP_TOPO_PIX &&
			      topo->gpu[0].numa == 1 && topo->gpu[1].dist == EP_TOPO_SYS,
		      "%d GPUs, the first at %s", topo->ngpus,
		      ep_topo_dist_name(topo->gpu[0].dist));
		CHECK(topo->nnotes > 0 && strstr(topo->note[0], "HWLOC_XMLFILE"), "%d notes",
		      topo->nnotes);
	}
	ep_topo_free(topo);

	setenv("NCCL_TOPO_FILE", nccl_file, 1);
	topo = load_env(&rc, &err);
	CHECK(topo && topo->source == EP_TOPO_SOURCE_NCCL_XML && topo->merged, "%s", err.text);
	ep_topo_free(topo);
	unsetenv("NCCL_TOPO_FILE");

	struct ep_topo_opts none = { .sysfs_root = root_dir };

	topo = NULL;
	rc = ep_topo_load(&none, &topo, &err);
	CHECK(rc == -EBUSY && strstr(err.text, path), "%d: %s", rc, err.text);
	unsetenv("HWLOC_XMLFILE");
}

/* hwloc must not take a machine that somebody has made up for this one. */
static void test_hwloc_synthetic(void)
{
	struct ep_topo_opts opts = { .sysfs_root = root_dir };
	struct ep_topo_err err = { .text = "" };
	struct ep_topo *topo = NULL;
	int rc;

	setenv("FAKE_NVML", "switch", 1);
	setenv("HWLOC_SYNTHETIC", "numa:2 pu:4", 1);
	rc = ep_topo_load(&opts, &topo, &err);
	CHECK(rc == -EBUSY && strstr(err.text, "HWLOC_SYNTHETIC (numa:2 pu:4)"), "%d: %s", rc,
	      err.text);
	unsetenv("HWLOC_SYNTHETIC");
	ep_topo_free(topo);
}

/* Without GPUs the machine has no say: a stand-in for one that has. */
static void test_no_gpu(const char *file)
{
	struct ep_topo *topo = load_no_gpu(file);

	CHECK(!topo->merged && topo->ngpus == 2, "%d GPUs", topo->ngpus);
	ep_topo_free(topo);
}

/* Without /sys a note says what is missing; nothing is written to the stderr of whoever asks. */
static void test_no_sysfs(void)
{
	char path[64];
	struct ep_topo *topo;
	int kept = dup(STDERR_FILENO), fd;
	struct stat written;

	snprintf(path, sizeof(path), "%s/said", root_dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	NEED(kept >= 0 && fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
	setenv("HWLOC_FSROOT", root_dir, 1);
	topo = load(NULL);
	unsetenv("HWLOC_FSROOT");
	NEED(dup2(kept, STDERR_FILENO) >= 0 && fstat(fd, &written) == 0);
	CHECK(written.st_size == 0, "%lld bytes on stderr", (long long)written.st_size);
	CHECK(topo->nnotes > 0 && strstr(topo->note[0], "is /sys mounted?"), "%d notes",
	      topo->nnotes);
	CHECK(topo->nnics == 4, "%d NICs", topo->nnics);
	ep_topo_free(topo);
	close(kept);
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		return 2;
	}
	root_unset();
	make_sysfs();
	test_broken();
	test_nics();
	test_no_sysfs();
	test_switch();
	test_cliques();
	test_peers();
	test_mig();
	test_merge(argv[1]);
	test_hwloc_synthetic();
	test_hwloc_xmlfile(argv[1]);
	test_no_gpu(argv[1]);
	test_bond();
	root_remove();
	return check_end();
}
