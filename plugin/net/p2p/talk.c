/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "net/p2p/talk.h"

ncclResult_t ep_net_talk_put(struct ep_net_comm *c, const struct ep_net_word *word)
{
	struct ep_net_talk *t = c->talk;

	if (t->nout - t->said == EP_NET_WORDS) {
		return ep_net_comm_fail(c, ncclRemoteError, word->route,
					"the peer hears nothing of %u changes of routes: is its "
					"process stuck?",
					EP_NET_WORDS);
	}
	t->out[t->nout++ % EP_NET_WORDS] = *word;
	(void)ep_net_talk_say(c); /* what is not said now, or fails, is looked after later */
	return ncclSuccess;
}

enum ep_net_io_state ep_net_talk_say(struct ep_net_comm *c)
{
	struct ep_net_talk *t = c->talk;

	while (t->said < t->nout) {
		enum ep_net_io_state state = ep_net_put(c->fd, &t->out[t->said % EP_NET_WORDS],
							sizeof(t->out[0]), &t->out_at);

		if (state != EP_NET_IO_DONE) {
			return state;
		}
		t->said++;
		t->out_at = 0;
	}
	return EP_NET_IO_DONE;
}

enum ep_net_io_state ep_net_talk_hear(struct ep_net_comm *c, struct ep_net_word *word)
{
	struct ep_net_talk *t = c->talk;
	enum ep_net_io_state state = ep_net_take(c->fd, &t->in, sizeof(t->in), &t->in_at);

	if (state == EP_NET_IO_DONE) {
		*word = t->in;
		t->in_at = 0;
	}
	return state;
}
