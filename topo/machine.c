/* SPDX-License-Identifier: Apache-2.0 */
/* This machine: the PCIe tree from hwloc, GPUs from it and from NVML, NICs from sysfs. */
#include "topo/tree.h"

#include <dirent.h>
#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct walker {
	struct ep_topo *topo;
	hwloc_topology_t hw;
	const char *root;
	struct ep_topo_err *err;
};

/*
 * Where the kernel does not know: the node of the CPUs beside a device. They may have several, as
 * HBM, memory of GPUs and memory behind CXL are nodes without CPUs; theirs is the lowest.
 */
static int numa_beside(hwloc_topology_t hw, hwloc_obj_t obj)
{
	hwloc_obj_t first = NULL;

	while (obj && !obj->nodeset) {
		obj = obj->parent;
	}
	for (hwloc_obj_t it = NULL;
	     obj && (it = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_NUMANODE, it));) {
		if (!hwloc_bitmap_isset(obj->nodeset, it->os_index)) {
			continue;
		}
		if (first && !hwloc_bitmap_isequal(first->cpuset, it->cpuset)) {
			return -1;
		}
		first = !first || it->os_index < first->os_index ? it : first;
	}
	return first ? (int)first->os_index : -1;
}

static int numa_of(const struct walker *walker, hwloc_obj_t obj, const struct ep_topo_pci *pci)
{
	int numa = pci->known ? ep_topo_numa_of_pci(walker->root, pci) : -1;

	return numa >= 0 ? numa : numa_beside(walker->hw, obj);
}

static int add_device(struct walker *walker, hwloc_obj_t obj, int node)
{
	const struct hwloc_pcidev_attr_s *dev = &obj->attr->pcidev;

	if (ep_topo_is_gpu((unsigned)dev->class_id << 8, dev->vendor_id) &&
	    dev->vendor_id == EP_TOPO_VENDOR_NVIDIA) {
		struct ep_topo_gpu *gpu = ep_topo_add_gpu(walker->topo, node, walker->err);
		const char *model = hwloc_obj_get_info_by_name(obj, "PCIDevice");

		if (!gpu) {
			return -E2BIG;
		}
		ep_topo_copy_name(gpu->name, model ? model : "");
	}
	if (dev->class_id == 0x0680 && dev->vendor_id == EP_TOPO_VENDOR_NVIDIA) {
		walker->topo->nvswitch = EP_TOPO_YES;
	}
	return 0;
}

static int walk(struct walker *walker, hwloc_obj_t obj, int parent);

static int add_object(struct walker *walker, hwloc_obj_t obj, int parent)
{
	const struct hwloc_pcidev_attr_s *dev = NULL;
	enum ep_topo_kind kind = EP_TOPO_KIND_DEVICE;
	struct ep_topo_pci pci = { .known = false };

	if (obj->type == HWLOC_OBJ_PCI_DEVICE) {
		dev = &obj->attr->pcidev;
	} else if (obj->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) {
		kind = EP_TOPO_KIND_HOST;
	} else {
		dev = &obj->attr->bridge.upstream.pci;
		kind = ep_topo_bridge_kind(walker->topo, parent);
	}
	if (dev) {
		pci = (struct ep_topo_pci){ dev->domain, dev->bus, dev->dev, dev->func, true };
	}
	int node = ep_topo_add_node(walker->topo, parent, kind, &pci, numa_of(walker, obj, &pci),
				    walker->err);

	if (node < 0) {
		return node;
	}
	if (dev) {
		walker->topo->nodes[node].mbps = (uint32_t)(dev->linkspeed * 8000);
	}
	return kind == EP_TOPO_KIND_DEVICE ? add_device(walker, obj, node)
					   : walk(walker, obj, node);
}

static int walk(struct walker *walker, hwloc_obj_t obj, int parent)
{
	int rc = 0;

	for (hwloc_obj_t it = obj->first_child; it && !rc; it = it->next_sibling) {
		rc = walk(walker, it, parent);
	}
	for (hwloc_obj_t it = obj->io_first_child; it && !rc; it = it->next_sibling) {
		if (it->type == HWLOC_OBJ_PCI_DEVICE || it->type == HWLOC_OBJ_BRIDGE) {
			rc = add_object(walker, it, parent);
		}
	}
	return rc < 0 ? rc : 0;
}

/*
 * Whether hwloc will find CPUs in sysfs. Without, it gives up all of Linux and reports that on
 * stderr, which is not ours; its one switch for that is an environment variable, which a library
 * must not set.
 */
