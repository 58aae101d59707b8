/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libnvidia-ml.so.1. FAKE_NVML says which machine: "switch": 4 GPUs on an NVSwitch,
 * one not in its fabric yet; "cliques": 6 GPUs on NVSwitches, fabrics as in the table below;
 * "peers": 4 GPUs, joined in pairs by NVLink, with one link to the CPU each, the last one out of
 * reach of the first two; "mig": 2 GPUs, the first with MIG instances 0 and 2 of 7; "broken": it
 * does not start. FAKE_NVML_GPUS: "dddd:bb:dd.f ...", where they are on PCI.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char busid[32];
};

struct fabric {
	unsigned version;
	unsigned char uuid[16];
	int status;
	unsigned clique;
	unsigned char state;
	unsigned health;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlSystemGetDriverVersion(char *text, unsigned len);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **dev);
int nvmlDeviceGetPciInfo_v3(void *dev, struct pci *pci);
int nvmlDeviceGetUUID(void *dev, char *text, unsigned len);
int nvmlDeviceGetName(void *dev, char *text, unsigned len);
int nvmlDeviceGetCudaComputeCapability(void *dev, int *major, int *minor);
int nvmlDeviceGetNvLinkState(void *dev, unsigned link, int *active);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *dev, unsigned link, int *type);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *dev, unsigned link, struct pci *pci);
int nvmlDeviceGetGpuFabricInfoV(void *dev, struct fabric *f);
int nvmlDeviceGetMigMode(void *dev, unsigned *mode, unsigned *pending);
int nvmlDeviceGetMaxMigDeviceCount(void *dev, unsigned *count);
int nvmlDeviceGetMigDeviceHandleByIndex(void *dev, unsigned i, void **part);
int nvmlDeviceGetP2PStatus(void *from, void *to, int what, int *status);

static int is(const char *machine)
{
	const char *which = getenv("FAKE_NVML");

	return which && strcmp(which, machine) == 0;
}

/* "cliques" */
static const struct {
	unsigned char uuid, state;
	int status;
	unsigned clique;
} fabrics[] = {
	{ 0xab, 3, 0, 5 },  { 0xab, 3, 0, 6 }, { 0xab, 3, 0, 5 },
	{ 0xab, 3, 15, 5 }, { 0xcd, 3, 0, 5 }, { 0, 3, 0, 5 },
};

static void put_busid(char busid[32], int index)
{
	const char *at = getenv("FAKE_NVML_GPUS");

	snprintf(busid, 32, "00000000:%02X:00.0", 0x17 + index);
	if (at && strlen(at) >= 13 * (size_t)index + 12) {
		snprintf(busid, 32, "0000%.12s", at + 13 * index);
	}
}

/* Handles: 1 + index; MIG instances 100 + index. */
static int index_of(void *dev)
{
	return (int)(size_t)dev - 1;
}

int nvmlInit_v2(void)
{
	return is("switch") || is("cliques") || is("peers") || is("mig") ? 0 : 9;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned len)
{
	snprintf(text, len, "999.1");
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = is("cliques") ? 6 : is("mig") ? 2 : 4;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **dev)
{
	*dev = (void *)(size_t)(i + 1);
	return 0;
}

int nvmlDeviceGetPciInfo_v3(void *dev, struct pci *pci)
{
	memset(pci, 0, sizeof(*pci));
	put_busid(pci->busid, index_of(dev));
	return 0;
}

int nvmlDeviceGetUUID(void *dev, char *text, unsigned len)
{
	snprintf(text, len, index_of(dev) >= 99 ? "MIG-%d" : "GPU-%d", index_of(dev) % 99);
	return 0;
}

int nvmlDeviceGetName(void *dev, char *text, unsigned len)
{
	snprintf(text, len, "Test \x1b[31mGPU");
	return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *dev, int *major, int *minor)
{
	*major = 9;
	*minor = 0;
	return 0;
}

int nvmlDeviceGetNvLinkState(void *dev, unsigned link, int *active)
{
	if (is("peers")) {
		*active = link < 5;
		return 0;
	}
	*active = link < 17; /* one is down */
	return !is("mig") && link < 18 ? 0 : 3;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *dev, unsigned link, int *type)
{
	*type = !is("peers") ? 2 : link < 4 ? 0 : 1;
	return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *dev, unsigned link, struct pci *pci)
{
	memset(pci, 0, sizeof(*pci));
	if (is("peers")) {
		put_busid(pci->busid, index_of(dev) ^ 1);
		return 0;
	}
	snprintf(pci->busid, sizeof(pci->busid), "00000000:%02X:00.0", 0xc0 + link % 4);
	return 0;
}

int nvmlDeviceGetGpuFabricInfoV(void *dev, struct fabric *f)
{
	if (f->version != ((unsigned)sizeof(*f) | 2u << 24)) {
		return 25;
	}
	if (is("peers")) {
		return 3;
	}
	if (is("cliques")) {
		memset(f->uuid, fabrics[index_of(dev)].uuid, sizeof(f->uuid));
		f->state = fabrics[index_of(dev)].state;
		f->status = fabrics[index_of(dev)].status;
		f->clique = fabrics[index_of(dev)].clique;
		return 0;
	}
	memset(f->uuid, 0xab, sizeof(f->uuid));
	f->state = index_of(dev) == 3 ? 2 : 3; /* the last one is still starting */
	f->status = 0;
	f->clique = 5;
	return 0;
}

int nvmlDeviceGetMigMode(void *dev, unsigned *mode, unsigned *pending)
{
	*mode = is("mig") && index_of(dev) == 0;
	*pending = *mode;
	return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *dev, unsigned *count)
{
	*count = 7;
	return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *dev, unsigned i, void **part)
{
	*part = (void *)(size_t)(100 + i);
	return i == 0 || i == 2 ? 0 : 6;
}

/*
 * Of "peers", GPUs 0 and 1 reach 2 by PCIe; they and 3 do not reach each other. Of "switch", nobody
 * reaches the one that is not in its fabric. All others by NVLink.
 */
int nvmlDeviceGetP2PStatus(void *from, void *to, int what, int *status)
{
	int a = index_of(from), b = index_of(to);

	*status = 0;
	if (is("peers") && a / 2 != b / 2) {
		*status = (a == 3 || b == 3 || what == 2 || what == 3) ? 5 : 0;
	}
	if (is("switch") && (a == 3 || b == 3)) {
		*status = 5;
	}
	return a == b ? 2 : 0;
}
