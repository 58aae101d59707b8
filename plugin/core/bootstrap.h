/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchange of host bytes among the ranks of a communicator, through ncclAllGather on a stream of
 * its own. The only NCCL collective that the library calls, and only at group creation and when a
 * group's buffer grows: never on the data path.
 */
#ifndef EP_CORE_BOOTSTRAP_H
#define EP_CORE_BOOTSTRAP_H

#include <stdbool.h>
#include "core/board.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/ident.h"
#include "core/param.h"

#define EP_BOOT_BYTES 1024        /* largest contribution of a rank, of whole words */
#define EP_BOOT_BLANK 0xa5a5a5a5u /* a word that no contribution begins with */

/*
 * What an error says where a thread is left in NCCL's call: an abort may free the communicator
 * under it.
 */
#define EP_BOOT_IN_CALL                                                                            \
	"NCCL's call still waits in a thread: keep the communicator, for NCCL can abort only one " \
	"that does not block (ncclConfig_t)"

struct ep_boot {
	ncclComm_t comm;
	int rank;
	int nranks;
	struct ep_context context; /* of the device */
	cudaStream_t stream;       /* NULL: none could be made, and the default one serves */
	/*
	 * Buffers of an exchange, nranks * EP_BOOT_BYTES of host memory that the device reaches: so
	 * nothing but the exchange itself can fail. A rank that cannot have it reports that through
	 * device memory, `spare`, and receives nothing.
	 */
	struct ep_pinned shared;
	unsigned char *spare;
	void *all; /* the host's address of `shared`; NULL: none */
	uint64_t timeout_ns;
	const struct ep_ident *idents; /* of all ranks; NULL until the caller has them */
	struct ep_board *board;        /* shows its exchanges; NULL: nobody sees them */
	/*
	 * Returns a rank that refuses to make an exchange, or -1. Asked while this one waits there;
	 * NULL: none.
	 */
	int (*refused)(const void *arg);
	const void *refused_arg;
	struct ep_timed_call *call; /* NCCL's, which has not returned; NULL: none */
	/* errno value: the caller's thread made the last call, since there was none for it; or 0 */
	int no_thread;
	/*
	 * NCCL still has what this rank has given it, on the stream or in another thread: what NCCL
	 * or the device may use cannot be freed, and freeing anything else on the device may wait
	 * for ever. Whoever has opened the bootstrap undoes all of it later (ep_boot_rest), nobody
	 * else anything.
	 */
	bool stuck;
	/*
	 * Of a collective that has failed on this rank: others may still wait in it, and would take
	 * the next one for it, so that there is none.
	 */
	ncclResult_t failed;
	/* and NCCL has not even begun it: no rank has received what this one sends there */
	bool unsent;
	bool busy; /* the device does not get idle: what is freed on it would wait for that */
	uint32_t exchanges;    /* so far, */
	uint64_t exchanged_ns; /* how long they took, */
	uint64_t first_ns;     /* and the first of them */
};

/*
 * The communicator's device must be current from open to close. A rank that lacks memory must be
 * able to report it, or the others wait for it in vain: *mine, if it is ncclSuccess, becomes the
 * error then, and the caller's first exchange carries it. Fails where no exchange is possible at
 * all.
 */
ncclResult_t ep_boot_open(struct ep_boot *boot, ncclComm_t comm, uint64_t timeout_ns,
			  ncclResult_t *mine);

/* The same for one whose rank and size are known. */
ncclResult_t ep_boot_open_known(struct ep_boot *boot, ncclComm_t comm, int rank, int nranks,
				uint64_t timeout_ns, ncclResult_t *mine);

/* Not stuck or busy. */
void ep_boot_close(struct ep_boot *boot);

/*
 * For a thread of the library: waits until nothing runs on the device, however long that takes.
 * Afterwards the bootstrap is not stuck any more, but one that has failed: there are no exchanges.
 */
void ep_boot_rest(struct ep_boot *boot, int device);

/*
 * " (rank 3's process has ended)" for the first rank of this host of which that is known, else "".
 */
#define EP_BOOT_GONE_TEXT 96
const char *ep_boot_gone(const struct ep_boot *boot, char text[EP_BOOT_GONE_TEXT]);

/*
 * all[r * bytes ..] = rank r's contribution. `what` names the purpose in errors. `all` is
 * boot->all, which serves until the next exchange, or the caller's. It may be NULL on a rank that
 * has no memory for it and whose contribution has that: the others do not wait for it. `mine` is
 * not in boot->all.
 */
ncclResult_t ep_boot_allgather(struct ep_boot *boot, const void *mine, void *all, size_t bytes,
			       const char *what);

/* A rank's outcome, part of whatever it sends. */
struct ep_verdict {
	int32_t code;
	char text[252];
};

/* From a result and, if it is a failure, the thread's last error. */
struct ep_verdict ep_verdict_make(ncclResult_t result);

/*
 * Success if all verdicts (at `stride` bytes) are. If this rank failed, its own code; else
 * ncclRemoteError with the first failed rank's text.
 */
ncclResult_t ep_verdict_check(const struct ep_boot *boot, const void *verdicts, size_t stride,
			      const char *what);

/*
 * ep_boot_allgather of what begins with a verdict, and ep_verdict_check of what it brings. Of two
 * errors of this rank the first one stands.
 */
ncclResult_t ep_boot_verdicts(struct ep_boot *boot, const void *mine, void *all, size_t bytes,
			      const char *what);

/* Exchange of nothing but verdicts; also a barrier. */
ncclResult_t ep_boot_agree(struct ep_boot *boot, ncclResult_t mine, const char *what);

#endif