static bool shows_cpus(void)
{
	static const char *const dirs[] = { "/sys/bus/cpu/devices", "/sys/devices/system/cpu" };
	static const char *const files[] = { "package_cpus", "core_cpus", "core_siblings",
					     "thread_siblings" };
	const char *root = getenv("HWLOC_FSROOT");
	bool found = false;

	for (size_t d = 0; d < sizeof(dirs) / sizeof(dirs[0]); d++) {
		char path[PATH_MAX];
		struct dirent *entry;
		DIR *dir;

		snprintf(path, sizeof(path), "%s%s", root ? root : "", dirs[d]);
		dir = opendir(path);
		while (dir && !found && (entry = readdir(dir))) {
			for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
				snprintf(path, sizeof(path), "%s%s/%s/topology/%s",
					 root ? root : "", dirs[d], entry->d_name, files[f]);
				found |= strncmp(entry->d_name, "cpu", 3) == 0 &&
					 access(path, R_OK) == 0;
			}
		}
		if (dir) {
			closedir(dir);
		}
	}
	return found;
}

static void read_sockets(struct ep_topo *topo, hwloc_topology_t hw)
{
	for (hwloc_obj_t it = NULL;
	     (it = hwloc_get_next_obj_by_type(hw, HWLOC_OBJ_NUMANODE, it));) {
		hwloc_obj_t of = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_PACKAGE, it);

		if (of) {
			ep_topo_set_socket(topo, it->os_index, 1 + (int)of->logical_index);
		}
	}
}

/*
 * Fails where hwloc would show a machine of a file, read with its own parser, or one that does not
 * exist, instead of this one; no call turns that off.
 */
static int check_env(struct ep_topo_err *err)
{
	static const struct {
		const char *name, *instead;
	} vars[] = {
		{ "HWLOC_XMLFILE", ", or name the file in NCCL_TOPO_FILE instead" },
		{ "HWLOC_SYNTHETIC", "" },
	};

	for (size_t i = 0; i < sizeof(vars) / sizeof(vars[0]); i++) {
		const char *value = getenv(vars[i].name);

		if (value && *value) {
			return ep_topo_fail(
				err, EBUSY,
				"hwloc cannot look at this machine while %s (%.128s) is set: unset "
				"it%s",
				vars[i].name, value, vars[i].instead);
		}
	}
	return 0;
}

static int read_tree(struct ep_topo *topo, const char *root, struct ep_topo_err *err)
{
	hwloc_topology_t hw;
	int rc = check_env(err);

	if (rc) {
		return rc;
	}
	if (!shows_cpus()) {
		ep_topo_note(topo,
			     "no CPUs in %s/sys/devices/system/cpu, so hwloc would see nothing of "
			     "this machine: is /sys mounted?",
			     root);
		topo->nnumas = 1;
		return 0;
	}
	if (hwloc_topology_init(&hw)) {
		return ep_topo_fail(err, ENOMEM, "hwloc_topology_init failed");
	}
	/*
	 * The kernel's sysfs has all we need. These would start libpciaccess, OpenCL and X11 in our
	 * process; where they are not installed the calls fail, and that is fine. And
	 * HWLOC_COMPONENTS may name "xml".
	 */
	hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
	hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "opencl");
	hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "gl");
	hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "xml");
	/* A job's cpuset may leave out nodes whose devices are the job's all the same. */
	if (hwloc_topology_set_flags(hw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) ||
	    hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_NONE) ||
	    hwloc_topology_set_type_filter(hw, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL) ||
	    hwloc_topology_set_type_filter(hw, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_ALL) ||
	    hwloc_topology_load(hw)) {
		rc = ep_topo_fail(err, EIO,
				  "hwloc cannot read this machine: %s; is /sys mounted? "
				  "NCCL_TOPO_FILE can replace it",
				  strerror(errno));
	} else {
		struct walker w = { topo, hw, root, err };

		rc = walk(&w, hwloc_get_root_obj(hw), 0);
		read_sockets(topo, hw);
		topo->nnumas = hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_NUMANODE);
	}
	hwloc_topology_destroy(hw);
	return rc;
}

/* The last PCI address in what a link points to. For a sub-function that is its parent's. */
static bool pci_of_link(const char *dir, const char *name, struct ep_topo_pci *pci)
{
	char path[PATH_MAX], target[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path)) {
		return false;
	}
	ssize_t n = readlink(path, target, sizeof(target) - 1);

	if (n < 0) {
		return false;
	}
	target[n] = '\0';
	for (char *slash = strrchr(target, '/'); slash; slash = strrchr(target, '/')) {
		if (ep_topo_pci_parse(slash + 1, pci)) {
			return true;
		}
		*slash = '\0';
	}
	return ep_topo_pci_parse(target, pci);
}

