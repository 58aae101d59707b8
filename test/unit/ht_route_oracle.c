/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What routing means, by its definitions and with no regard for speed: the slot of a token at a rank is
 * the number of tokens before it, by source and index, that select an expert there; a place in
 * expert-major layout is where the expert's zone begins, and the number of tokens before it that select
 * the expert.
 */
#include "ht_route.h"

#define NONE UINT32_MAX

/* Every token of every rank, by source and index. */
struct oracle {
	const struct rig *rig;
	uint32_t tokens;  /* of all ranks */
	uint32_t experts; /* of all ranks */
	uint32_t *source; /* [tokens] */
	uint32_t *index;  /* [tokens] */
	uint32_t *slot;   /* [tokens][R], NONE: the token does not go there */
	uint32_t *place;  /* [tokens][experts], NONE: the token does not select it */
	uint32_t *slots;  /* [R] in all */
	uint32_t *chosen; /* [experts] in all */
	uint32_t *offset; /* [experts] of the zone */
	uint32_t *places; /* [R] in all, with padding */
	uint32_t *padded; /* [experts] */
	uint32_t *base;   /* [R][R] slot of the source's first row at the rank */
};

static uint32_t *oracle_array(uint64_t n)
{
	uint32_t *p = malloc(4 * n + 4);

	NEED(p);
	memset(p, 0xff, 4 * n + 4);
	return p;
}

static const int64_t *oracle_ids(const struct oracle *o, uint32_t t)
{
	return o->rig->rank[o->source[t]].ids + (size_t)o->index[t] * o->rig->shape.topk;
}

static bool oracle_selects(const struct oracle *o, uint32_t t, uint32_t expert)
{
	for (uint32_t k = 0; k < o->rig->shape.topk; k++) {
		if (oracle_ids(o, t)[k] == (int64_t)expert) {
			return true;
		}
	}
	return false;
}

static void oracle_slots(struct oracle *o)
{
	const struct rig_shape *s = &o->rig->shape;

	memset(o->slots, 0, 4 * (size_t)s->nranks);
	memset(o->chosen, 0, 4 * (size_t)o->experts);
	for (uint32_t t = 0; t < o->tokens; t++) {
		for (uint32_t k = 0; k < s->topk; k++) {
			int64_t id = oracle_ids(o, t)[k];
			uint32_t *slot, *place;

			if (id < 0 || id >= (int64_t)o->experts) {
				continue;
			}
			slot = &o->slot[(size_t)t * s->nranks + (size_t)id / s->nlocal];
			place = &o->place[(size_t)t * o->experts + (size_t)id];
			if (*slot == NONE) {
				*slot = o->slots[id / s->nlocal]++;
			}
			if (*place == NONE) {
				*place = o->chosen[id]++; /* in the zone, for now */
			}
		}
	}
	for (uint32_t d = 0; d < s->nranks; d++) {
		o->places[d] = 0;
		for (uint32_t e = d * s->nlocal; e < (d + 1) * s->nlocal; e++) {
			o->offset[e] = o->places[d];
			o->padded[e] = o->chosen[e];
			while (o->padded[e] % (s->alignment ? s->alignment : 1)) {
				o->padded[e]++;
			}
			o->places[d] += o->padded[e];
		}
	}
	for (uint64_t i = 0; i < (uint64_t)o->tokens * o->experts; i++) {
		o->place[i] += o->place[i] == NONE ? 0 : o->offset[i % o->experts];
	}
}

static void oracle_make(struct oracle *o, const struct rig *rig)
{
	const struct rig_shape *s = &rig->shape;
	uint32_t n = 0;

	o->rig = rig;
	o->experts = s->nranks * s->nlocal;
	o->tokens = 0;
	for (uint32_t r = 0; r < s->nranks; r++) {
		o->tokens += rig->rank[r].tokens;
	}
	o->source = oracle_array(o->tokens);
	o->index = oracle_array(o->tokens);
	for (uint32_t r = 0; r < s->nranks; r++) {
		for (uint32_t t = 0; t < rig->rank[r].tokens; t++, n++) {
			o->source[n] = r;
			o->index[n] = t;
		}
	}
	o->slot = oracle_array((uint64_t)o->tokens * s->nranks);
	o->place = oracle_array((uint64_t)o->tokens * o->experts);
	o->slots = oracle_array(s->nranks);
	o->chosen = oracle_array(o->experts);
	o->offset = oracle_array(o->experts);
	o->padded = oracle_array(o->experts);
	o->places = oracle_array(s->nranks);
	o->base = oracle_array((uint64_t)s->nranks * s->nranks);
	oracle_slots(o);
}

static void oracle_free(struct oracle *o)
{
	uint32_t *arrays[] = { o->base,  o->source, o->index,  o->slot,   o->place,
			       o->slots, o->chosen, o->offset, o->padded, o->places };

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		free(arrays[i]);
	}
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Slot of the token at rank d, if its row is kept there. */
static uint32_t oracle_slot_kept(const struct oracle *o, uint32_t t, uint32_t d)
{
	uint32_t slot = o->slot[(size_t)t * o->rig->shape.nranks + d];

	return slot != NONE && slot < o->rig->shape.limit ? slot : NONE;
}

