/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The routing kernel of high throughput, on ranks without a host side (ht_route.h): random shapes
 * and ids against the definitions, several updates on the same memory, and what a rank says that
 * fails, that disagrees, or that gets more than it has room for.
 *
 *   ht_route [CASES [SEED]]
 */
#include <time.h>
#include "ht_route.h"
#include "device/simt/wait_site.h"

#if defined(__SANITIZE_THREAD__)
#define CASES 1
#define LARGE_THREADS 128 /* each costs it a megabyte */
#define BLOCKS false
#define MANY false /* it takes a minute, and what two ranks do is all that there is to race with */
#define LISTS_RANKS 4 /* it knows 8000 threads, and each list has 512 */
#elif defined(__SANITIZE_ADDRESS__)
#define CASES 2
#define LARGE_THREADS 512
#define BLOCKS false /* all that their number changes lies in one piece of memory */
#define MANY true
#define LISTS_RANKS RIG_RANKS
#else
#define CASES 10
#define LARGE_THREADS 512
#define BLOCKS true
#define MANY true
#define LISTS_RANKS RIG_RANKS
#endif

static uint64_t draws;
static int devices;

static uint32_t draw(uint32_t n)
{
	draws = draws * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((draws >> 33) % n);
}

enum ids {
	IDS_ANY,
	IDS_ONE,   /* all tokens select one expert */
	IDS_FEW,   /* many duplicates */
	IDS_RANK,  /* one rank gets all */
	IDS_HOLES, /* many are negative */
	IDS_WRONG, /* some are out of range */
	IDS_KINDS
};

static int64_t id_draw(enum ids kind, uint32_t experts, uint32_t nlocal, uint32_t one)
{
	switch (kind) {
	case IDS_ONE:
		return one;
	case IDS_FEW:
		return (one + draw(3)) % experts;
	case IDS_RANK:
		return one / nlocal * nlocal + draw(nlocal);
	case IDS_HOLES:
		return draw(3) ? -1 - (int64_t)draw(5) : (int64_t)draw(experts);
	case IDS_WRONG:
		return draw(6) ? (int64_t)draw(experts) : (int64_t)experts + draw(1000);
	default:
		return draw(experts);
	}
}

/* New tokens and ids for rank r. */
static void ids_draw(struct rig *rig, uint32_t r, enum ids kind)
{
	const struct rig_shape *s = &rig->shape;
	struct rig_rank *rank = &rig->rank[r];
	uint32_t experts = s->nranks * s->nlocal, one = draw(experts), how = draw(6);

	rank->tokens = how == 0 ? 0 : how < 3 ? s->max_tokens : draw(s->max_tokens + 1);
	for (uint32_t i = 0; i < rank->tokens * s->topk; i++) {
		rank->ids[i] = id_draw(kind, experts, s->nlocal, one);
	}
	if (s->id_bytes == 8 && kind == IDS_WRONG && rank->tokens) {
		rank->ids[0] = INT64_C(1) << 32; /* whose lower half is right */
	}
}

static bool any_wrong(const struct rig *rig, uint32_t r)
{
	const struct rig_rank *rank = &rig->rank[r];
	int64_t experts = (int64_t)rig->shape.nranks * rig->shape.nlocal;

	for (uint32_t i = 0; i < rank->tokens * rig->shape.topk; i++) {
		if (rank->ids[i] >= experts) {
			return true;
		}
	}
	return false;
}

/* Sets of ranks have the first 32 of them. */
static bool is_in(uint32_t set, uint32_t r)
{
	return r < 32 && (set >> r & 1);
}

/* All ranks but those of the set `absent` run an update, and are fetched. */
static void update(struct rig *rig, uint32_t absent)
{
	static void (*const steps[])(struct rig *, uint32_t) = { rig_load, rig_launch, rig_wait,
								 rig_fetch };

	rig->launches++;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		for (uint32_t r = 0; r < rig->shape.nranks; r++) {
			if (!is_in(absent, r)) {
				steps[i](rig, r);
			}
		}
	}
}

