/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single steps, for tests. With VC_NIC_STEP=1 the NIC has no thread: it works when it is told to, and says
 * what it sees. Of queues that are made by commands.
 */
#ifndef VN_STEP_H
#define VN_STEP_H

#include <stdbool.h>
#include <stdint.h>
#include "device/mlx5/layout.h"

/* What becomes of a queue's WQEs. Indices count from its making; UINT64_MAX: none. */
struct vn_dv_script {
	uint64_t stuck_at;        /* nothing from this one on is looked at */
	uint64_t fail_at;         /* this one fails, */
	uint8_t syndrome, vendor; /* in this way */
};

struct vn_dv_seen {
	uint64_t handed;    /* WQEs that doorbells have handed over */
	uint64_t served;    /* of them, those that are over */
	uint64_t doorbells; /* looks that found a new one */
	uint64_t
		peak; /* most that were handed over, and no completion had said that they are over */
};

/* Called in a step, and must not step itself. */
struct vn_dv_watch {
	void *arg;
	/* a WQE as it is fetched */
	void (*wqe)(void *arg, uint32_t qpn, uint64_t index, const struct ep_mlx5_wqe *wqe);
	/* what a WRITE is about to put at `at` */
	void (*write)(void *arg, const void *at, const void *data, uint32_t bytes);
};

/* One turn, in which `most` WQEs are taken up at most; 0: any number. False: there was nothing to do. */
bool vn_dv_step(uint32_t most);
void vn_dv_watch(const struct vn_dv_watch *watch);
void vn_dv_script(uint32_t qpn, const struct vn_dv_script *script);
void vn_dv_seen(uint32_t qpn, struct vn_dv_seen *seen);

#endif
