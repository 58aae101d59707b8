/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/link/guests.h"

/* A number that no stranger says by chance. */
static uint64_t ep_net_nonce(void)
{
	uint64_t nonce = ep_now_ns() ^ (uint64_t)getpid() << 40;

	/* Without entropy it is still nothing that a stranger says by chance. */
	if (getentropy(&nonce, sizeof(nonce)) != 0) {
		nonce ^= (uintptr_t)&nonce;
	}
	return nonce;
}

ncclResult_t ep_net_guests_open(struct ep_net_guests *g, uint64_t magic, union ep_net_addr *addr)
{
	memset(g, 0, sizeof(*g));
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		g->guest[i].fd = -1;
	}
	EP_CHECK(ep_net_listen_at(addr, &g->fd));
	g->magic = magic;
	g->nonce = ep_net_nonce();
	ep_net_addr_print(addr, g->where);
	return ncclSuccess;
}

void ep_net_guests_close(struct ep_net_guests *g)
{
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		if (g->guest[i].fd >= 0) {
			close(g->guest[i].fd);
		}
	}
	close(g->fd);
}

static const char *ep_net_guest_print(const struct ep_net_guest *guest, char text[EP_NET_ADDR_TEXT])
{
	union ep_net_addr addr = { .any.sa_family = AF_UNSPEC };
	socklen_t size = sizeof(addr);

	if (getpeername(guest->fd, &addr.any, &size) != 0) {
		return strcpy(text, "one who has gone");
	}
	return ep_net_addr_print(&addr, text);
}

static void ep_net_stranger_note(struct ep_net_guests *g, const struct ep_net_guest *guest)
{
	if (g->strangers < EP_NET_NAMED) {
		ep_net_guest_print(guest, g->named[g->strangers]);
	}
	g->strangers++;
}

static void ep_net_guest_leave(struct ep_net_guests *g, struct ep_net_guest *guest)
{
	EP_INFO(EP_LOG_NET, "a stranger dialed %s and was turned away", g->where);
	ep_net_stranger_note(g, guest);
	close(guest->fd);
	guest->fd = -1;
}

/* Whether the guest knows the nonce: then he is the caller, and no guest any more. */
static bool ep_net_guest_hear(struct ep_net_guests *g, struct ep_net_guest *guest,
			      struct ep_net_caller *caller)
{
	const struct ep_net_head *head = &guest->head;
	enum ep_net_io_state state =
		ep_net_take(guest->fd, &guest->head, sizeof(guest->head), &guest->at);

	if (state == EP_NET_IO_DONE && head->magic == g->magic && head->nonce == g->nonce) {
		caller->fd = guest->fd;
		caller->head = *head;
		ep_net_guest_print(guest, caller->who);
		guest->fd = -1;
		return true;
	}
	if (state != EP_NET_IO_AGAIN) {
		ep_net_guest_leave(g, guest);
	}
	return false;
}

/* A place for the next one, maybe that of a guest who has been silent for long; NULL: none. */
static struct ep_net_guest *ep_net_guest_place(struct ep_net_guests *g)
{
	struct ep_net_guest *oldest = &g->guest[0];

	for (int i = 0; i < EP_NET_GUESTS; i++) {
		struct ep_net_guest *guest = &g->guest[i];

		if (guest->fd < 0) {
			return guest;
		}
		if (guest->since < oldest->since) {
			oldest = guest;
		}
	}
	return ep_now_ns() - oldest->since >= EP_NET_SILENT_NS ? oldest : NULL;
}

ncclResult_t ep_net_guests_next(struct ep_net_guests *g, struct ep_net_caller *caller)
{
	struct ep_net_guest *place;
	int fd;

	*caller = (struct ep_net_caller){ .fd = -1 };
	for (int i = 0; i < EP_NET_GUESTS; i++) {
		if (g->guest[i].fd >= 0 && ep_net_guest_hear(g, &g->guest[i], caller)) {
			return ncclSuccess;
		}
	}
	for (int i = 0; i < EP_NET_GUESTS && (place = ep_net_guest_place(g)); i++) {
		EP_CHECK(ep_net_accept_one(g->fd, g->where, &fd));
		if (fd < 0) {
			break;
		}
		if (place->fd >= 0) {
			ep_net_guest_leave(g, place);
		}
		*place = (struct ep_net_guest){ .fd = fd, .since = ep_now_ns() };
		if (ep_net_guest_hear(g, place, caller)) {
			break;
		}
	}
	return ncclSuccess;
}

void ep_net_guests_tell(struct ep_net_guests *g, bool came, const char *whom)
{
	uint64_t silent = ep_now_ns() - EP_NET_SILENT_NS;
	uint32_t named;

	for (int i = 0; i < EP_NET_GUESTS && !came; i++) {
		if (g->guest[i].fd >= 0 && g->guest[i].since < silent) {
			ep_net_stranger_note(g, &g->guest[i]);
		}
	}
	named = (uint32_t)ep_min_u64(g->strangers, EP_NET_NAMED);
	if (named) {
		EP_WARN("strangers dialed %s, where %s was awaited, %u times: %s%s%s%s%s%s. Is it a "
			"port scanner or a health check? Keep it away from the ports of jobs",
			g->where, whom, g->strangers, g->named[0], named > 1 ? ", " : "",
			named > 1 ? g->named[1] : "", named > 2 ? ", " : "",
			named > 2 ? g->named[2] : "", g->strangers > named ? " and others" : "");
	}
	g->strangers = 0;
}
