/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind handles, for the two files of virtual memory management. */
#ifndef VC_PHYS_H
#define VC_PHYS_H

#include "cuda/vmm.h"

struct vc_phys {
	struct vc_phys *next;
	int fd;
	uint64_t inode;
	size_t size;
	int node, device; /* where it is */
	bool own;         /* made by this process */
	unsigned int types;
	int refs;
};

extern pthread_mutex_t vc_vmm_mutex;

/* With the lock held: the memory of a handle, NULL: it is none; one reference less. */
struct vc_phys *vc_phys_of(CUmemGenericAllocationHandle handle);
void vc_phys_put(struct vc_phys *phys);

/* New memory, with one reference, of which the `asked` bytes are poisoned: the rest is nobody's. */
CUresult vc_phys_make(struct vc_phys **out, size_t size, size_t asked, int device,
		      unsigned int types);
/* The memory behind a descriptor, which is taken over. NULL: it is not of this node (or domain). */
struct vc_phys *vc_phys_import(int fd, bool fabric);

#endif
