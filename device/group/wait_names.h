/* SPDX-License-Identifier: Apache-2.0 */
/* Names of wait sites and operations, for people. Host only. */
#ifndef EP_DEVICE_GROUP_WAIT_NAMES_H
#define EP_DEVICE_GROUP_WAIT_NAMES_H

#include <stdint.h>
#include "device/group/wait_word.h"

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
