/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of NCCL. */
#ifndef EP_PEER_PEER_WINDOW_H
#define EP_PEER_PEER_WINDOW_H

#include "peer/peer_state.h"

extern const struct ep_peer_mapping ep_peer_window; /* processes of one LSA team of NCCL */

/* For a thread of the library: waits until NCCL has returned from the call that boot got stuck in. */
void ep_window_settle(struct ep_heap *heap);

#endif
