/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchange of host bytes among the ranks of a communicator, through ncclAllGather on a stream of
 * its own. The only NCCL collective that the library calls, and only at group creation and when a
 * group's buffer grows: never on the data path.
 */
#ifndef EP_CORE_BOOTSTRAP_H
#define EP_CORE_BOOTSTRAP_H

#include <stdbool.h>
#include "core/error.h"
#include "core/ident.h"

#define EP_BOOT_BYTES 1024 /* largest contribution of a rank */
#define EP_BOOT_SHORT 60   /* of a text: what its first exchange brings */

struct ep_boot {
	ncclComm_t comm;
	int rank;
	int nranks;
	cudaStream_t stream;   /* NULL: none could be made, and the default one serves */
	unsigned char *buffer; /* a device can reach it; nranks * EP_BOOT_BYTES */
	bool host_buffer;      /* it is pinned host memory */
	void *all;             /* for what comes out; the same size. NULL: no memory */
	uint64_t timeout_ns;
	const struct ep_ident *idents; /* of all ranks; NULL until the caller has them */
	bool stuck; /* an exchange is still on the stream: stream and buffer cannot be freed */
	/*
	 * Of an exchange that has failed on this rank: others may still wait in it, and would take the
	 * next one for it, so that there is none.
	 */
	ncclResult_t failed;
	bool busy; /* the device does not get idle: what is freed on it would wait for that */
	uint32_t exchanges;    /* so far, */
	uint64_t exchanged_ns; /* how long they took, */
	uint64_t first_ns;     /* and the first of them */
};

/*
 * The communicator's device must be current from open to close. A rank that lacks memory must be
 * able to say so, or the others wait for it in vain: *mine, if it is ncclSuccess, becomes the error
 * then, and the caller's first exchange carries it. Fails where no exchange is possible at all.
 */
ncclResult_t ep_boot_open(struct ep_boot *boot, ncclComm_t comm, uint64_t timeout_ns,
			  ncclResult_t *mine);
void ep_boot_close(struct ep_boot *boot);

/* " (rank 3's process has ended)" for the first rank of this host of which that is known, else "". */
#define EP_BOOT_GONE_TEXT 96
const char *ep_boot_gone(const struct ep_boot *boot, char text[EP_BOOT_GONE_TEXT]);

/*
 * all[r * bytes ..] = rank r's contribution. `what` names the purpose in errors. `all` is boot->all,
 * which serves until the next exchange, or the caller's. It may be NULL on a rank that has no memory
 * for it and whose contribution says so: the others do not wait for it.
 */
ncclResult_t ep_boot_allgather(struct ep_boot *boot, const void *mine, void *all, size_t bytes,
			       const char *what);

/* Texts of all ranks, of any length each. */
struct ep_boot_texts {
	unsigned char *text; /* rank r's at text + r * stride; free() it. NULL: no memory */
	size_t stride;
	uint32_t *bytes; /* their lengths, behind the texts */
};

/*
 * Each rank's `bytes` bytes to all; one exchange if no text is longer than EP_BOOT_SHORT bytes, else
 * one more for each EP_BOOT_BYTES of the longest. None may be longer than `limit`, the same number on
 * all ranks: that is an error of all. A rank that has no memory for the texts says so in *mine, and
 * the others do not wait for it.
 */
ncclResult_t ep_boot_texts(struct ep_boot *boot, const void *text, uint32_t bytes, uint32_t limit,
			   struct ep_boot_texts *all, const char *what, ncclResult_t *mine);

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

/* Exchange of nothing but verdicts; also a barrier. */
ncclResult_t ep_boot_agree(struct ep_boot *boot, ncclResult_t mine, const char *what);

#endif
