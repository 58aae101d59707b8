/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for a connection of either kind: registration of memory, and the end. */
#include "core/log.h"
#include "net/base/plugin.h"
#include "net/p2p/p2p.h"

static ncclResult_t ep_net_comm_any(const void *handle, struct ep_net_comm **comm)
{
	enum ep_net_kind kind = ep_net_kind_of(handle);

	*comm = kind == EP_NET_SEND || kind == EP_NET_RECV ? ep_net_handle_get(kind, handle) : NULL;
	return *comm ? ncclSuccess
		     : ep_fail(ncclInvalidArgument, "%p is no connection, or was closed", handle);
}

ncclResult_t ep_net_reg(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
			void **mr)
{
	struct ep_net_memory memory = {
		.data = data, .size = size, .type = type, .fd = fd, .offset = offset
	};
	struct ep_net_comm *c;

	*mr = NULL;
	EP_CHECK(ep_net_comm_any(comm, &c));
	return ep_net_memory_reg(c->nic, &memory, mr);
}

static ncclResult_t ep_net_close(enum ep_net_kind kind, void *comm)
{
	struct ep_net_comm *c;

	if (!comm) {
		return ncclSuccess;
	}
	c = ep_net_handle_drop(kind, comm);
	if (!c) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no connection that %s, or was closed before", comm,
			       kind == EP_NET_SEND ? "sends" : "receives");
	}
	ep_net_comm_free(c);
	return ncclSuccess;
}

ncclResult_t ep_net_close_send(void *send_comm)
{
	return ep_net_close(EP_NET_SEND, send_comm);
}

ncclResult_t ep_net_close_recv(void *recv_comm)
{
	return ep_net_close(EP_NET_RECV, recv_comm);
}
