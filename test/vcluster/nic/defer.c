/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of a turn that access memory of GPUs. A wait for a GPU takes some microseconds, so one wait
 * serves all of them: the words that atomics change are asked for together, and answers wait until
 * everything that was written is there.
 */
#include <stdlib.h>
#include <string.h>
#include "nic/gpu.h"
#include "nic/place.h"
#include "nic/resp.h"
#include "nic/wire.h"

static struct vn_deferred {
	struct vn_link *link;
	struct vn_packet answer;
	/* atomics: */
	struct vn_mr *mr;
	uint8_t *at;
	uint64_t add, boundary;
	const uint8_t *word; /* where the value will be read */
	uint64_t old, value; /* before and after */
} * vn_deferred;
static uint32_t vn_ndeferred, vn_deferred_cap;
static uint32_t vn_deferred_done; /* atomics before this one are done */
static uint32_t vn_atomics;       /* and so many are not */

static struct vn_deferred *vn_deferred_add(struct vn_link *link, const struct vn_packet *answer)
{
	if (vn_ndeferred == vn_deferred_cap) {
		vn_deferred_cap = 2 * vn_deferred_cap + 256;
		vn_deferred = realloc(vn_deferred, vn_deferred_cap * sizeof(*vn_deferred));
		if (!vn_deferred) {
			abort();
		}
	}
	vn_deferred[vn_ndeferred] = (struct vn_deferred){ .link = link, .answer = *answer };
	return &vn_deferred[vn_ndeferred++];
}

void vn_place_defer(struct vn_link *link, const struct vn_packet *answer)
{
	vn_deferred_add(link, answer);
}

/* ------------------------------------------------------------------------------------- atomics */

/* Asks for the words of atomics, as many as there is room for. Returns the first that is left. */
static uint32_t vn_atomics_ask(uint32_t from)
{
	uint32_t i;

	for (i = from; i < vn_ndeferred; i++) {
		struct vn_deferred *d = &vn_deferred[i];

		d->word = d->mr ? vn_gpu_peek(d->mr->mem.gpu, d->at, d->answer.len) : NULL;
		if (d->mr && !d->word) {
			break;
		}
	}
	return i;
}

/* The value that an atomic finds: what one before it has left, or what was read. */
static uint64_t vn_atomic_old(uint32_t from, uint32_t i)
{
	struct vn_deferred *d = &vn_deferred[i];

	for (uint32_t k = i; k-- > from;) {
		if (vn_deferred[k].mr && vn_deferred[k].at == d->at) {
			return vn_deferred[k].value;
		}
	}
	return d->old;
}

static void vn_atomics_run(void)
{
	while (vn_atomics) {
		uint32_t from = vn_deferred_done, to = vn_atomics_ask(from);

		vn_gpu_settle();
		/* The next write takes the place where the words were read. */
		for (uint32_t i = from; i < to; i++) {
			if (vn_deferred[i].mr) {
				memcpy(&vn_deferred[i].old, vn_deferred[i].word,
				       vn_deferred[i].answer.len);
			}
		}
		for (uint32_t i = from; i < to; i++) {
			struct vn_deferred *d = &vn_deferred[i];

			if (d->mr) {
				d->old = vn_atomic_old(from, i);
				d->value = vn_masked_add(d->old, d->add, d->boundary);
				vn_gpu_write(d->mr->mem.gpu, d->mr, d->at, (uint8_t *)&d->value,
					     d->answer.len);
				vn_resp_atomic_done(&d->answer, d->old);
				vn_atomics--;
			}
		}
		vn_deferred_done = to;
	}
}

/* Atomics that wait and touch these bytes are done now, unless they are on exactly this word. */
static void vn_deferred_clash(const uint8_t *at, uint32_t len, bool word)
{
	for (uint32_t i = vn_deferred_done; vn_atomics && i < vn_ndeferred; i++) {
		const struct vn_deferred *d = &vn_deferred[i];

		if (d->mr && d->at < at + len && at < d->at + d->answer.len &&
		    !(word && d->at == at && d->answer.len == len)) {
			vn_atomics_run();
		}
	}
}

void vn_deferred_before(const uint8_t *at, uint32_t len)
{
	vn_deferred_clash(at, len, false);
}

void vn_place_atomic(struct vn_link *link, const struct vn_packet *answer,
		     const struct vn_packet *request, struct vn_mr *mr, uint8_t *at)
{
	struct vn_deferred *d;

	vn_deferred_clash(at, answer->len, true);
	d = vn_deferred_add(link, answer);
	d->mr = mr;
	d->at = at;
	d->add = request->add;
	d->boundary = request->boundary;
	vn_atomics++;
}

/* ------------------------------------------------------------------------------------- answers */

bool vn_place_settle(void)
{
	uint32_t n = vn_ndeferred;

	if (!n) {
		return false;
	}
	vn_atomics_run();
	vn_gpu_settle();
	vn_deferred_done = n;
	for (uint32_t i = 0; i < n; i++) {
		struct vn_deferred d = vn_deferred[i];

		vn_link_send(d.link, &d.answer, (const uint8_t *)&d.old);
	}
	vn_ndeferred -= n; /* sending answers has deferred no others */
	vn_deferred_done = 0;
	return true;
}
