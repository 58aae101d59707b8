/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the head of handle memory. */
#include "ep/call.h"
#include "ep/ht/ht.h"
#include "ep/query_read.h"
#include "ep/record.h"

ncclResult_t ep_ht_head_read(const struct ncclEpHandle *handle, struct ep_ht_head *head,
			     cudaStream_t stream, const char *name)
{
	EP_CHECK(ep_stream_check_capture(stream, name));
	EP_CHECK(ep_query_read(head, handle->ht->dev.head, sizeof(*head), stream));
	EP_CHECK(ep_record_poll(handle->group));
	if (head->stamp != handle->ht->stamp) {
		return ep_fail(ncclInvalidArgument,
			       "%s: handle_mem has no routing for handles like this one: call "
			       "ncclEpUpdateHandle first",
			       name);
	}
	return ncclSuccess;
}
