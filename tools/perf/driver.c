/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks NVML for the driver's version and the clocks of GPUs. NVML comes with the driver and is loaded
 * by name; the declarations are the part of its ABI in use.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "perf.h"

struct nvml_device;

static struct {
	int there;
	int (*init)(void);
	int (*driver)(char *text, unsigned bytes);
	int (*by_bus_id)(const char *bus_id, struct nvml_device **device);
	int (*clock)(struct nvml_device *device, int type, unsigned *mhz);
	char version[80];
} nvml;

static void load(void)
{
	const struct {
		const char *symbol;
		void *slot;
	} table[] = {
		{ "nvmlInit_v2", &nvml.init },
		{ "nvmlSystemGetDriverVersion", &nvml.driver },
		{ "nvmlDeviceGetHandleByPciBusId_v2", &nvml.by_bus_id },
		{ "nvmlDeviceGetClockInfo", &nvml.clock },
	};
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	for (size_t i = 0; lib && i < sizeof(table) / sizeof(table[0]); i++) {
		void *f = dlsym(lib, table[i].symbol);

		if (!f) {
			return;
		}
		memcpy(table[i].slot, &f, sizeof(f));
	}
	if (!lib || nvml.init()) {
		return;
	}
	nvml.there = 1;
	if (nvml.driver(nvml.version, sizeof(nvml.version))) {
		nvml.version[0] = '\0';
	}
}

static void load_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
}

const char *perf_driver_version(void)
{
	load_once();
	return nvml.version;
}

void perf_clocks_read(const struct perf_rank *rank, uint32_t mhz[PERF_CLOCKS])
{
	static const int types[PERF_CLOCKS] = { [PERF_CLOCK_SM] = 1, [PERF_CLOCK_MEMORY] = 2 };
	struct nvml_device *device;

	memset(mhz, 0, PERF_CLOCKS * sizeof(*mhz));
	load_once();
	if (!nvml.there || nvml.by_bus_id(rank->place.bus, &device)) {
		return;
	}
	for (int c = 0; c < PERF_CLOCKS; c++) {
		unsigned value = 0;

		if (nvml.clock(device, types[c], &value) == 0) {
			mhz[c] = value;
		}
	}
}
