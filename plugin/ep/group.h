/* SPDX-License-Identifier: Apache-2.0 */
/* The object behind ncclEpGroup_t. */
#ifndef EP_EP_GROUP_H
#define EP_EP_GROUP_H

#include "core/context.h"
#include "core/ident.h"
#include "peer/peer_heap.h"
#include "device/group/group_layout.h"
#include "ep/call.h"
#include "ep/group_config.h"
#include "ep/resident.h"
#include "ep/show.h"
#include "ep/group_watch.h"
#include "ep/window.h"

struct ncclEpGroup {
	pthread_mutex_t lock;
	struct ep_error_slot errors;

	ncclComm_t comm;
	int rank;
	int nranks;
	int device;
	struct ep_context context; /* of the device, when the group was made */
	uint32_t sm_count;
	struct ep_group_config config;
	struct ep_params params;
	struct ep_ident *idents; /* [nranks] */

	struct ep_peer_choice memory; /* how heaps are mapped */
	struct ep_heap peer_heap;
	struct ep_group_heap heap; /* layout of peer_heap */
	bool heap_warned;          /* that it is larger than the caller wants */
	struct ep_dev_group dev;   /* as kernels see the group; filled when the heap is bound */
	bool lines;
	struct ep_windows windows;
	struct ep_ll *ll; /* state of the algorithm; the other one is NULL */
	struct ep_ht *ht;
	struct ep_resident resident;

	uint32_t remote_ranks; /* of other nodes; if a rank has some, all have */
	struct ep_gda *gda;
	struct ep_ranks lost_logged; /* remote ranks whose loss the log has */

	void *workspace; /* the next nine */
	struct ep_dev_seq *seq;
	struct ep_dev_state *state;
	int32_t *mask;
	struct ep_peer_stats *stats;
	struct ep_remote_link *links;     /* this and the next: NULL without remote ranks */
	struct ep_dev_remote *remote_dev; /* what dev.remote points to, */
	struct ep_remote_place *places;   /* and its places */
	unsigned char **all_heaps;        /* NULL: the group is small */
	void *algo_memory;                /* algo->group_bytes() of it */

	struct ep_show show;   /* what others see of the group, */
	struct ep_watch watch; /* and what watches its waits */

	int32_t *mask_host;               /* [nranks] host memory for copies of the mask, */
	struct ep_peer_stats *stats_host; /* and of the statistics */

	struct ep_pinned shared; /* records, flag and ranks, by two addresses; and `copied` */
	void *copied; /* what the host copies from heaps, to explain a record */
	bool copy_late; /* such a copy has not ended, and writes there yet */
	struct ep_record *records;
	uint32_t *async_error;
	struct ep_record *records_dev;
	uint32_t *async_error_dev;
	struct ep_ranks *kernel_ranks; /* what a kernel of one block found */
	struct ep_ranks *kernel_ranks_dev;

	cudaStream_t stream; /* for the library's own small copies */
	cudaEvent_t event;   /* orders two streams of the caller */
	struct ep_pool_block *pool;
	struct ncclEpHandle *handles; /* alive */
	uint32_t pending;             /* operations sent but not completed */
	uint32_t cleans;              /* MaskCleans that this rank has called */
	bool failed;                  /* by a device operation, for ever */
	bool reset;                   /* the device was: nothing of the group is there any more */
	bool ending;                  /* a thread destroys it; of ep_call_gate */
	struct ep_error failure;
	uint32_t unlock_due; /* bit per class: a record that was taken and is to be unlocked, */
	bool masks_due;      /* these ranks are lost, and to be masked: by ep_group_settle() */
	struct ep_ranks mask_due;
};

/* The thread's last error is why the group has failed for good. */
void ep_group_fail(struct ncclEpGroup *group);

/* Collective. *ep_group is written on success. */
ncclResult_t ep_group_create(struct ncclEpGroup **ep_group, ncclComm_t comm,
			     const ncclEpGroupConfig_t *config);

/* One that is not there for callers: what it has outside of it is gone. */
void ep_group_free(struct ncclEpGroup *group);

/* Ends the call as well, and on success the group. */
ncclResult_t ep_group_destroy(struct ep_call *call);

/* Bytes of the group's own state. */
uint64_t ep_group_workspace_bytes(const struct ep_group_config *config);

#endif
