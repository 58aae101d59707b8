/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an SM holds. Two devices run two grids each, which wait for the grid of the same kind on the
 * other device; one device is given them in one order, the other one in the other. They meet if
 * both fit a device together. Else each device keeps the grid that it was given first, which waits
 * for the one that the other device cannot begin.
 */
#include <unistd.h>
#include "test.h"
#include "kernels.h"

#define SMS 8
#define GRIDS 2
#define DEVICES 2
#define FOREVER_NS 60000000000ull
#define SHORT_NS 200000000ull

struct shape {
	unsigned int blocks, threads;
	size_t shared;
};

static cudaStream_t streams[DEVICES][GRIDS];
static uint32_t *words; /* host memory: of each grid, how many have come; then how many were late */

static void set_up(void)
{
	for (int d = 0; d < DEVICES; d++) {
		NEED(cudaSetDevice(d));
		for (int g = 0; g < GRIDS; g++) {
			NEED(cudaStreamCreateWithFlags(&streams[d][g], cudaStreamNonBlocking));
		}
		NEED(cudaDeviceEnablePeerAccess(!d, 0));
	}
	NEED(cudaMallocHost((void **)&words, (GRIDS + 1) * sizeof(*words)));
	NEED(cudaFuncSetAttribute((const void *)test_meet,
				  cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
}

static void start(const struct shape *shape, int device, int grid, uint64_t timeout_ns)
{
	struct test_meet_args args = { .here = words + grid,
				       .late = words + GRIDS,
				       .want = DEVICES * shape->blocks,
				       .timeout_ns = timeout_ns };

	NEED(cudaSetDevice(device));
	OK(test_launch(test_meet, shape->blocks, shape->threads, &args, shape->shared,
		       streams[device][grid]));
}

/* Alone on its device a grid begins whole. */
static void await_blocks(int grid, uint32_t blocks)
{
	while (__atomic_load_n(words + grid, __ATOMIC_RELAXED) < blocks) {
		usleep(500);
	}
}

/* How many blocks waited in vain, of both grids on both devices. */
static uint32_t run(const struct shape shape[GRIDS], uint64_t timeout_ns)
{
	memset(words, 0, (GRIDS + 1) * sizeof(*words));
	for (int d = 0; d < DEVICES; d++) {
		start(&shape[d], d, d, timeout_ns);
	}
	for (int d = 0; d < DEVICES; d++) {
		await_blocks(d, shape[d].blocks);
	}
	for (int d = 0; d < DEVICES; d++) {
		start(&shape[!d], d, !d, timeout_ns);
	}
	for (int d = 0; d < DEVICES; d++) {
		for (int g = 0; g < GRIDS; g++) {
			OK(cudaStreamSynchronize(streams[d][g]));
		}
	}
	return words[GRIDS];
}

static void expect(bool fits, const char *what, struct shape first, struct shape second)
{
	const struct shape shape[GRIDS] = { first, second };
	uint32_t late = run(shape, fits ? FOREVER_NS : SHORT_NS);

	printf("%s: %u blocks waited in vain\n", what, late);
	CHECK((late == 0) == fits);
}

static void expect_occupancy(int want, int threads, size_t shared)
{
	int blocks;

	OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)test_meet, threads,
							 shared));
	CHECK_INT(blocks, want);
}

int main(void)
{
	const struct shape none = { 1, 32, 0 }, all = { SMS, 512, 0 };
	struct cudaFuncAttributes func;

	setenv("VC_SMS", "8", 1);
	unsetenv("VC_BLOCKS_PER_SM");
	set_up();

	/* Registers: 512 threads of a kernel that is made for 512 have all of them. */
	OK(cudaFuncGetAttributes(&func, (const void *)test_meet));
	CHECK_INT(func.numRegs, 128);
	expect_occupancy(1, 512, 0);
	expect_occupancy(2, 256, 0);
	expect(true, "half of the SMs each", (struct shape){ 4, 512, 0 },
	       (struct shape){ 4, 512, 0 });
	expect(false, "all SMs each", all, all);
	expect(false, "one block too many", (struct shape){ 4, 512, 0 },
	       (struct shape){ 5, 512, 0 });
	expect(true, "blocks of half the size", (struct shape){ 8, 256, 0 },
	       (struct shape){ 8, 256, 0 });
	expect(false, "a large grid and a small one", all, none);
	expect(true, "a small one beside one that leaves an SM", (struct shape){ 7, 512, 0 },
	       (struct shape){ 16, 32, 0 });

	/* Shared memory: 228 KiB, of which each block takes one more than it asks for. */
	expect_occupancy(1, 32, 227 * 1024);
	expect_occupancy(2, 32, 113 * 1024);
	expect(false, "all of the shared memory each", (struct shape){ 8, 32, 227 * 1024 },
	       (struct shape){ 8, 32, 227 * 1024 });
	expect(true, "half of it each", (struct shape){ 8, 32, 113 * 1024 },
	       (struct shape){ 8, 32, 113 * 1024 });
	expect(false, "and one block too many", (struct shape){ 8, 32, 113 * 1024 },
	       (struct shape){ 9, 32, 113 * 1024 });

	/* Blocks of any size, where the environment says so. */
	setenv("VC_BLOCKS_PER_SM", "1", 1);
	expect_occupancy(1, 32, 0);
	expect(false, "a block per SM, however small", (struct shape){ 8, 32, 0 }, none);
	expect(true, "and those that are few enough", (struct shape){ 7, 32, 0 }, none);
	return test_result();
}
