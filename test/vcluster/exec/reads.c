/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel reads as memory that nobody writes while it runs. A GPU may then serve old data; a
 * CPU does not, so the promise is checked: what was read is remembered in a hashed form until the
 * kernel's end, or until the place in the table is needed for another address, and compared with
 * the memory then.
 */
#include <stdlib.h>
#include "exec/block.h"

#define VC_READS 8192u /* a power of two */

/* An entry: address / 8, one bit for 16 bytes instead of 8, 19 bits of hash. 0: empty. */
struct vc_reads {
	_Atomic uint64_t entry[VC_READS];
};

static uint64_t vc_mix(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

/* Read word by word, as memcpy() would be a plain access to a race detector. */
typedef uint64_t vc_word __attribute__((may_alias));

static uint64_t vc_entry_make(const void *p, const void *value, size_t size)
{
	const volatile vc_word *word = value;
	uint64_t first = word[0], second = size == 16 ? word[1] : 0;

	return (uint64_t)(uintptr_t)p >> 3 << 20 | (uint64_t)(size == 16) << 19 |
	       vc_mix(vc_mix(first) + second) >> 45;
}

static void vc_entry_check(const struct vc_grid *grid, uint64_t entry)
{
	const void *p = (const void *)(uintptr_t)(entry >> 20 << 3);
	size_t size = entry >> 19 & 1 ? 16 : 8;
	char where[160] = "";

	if (!entry || vc_entry_make(p, p, size) == entry) {
		return;
	}
	if (vc_describe_address) {
		vc_describe_address((uintptr_t)p, where, sizeof(where));
	}
	vc_die(VC_EXIT_ILLEGAL,
	       "kernel %s, device %d: address %p%s%s was written while the kernel ran, which has "
	       "read it with ep_ld%zu_nc()",
	       grid->kernel->name, grid->device, p, *where ? ", " : "", where, size);
}

/* By the thread that submits: a race detector would order kernel threads by their allocations. */
void vc_reads_start(struct vc_grid *grid)
{
	grid->reads = calloc(1, sizeof(*grid->reads));
	if (!grid->reads) {
		vc_die(VC_EXIT_ILLEGAL, "no memory to remember what a kernel reads");
	}
}

void ep_simt_read_only(const void *p, const void *value, size_t size)
{
	struct vc_grid *grid;
	uint64_t entry, old;
	_Atomic uint64_t *at;

	if (!ep_simt_self) {
		return; /* a device function called by the host */
	}
	grid = vc_self->block.grid;
	entry = vc_entry_make(p, value, size);
	at = &grid->reads->entry[vc_mix(entry >> 20) >> 20 & (VC_READS - 1)];
	old = atomic_load_explicit(at, memory_order_relaxed);
	if (old != entry) {
		old = atomic_exchange_explicit(at, entry, memory_order_relaxed);
		vc_entry_check(grid, old);
	}
}

void vc_reads_end(struct vc_grid *grid)
{
	for (uint32_t i = 0; !grid->fault && i < VC_READS; i++) {
		vc_entry_check(grid,
			       atomic_load_explicit(&grid->reads->entry[i], memory_order_relaxed));
	}
	free(grid->reads);
}
