/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads from NVML what the GPUs are: which are ours, MIG, NVLink, fabric. Loaded by dlopen, never
 * linked: the library comes with the driver. The declarations below are the part of NVML's ABI in
 * use.
 */
#include "topo/tree.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

typedef struct nvml_device *nvml_dev;

struct nvml_pci {
	char busid_legacy[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char busid[32];
};

/* nvmlGpuFabricInfoV_t, version 2 */
struct nvml_fabric {
	unsigned version;
	unsigned char uuid[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
};
#define NVML_FABRIC_V2 ((unsigned)sizeof(struct nvml_fabric) | 2u << 24)

enum {
	NVML_FABRIC_NOT_STARTED = 1,
	NVML_FABRIC_IN_PROGRESS = 2,
	NVML_FABRIC_COMPLETED = 3,
	NVML_MAX_LINKS = 18,
	NVML_LINK_GPU = 0,
	NVML_LINK_CPU = 1,
	NVML_LINK_SWITCH = 2,
	NVML_P2P_READ = 0, /* what to ask of a pair; 0 is yes */
	NVML_P2P_WRITE = 1,
	NVML_P2P_NVLINK = 2,
	NVML_P2P_ATOMICS = 3,
};

struct nvml {
	void *lib;
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned *);
	int (*by_index)(unsigned, nvml_dev *);
	int (*pci)(nvml_dev, struct nvml_pci *);
	int (*uuid)(nvml_dev, char *, unsigned);
	/* The rest may be missing in old drivers. */
	int (*driver)(char *, unsigned);
	int (*name)(nvml_dev, char *, unsigned);
	int (*capability)(nvml_dev, int *, int *);
	int (*link_state)(nvml_dev, unsigned, int *);
	int (*link_type)(nvml_dev, unsigned, int *);
	int (*link_pci)(nvml_dev, unsigned, struct nvml_pci *);
	int (*fabric)(nvml_dev, struct nvml_fabric *);
	int (*mig_mode)(nvml_dev, unsigned *, unsigned *);
	int (*mig_max)(nvml_dev, unsigned *);
	int (*mig_by_index)(nvml_dev, unsigned, nvml_dev *);
	int (*p2p)(nvml_dev, nvml_dev, int, int *);
};

static bool nvml_load(struct nvml *nvml)
{
	const struct {
		const char *symbol;
		void *slot;
		bool needed;
	} table[] = {
		{ "nvmlInit_v2", &nvml->init, true },
		{ "nvmlShutdown", &nvml->shutdown, true },
		{ "nvmlDeviceGetCount_v2", &nvml->count, true },
		{ "nvmlDeviceGetHandleByIndex_v2", &nvml->by_index, true },
		{ "nvmlDeviceGetPciInfo_v3", &nvml->pci, true },
		{ "nvmlDeviceGetUUID", &nvml->uuid, true },
		{ "nvmlSystemGetDriverVersion", &nvml->driver, false },
		{ "nvmlDeviceGetName", &nvml->name, false },
		{ "nvmlDeviceGetCudaComputeCapability", &nvml->capability, false },
		{ "nvmlDeviceGetNvLinkState", &nvml->link_state, false },
		{ "nvmlDeviceGetNvLinkRemoteDeviceType", &nvml->link_type, false },
		{ "nvmlDeviceGetNvLinkRemotePciInfo_v2", &nvml->link_pci, false },
		{ "nvmlDeviceGetGpuFabricInfoV", &nvml->fabric, false },
		{ "nvmlDeviceGetMigMode", &nvml->mig_mode, false },
		{ "nvmlDeviceGetMaxMigDeviceCount", &nvml->mig_max, false },
		{ "nvmlDeviceGetMigDeviceHandleByIndex", &nvml->mig_by_index, false },
		{ "nvmlDeviceGetP2PStatus", &nvml->p2p, false },
	};

	memset(nvml, 0, sizeof(*nvml));
	nvml->lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!nvml->lib) {
		return false;
	}
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		void *f = dlsym(nvml->lib, table[i].symbol);

		if (!f && table[i].needed) {
			return false;
		}
		memcpy(table[i].slot, &f, sizeof(f));
	}
	return true;
}

static void read_link(const struct nvml *nvml, nvml_dev dev, unsigned link, struct ep_topo_gpu *gpu)
{
	enum ep_topo_nvlink_kind kind = EP_TOPO_NVLINK_GPU;
	struct ep_topo_pci target = { .known = false };
	struct nvml_pci pci = { .busid = "" };
	int active = 0, type = -1;

	if (nvml->link_state(dev, link, &active) || !active) {
		return;
	}
	if (nvml->link_pci && nvml->link_pci(dev, link, &pci) == 0) {
		pci.busid[sizeof(pci.busid) - 1] = '\0';
		ep_topo_pci_parse(pci.busid, &target);
	}
	if (nvml->link_type && nvml->link_type(dev, link, &type) == 0) {
		kind = type == NVML_LINK_SWITCH ? EP_TOPO_NVLINK_SWITCH
		       : type == NVML_LINK_CPU  ? EP_TOPO_NVLINK_CPU
						: EP_TOPO_NVLINK_GPU;
	}
	if (kind != EP_TOPO_NVLINK_GPU) {
		target = (struct ep_topo_pci){
			.known = false
		}; /* which switch is of no use, and guests see made-up ones */
	}
	ep_topo_add_link(gpu, kind, &target, 1);
}

