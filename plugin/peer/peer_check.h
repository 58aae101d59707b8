/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_PEER_CHECK_H
#define EP_PEER_PEER_CHECK_H

#include "core/ident.h"

/*
 * Whether this rank can reach the others of its node: no MIG, peer access. Local; the answer need not
 * be the same on all ranks. Names the pair that cannot.
 */
ncclResult_t ep_peer_check(const struct ep_ident *idents, int nranks, int rank);

/* Whether this rank's GPU is joined to its node's by NVLink, as far as CUDA and NVML report it. Local. */
bool ep_peer_all_nvlink(const struct ep_ident *idents, int nranks, int rank);

#endif