static void check_records(struct rig *rig, int over, uint32_t total)
{
	for (uint32_t r = 0; r < rig->shape.nranks; r++) {
		const struct ep_record *fatal = &rig->rank[r].records[EP_RECORD_FATAL];
		struct ep_record *routing = &rig->rank[r].records[EP_RECORD_ROUTING];
		const struct ep_dev_state *state = rig_at(rig, r, RIG_STATE);
		const uint32_t unlocked = 0;

		CHECK_INT(fatal->valid, over >= 0);
		CHECK_INT(state->aborted, over >= 0);
		CHECK_INT(routing->valid, any_wrong(rig, r));
		if (over >= 0) {
			CHECK_INT(fatal->cause, EP_CAUSE_OVERFLOW);
			CHECK_INT(fatal->peer, over);
			CHECK_INT(fatal->value, total);
			CHECK_INT(fatal->expected, rig->shape.limit);
			/* no routing: cleared, or failed by a block that was still waiting */
			CHECK(((struct ep_ht_head *)rig_at(rig, r, RIG_HEAD))->stamp + 1 <= 1);
		}
		if (routing->valid) {
			const int64_t *ids = rig->rank[r].ids;

			CHECK_INT(routing->cause, EP_CAUSE_EXPERT_ID);
			CHECK_INT(routing->peer, r);
			CHECK_INT(routing->expected, rig->shape.nranks * rig->shape.nlocal);
			CHECK(routing->value >= routing->expected);
			CHECK_INT(ids[routing->token * rig->shape.topk + routing->k],
				  routing->value);
			/* as the host does it, once it has read the record */
			routing->valid = 0;
			NEED_CUDA(cudaSetDevice(rig->rank[r].device));
			NEED_CUDA(cudaMemcpy(
				&rig->rank[r].args.c.g.state->record_lock[EP_RECORD_ROUTING],
				&unlocked, sizeof(unlocked), cudaMemcpyHostToDevice));
		}
	}
}

static const struct rig_shape small = { .nranks = 3,
					.nlocal = 2,
					.topk = 2,
					.max_tokens = 20,
					.chunk_shift = 3,
					.limit = EP_HT_NONE,
					.layout = EP_HT_FLAT,
					.alignment = 1,
					.id_bytes = 4,
					.counter_bytes = 4,
					.total_bytes = 4,
					.blocks = 2,
					.threads = 64 };

/* Three updates on the same memory, with other tokens each. */
static void run_shape(const struct rig_shape *shape, enum ids kind)
{
	struct rig rig;

	rig_make(&rig, shape, devices);
	for (int i = 0; i < 3; i++) {
		uint32_t total = 0;
		int over = -1;

		for (uint32_t r = 0; r < shape->nranks; r++) {
			ids_draw(&rig, r, kind == IDS_KINDS ? draw(IDS_KINDS) : kind);
		}
		if (!shape->drop) {
			over = oracle_overflow(&rig, &total);
		}
		update(&rig, 0);
		check_records(&rig, over, total);
		if (over >= 0) {
			break;
		}
		oracle_check(&rig);
		if (shape->layout == EP_HT_EXPERT_MAJOR && !shape->drop &&
		    shape->nranks <= LISTS_RANKS) {
			lists_check(&rig);
		}
	}
	rig_free(&rig);
}

/* A limit that is seldom exceeded, or often. */
static void limit_draw(struct rig_shape *s)
{
	uint32_t most = s->nranks * s->max_tokens * (s->topk < s->nlocal ? s->topk : s->nlocal) +
			s->nlocal * s->alignment;

	s->limit = draw(3) ? 1 + draw(most) : EP_HT_NONE;
	s->drop = draw(4) != 0;
}

static void test_random(int cases)
{
	for (int i = 0; i < cases; i++) {
		struct rig_shape s = {
			.nranks = 1 + draw(9),
			.nlocal = 1 + draw(40),
			.topk = draw(2) ? 1 + draw(32) : 1 + draw(8),
			.max_tokens = draw(4) ? 1 + draw(70) : 1 + draw(400),
			.chunk_shift = draw(4),
			.layout = draw(2) ? EP_HT_FLAT : EP_HT_EXPERT_MAJOR,
			.alignment = 1u << draw(8),
			.id_bytes = draw(2) ? 4 : 8,
			.counter_bytes = draw(2) ? 4 : 8,
			.total_bytes = draw(2) ? 4 : 8,
			.threads = 32 * (1 + draw(4)),
			.no_counters = draw(3) ? 0 : draw(8),
		};
		enum ids kind = draw(IDS_KINDS + 1);

		s.blocks = 1 + draw(draw(4) ? 3 : 16 / s.nranks);
		limit_draw(&s);
		check_context(
			"case %d: R %u L %u K %u B %u chunks of %u M %d layout %u align %u drop %u ids %d "
			"blocks %u threads %u",
			i, s.nranks, s.nlocal, s.topk, s.max_tokens, 1u << s.chunk_shift,
			(int)s.limit, s.layout, s.alignment, s.drop, (int)kind, s.blocks,
			s.threads);
		run_shape(&s, kind);
	}
}

/*
 * Sizes that take the tables to scratch, several windows of experts, and several spans of tokens.
 */
