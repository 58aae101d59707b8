/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_IPC_H
#define EP_PEER_IPC_H

#include "peer/peer_state.h"

extern const struct ep_peer_mapping ep_peer_ipc; /* processes of one host */

#endif
