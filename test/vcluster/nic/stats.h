/* SPDX-License-Identifier: Apache-2.0 */
/* What the NIC has done and how long it took: VC_NIC_STATS=1 prints it when the process ends. */
#ifndef VN_STATS_H
#define VN_STATS_H

#include "nic/env.h"

enum vn_stat {
	VN_STAT_TURN,     /* the thread found work */
	VN_STAT_NAP,      /* it slept */
	VN_STAT_MESSAGE,  /* a request, from its fetch to its end */
	VN_STAT_RESEND,   /* a packet was sent again */
	VN_STAT_COPY_OUT, /* a copy from GPU memory was issued */
	VN_STAT_COPY_IN,  /* a copy to GPU memory */
	VN_STAT_WORD,     /* a word stored in GPU memory */
	VN_STAT_WAIT_OUT, /* the thread waited for copies from GPU memory */
	VN_STAT_WAIT_IN,  /* for copies to it */
	VN_STAT_FETCH,    /* it read GPU memory and waited for it */
	VN_STAT_PEEK,     /* it asked for a word of GPU memory */
	VN_STATS
};

/* Time at which something begins, for vn_stat(); 0 if nobody wants to know. */
static inline uint64_t vn_stat_start(void)
{
	return vn_config.stats ? vn_now() : 0;
}

/* It has ended. One thread at a time, which holds the lock. */
void vn_stat(enum vn_stat stat, uint64_t start, uint64_t bytes);

#endif
