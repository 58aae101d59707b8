/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: runs kernels on the CPU. This is what the CUDA stand-in sees of it.
 *
 * A device has SMs; a grid's blocks become resident as SMs have room, in registers, shared memory and
 * threads, and run each on an OS thread of a pool. Grids of one device get their blocks placed in the
 * order of submission, and run concurrently as far as there is room, as on a GPU: a block that waits
 * keeps its room, whatever waits for that.
 */
#ifndef VC_GRID_H
#define VC_GRID_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VC_MAX_DEVICES 256
#define VC_SM_BLOCKS 32u
#define VC_SM_THREADS 2048u
#define VC_SM_REGISTERS 65536u
#define VC_THREAD_REGISTERS_MAX 255u
#define VC_SM_SHARED (228u * 1024)
#define VC_SM_SHARED_RESERVED 1024u /* the system's share of each block */
#define VC_STATIC_LIMIT (48 * 1024) /* dynamic shared memory without cudaFuncSetAttribute */
#define VC_BLOCK_SHARED_MAX (227u * 1024)
#define VC_BLOCK_THREADS_MAX 1024u

struct vc_kernel {
	void (*handle)(void);
	const char *name;
	void (*body)(const void *args);
	size_t args_size;
	uint32_t max_threads;
	uint32_t registers; /* of a thread: as many as its launch bounds leave it */
	/* The thread-local segment that holds its EP_SHARED variables; modid 0: not to be touched */
	size_t tls_module, tls_size;
	struct vc_kernel *next;
	int max_dynamic_shared; /* raised by cudaFuncSetAttribute */
};

struct vc_grid {
	const struct vc_kernel *kernel;
	const void *args; /* stays valid until done() */
	int device;
	uint32_t nblocks, nthreads;
	size_t dynamic_shared;
	/* Called once, from a block's thread, after the last block. May free the grid. */
	void (*done)(struct vc_grid *grid);
	void *done_arg;

	/* the executor's */
	uint64_t serial;
	uint32_t placed;
	_Atomic uint32_t left;
	_Atomic int fault; /* a block hit a memory fault */
	struct vc_reads *reads;
	struct vc_grid *next;
};

struct vc_kernel *vc_kernel_find(const void *handle);
void vc_kernels_reset(void); /* attributes as in the beginning */
void vc_grid_submit(struct vc_grid *grid);
/* Orders what the caller wrote before the grid, and the grid before what the caller does next. */
void vc_grid_publish(struct vc_grid *grid);
void vc_grid_observe(struct vc_grid *grid);
uint32_t vc_sm_count(void);
/* Blocks of that shape that fit one SM. */
uint32_t vc_occupancy(const struct vc_kernel *kernel, uint32_t nthreads, size_t shared);

/* Set by cuda/memory.c. For fault reports: describes the owner of an address. */
extern void (*vc_describe_address)(uintptr_t address, char *text, size_t size);
/* Is the address memory of this device? */
extern bool (*vc_device_address)(uintptr_t address, int device);

#endif
