/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run is a byte with two digits: how far its word is from where the run before it ended (in lists
 * that do not ascend: the word), and its length less one. A digit of 15 says that the rest follows,
 * in bytes of seven bits, the lowest first; the eighth bit says that one more follows.
 */
#include "gda/runs.h"

#define EP_RUNS_DIGIT 15u

void ep_gda_runs_begin(struct ep_gda_writer *w, unsigned char *at, bool ascending)
{
	*w = (struct ep_gda_writer){ .at = at, .ascending = ascending };
}

static void ep_runs_rest(struct ep_gda_writer *w, uint32_t v)
{
	if (v < EP_RUNS_DIGIT) {
		return;
	}
	for (v -= EP_RUNS_DIGIT; v > 0x7f; v >>= 7) {
		*w->at++ = (unsigned char)(v | 0x80);
	}
	*w->at++ = (unsigned char)v;
}

static uint32_t ep_runs_digit(uint32_t v)
{
	return v < EP_RUNS_DIGIT ? v : EP_RUNS_DIGIT;
}

static void ep_runs_flush(struct ep_gda_writer *w)
{
	uint32_t step = w->value - (w->ascending ? w->base : 0);

	if (!w->count) {
		return;
	}
	*w->at++ = (unsigned char)(ep_runs_digit(step) << 4 | ep_runs_digit(w->count - 1));
	ep_runs_rest(w, step);
	ep_runs_rest(w, w->count - 1);
	w->base = w->value + w->count;
	w->count = 0;
}

void ep_gda_runs_put(struct ep_gda_writer *w, uint32_t word)
{
	if (w->count && word == w->value + (w->ascending ? w->count : 0)) {
		w->count++;
		return;
	}
	ep_runs_flush(w);
	w->value = word;
	w->count = 1;
}

void ep_gda_runs_end(struct ep_gda_writer *w)
{
	ep_runs_flush(w);
	w->base = 0;
}

void ep_gda_runs_open(struct ep_gda_reader *r, const unsigned char *at, uint32_t bytes,
		      bool ascending)
{
	*r = (struct ep_gda_reader){ .at = at, .end = at + bytes, .ascending = ascending };
}

void ep_gda_runs_again(struct ep_gda_reader *r)
{
	r->base = 0;
}

/* *v is a digit, and becomes what it stands for. */
static bool ep_runs_take(struct ep_gda_reader *r, uint32_t *v)
{
	uint64_t rest = 0;

	if (*v < EP_RUNS_DIGIT) {
		return true;
	}
	for (unsigned int shift = 0; shift < 35 && r->at < r->end; shift += 7) {
		unsigned char byte = *r->at++;

		rest |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*v += (uint32_t)rest;
			return rest <= UINT32_MAX - EP_RUNS_DIGIT;
		}
	}
	return false;
}

bool ep_gda_runs_next(struct ep_gda_reader *r, uint32_t *value, uint32_t *count)
{
	uint32_t step, more;

	if (r->at == r->end) {
		return false;
	}
	step = *r->at >> 4;
	more = *r->at++ & 0xf;
	if (!ep_runs_take(r, &step) || !ep_runs_take(r, &more) || more == UINT32_MAX) {
		return false;
	}
	*value = step + (r->ascending ? r->base : 0);
	*count = more + 1;
	r->base = *value + *count;
	return true;
}
