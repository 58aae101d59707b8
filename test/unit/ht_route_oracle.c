/* SPDX-License-Identifier: Apache-2.0 */
/* What an update leaves in the ranks' memory, against the tables that the oracle's answers make. */
#include "ht_route.h"

static void tables_make(struct ht_tables *t, const struct rig *rig)
{
	const struct rig_shape *s = &rig->shape;
	const struct oracle_problem shape = { .nranks = s->nranks,
					      .experts = s->nranks * s->nlocal,
					      .topk = s->topk,
					      .max_tokens = s->max_tokens };

	ht_tables_open(t, &shape);
	t->h.expert_major = s->layout == EP_HT_EXPERT_MAJOR;
	t->chunk_shift = s->chunk_shift;
	t->h.limit = s->limit == EP_HT_NONE ? 0 : s->limit;
	t->h.drop = t->h.limit != 0;
	t->h.alignment = s->alignment;
	for (uint32_t r = 0; r < s->nranks; r++) {
		t->tokens[r] = rig->rank[r].tokens;
		for (uint32_t i = 0; i < t->tokens[r] * s->topk; i++) {
			int64_t id = rig->rank[r].ids[i];
			bool good = id >= 0 && id < (int64_t)shape.experts;

			ht_tables_ids(t, r, i / s->topk)[i % s->topk] = good ? (int32_t)id : -1;
		}
	}
	ht_tables_make(t);
}

/* The first `n` words of a piece. */
static void check_words(const struct rig *rig, uint32_t r, enum rig_piece piece, size_t n,
			const uint32_t *want)
{
	const uint32_t *got = rig_at(rig, r, piece);
	size_t i = 0;

	while (i < n && got[i] == want[i]) {
		i++;
	}
	CHECK(i == n, "rank %u, piece %d: word %zu of %zu is 0x%x, not 0x%x", r, (int)piece, i, n,
	      i < n ? got[i] : 0, i < n ? want[i] : 0);
}

/* What counter i says, unless it was not asked for: then it was not written. */
static void check_counter(const struct rig *rig, uint32_t r, enum rig_piece piece, uint32_t i,
			  bool asked, int64_t want)
{
	uint32_t bytes = piece == RIG_TOTAL ? rig->shape.total_bytes : rig->shape.counter_bytes;
	const unsigned char *p = (unsigned char *)rig_at(rig, r, piece) + (size_t)i * bytes;

	if (!asked) {
		CHECK_INT(*p, RIG_GUARD);
	} else if (bytes == 8) {
		CHECK_INT(*(const int64_t *)p, want);
	} else {
		CHECK_INT(*(const int32_t *)p, want);
	}
}

static void check_lists(const struct rig *rig, const struct ht_tables *t, uint32_t r)
{
	uint32_t n = t->h.p.nranks, starts = n * (t->chunks + 1);
	size_t list = (size_t)t->tokens[r] * t->h.p.topk;
	size_t at = (size_t)r * t->h.p.max_tokens * t->h.p.topk;

	check_words(rig, r, RIG_SEND_SEL, list, t->send_sel + at);
	check_words(rig, r, RIG_SEND_ROW, list, t->send_row + at);
	check_words(rig, r, RIG_SEND_START, starts, t->start + (size_t)r * starts);
	check_words(rig, r, RIG_SEND_BASE, n, t->send_base + r * n);
	check_words(rig, r, RIG_RECV_BASE, n + 1, t->recv_base + r * (n + 1));
	check_words(rig, r, RIG_RECV_START, starts, t->recv_start + (size_t)r * starts);
	check_words(rig, r, RIG_RECV_SEL, (size_t)t->head[r].rows * t->width, t->recv_sel[r]);
	if (t->h.expert_major) {
		check_words(rig, r, RIG_SEND_PLACE, list, t->send_place + at);
	}
}

static void check_expert(const struct rig *rig, const struct ht_tables *t, uint32_t r, uint32_t e)
{
	const struct ep_ht_zone *zone = (struct ep_ht_zone *)rig_at(rig, r, RIG_ZONES) + e;
	const struct ep_ht_zone *want = t->zones + r * t->nlocal + e;

	check_counter(rig, r, RIG_COUNTERS, e, !(rig->shape.no_counters & 1),
		      t->of[r]->counters[e]);
	if (t->h.expert_major) {
		check_counter(rig, r, RIG_OFFSETS, e, !(rig->shape.no_counters & 2),
			      t->of[r]->offsets[e]);
		CHECK_INT(zone->first, want->first);
		CHECK_INT(zone->rows, want->rows);
		CHECK_INT(zone->kept, want->kept);
	}
}

static void check_rank(const struct rig *rig, const struct ht_tables *t, uint32_t r)
{
	const struct ep_ht_head *head = rig_at(rig, r, RIG_HEAD), *want = &t->head[r];
	const struct ep_dev_seq *seq = rig_at(rig, r, RIG_SEQ);

	CHECK_INT(head->chunks, want->chunks);
	CHECK(head->stamp == RIG_STAMP);
	CHECK_INT(head->num_tokens, want->num_tokens);
	CHECK_INT(head->routing, rig->launches);
	CHECK_INT(head->rows, want->rows);
	CHECK_INT(head->idle, want->idle);
	CHECK_INT(head->places, want->places);
	CHECK_INT(head->total, want->total);
	check_counter(rig, r, RIG_TOTAL, 0, !(rig->shape.no_counters & 4),
		      (int64_t)t->of[r]->total);
	CHECK_INT(seq[EP_GROUP_MAX_BLOCKS - 1].step, rig->launches);
	check_lists(rig, t, r);
	for (uint32_t e = 0; e < t->nlocal; e++) {
		check_expert(rig, t, r, e);
	}
}

void oracle_check(const struct rig *rig)
{
	struct ht_tables t;

	tables_make(&t, rig);
	for (uint32_t r = 0; r < rig->shape.nranks; r++) {
		check_rank(rig, &t, r);
	}
	ht_tables_close(&t);
}

int oracle_overflow(const struct rig *rig, uint32_t *total)
{
	struct ht_tables t;
	int first = -1;

	tables_make(&t, rig);
	for (uint32_t d = 0; d < rig->shape.nranks && first < 0; d++) {
		*total = (uint32_t)t.of[d]->total;
		first = *total > rig->shape.limit ? (int)d : -1;
	}
	ht_tables_close(&t);
	return first;
}
