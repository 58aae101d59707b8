/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_MULTICAST_H
#define EP_PEER_MULTICAST_H

#include "peer/peer_state.h"

/* Whether this rank may ask NCCL for a multicast address. nccl_can: NCCL itself can. */
bool ep_multicast_possible(bool wanted, bool window, bool nccl_can, struct ep_reason *why);

/*
 * After each rank has mapped its peers, with its result, collective: asks NCCL for the address, and
 * keeps the window if all ranks have got one. Else the choice has the reason.
 */
ncclResult_t ep_multicast_open(struct ep_heap *heap, struct ep_boot *boot,
			       struct ep_peer_choice *choice, ncclResult_t mine);

#endif
