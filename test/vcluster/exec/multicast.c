/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses are reserved, without access: a plain load or store faults. Kernels look them up
 * without a lock, which would order threads that nothing else orders.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "exec/exec.h"

#define VC_MULTICASTS 256

static struct vc_multicast {
	_Atomic uintptr_t start; /* 0: free; 1: being made or ended */
	_Atomic uintptr_t end;
	uint32_t count;
	uint8_t **member;
} vc_multicasts[VC_MULTICASTS];

void *vc_multicast_make(uint8_t *const *member, uint32_t count, size_t size)
{
	void *address = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (uint32_t i = 0; i < VC_MULTICASTS && address != MAP_FAILED; i++) {
		struct vc_multicast *m = &vc_multicasts[i];
		uintptr_t none = 0;

		if (!atomic_compare_exchange_strong(&m->start, &none, 1)) {
			continue;
		}
		m->count = count;
		m->member = calloc(count, sizeof(*m->member));
		if (!m->member) {
			atomic_store(&m->start, 0);
			break;
		}
		memcpy(m->member, member, count * sizeof(*m->member));
		atomic_store(&m->end, (uintptr_t)address + size);
		atomic_store(&m->start, (uintptr_t)address);
		return address;
	}
	if (address != MAP_FAILED) {
		munmap(address, size);
	}
	return NULL;
}

static struct vc_multicast *vc_multicast_find(uintptr_t p)
{
	for (uint32_t i = 0; i < VC_MULTICASTS; i++) {
		struct vc_multicast *m = &vc_multicasts[i];
		uintptr_t start = atomic_load_explicit(&m->start, memory_order_relaxed);

		if (start > 1 && p >= start &&
		    p < atomic_load_explicit(&m->end, memory_order_relaxed)) {
			return m;
		}
	}
	return NULL;
}

void vc_multicast_end(void *address)
{
	struct vc_multicast *m = vc_multicast_find((uintptr_t)address);

	if (!m) {
		return;
	}
	munmap(address, m->end - (uintptr_t)address);
	atomic_store(&m->start, 1);
	free(m->member);
	m->member = NULL;
	atomic_store(&m->start, 0);
}

void *ep_simt_member(const void *p, uint32_t i)
{
	const struct vc_multicast *m = vc_multicast_find((uintptr_t)p);

	if (!m) {
		vc_illegal(&vc_self->block, (struct vc_fiber *)ep_simt_self,
			   "stores to %p, which is no multicast address, or not any more", p);
	}
	return i < m->count ? m->member[i] + ((uintptr_t)p - m->start) : NULL;
}
