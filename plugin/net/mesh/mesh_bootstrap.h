/* SPDX-License-Identifier: Apache-2.0 */
/* listen() and connect() of GIN, RMA and collectives; the latter waits for all ranks. */
#ifndef EP_NET_MESH_BOOTSTRAP_H
#define EP_NET_MESH_BOOTSTRAP_H

#include "net/mesh/mesh.h"

ncclResult_t ep_net_bootstrap_open(int dev, int tc, enum ep_net_use use, void *handle,
				   void **listen_comm);
ncclResult_t ep_net_bootstrap_close(void *listen_comm);
/* The mesh has one reference. */
ncclResult_t ep_net_bootstrap_run(void *const *handles, int nranks, int rank, enum ep_net_use use,
				  const void *listen_comm, struct ep_net_mesh **mesh);

#endif