static uint32_t oracle_place_kept(const struct oracle *o, uint32_t t, uint32_t expert)
{
	uint32_t place = o->place[(size_t)t * o->experts + expert];

	return place != NONE && place < o->rig->shape.limit &&
			       oracle_slot_kept(o, t, expert / o->rig->shape.nlocal) != NONE
		       ? place
		       : NONE;
}

/* Rows of source s, those of its tokens before `token`, that rank d keeps (or counts). */
static uint32_t oracle_rows(const struct oracle *o, uint32_t s, uint32_t d, uint32_t token,
			    bool kept)
{
	uint32_t n = 0;

	for (uint32_t t = 0; t < o->tokens; t++) {
		if (o->source[t] == s && o->index[t] < token) {
			n += (kept ? oracle_slot_kept(o, t, d)
				   : o->slot[(size_t)t * o->rig->shape.nranks + d]) != NONE;
		}
	}
	return n;
}

static uint32_t oracle_base(const struct oracle *o, uint32_t s, uint32_t d)
{
	return o->base[s * o->rig->shape.nranks + d];
}

static void oracle_bases(struct oracle *o)
{
	const struct rig_shape *shape = &o->rig->shape;

	for (uint32_t d = 0; d < shape->nranks; d++) {
		uint32_t n = 0;

		for (uint32_t s = 0; s < shape->nranks; s++) {
			o->base[s * shape->nranks + d] = least(n, shape->limit);
			n += oracle_rows(o, s, d, NONE, false);
		}
	}
}

/* The token's list at its source. */
static void check_token(const struct oracle *o, uint32_t t)
{
	const struct rig_shape *s = &o->rig->shape;
	uint32_t r = o->source[t], n = 0, at = o->index[t] * s->topk;
	const uint32_t *sel = (uint32_t *)rig_at(o->rig, r, RIG_SEND_SEL) + at;
	const uint32_t *row = (uint32_t *)rig_at(o->rig, r, RIG_SEND_ROW) + at;
	const uint32_t *place = (uint32_t *)rig_at(o->rig, r, RIG_SEND_PLACE) + at;

	for (uint32_t e = 0; e < o->experts; e++) {
		uint32_t d = e / s->nlocal, slot = oracle_slot_kept(o, t, d), times = 0;

		for (uint32_t k = 0; k < s->topk && o->place[(size_t)t * o->experts + e] != NONE;
		     k++) {
			if (oracle_ids(o, t)[k] != (int64_t)e) {
				continue;
			}
			CHECK_INT(EP_HT_SEL_EXPERT(sel[n]), e);
			CHECK_INT(EP_HT_SEL_K(sel[n]), k);
			CHECK_INT((sel[n] & EP_HT_SEL_AGAIN) != 0, times++ > 0);
			CHECK_INT(sel[n] & 0x7fe00000, 0);
			CHECK_INT(row[n], slot == NONE ? NONE : slot - oracle_base(o, r, d));
			if (s->layout == EP_HT_EXPERT_MAJOR) {
				CHECK_INT(place[n], oracle_place_kept(o, t, e));
			}
			n++;
		}
	}
	for (; n < s->topk; n++) {
		CHECK_INT(sel[n], NONE);
		CHECK_INT(row[n], NONE);
		CHECK(s->layout == EP_HT_FLAT || place[n] == NONE);
	}
}

/* The row's list where it goes. */
static void check_row(const struct oracle *o, uint32_t t, uint32_t d)
{
	const struct rig_shape *s = &o->rig->shape;
	uint32_t width = least(s->topk, s->nlocal), n = 0, slot = oracle_slot_kept(o, t, d);
	const uint32_t *sel = (uint32_t *)rig_at(o->rig, d, RIG_RECV_SEL) + (size_t)slot * width;

	if (slot == NONE) {
		return;
	}
	for (uint32_t e = 0; e < s->nlocal; e++) {
		uint32_t expert = d * s->nlocal + e;

		if (oracle_selects(o, t, expert)) {
			uint32_t place = oracle_place_kept(o, t, expert);

			CHECK_INT(sel[n], s->layout == EP_HT_FLAT ? e
					  : place == NONE         ? EP_HT_DROPPED
								  : place);
			n++;
		}
	}
	for (; n < width; n++) {
		CHECK_INT(sel[n], NONE);
	}
}

/* What counter i says, unless it was not asked for: then it was not written. */
static void check_counter(const struct oracle *o, uint32_t r, enum rig_piece piece, uint32_t i,
			  bool asked, uint32_t want)
{
	uint32_t bytes = piece == RIG_TOTAL ? o->rig->shape.total_bytes
					    : o->rig->shape.counter_bytes;
	const unsigned char *p = (unsigned char *)rig_at(o->rig, r, piece) + (size_t)i * bytes;

	if (!asked) {
		CHECK_INT(*p, RIG_GUARD);
	} else if (bytes == 8) {
		CHECK_INT(*(const int64_t *)p, want);
	} else {
		CHECK_INT(*(const int32_t *)p, want);
	}
}

