/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libcuda.so.1, as far as the tools ask. FAKE_CUDA=DMABUF,ORDER: the attributes.
 * FAKE_CUDA_GPUS: PCI addresses, separated by commas. FAKE_CUDA_MULTICAST=10: of two GPUs only the
 * first has that attribute.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *dev, int index);
int cuDeviceGetPCIBusId(char *text, int len, int dev);
int cuDeviceGetAttribute(int *value, int attribute, int dev);

static int fake(int values[2])
{
	const char *text = getenv("FAKE_CUDA");

	return text && sscanf(text, "%d,%d", values, values + 1) == 2;
}

static const char *gpus(void)
{
	const char *text = getenv("FAKE_CUDA_GPUS");

	return text ? text : "0000:13:00.0";
}

static int has_multicast(int dev)
{
	const char *text = getenv("FAKE_CUDA_MULTICAST");

	return text && dev < (int)strlen(text) && text[dev] == '1';
}

int cuInit(unsigned flags)
{
	int values[2];

	return fake(values) ? 0 : 100; /* CUDA_ERROR_NO_DEVICE */
}

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuDeviceGetCount(int *count)
{
	*count = 1;
	for (const char *s = gpus(); *s; s++) {
		*count += *s == ',';
	}
	return 0;
}

int cuDeviceGet(int *dev, int index)
{
	*dev = index;
	return 0;
}

int cuDeviceGetPCIBusId(char *text, int len, int dev)
{
	const char *s = gpus();

	for (const char *comma; dev-- > 0 && (comma = strchr(s, ','));) {
		s = comma + 1;
	}
	snprintf(text, (size_t)len, "%.*s", (int)strcspn(s, ","), s);
	return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int dev)
{
	int values[2];

	if (fake(values) && attribute == 132) {
		*value = has_multicast(dev);
		return 0;
	}
	if (!fake(values) || (attribute != 124 && attribute != 118)) {
		return 1;
	}
	*value = values[attribute == 118];
	return 0;
}
