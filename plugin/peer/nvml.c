/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML knows all GPUs of the host, also those that CUDA_VISIBLE_DEVICES hides from this process. It
 * comes with the driver and is loaded by name; the declarations are the part of its ABI in use.
 */
#include <dlfcn.h>
#include "core/log.h"
#include "peer/nvml.h"

struct nvml_device;

enum {
	NVML_P2P_NVLINK = 2,
	NVML_P2P_ATOMICS = 3,
};

struct ep_nvml {
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_bus_id)(const char *bus_id, struct nvml_device **device);
	int (*p2p)(struct nvml_device *a, struct nvml_device *b, int capability, int *status);
};

/* 0 is success and "there is", in NVML. */
static bool ep_nvml_nvlink(const struct ep_nvml *nvml, const char *a, const char *b)
{
	int nvlink = -1, atomics = -1;
	struct nvml_device *gpu[2];

	if (nvml->by_bus_id(a, &gpu[0]) || nvml->by_bus_id(b, &gpu[1])) {
		EP_INFO(EP_LOG_INIT, "NVML does not know GPU %s or %s", a, b);
		return false;
	}
	if (nvml->p2p(gpu[0], gpu[1], NVML_P2P_NVLINK, &nvlink) ||
	    nvml->p2p(gpu[0], gpu[1], NVML_P2P_ATOMICS, &atomics)) {
		EP_INFO(EP_LOG_INIT, "NVML does not report how GPUs %s and %s are joined", a, b);
		return false;
	}
	EP_INFO(EP_LOG_INIT, "NVML on GPUs %s and %s: NVLink status %d, atomics %d", a, b, nvlink,
		atomics);
	return nvlink == 0 && atomics == 0;
}

static bool ep_nvml_load(struct ep_nvml *nvml, void *lib)
{
	*(void **)&nvml->init = dlsym(lib, "nvmlInit_v2");
	*(void **)&nvml->shutdown = dlsym(lib, "nvmlShutdown");
	*(void **)&nvml->by_bus_id = dlsym(lib, "nvmlDeviceGetHandleByPciBusId_v2");
	*(void **)&nvml->p2p = dlsym(lib, "nvmlDeviceGetP2PStatus");
	return nvml->init && nvml->shutdown && nvml->by_bus_id && nvml->p2p && nvml->init() == 0;
}

bool ep_peer_nvlink_hidden(const char *const *bus_ids, int count, const char *self)
{
	void *lib = count ? dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
	bool all = count == 0;
	struct ep_nvml nvml;

	if (lib && ep_nvml_load(&nvml, lib)) {
		all = true;
		for (int i = 0; i < count && all; i++) {
			all = ep_nvml_nvlink(&nvml, self, bus_ids[i]);
		}
		nvml.shutdown();
	} else if (count) {
		EP_INFO(EP_LOG_INIT,
			"%d GPUs of this node are hidden from this process, and without NVML "
			"(libnvidia-ml.so.1) nothing shows whether NVLink joins them",
			count);
	}
	if (lib) {
		dlclose(lib);
	}
	return all;
}
