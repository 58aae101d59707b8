/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words by which kernels show long waits: one for each peer, in host memory that other processes read, too
 * (plugin/core/board.h). A wait that has lasted EP_WAIT_SHOW_NS stores its word again every few polls, with its age;
 * so the peer is waited for as long as its word changes, and nothing need be stored when the wait ends. The word
 * changes about every EP_WAIT_SHOW_UNIT_NS. Plain C.
 */
#ifndef EP_DEVICE_GROUP_WAIT_WORD_H
#define EP_DEVICE_GROUP_WAIT_WORD_H

#include <stdint.h>
#include "device/simt/language.h"
#include "device/simt/wait_site.h"

/* Values of ep_record.is_combine besides 0, a dispatch, and 1. */
#define EP_RECORD_UPDATE 2u /* the operation is UpdateHandle */

#define EP_WAIT_SHOW_NS 100000000u
#define EP_WAIT_SHOW_SHIFT 24 /* ages are in units of 16.8 ms; after 78 hours they begin anew */
#define EP_WAIT_SHOW_UNIT_NS (UINT64_C(1) << EP_WAIT_SHOW_SHIFT)

/* `operation` is as ep_record.is_combine. */
EP_HOST_DEV uint64_t ep_wait_word(uint32_t step, uint32_t operation, uint32_t site, uint64_t age_ns)
{
	return (uint64_t)step << 32 | (uint64_t)(operation & 3) << 30 |
	       (uint64_t)(site & 63) << 24 | (age_ns >> EP_WAIT_SHOW_SHIFT & 0xffffff);
}

EP_HOST_DEV uint32_t ep_wait_word_step(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

EP_HOST_DEV uint32_t ep_wait_word_operation(uint64_t word)
{
	return (uint32_t)(word >> 30 & 3);
}

EP_HOST_DEV uint32_t ep_wait_word_site(uint64_t word)
{
	return (uint32_t)(word >> 24 & 63);
}

EP_HOST_DEV uint64_t ep_wait_word_age_ns(uint64_t word)
{
	return (word & 0xffffff) << EP_WAIT_SHOW_SHIFT;
}

#endif
