/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words by which kernels show long waits: one for each peer, in host memory that other processes
 * read, too (plugin/core/board.h). A wait that has lasted EP_WAIT_SHOW_NS stores its word again
 * every few polls, with its age; so the peer is waited for as long as its word changes, and nothing
 * need be stored when the wait ends. The word changes about every EP_WAIT_SHOW_UNIT_NS. For people
 * there are names of wait sites and operations. Plain C.
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

#ifndef __cplusplus /* designators of arrays are C */

static inline const char *ep_wait_name(uint32_t site)
{
	static const char *const names[EP_WAIT_SITES] = {
		[EP_WAIT_NONE] = "nothing",
		[EP_WAIT_PROGRESS] = "its start of this operation",
		[EP_WAIT_DISPATCH_COUNT] = "its token counts",
		[EP_WAIT_DISPATCH_ROW] = "a row that it announced",
		[EP_WAIT_COMBINE_ROW] = "a row that it owes",
		[EP_WAIT_CLEAN] = "its arrival",
		[EP_WAIT_RDMA_SLOT] = "a free send queue entry",
		[EP_WAIT_RDMA_COMPLETION] = "a completion",
		[EP_WAIT_AGREEMENT] = "the decision of another block here whether it has come",
		[EP_WAIT_HT_COUNT] = "its token counts",
		[EP_WAIT_HT_TABLE] = "its list of the rows that it will send",
		[EP_WAIT_SIGNATURE] = "its start of this operation",
		[EP_WAIT_HT_ROWS] = "rows that it owes",
		[EP_WAIT_HT_CREDIT] = "its word that it has read earlier rows",
		[EP_WAIT_HT_DONE] = "its word that it has read and written all rows",
		[EP_WAIT_BULK] = "a copy into shared memory",
	};

	return site < EP_WAIT_SITES ? names[site] : "something unknown";
}

/* `operation` is as ep_record.is_combine. */
static inline const char *ep_wait_operation(uint32_t operation, uint32_t site)
{
	if (site == EP_WAIT_CLEAN) {
		return "MaskClean";
	}
	if (operation == EP_RECORD_UPDATE) {
		return "UpdateHandle";
	}
	return operation ? "combine" : "dispatch";
}

#endif

#endif
