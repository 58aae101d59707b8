/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_INTERNAL_H
#define EP_PEER_INTERNAL_H

#include "peer/heap.h"

#define EP_SYMM_STAMP 0x70616568206d7973ull

/* At the head of a heap, followed by one farewell word per rank. */
struct ep_symm_stamp {
	uint64_t magic;
	uint64_t team;
	uint64_t nonce;
	uint64_t rank;
};

_Static_assert(sizeof(struct ep_symm_stamp) == EP_SYMM_STAMP_BYTES, "heap stamp");
_Static_assert(EP_SYMM_FAREWELL(EP_SYMM_MAX_RANKS) <= EP_SYMM_HEADER_BYTES, "heap header");

void ep_symm_unmap(struct ep_symm *symm);

#endif