static void test_large(void)
{
	struct rig_shape s = small;

	s.nranks = 2;
	s.nlocal = 5000;
	s.topk = 5;
	s.max_tokens = 90;
	s.layout = EP_HT_EXPERT_MAJOR;
	s.alignment = 2;
	s.id_bytes = 8;
	s.threads = 128;

	check_context("two windows of experts");
	run_shape(&s, IDS_ANY);
	if (MANY) {
		run_shape(&s, IDS_RANK);
		check_context("large tables");
		s.nlocal = 3000;
		s.layout = EP_HT_FLAT;
		run_shape(&s, IDS_ANY);
	}
	check_context("several spans");
	s.nlocal = 4;
	s.topk = 8;
	s.max_tokens = 1500;
	s.limit = 2000;
	s.layout = EP_HT_EXPERT_MAJOR;
	s.alignment = 8;
	s.drop = 1;
	s.id_bytes = 4;
	s.counter_bytes = 8;
	s.threads = LARGE_THREADS;
	run_shape(&s, IDS_ANY);
}

/*
 * Expert 0 has 8 rows below the limit of 8, but those of its tokens that come last have no slot: it
 * is not their places that decide. Flat counters leave them out.
 */
static void test_phantom(uint32_t layout)
{
	bool flat = layout == EP_HT_FLAT;
	const struct ep_ht_zone *zones;
	struct rig_shape s = small;
	struct rig rig;

	s.nranks = 2;
	s.topk = 1;
	s.max_tokens = s.limit = 8;
	s.layout = layout;
	s.drop = 1;
	s.id_bytes = 8;
	check_context("rows that have a place and no slot, layout %u", layout);
	rig_make(&rig, &s, devices);
	for (uint32_t r = 0; r < 2; r++) {
		rig.rank[r].tokens = 8;
		for (uint32_t t = 0; t < 8; t++) {
			rig.rank[r].ids[t] = t & 1;
		}
	}
	update(&rig, 0);
	oracle_check(&rig);
	zones = rig_at(&rig, 0, RIG_ZONES);
	CHECK(flat || (zones[0].rows == 8 && zones[0].kept == 4 && zones[1].rows == 0));
	CHECK_INT(((int32_t *)rig_at(&rig, 0, RIG_COUNTERS))[0], flat ? 4 : 8);
	CHECK_INT(((int32_t *)rig_at(&rig, 0, RIG_TOTAL))[0], 16);
	rig_free(&rig);
}

/* The fullest rank gets exactly as much as it has room for, and then one more. */
static void test_exact(uint32_t layout)
{
	struct rig_shape s = small;
	uint32_t total = 0, limit = 0;
	struct rig rig;

	check_context("exactly the limit, layout %u", layout);
	s.layout = layout;
	rig_make(&rig, &s, devices);
	for (uint32_t r = 0; r < s.nranks; r++) {
		ids_draw(&rig, r, IDS_ANY);
	}
	for (rig.shape.limit = 0; oracle_overflow(&rig, &total) >= 0;) {
		rig.shape.limit = limit = total;
	}
	for (int i = 0; i < 2 && limit; i++) {
		int over;

		rig.shape.limit = limit - (uint32_t)i;
		for (uint32_t r = 0; r < s.nranks; r++) {
			rig.rank[r].args.c.limit = rig.shape.limit;
		}
		over = oracle_overflow(&rig, &total);
		CHECK_INT(over >= 0, i);
		update(&rig, 0);
		check_records(&rig, over, total);
		if (over < 0) {
			oracle_check(&rig);
		}
	}
	rig_free(&rig);
}

/* More ranks than a warp has lanes, and than heaps stand in the arguments. */
static void test_many(void)
{
	struct rig_shape s = small;

	check_context("%d ranks", RIG_RANKS);
	s.nranks = RIG_RANKS;
	s.max_tokens = 17;
	s.topk = 5;
	s.nlocal = 1;
	s.chunk_shift = 1;
	s.blocks = 1;
	s.threads = 32;
	s.layout = EP_HT_EXPERT_MAJOR;
	run_shape(&s, IDS_ANY);
	s.limit = 40; /* which the last ranks exceed, too */
	run_shape(&s, IDS_ANY);
}

/* site 0: that depends on which wait ends first */
static void check_fatal(const struct rig *rig, uint32_t r, uint32_t cause, uint32_t site,
			uint32_t peer)
{
	const struct ep_record *fatal = &rig->rank[r].records[EP_RECORD_FATAL];
	uint64_t stamp = ((struct ep_ht_head *)rig_at(rig, r, RIG_HEAD))->stamp;

	CHECK_INT(fatal->valid, 1);
	CHECK_INT(fatal->cause, cause);
	if (site) {
		CHECK_INT(fatal->site, site);
	}
	CHECK_INT(fatal->peer, peer);
	CHECK(stamp == EP_HT_NO_STAMP);
}

