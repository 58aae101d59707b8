/* SPDX-License-Identifier: Apache-2.0 */
/* The objects behind ncclEpGroup_t and ncclEpHandle_t, and a call on them. */
#ifndef EP_EP_OBJECTS_H
#define EP_EP_OBJECTS_H

#include <pthread.h>
#include "core/board.h"
#include "core/context.h"
#include "core/ident.h"
#include "peer/peer_state.h"
#include "device/group/group_layout.h"
#include "ep/group_config.h"
#include "ep/resident.h"
#include "ep/tensor.h"

/* State of a thread inside a call on a group. (A call of the host alone changes no device.) */
struct ep_call {
	struct ncclEpGroup *group;
	int device;                         /* to be made current again; -1: it is the group's */
	struct ep_board_call *shown;        /* NULL: the group does not show the call */
	const struct ncclEpHandle *counted; /* whose tokens it shows in the end; NULL: none */
};

/* A group as others see it. */
struct ep_show {
	struct ep_board *board; /* NULL: nothing is shown */
	struct ep_shared_file file;
	struct ep_pinned pinned;     /* the same memory; empty: kernels do not write there */
	uint64_t *waits, *waits_dev; /* of long waits, by two addresses; NULL: likewise */
};

/* A group as the thread sees it. */
struct ep_watch {
	struct ep_watch *next, **link;   /* of all that are watched: under the lock */
	const struct ncclEpGroup *group; /* NULL: it is not watched */
	uint64_t *seen;                  /* [nranks] words at the last look */
	uint32_t *logged;                /* [nranks] steps whose wait the log has; 0: none */
};

/* A window that operations of the group have used: its start on each rank, as mapped here. */
struct ep_window {
	ncclWindow_t win;
	unsigned char **base; /* [R] */
};

/* A group keeps so many, and forgets the one that it has found longest ago. */
#define EP_WINDOWS 8

struct ep_windows {
	struct ep_window known[EP_WINDOWS]; /* latest first; unused: base NULL */
};

struct ncclEpGroup {
	pthread_mutex_t lock; /* refuses a thread that has it */
	uint32_t calling;     /* enum ep_board_kind: the call that has it, or an earlier one */
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
	bool heap_refused;         /* its peers are notified that this rank refuses a larger one */
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
	void *copied;            /* what the host copies from heaps, to explain a record */
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
	uint32_t pending;             /* operations sent but not completed, outside of captures */
	bool captured;                /* a half was: then only the device knows what is pending */
	uint32_t cleans;              /* MaskCleans that this rank has called */
	bool failed;                  /* by a device operation, for ever */
	bool reset;                   /* the device was: nothing of the group is there any more */
	bool ending;                  /* a thread destroys it; of ep_call_gate */
	struct ep_error failure;
	uint32_t unlock_due; /* bit per class: a record that was taken and is to be unlocked, */
	bool masks_due;      /* these ranks are lost, and to be masked: by ep_group_settle() */
	struct ep_ranks mask_due;
};

enum ep_pending_kind {
	EP_PENDING_NONE,
	EP_PENDING_DISPATCH,
	EP_PENDING_COMBINE
};

/* Tensors with received rows, as the handle's layout has them. */
struct ep_received {
	unsigned int ndim;      /* leading dimensions, before that of a row */
	uint64_t extent[2];     /* of these */
	const char *meaning[2]; /* NULL: the algorithm knows what they must be */
};

struct ncclEpHandle {
	struct ncclEpGroup *group;         /* NULL: destroyed, and the handle can only be, too */
	struct ncclEpHandle *next, **link; /* list of the group */
	ncclEpLayout_t layout;
	uint32_t topk;
	uint32_t alignment; /* high throughput: of zones */
	unsigned char *mem;
	uint64_t mem_bytes;
	bool mem_owned;
	struct ep_received received; /* filled by the algorithm */
	struct ep_ll_handle *ll;     /* state of the algorithm, as in the group */
	struct ep_ht_handle *ht;

	bool routed; /* by a call with this handle */
	bool dispatched;
	uint32_t dispatched_tokens; /* num_tokens then, */
	uint32_t dispatch_cleans;   /* and number of MaskCleans before */
	uint64_t
		secret; /* random: distinguishes this handle's memory from that of others before it */
	uint32_t num_tokens; /* if routed */
	uint32_t id_bytes;   /* low latency: this and the next */
	const void *topk_idx;
	enum ep_pending_kind pending; /* sent, and to be received; and if any, where it was sent: */
	cudaStream_t sent_on;
	unsigned long long sent_capture;     /* 0: outside of captures; as this, */
	unsigned long long received_capture; /* of a receive half that may run never, or again; */
	unsigned long long lost_capture;     /* and of a send half that is not received there */
};

#endif
