/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fork() does to registered memory. Kernels from 5.12 on copy pinned pages for the child, and nothing
 * happens. Before (profile old_fork) parent and child share each page until one of them writes: the parent
 * gets a new page then, and the NIC keeps the old one. Here the parent gets its new pages at once, whether
 * it writes or not. ibv_fork_init() keeps pages from the child, and so with the NIC.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "nic/memory.h"

static bool vn_fork_asked, vn_fork_late;

VN_EXPORT int ibv_fork_init(void)
{
	bool late;

	vn_lock();
	late = vn_fork_late && !vn_fork_asked;
	vn_fork_asked |= !late;
	vn_unlock();
	return late ? EINVAL : 0;
}

VN_EXPORT enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return !vn_config.old_fork ? IBV_FORK_UNNEEDED
	       : vn_fork_asked     ? IBV_FORK_ENABLED
				   : IBV_FORK_DISABLED;
}

/* The NIC is left with the page as it is now. */
static void vn_fork_move(struct vn_memory *m)
{
	void *old;

	if (m->map || m->gpu) {
		return; /* shared memory stays where it is */
	}
	old = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (old != MAP_FAILED) {
		memcpy(old, m->at, m->size);
		m->at = m->map = old;
		m->map_size = m->size;
	}
}

static void vn_fork_parent(void)
{
	for (uint32_t i = 0; i < vn.mrs.n; i++) {
		struct vn_mr *mr = vn_list_get(&vn.mrs, i);

		if (mr && !mr->fork_safe) {
			vn_fork_move(&mr->mem);
		}
	}
	vn_unlock();
}

bool vn_fork_safe(void)
{
	static bool once;

	if (vn_config.old_fork && !once) {
		once = true;
		pthread_atfork(vn_lock, vn_fork_parent, vn_unlock);
	}
	vn_fork_late = true;
	return !vn_config.old_fork || vn_fork_asked;
}
