/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include "core/log.h"
#include "rdma/events.h"

static const struct ep_nic_kind {
	enum ibv_event_type type;
	enum ep_nic_event event;
	bool port; /* it concerns one port of the device */
	const char *text;
} ep_nic_kinds[] = {
	{ IBV_EVENT_PORT_ERR, EP_NIC_PORT_DOWN, true, "the port is down" },
	{ IBV_EVENT_PORT_ACTIVE, EP_NIC_PORT_UP, true, "the port is up again" },
	{ IBV_EVENT_GID_CHANGE, EP_NIC_ADDRESS, true, "the port's table of GIDs has changed" },
	{ IBV_EVENT_DEVICE_FATAL, EP_NIC_DEVICE_FAILED, false, "the device reports a fatal error" },
	{ IBV_EVENT_CQ_ERR, EP_NIC_CQ_FAILED, false,
	  "a completion queue was overrun or has failed" },
	{ IBV_EVENT_QP_FATAL, EP_NIC_QP_FAILED, false, "the NIC reports a fatal queue error" },
	{ IBV_EVENT_QP_REQ_ERR, EP_NIC_QP_FAILED, false, "the NIC reports an invalid request" },
	{ IBV_EVENT_QP_ACCESS_ERR, EP_NIC_QP_FAILED, false,
	  "the peer reached for memory that is not registered" },
};

int ep_nic_events_open(const struct ep_nic *nic)
{
	int fd = nic->ctx->async_fd;

	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0 ? 0 : errno;
}

static const struct ep_nic_kind *ep_nic_kind_find(enum ibv_event_type type)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_nic_kinds); i++) {
		if (ep_nic_kinds[i].type == type) {
			return &ep_nic_kinds[i];
		}
	}
	return NULL;
}

void ep_nic_events_read(const struct ep_nic *nic,
			void (*fn)(void *arg, const struct ep_nic_report *report), void *arg)
{
	struct ibv_async_event event;

	while (nic->v->ibv_get_async_event(nic->ctx, &event) == 0) {
		const struct ep_nic_kind *kind = ep_nic_kind_find(event.event_type);

		if (!kind) {
			EP_INFO(EP_LOG_NET, "%s:%d: event %d", nic->name, nic->port,
				(int)event.event_type);
		} else if (!kind->port || event.element.port_num == nic->port) {
			struct ep_nic_report report = {
				.event = kind->event,
				.text = kind->text,
				.cq = kind->event == EP_NIC_CQ_FAILED ? event.element.cq : NULL,
				.qp = kind->event == EP_NIC_QP_FAILED ? event.element.qp : NULL,
			};

			EP_INFO(EP_LOG_NET, "%s:%d: %s", nic->name, nic->port, kind->text);
			fn(arg, &report);
		}
		nic->v->ibv_ack_async_event(&event);
	}
}