static void read_fabric(struct ep_topo *topo, const struct nvml *nvml, nvml_dev dev,
			struct ep_topo_gpu *gpu)
{
	static const uint8_t none[16];
	struct nvml_fabric f = { .version = NVML_FABRIC_V2 };
	char pci[EP_TOPO_PCI_LEN];

	if (!nvml->fabric || nvml->fabric(dev, &f)) {
		return;
	}
	gpu->fabric_pending = f.state == NVML_FABRIC_NOT_STARTED ||
			      f.state == NVML_FABRIC_IN_PROGRESS ||
			      (f.state == NVML_FABRIC_COMPLETED && f.status != 0);
	if (gpu->fabric_pending) {
		ep_topo_note(
			topo,
			"GPU %s has not joined its NVLink fabric (state %u, status %d): is the "
			"fabric manager running?",
			ep_topo_pci_print(&gpu->pci, pci), f.state, f.status);
	} else if (f.state == NVML_FABRIC_COMPLETED && memcmp(f.uuid, none, sizeof(none)) != 0) {
		gpu->fabric = true;
		memcpy(gpu->fabric_uuid, f.uuid, sizeof(f.uuid));
		gpu->fabric_clique = f.clique;
	}
}

static void read_device(struct ep_topo *topo, const struct nvml *nvml, nvml_dev dev,
			struct ep_topo_gpu *gpu)
{
	char text[96];
	int major, minor;

	if (nvml->uuid(dev, text, sizeof(text)) == 0) {
		ep_topo_copy_name(gpu->uuid, text);
	}
	if (nvml->name && nvml->name(dev, text, sizeof(text)) == 0) {
		ep_topo_copy_name(gpu->name, text);
	}
	if (nvml->capability && nvml->capability(dev, &major, &minor) == 0) {
		gpu->sm = 10 * major + minor;
	}
	if (nvml->link_state && gpu->instance < 0) {
		gpu->nvlinks = 0;
		for (unsigned link = 0; link < NVML_MAX_LINKS; link++) {
			read_link(nvml, dev, link, gpu);
		}
		read_fabric(topo, nvml, dev, gpu);
	}
}

/* One entry per MIG instance when the GPU is divided, else one. */
static int read_gpu(struct ep_topo *topo, const struct nvml *nvml, nvml_dev dev, int node,
		    struct ep_topo_err *err)
{
	unsigned mode = 0, pending, max = 0;
	bool mig = nvml->mig_mode && nvml->mig_max && nvml->mig_by_index &&
		   nvml->mig_mode(dev, &mode, &pending) == 0 && mode == 1 &&
		   nvml->mig_max(dev, &max) == 0;
	struct ep_topo_gpu *gpu;
	int found = 0;
	char pci[EP_TOPO_PCI_LEN];

	for (unsigned i = 0; mig && i < max && i < 64; i++) {
		nvml_dev part;

		if (nvml->mig_by_index(dev, i, &part)) {
			continue;
		}
		gpu = ep_topo_add_gpu(topo, node, err);
		if (!gpu) {
			return -E2BIG;
		}
		gpu->instance = found++;
		read_device(topo, nvml, dev, gpu);
		if (nvml->uuid(part, gpu->uuid, sizeof(gpu->uuid))) {
			gpu->uuid[0] = '\0';
		}
		gpu->nvlinks = 0;
	}
	if (mig && !found) {
		ep_topo_note(topo,
			     "GPU %s is in MIG mode without an instance: nothing can run on "
			     "it",
			     ep_topo_pci_print(&topo->nodes[node].pci, pci));
	}
	if (mig) {
		return 0;
	}
	gpu = ep_topo_add_gpu(topo, node, err);
	if (!gpu) {
		return -E2BIG;
	}
	read_device(topo, nvml, dev, gpu);
	return 0;
}

/* Returns how a GPU reaches another one, in the words of the library, which asks the same. */
static enum ep_topo_reach read_reach(const struct nvml *nvml, nvml_dev a, nvml_dev b)
{
	int status[NVML_P2P_ATOMICS + 1];