static void read_port(const char *port_dir, struct ep_topo_port *port)
{
	char text[128];

	if (ep_topo_read_line(port_dir, "state", text, sizeof(text))) { /* "4: ACTIVE" */
		port->state = atoi(text) == 4 ? EP_TOPO_STATE_ACTIVE : EP_TOPO_STATE_DOWN;
	}
	if (ep_topo_read_line(port_dir, "link_layer", text, sizeof(text))) {
		port->layer = strcmp(text, "InfiniBand") == 0 ? EP_TOPO_LINK_IB
			      : strcmp(text, "Ethernet") == 0 ? EP_TOPO_LINK_ETHERNET
							      : EP_TOPO_LINK_UNKNOWN;
	}
}

static int read_nic(struct ep_topo *topo, const char *class_dir, const char *name,
		    struct ep_topo_err *err)
{
	char dir[PATH_MAX], text[64];

	if (snprintf(dir, sizeof(dir), "%s/infiniband/%s", class_dir, name) >= (int)sizeof(dir)) {
		return 0;
	}
	struct ep_topo_pci pci = { .known = false };
	int numa = ep_topo_read_line(dir, "device/numa_node", text, sizeof(text)) ? atoi(text) : -1;

	(void)pci_of_link(dir, "device", &pci);
	int node = ep_topo_place(topo, &pci, numa, err);

	if (node < 0) {
		return node;
	}
	struct ep_topo_nic *nic = ep_topo_add_nic(topo, node, name, err);

	if (!nic) {
		return -E2BIG;
	}
	if (ep_topo_read_line(dir, "node_guid", text, sizeof(text))) {
		unsigned part[4];

		if (sscanf(text, "%4x:%4x:%4x:%4x", part, part + 1, part + 2, part + 3) == 4) {
			nic->guid = (uint64_t)part[0] << 48 | (uint64_t)part[1] << 32 |
				    (uint64_t)part[2] << 16 | part[3];
		}
	}
	for (int num = 1; num <= EP_TOPO_MAX_PORTS; num++) {
		char port_dir[PATH_MAX];

		if (snprintf(port_dir, sizeof(port_dir), "%s/ports/%d", dir, num) <
			    (int)sizeof(port_dir) &&
		    access(port_dir, F_OK) == 0) {
			struct ep_topo_port *port = ep_topo_add_port(nic, num);

			read_port(port_dir, port);
			port->mbps = ep_topo_port_mbps(class_dir, name, num,
						       port->layer == EP_TOPO_LINK_ETHERNET, 0);
		}
	}
	return 0;
}

/* Adds the RDMA devices that the kernel's files show. */
static int read_nics(struct ep_topo *topo, const char *root, struct ep_topo_err *err)
{
	char class_dir[PATH_MAX], dir[PATH_MAX + 16];
	struct dirent **list;
	int n, rc = 0;

	snprintf(class_dir, sizeof(class_dir), "%s/sys/class", root);
	snprintf(dir, sizeof(dir), "%s/infiniband", class_dir);
	n = scandir(dir, &list, NULL, versionsort);
	if (n < 0) {
		return 0; /* no RDMA in this kernel */
	}
	for (int i = 0; i < n; i++) {
		if (!rc && list[i]->d_name[0] != '.') {
			rc = read_nic(topo, class_dir, list[i]->d_name, err);
		}
		free(list[i]);
	}
	free(list);
	return rc;
}

static void find_virtualised(struct ep_topo *topo, const char *root)
{
	char line[8192], path[PATH_MAX];
	FILE *f;

	snprintf(path, sizeof(path), "%s/proc/cpuinfo", root);
	f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, "flags", 5) == 0) {
			topo->virtualised = strstr(line, " hypervisor") ? EP_TOPO_YES : EP_TOPO_NO;
			break;
		}
	}
	if (f) {
		fclose(f);
	}
}

const char *ep_topo_root(const struct ep_topo_opts *opts)
{
	const char *root = opts->sysfs_root ? opts->sysfs_root : getenv("HWLOC_FSROOT");

	return root ? root : "";
}

int ep_topo_read_live(const struct ep_topo_opts *opts, struct ep_topo **out,
		      struct ep_topo_err *err)
{
	const char *root = ep_topo_root(opts);
	struct ep_topo *topo = ep_topo_new(EP_TOPO_SOURCE_LIVE);

	if (!topo) {
		return ep_topo_fail(err, ENOMEM, "out of memory reading this machine");
	}
	int rc = read_tree(topo, root, err);

	if (rc && opts->file && *opts->file) {
		ep_topo_note(topo, "what the file does not name is placed by its NUMA node: %s",
			     err->text);
		rc = 0;
	}
	if (!rc) {
		rc = ep_topo_read_nvml(topo, root, err);
	}
	if (!rc) {
		rc = read_nics(topo, root, err);
	}
	if (rc) {
		ep_topo_free(topo);
		return rc;
	}
	find_virtualised(topo, root);
	*out = topo;
	return 0;
}