/* Words of rank 1 are as the last update has left them; `all`: it has written each. */
static void check_before(const struct rig *rig, enum rig_piece piece, size_t first, size_t n,
			 int before, bool all)
{
	const uint64_t *words = (const uint64_t *)rig_at(rig, 1, piece) + first;

	for (size_t i = 0; i < n; i++) {
		uint32_t epoch = (uint32_t)(words[i] >> 32);

		CHECK(epoch == (uint32_t)before || (!all && epoch < (uint32_t)before),
		      "word %zu of piece %d has epoch %u", i, (int)piece, epoch);
	}
}

/*
 * Rank 1 has not started the update: it may still read what the one before has left in its heap.
 * Counts of the new one have a place of their own.
 */
static void check_untouched(struct rig *rig, int before)
{
	uint32_t n = rig->shape.nranks, counts = n * rig->shape.nlocal + n + 1;

	rig_fetch(rig, 1);
	check_before(rig, RIG_COUNT, (size_t)(before & 1) * n * counts, n * counts, before, true);
	check_before(rig, RIG_START, 0, rig->bytes[RIG_START] / 8, before, true);
	check_before(rig, RIG_SEL, 0, rig->bytes[RIG_SEL] / 8, before, false);
}

/*
 * What rank `from` tells rank `to` in the first update: its mark, then its counts, none, then its
 * tables.
 */
static void tell(struct rig *rig, uint32_t to, uint32_t from, int most)
{
	/* R * L + R + 1; and chunks + 1 */
	uint64_t counts[10], starts[4], mark = UINT64_C(1) << 32 | 77;
	unsigned char *memory = rig->rank[to].memory;

	for (int i = 0; i < 10; i++) {
		counts[i] = UINT64_C(1) << 32;
	}
	for (int i = 0; i < 4; i++) {
		starts[i] = UINT64_C(1) << 32;
	}
	if (most > 0) {
		NEED_CUDA(cudaMemcpy(memory + rig->off[RIG_SIGNATURE] +
					     ep_signature_slot_off(rig->shape.nranks, 1, from),
				     &mark, sizeof(mark), cudaMemcpyHostToDevice));
	}
	if (most > 1) {
		NEED_CUDA(cudaMemcpy(memory + rig->off[RIG_COUNT] +
					     sizeof(counts) * (rig->shape.nranks + from),
				     counts, sizeof(counts), cudaMemcpyHostToDevice));
	}
	if (most > 2) {
		NEED_CUDA(cudaMemcpy(memory + rig->off[RIG_START] + sizeof(starts) * from, starts,
				     sizeof(starts), cudaMemcpyHostToDevice));
	}
}

/*
 * Rank 1 does not come, after `before` updates with it. Or (`tells`) it does, and says how many
 * rows it has, but not what they are.
 */
static void run_absent(int before, bool tells, uint32_t site)
{
	double start;
	struct rig rig;

	check_context("rank 1 is absent after %d updates%s", before, tells ? ", with counts" : "");
	rig_make(&rig, &small, devices);
	for (uint32_t r = 0; r < small.nranks; r++) {
		ids_draw(&rig, r, IDS_ANY);
	}
	for (int i = 0; i < before; i++) {
		update(&rig, 0);
		oracle_check(&rig);
	}
	for (uint32_t r = 0; r < small.nranks; r++) {
		rig.rank[r].args.c.g.timeout_ns = 1000000000;
	}
	for (uint32_t r = 0; tells && r < small.nranks; r++) {
		tell(&rig, r, 1, 2);
	}
	start = check_now();
	update(&rig, 1 << 1);
	CHECK(check_now() - start < 15);
	check_fatal(&rig, 0, EP_CAUSE_TIMEOUT, site, 1);
	check_fatal(&rig, 2, EP_CAUSE_TIMEOUT, site, 1);
	if (!tells) {
		check_untouched(&rig, before);
	}
	rig_free(&rig);
}

