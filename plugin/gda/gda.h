/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs that kernels post to: NICs, connections, memory keys, and what watches over them.
 * What kernels see of it is struct ep_mlx5_qp (device/mlx5/mlx5_layout.h); the same for all modes.
 *
 * libibverbs and libmlx5 are loaded when the first object is made, so that the library works
 * without them where no rank is remote.
 */
#ifndef EP_GDA_GDA_H
#define EP_GDA_GDA_H

#include <stdbool.h>
#include "core/bootstrap.h"
#include "device/mlx5/mlx5_layout.h"

#define EP_GDA_MAX_QUEUES 16 /* per peer */

/* Modes: who writes WQEs where, and who rings. Best first. */
enum ep_gda_mode {
	EP_GDA_AUTO,      /* the best that is possible */
	EP_GDA_GPU,       /* GPU rings the doorbell; queues in its own memory */
	EP_GDA_GPU_HOST,  /* GPU rings the doorbell; queues in host memory */
	EP_GDA_CPU_DB,    /* queues in host memory, a thread rings the doorbell */
	EP_GDA_CPU_PROXY, /* a thread posts plain verbs for what the GPU wrote; any RDMA device */
	EP_GDA_MODES
};

struct ep_gda_config {
	int device;              /* CUDA ordinal; current in all calls but ep_gda_poll */
	const char *bus_id;      /* and its PCI address */
	uint32_t place;          /* of this rank among those of its host, from 0 */
	const bool *remote;      /* [nranks] to connect with: all but this rank's node */
	const char *const *host; /* [nranks] names, for messages */
	uint32_t queues;         /* per peer, 1..EP_GDA_MAX_QUEUES; equal on all ranks */
	uint32_t depth;          /* of a send queue, see EP_MLX5_MIN_DEPTH */
	enum ep_gda_mode mode;   /* any other than AUTO: that one, or an error with the reason */
	uint64_t timeout_ns;     /* of waits for the host side's own work: connecting, draining */
};

struct ep_gda;

/*
 * Collective over the ranks of `boot`, those without remote peers too: chooses NICs, makes queue
 * pairs, connects them (each rank its own, in parallel) and starts the watcher. All ranks succeed
 * or none does. `mine` is this rank's result so far: a failure makes every rank fail. *out is NULL
 * on a rank without remote peers, and after a failure, unless boot->stuck: then it is what there is
 * to close later. Ranks may have different modes, numbers of NICs and depths.
 */
ncclResult_t ep_gda_open(struct ep_gda **out, struct ep_boot *boot,
			 const struct ep_gda_config *config, ncclResult_t mine);

/*
 * Collective, like ep_gda_open. Registers this rank's heap under EP_MLX5_REGION_HEAP and
 * EP_MLX5_REGION_SIGNAL, exchanges addresses and keys, and fills the queues' region tables. gda is
 * NULL on a rank without remote peers. Once, and again after ep_gda_unbind.
 */
ncclResult_t ep_gda_bind(struct ep_gda *gda, struct ep_boot *boot, void *heap, uint64_t bytes,
			 ncclResult_t mine);

/*
 * Takes the heap's registration back. No kernel of this rank may run, no peer may post to the heap.
 */
void ep_gda_unbind(struct ep_gda *gda);

/*
 * Ends everything, whatever state NICs, peers and queues are in, within the config's timeout as
 * long as firmware answers, otherwise within the kernel driver's limit for firmware. Work that
 * kernels have posted is completed first, while it makes progress. No kernel of this rank may run.
 * Afterwards no NIC writes this rank's heap. `gda` may be NULL.
 */
void ep_gda_close(struct ep_gda *gda);

/*
 * Returns the device memory of a rank with so many remote peers and one NIC. A further NIC adds
 * less than 2 MiB if queues are in GPU memory.
 */
uint64_t ep_gda_device_bytes(int nranks, uint32_t remote, uint32_t queues, uint32_t depth,
			     bool queues_in_gpu);

/*
 * Returns the device address of the queues, [nranks][queues]; those of ranks of this node are zero.
 */
struct ep_mlx5_qp *ep_gda_queues(const struct ep_gda *gda);

/*
 * Returns the device address of a word per rank, in host memory. It is not 0 once the connection
 * with that rank has failed: kernels then give up their waits for it (it is also the `stop` of its
 * queues).
 */
const uint32_t *ep_gda_down(const struct ep_gda *gda);

/* A failure in words: peer, local device and port, queue pair, syndrome and what it means. */
struct ep_gda_failure {
	int peer; /* -1: not one peer but the device or port */
	char text[384];
};

/*
 * Takes the next failure that was found since the last call. Returns false if there is none. Never
 * blocks; any thread. By then ep_gda_down of the peers concerned is set.
 */
bool ep_gda_poll(struct ep_gda *gda, struct ep_gda_failure *failure);

/*
 * Writes to *failure why the connection with `peer` has failed, for the message of an error that a
 * kernel found. Reads error records and, if the cause was overwritten, asks the NIC. Returns false
 * if no failure is known. Bounded; may take a millisecond.
 */
bool ep_gda_explain(struct ep_gda *gda, int peer, struct ep_gda_failure *failure);

/* Writes one line: mode and why, NICs and ports, tier, queues. */
void ep_gda_describe(const struct ep_gda *gda, char *text, size_t size);

const char *ep_gda_mode_name(enum ep_gda_mode mode);

#endif