	for (int what = NVML_P2P_READ; what <= NVML_P2P_ATOMICS; what++) {
		if (nvml->p2p(a, b, what, &status[what])) {
			return EP_TOPO_REACH_UNKNOWN;
		}
	}
	if (status[NVML_P2P_READ] || status[NVML_P2P_WRITE]) {
		return EP_TOPO_REACH_NONE;
	}
	return status[NVML_P2P_NVLINK] || status[NVML_P2P_ATOMICS] ? EP_TOPO_REACH_PCIE
								   : EP_TOPO_REACH_NVLINK;
}

static void read_peers(struct ep_topo *topo, const struct nvml *nvml, unsigned count)
{
	for (unsigned a = 0; a < count && a < EP_TOPO_MAX_GPUS && nvml->p2p; a++) {
		for (unsigned b = 0; b < count && b < EP_TOPO_MAX_GPUS; b++) {
			nvml_dev from, to;

			if (a != b && !nvml->by_index(a, &from) && !nvml->by_index(b, &to)) {
				topo->reach[a][b] = (unsigned char)read_reach(nvml, from, to);
			}
		}
	}
}

static int read_all(struct ep_topo *topo, const struct nvml *nvml, const char *root,
		    struct ep_topo_err *err)
{
	int on_pci = topo->ngpus;
	unsigned count = 0;

	if (nvml->driver && nvml->driver(topo->driver, sizeof(topo->driver))) {
		topo->driver[0] = '\0';
	}
	if (nvml->count(&count)) {
		count = 0;
	}
	/* In a container sysfs shows GPUs that are not ours. NVML shows ours. */
	topo->ngpus = 0;
	for (unsigned i = 0; i < count; i++) {
		struct nvml_pci pci;
		struct ep_topo_pci at;
		nvml_dev dev;

		if (nvml->by_index(i, &dev) || nvml->pci(dev, &pci)) {
			ep_topo_note(topo, "NVML cannot open GPU %u, left out", i);
			continue;
		}
		pci.busid[sizeof(pci.busid) - 1] = '\0';
		if (!ep_topo_pci_parse(pci.busid, &at)) {
			continue;
		}
		int node = ep_topo_place(topo, &at, ep_topo_numa_of_pci(root, &at), err);
		int first = topo->ngpus;
		int rc = node < 0 ? node : read_gpu(topo, nvml, dev, node, err);

		if (rc) {
			return rc;
		}
		for (int g = first; g < topo->ngpus && i < EP_TOPO_MAX_GPUS; g++) {
			topo->gpu[g].nvml = (int)i;
		}
	}
	read_peers(topo, nvml, count);
	if ((int)count < on_pci) {
		ep_topo_note(topo, "%d more GPUs are on PCI, but not given to this process",
			     on_pci - (int)count);
	}
	return 0;
}

/* The driver's own word on multicast; asking creates no context and no multicast object. */
static enum ep_topo_tristate read_multicast(void)
{
	enum {
		ATTR_MULTICAST_SUPPORTED = 132
	};
	enum ep_topo_tristate answer = EP_TOPO_UNKNOWN;
	int (*init)(unsigned), (*count)(int *), (*get)(int *, int), (*attr)(int *, int, int);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int n = 0, yes = 1;

	if (!lib) {
		return answer;
	}
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&count = dlsym(lib, "cuDeviceGetCount");
	*(void **)&get = dlsym(lib, "cuDeviceGet");
	*(void **)&attr = dlsym(lib, "cuDeviceGetAttribute");
	if (init && count && get && attr && init(0) == 0 && count(&n) == 0 && n > 0) {
		answer = EP_TOPO_YES;
		for (int i = 0; i < n; i++) {
			int dev;

			if (get(&dev, i) || attr(&yes, ATTR_MULTICAST_SUPPORTED, dev) || !yes) {
				answer = EP_TOPO_NO;
			}
		}
	}
	return answer;
}

int ep_topo_read_nvml(struct ep_topo *topo, const char *root, struct ep_topo_err *err)
{
	struct nvml n;
	bool loaded = nvml_load(&n);
	int status = loaded ? n.init() : -1;
	int rc = 0;

	if (status == 0) {
		rc = read_all(topo, &n, root, err);
		n.shutdown();
		for (int i = 0; i < topo->ngpus; i++) {
			bool sw = topo->gpu[i].nvswitch;

			if (sw || topo->nvswitch == EP_TOPO_UNKNOWN) {
				topo->nvswitch = sw ? EP_TOPO_YES : EP_TOPO_NO;
			}
		}
		if (topo->ngpus) {
			topo->nvls = read_multicast();
		}
	} else if (topo->ngpus && loaded) {
		ep_topo_note(topo, "NVML fails with status %d: is the NVIDIA driver running?",
			     status);
	} else if (topo->ngpus) {
		ep_topo_note(topo, "no usable libnvidia-ml.so.1: NVLink and MIG are unknown");
	}
	if (n.lib) {
		dlclose(n.lib);
	}
	return rc;
}
