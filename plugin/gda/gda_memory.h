/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that NICs access. */
#ifndef EP_GDA_MEMORY_H
#define EP_GDA_MEMORY_H

#include "gda/state.h"

struct ibv_mr *ep_gda_register(const struct ep_gda_nic *nic, void *p, uint64_t bytes,
			       unsigned int access, bool gpu, struct ep_reason *why);
/* Memory for queues. */
struct mlx5dv_devx_umem *ep_gda_umem(const struct ep_gda_nic *nic, void *p, uint64_t bytes,
				     bool gpu, struct ep_reason *why);
/* Copies on the GPU to and from this allocation are over when the call that makes them returns. */
void ep_gda_sync_memops(void *p);
/* Whether the GPU shows the NIC's writes in the order in which they came. */
bool ep_gda_ordering_check(const struct ep_gda *g, struct ep_reason *why);

#endif
