/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_PLAIN_H
#define EP_PEER_PLAIN_H

#include "peer/peer_state.h"

extern const struct ep_peer_mapping ep_peer_plain; /* ranks of one process */

/* Memory of cudaMalloc, which more than one mapping takes. */
bool ep_peer_plain_alloc(void **base, uint64_t bytes, struct ep_reason *why);
void ep_peer_plain_free(void *base);

#endif
