/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/base/device.h"
#include "net/link/dial.h"

void ep_net_dialing_begin(struct ep_net_dialing *dialing, const union ep_net_addr *addr,
			  const char *who, uint64_t until)
{
	uint64_t now = ep_now_ns();

	*dialing = (struct ep_net_dialing){
		.addr = *addr, .who = who, .fd = -1, .began = now, .until = until, .next = now
	};
}

void ep_net_dialing_end(struct ep_net_dialing *dialing)
{
	if (dialing->fd >= 0) {
		close(dialing->fd);
		dialing->fd = -1;
	}
}

/* Whether the failure may pass: an ARP answer or a route that is late, a listener that is full. */
static bool ep_net_dial_passing(int error)
{
	return error == ECONNREFUSED || error == ETIMEDOUT || error == EHOSTUNREACH ||
	       error == ENETUNREACH || error == EAGAIN || error == EINTR;
}

static ncclResult_t ep_net_dialing_fail(struct ep_net_dialing *dialing, const char *next)
{
	ep_net_dialing_end(dialing);
	return ep_fail(ncclRemoteError,
		       "%s cannot be reached: %s, tried %u times in %llu ms%s; is the interface "
		       "right there? (NCCL_SOCKET_IFNAME)",
		       dialing->who, dialing->error ? strerror(dialing->error) : "no answer",
		       dialing->tries,
		       (unsigned long long)((ep_now_ns() - dialing->began) / 1000000), next);
}

/* A try has failed. */
static ncclResult_t ep_net_dialing_failed(struct ep_net_dialing *dialing, int error)
{
	const struct ep_ib_env *env = ep_net_env();

	ep_net_dialing_end(dialing);
	dialing->error = error;
	if (ep_net_own_error(error)) {
		return ep_net_fail_own(error, "dial", dialing->who);
	}
	if (!ep_net_dial_passing(error)) {
		return ep_net_dialing_fail(dialing, "");
	}
	if (dialing->tries > (uint32_t)env->dial_cnt) {
		return ep_net_dialing_fail(dialing, " (NCCL_SOCKET_RETRY_CNT)");
	}
	dialing->next = ep_now_ns() + (uint64_t)dialing->tries * (uint64_t)env->dial_ms * 1000000;
	EP_INFO(EP_LOG_NET, "%s cannot be reached: %s, try %u of %d", dialing->who, strerror(error),
		dialing->tries, env->dial_cnt + 1);
	return ncclSuccess;
}

ncclResult_t ep_net_dialing_step(struct ep_net_dialing *dialing, int *fd)
{
	enum ep_net_io_state state = EP_NET_IO_AGAIN;

	*fd = -1;
	if (dialing->fd < 0 && ep_now_ns() >= dialing->next) {
		dialing->tries++;
		dialing->fd = ep_net_dial(&dialing->addr);
		state = dialing->fd < 0 ? EP_NET_IO_FAILED : state;
	}
	if (dialing->fd >= 0) {
		state = ep_net_dialed(dialing->fd);
	}
	if (state == EP_NET_IO_DONE) {
		*fd = dialing->fd;
		dialing->fd = -1;
		return ncclSuccess;
	}
	if (state != EP_NET_IO_AGAIN) {
		EP_CHECK(ep_net_dialing_failed(dialing, errno));
	}
	return ep_now_ns() > dialing->until
		       ? ep_net_dialing_fail(dialing, " (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)")
		       : ncclSuccess;
}