static void check_expert(const struct oracle *o, uint32_t r, uint32_t e)
{
	const struct rig_shape *s = &o->rig->shape;
	const struct ep_ht_zone *zone = (struct ep_ht_zone *)rig_at(o->rig, r, RIG_ZONES) + e;
	uint32_t expert = r * s->nlocal + e, kept = 0, placed = 0, rows, first;

	for (uint32_t t = 0; t < o->tokens; t++) {
		kept += oracle_selects(o, t, expert) && oracle_slot_kept(o, t, r) != NONE;
		placed += oracle_place_kept(o, t, expert) != NONE;
	}
	if (s->layout == EP_HT_FLAT) {
		check_counter(o, r, RIG_COUNTERS, e, !(s->no_counters & 1), kept);
		return;
	}
	first = least(o->offset[expert], s->limit);
	rows = least(o->padded[expert], s->limit - first);
	CHECK_INT(zone->first, first);
	CHECK_INT(zone->rows, rows);
	CHECK_INT(zone->kept, placed);
	check_counter(o, r, RIG_COUNTERS, e, !(s->no_counters & 1), rows);
	check_counter(o, r, RIG_OFFSETS, e, !(s->no_counters & 2), first);
}

static void check_pair(const struct oracle *o, uint32_t s, uint32_t d)
{
	uint32_t chunks = ep_ht_chunks(o->rig->shape.max_tokens);
	const uint32_t *send = (uint32_t *)rig_at(o->rig, s, RIG_SEND_START) + d * (chunks + 1);
	const uint32_t *recv = (uint32_t *)rig_at(o->rig, d, RIG_RECV_START) + s * (chunks + 1);

	CHECK_INT(((uint32_t *)rig_at(o->rig, s, RIG_SEND_BASE))[d], oracle_base(o, s, d));
	CHECK_INT(((uint32_t *)rig_at(o->rig, d, RIG_RECV_BASE))[s], oracle_base(o, s, d));
	for (uint32_t c = 0; c <= chunks; c++) {
		uint32_t rows = oracle_rows(o, s, d, c * EP_HT_CHUNK, true);

		CHECK_INT(send[c], rows);
		CHECK_INT(recv[c], rows);
	}
}

static void check_rank(const struct oracle *o, uint32_t r)
{
	const struct rig_shape *s = &o->rig->shape;
	const struct ep_ht_head *head = rig_at(o->rig, r, RIG_HEAD);
	bool expert_major = s->layout == EP_HT_EXPERT_MAJOR;
	uint32_t total = expert_major ? o->places[r] : o->slots[r], most = 0, idle = 0;
	const struct ep_dev_seq *seq = rig_at(o->rig, r, RIG_SEQ);

	for (uint32_t p = 0; p < s->nranks; p++) {
		most = o->rig->rank[p].tokens > most ? o->rig->rank[p].tokens : most;
		idle |= o->slots[p] == 0;
	}
	CHECK_INT(head->chunks, (most + 7) / 8);
	CHECK(head->stamp == RIG_STAMP);
	CHECK_INT(head->num_tokens, o->rig->rank[r].tokens);
	CHECK_INT(head->routing, o->rig->launches);
	CHECK_INT(head->rows, least(o->slots[r], s->limit));
	CHECK_INT(head->idle, idle);
	CHECK_INT(head->places, expert_major ? least(total, s->limit) : 0);
	CHECK_INT(((uint32_t *)rig_at(o->rig, r, RIG_RECV_BASE))[s->nranks],
		  least(o->slots[r], s->limit));
	check_counter(o, r, RIG_TOTAL, 0, !(s->no_counters & 4), total);
	CHECK_INT(seq[EP_GROUP_MAX_BLOCKS - 1].step, o->rig->launches);
	for (uint32_t e = 0; e < s->nlocal; e++) {
		check_expert(o, r, e);
	}
	for (uint32_t d = 0; d < s->nranks; d++) {
		check_pair(o, r, d);
	}
}

void oracle_check(const struct rig *rig)
{
	struct oracle o;

	oracle_make(&o, rig);
	oracle_bases(&o);
	for (uint32_t t = 0; t < o.tokens; t++) {
		check_token(&o, t);
		for (uint32_t d = 0; d < rig->shape.nranks; d++) {
			check_row(&o, t, d);
		}
	}
	for (uint32_t r = 0; r < rig->shape.nranks; r++) {
		check_rank(&o, r);
	}
	oracle_free(&o);
}

int oracle_overflow(const struct rig *rig, uint32_t *total)
{
	struct oracle o;
	int first = -1;

	oracle_make(&o, rig);
	for (uint32_t d = 0; d < rig->shape.nranks && first < 0; d++) {
		*total = rig->shape.layout == EP_HT_FLAT ? o.slots[d] : o.places[d];
		first = *total > rig->shape.limit ? (int)d : -1;
	}
	oracle_free(&o);
	return first;
}
