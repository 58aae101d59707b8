/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a connection. */
#ifndef EP_NET_PROGRESS_H
#define EP_NET_PROGRESS_H

#include "net/p2p/p2p.h"

/* Takes up completions, does what is due, and now and then looks for the other end. */
ncclResult_t ep_net_progress(struct ep_net_comm *c);

#endif
