/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of connections, and their causes. */
#ifndef EP_GDA_FAILURE_H
#define EP_GDA_FAILURE_H

#include "gda/state.h"

/* Make a failure known, to kernels and to ep_gda_poll(). Both take `lock`. */
void ep_gda_fail_queue(struct ep_gda_queue *queue, const struct ep_gda_cause *cause);
void ep_gda_fail_port(struct ep_gda_nic *nic, struct ep_gda *g, const char *what);

/*
 * Of a peer that does not answer, once: whether it has another hardware address by now, which goes into what is
 * known of the failure. May wait for the kernel, which asks the network.
 */
void ep_gda_address_find_moved(struct ep_gda *g);

/* Looks for a failure of the queue and makes it known. `ask` is held. */
enum ep_gda_inspect_flags {
	EP_GDA_INSPECT_MEMORY = 0, /* host memory only */
	EP_GDA_INSPECT_NIC = 1,    /* asks the NIC for the queue's state */
	EP_GDA_INSPECT_GPU = 2     /* reads GPU memory; the device must be current */
};
bool ep_gda_inspect(struct ep_gda_queue *queue, int flags);
/* The queue's completion, wherever it lies; `ask` is held. */
bool ep_gda_cqe_read(struct ep_gda_queue *queue, struct ep_mlx5_cqe *cqe);

#endif
