/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, and how many blocks of them are on the device at once. */
#include <pthread.h>
#include <stdio.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/util.h"
#include "ep/ep.h"

ncclResult_t ep_kernels_load(const void *const *kernels, size_t count)
{
	struct cudaFuncAttributes attributes;

	for (size_t i = 0; i < count; i++) {
		cudaError_t err = cudaFuncGetAttributes(&attributes, kernels[i]);

		if (err != cudaSuccess) {
			(void)cudaGetLastError();
			return ep_fail(ncclUnhandledCudaError,
				       "no kernel can be loaded on this GPU: %s; the library needs "
				       "compute capability 8.0 or later",
				       cudaGetErrorString(err));
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_kernels_share(const void *const *kernels, size_t count, int device, uint32_t *bytes)
{
	struct cudaFuncAttributes attributes;
	size_t fixed = 0;
	int most = 0;

	EP_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
		"asking for the device's shared memory");
	for (size_t i = 0; i < count; i++) {
		EP_CUDA(cudaFuncGetAttributes(&attributes, kernels[i]),
			"asking for a kernel's shared memory");
		fixed = ep_max_u64(fixed, attributes.sharedSizeBytes);
	}
	*bytes = (uint32_t)most - (uint32_t)ep_min_u64(fixed, (uint64_t)most);
	for (size_t i = 0; i < count; i++) {
		EP_CUDA(cudaFuncSetAttribute(kernels[i],
					     cudaFuncAttributeMaxDynamicSharedMemorySize,
					     (int)*bytes),
			"making room in shared memory");
	}
	return ncclSuccess;
}

/* A launch has failed: perhaps since the stream is of another device. */
static ncclResult_t kernel_refused(cudaError_t err, cudaStream_t stream, const char *what)
{
	int device = ep_context_stream_device(stream), current = -1;

	if (cudaGetDevice(&current) != cudaSuccess || device < 0 || device == current) {
		return ep_fail_cuda(err, what);
	}
	(void)cudaGetLastError();
	return ep_fail(ncclInvalidUsage,
		       "%s: the stream is of device %d, and the group of device %d: pass a stream "
		       "that was made on the group's device",
		       what, device, current);
}

ncclResult_t ep_kernel_launch(const void *kernel, void *args, uint32_t blocks, uint32_t threads,
			      uint32_t shared_bytes, cudaStream_t stream, const char *what)
{
	void *params[] = { args };
	cudaLaunchConfig_t config = {
		.gridDim = { blocks, 1, 1 },
		.blockDim = { threads, 1, 1 },
		.dynamicSmemBytes = shared_bytes,
		.stream = stream,
	};

	cudaError_t err = cudaLaunchKernelExC(&config, kernel, params);

	return err == cudaSuccess ? ncclSuccess : kernel_refused(err, stream, what);
}

static pthread_mutex_t resident_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_resident *resident_groups;

/* Sum of what the groups of one device ask for. */
struct resident_sum {
	uint32_t sm_count;
	uint32_t groups;
	uint32_t fixed;      /* blocks of high throughput whose number the caller has chosen */
	uint32_t sharing;    /* groups of high throughput with AUTO */
	uint32_t low;        /* groups of low latency */
	uint32_t holds;      /* limits of all together */
	uint32_t share;      /* limit of a group that shares */
	uint32_t recv_share; /* limit of a group of low latency */
	bool fits;
};

static uint32_t resident_minus(uint32_t a, uint32_t b)
{
	return a > b ? a - b : 0;
}

/*
 * Groups of low latency need to be limited from the second one on; then those of high throughput leave
 * them half of what nobody has chosen.
 */
static void resident_divide(struct resident_sum *sum, uint32_t most_shared)
{
	uint32_t others = resident_minus(sum->low, 1), left, high;

	left = resident_minus(sum->sm_count, sum->fixed + (sum->low ? 1 : 0));
	sum->share = others ? left / 2 : left;
	sum->share = sum->sharing ? sum->share / sum->sharing : 0;
	sum->share = (uint32_t)ep_max_u64(1, ep_min_u64(sum->share, most_shared));
	high = sum->sharing * sum->share;
	sum->recv_share = others ? resident_minus(left, high) / others : sum->sm_count;
	sum->fits = sum->fixed + (sum->low ? 1 : 0) + sum->sharing <= sum->sm_count &&
		    (!others || sum->recv_share);
	sum->recv_share = (uint32_t)ep_max_u64(1, sum->recv_share);
}

/* Adds up the groups of the device, under the lock. */
static struct resident_sum resident_count(int device)
{
	struct resident_sum s = { 0 };
	uint32_t most_shared = 0;

	for (const struct ep_resident *g = resident_groups; g; g = g->next) {
		if (g->device != device) {
			continue;
		}
		s.sm_count = g->sm_count;
		s.groups++;
		s.holds += ep_resident_limit(g);
		if (!g->all_wait) {
			s.low++;
		} else if (g->auto_sms) {
			s.sharing++;
			most_shared = (uint32_t)ep_max_u64(most_shared, g->most);
		} else {
			s.fixed += g->most;
		}
	}
	resident_divide(&s, most_shared);
	return s;
}

/* Limits the groups of the device anew, under the lock. */
static struct resident_sum resident_limit_all(int device)
{
	struct resident_sum s = resident_count(device);

	for (struct ep_resident *g = resident_groups; g; g = g->next) {
		uint32_t share = !g->all_wait ? s.recv_share : g->auto_sms ? s.share : g->most;

		if (g->device == device) {
			__atomic_store_n(&g->limit, (uint32_t)ep_min_u64(g->most, share),
					 __ATOMIC_RELAXED);
		}
	}
	return resident_count(device);
}

void ep_resident_add(struct ep_resident *group)
{
	struct resident_sum s;

	pthread_mutex_lock(&resident_lock);
	group->next = resident_groups;
	resident_groups = group;
	s = resident_limit_all(group->device);
	pthread_mutex_unlock(&resident_lock);
	if (!s.fits) {
		EP_WARN("%u groups of this process share GPU %d and may hold %u of its %u SMs "
			"while they wait for peers: operations of different groups that run on "
			"different streams can lock each other up until the timeout. Give the "
			"groups fewer SMs (max_num_sms), run them on one stream, or destroy those "
			"that are not used",
			s.groups, group->device, s.holds, s.sm_count);
	}
}

void ep_resident_remove(struct ep_resident *group)
{
	pthread_mutex_lock(&resident_lock);
	for (struct ep_resident **at = &resident_groups; *at; at = &(*at)->next) {
		if (*at == group) {
			*at = group->next;
			(void)resident_limit_all(group->device);
			break;
		}
	}
	pthread_mutex_unlock(&resident_lock);
}

uint32_t ep_resident_limit(const struct ep_resident *group)
{
	return __atomic_load_n(&group->limit, __ATOMIC_RELAXED);
}

void ep_resident_describe(const struct ep_resident *group, char *text, size_t size)
{
	struct resident_sum s;

	pthread_mutex_lock(&resident_lock);
	s = resident_count(group->device);
	pthread_mutex_unlock(&resident_lock);
	text[0] = '\0';
	if (s.groups > 1) {
		snprintf(text, size, "; %u groups of this process may hold %u of this GPU's %u SMs",
			 s.groups, s.holds, s.sm_count);
	}
}
