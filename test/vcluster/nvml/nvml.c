/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the virtual cluster has of NVML: how two GPUs of a node are joined, whichever of them
 * CUDA_VISIBLE_DEVICES shows to the process; a driver's version; clocks. As for CUDA, VC_NO_PEER
 * and VC_NO_NVLINK name pairs.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "../cuda/pairs.h"

enum {
	NVML_OK,
	NVML_INVALID = 2,
	NVML_NOT_FOUND = 6,
	NVML_P2P_NOT_SUPPORTED = 5,
	NVML_P2P_ATOMICS = 3,
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);
int nvmlDeviceGetP2PStatus(void *from, void *to, int capability, int *status);
int nvmlSystemGetDriverVersion(char *text, unsigned int bytes);
int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *mhz);

int nvmlInit_v2(void)
{
	return NVML_OK;
}

int nvmlShutdown(void)
{
	return NVML_OK;
}

/* Handles are 1 + the device's number; the bus is 0x10 + the number. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
	const char *gpus = getenv("VC_GPUS");
	unsigned int domain, bus, slot;

	if (sscanf(id, "%x:%x:%x.0", &domain, &bus, &slot) != 3 || domain || slot || bus < 0x10 ||
	    bus - 0x10 >= (gpus ? (unsigned int)atoi(gpus) : 8)) {
		return NVML_NOT_FOUND;
	}
	*device = (void *)(size_t)(bus - 0x10 + 1);
	return NVML_OK;
}

int nvmlDeviceGetP2PStatus(void *from, void *to, int capability, int *status)
{
	int a = (int)(size_t)from - 1, b = (int)(size_t)to - 1;
	bool joined = !vc_pair_named("VC_NO_PEER", a, b);

	if (a < 0 || b < 0 || a == b || capability < 0 || capability > 4) {
		return NVML_INVALID;
	}
	if (capability >= 2) { /* NVLink, atomics, PCIe */
		joined = joined &&
			 vc_pair_named("VC_NO_NVLINK", a, b) == (capability > NVML_P2P_ATOMICS);
	}
	*status = joined ? NVML_OK : NVML_P2P_NOT_SUPPORTED;
	return NVML_OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned int bytes)
{
	return (unsigned int)snprintf(text, bytes, "999.1") < bytes ? NVML_OK : NVML_INVALID;
}

/*
 * Each GPU has clocks of its own: 1000 MHz and its number for SMs, 2000 and its number for memory.
 */
int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *mhz)
{
	if (type != 1 && type != 2) {
		return NVML_INVALID;
	}
	*mhz = 1000 * (unsigned int)type + (unsigned int)(size_t)device - 1;
	return NVML_OK;
}
