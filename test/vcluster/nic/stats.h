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

/* What is counted alone. */
enum vn_count {
	VN_COUNT_DOORBELL, /* of GPU threads of the virtual cluster */
	VN_COUNT_ROW,      /* a WRITE of bytes in memory */
	VN_COUNT_WORD,     /* a WRITE of bytes in the WQE: signals, and words of protocols */
	VN_COUNT_ATOMIC,
	VN_COUNT_OTHER,    /* a READ, or nothing */
	VN_COUNT_HELD,     /* requests that must wait until others are acknowledged */
	VN_COUNT_REPORTED, /* WQEs that ask for a completion */
	VN_COUNT_PEAK,     /* most WQEs that one queue pair had handed over and not completed */
	VN_COUNTS
};

/* Time at which something begins, for vn_stat(); 0 if nobody wants to know. */
static inline uint64_t vn_stat_start(void)
{
	return vn_config.stats ? vn_now() : 0;
}

/* It has ended. One thread at a time, which holds the lock. */
void vn_stat(enum vn_stat stat, uint64_t start, uint64_t bytes);

/* One more; any thread. */
void vn_count(enum vn_count count);

/* The peak is at least that. One thread at a time. */
void vn_count_peak(uint64_t wqes);

#endif
