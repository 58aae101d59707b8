// SPDX-License-Identifier: Apache-2.0
/* A stand-in for libcuda.so.1, as far as ep_info asks. FAKE_CUDA=DMABUF,ORDER: the attributes. */
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGet(int *dev, int index);
int cuDeviceGetAttribute(int *value, int attribute, int dev);

static int fake(int values[2])
{
	const char *text = getenv("FAKE_CUDA");

	return text && sscanf(text, "%d,%d", values, values + 1) == 2;
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

int cuDeviceGet(int *dev, int index)
{
	*dev = index;
	return index;
}

int cuDeviceGetAttribute(int *value, int attribute, int dev)
{
	int values[2];

	if (!fake(values) || (attribute != 124 && attribute != 118)) {
		return 1;
	}
	*value = values[attribute == 118];
	return 0;
}