/* Rank 0 waits for rank 1, which has told it so much, and that it has given up rank 2. */
static void run_given_up(int told, uint32_t site)
{
	const uint64_t word = UINT64_C(1) << 32 | 2;
	struct rig rig;

	check_context("rank 1 has given up rank 2, and has told %d", told);
	rig_make(&rig, &small, devices);
	rig.rank[0].args.c.g.timeout_ns = 300000000;
	ids_draw(&rig, 0, IDS_ANY);
	tell(&rig, 0, 1, told);
	tell(&rig, 0, 2, 3);
	NEED_CUDA(cudaMemcpy(rig.rank[0].memory + rig.off[RIG_SIGN] + 8, &word, sizeof(word),
			     cudaMemcpyHostToDevice));
	update(&rig, 1 << 1 | 1 << 2);
	check_fatal(&rig, 0, EP_CAUSE_TIMEOUT, site, 2);
	CHECK(((uint64_t *)rig_at(&rig, 0, RIG_SIGN))[0] == word, "its sign");
	rig_free(&rig);
}

static void test_mismatch(void)
{
	struct rig rig;

	check_context("rank 2 routes otherwise");
	rig_make(&rig, &small, devices);
	for (uint32_t r = 0; r < small.nranks; r++) {
		ids_draw(&rig, r, IDS_ANY);
	}
	rig.rank[2].args.c.launch.hash = 78;
	update(&rig, 0);
	for (uint32_t r = 0; r < 2; r++) {
		check_fatal(&rig, r, EP_CAUSE_MISMATCH, EP_WAIT_SIGNATURE, 2);
		CHECK_INT(rig.rank[r].records[EP_RECORD_FATAL].value, 1);
	}
	CHECK_INT(rig.rank[2].records[EP_RECORD_FATAL].cause, EP_CAUSE_MISMATCH);
	/* what has failed stays so: an update publishes no count, and says so in the handle */
	update(&rig, 0);
	CHECK(((struct ep_ht_head *)rig_at(&rig, 0, RIG_HEAD))->stamp == EP_HT_NO_STAMP);
	check_before(&rig, RIG_COUNT, 0, rig.bytes[RIG_COUNT] / 8, 1, false);
	rig_free(&rig);
}

/*
 * Numbers of blocks change between updates on the same memory. With 17 blocks and more a column's
 * words are those of a whole warp.
 */
static void test_blocks(uint32_t nranks, uint32_t nlocal, uint32_t topk, uint32_t max_tokens,
			uint32_t threads)
{
	static const uint32_t blocks[] = { 32, 31, 1, 17, 2, 29, 5, 16, 3 };
	struct rig_shape s = small;
	struct rig rig;

	s.nranks = nranks;
	s.nlocal = nlocal;
	s.topk = topk;
	s.max_tokens = max_tokens;
	s.layout = draw(2) ? EP_HT_FLAT : EP_HT_EXPERT_MAJOR;
	s.threads = threads;
	rig_make(&rig, &s, devices);
	for (size_t i = 0; i < sizeof(blocks) / sizeof(*blocks); i++) {
		check_context(
			"%u ranks, %u experts of each, top-%u, %u tokens, %u threads, %u blocks",
			nranks, nlocal, topk, max_tokens, threads, blocks[i]);
		for (uint32_t r = 0; r < nranks; r++) {
			ids_draw(&rig, r, draw(IDS_KINDS));
		}
		rig.shape.blocks = blocks[i];
		update(&rig, 0);
		check_records(&rig, -1, 0);
		oracle_check(&rig);
	}
	rig_free(&rig);
}

static void test_all_blocks(void)
{
	test_blocks(1, 40, 8, 300, 64);
	test_blocks(2, 1, 1, 257, 32);
	test_blocks(3, 17, 32, 400, 96);
	test_blocks(8, 3, 5, 290, 32);
	test_blocks(9, 2, 4, 40, 64);
	test_blocks(2, 1500, 3, 600, 64); /* tables in scratch */
}

int main(int argc, char **argv)
{
	int cases = argc > 1 ? atoi(argv[1]) : CASES;

	draws = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL);
	NEED_CUDA(cudaGetDeviceCount(&devices));
	printf("seed %llu\n", (unsigned long long)draws);
	fflush(stdout);
	test_phantom(EP_HT_FLAT);
	test_phantom(EP_HT_EXPERT_MAJOR);
	test_large();
	run_absent(0, false, 0);
	run_absent(1, false, 0);
	run_absent(0, true, EP_WAIT_HT_TABLE);
	run_given_up(0, EP_WAIT_SIGNATURE);
	run_given_up(1, EP_WAIT_HT_COUNT);
	run_given_up(2, EP_WAIT_HT_TABLE);
	test_mismatch();
	test_exact(EP_HT_FLAT);
	test_exact(EP_HT_EXPERT_MAJOR);
	test_random(cases);
	if (BLOCKS) {
		test_all_blocks();
	}
	if (MANY && devices >= 8) { /* one GPU does not run so many streams at once */
		test_many();
	}
	return check_end();
}
