// SPDX-License-Identifier: Apache-2.0
/*
 * Every call with mistakes in its structs, descriptors, numbers and pointers, on a group of two
 * ranks that make the same mistakes. A call that fails has a reason, writes nothing and launches
 * nothing; after any call the group and its handle serve a correct pair.
 *
 *     structs FIRST COUNT      cases FIRST .. FIRST+COUNT-1
 */
#include "fuzz/calls.h"

#define RANKS 2
#define CALLS 150 /* of a case */
#define PERIOD 15 /* calls between pairs that must be right */

static const fuzz_call_fn calls[] = {
	fuzz_dispatch, fuzz_dispatch, fuzz_dispatch, fuzz_combine,  fuzz_combine,    fuzz_update,
	fuzz_init,     fuzz_create,   fuzz_mem_size, fuzz_complete, fuzz_tensors,    fuzz_masks,
	fuzz_group,    fuzz_version,  fuzz_nobody,   fuzz_memory,   fuzz_statistics,
};

static const ncclResult_t documented[] = { ncclSuccess,      ncclInvalidArgument,
					   ncclInvalidUsage, ncclUnhandledCudaError,
					   ncclSystemError,  ncclRemoteError };

/* Results of the ranks, for them to compare. */
static ncclResult_t results[RANKS];

void fuzz_judge(struct fuzz *f, const char *call, ncclResult_t result, const struct mutation *m)
{
	bool known = false;
	ncclResult_t code;
	const char *text;

	f->made++;
	f->failed += result != ncclSuccess;
	check_context("case %llu, call %u: %s%s", (unsigned long long)f->number, f->calls, call,
		      m ? m->text : "");
	for (size_t i = 0; i < sizeof(documented) / sizeof(documented[0]); i++) {
		known |= result == documented[i];
	}
	CHECK(known, "undocumented result %d", (int)result);
	if (result == ncclSuccess) {
		CHECK(!m || !mutation_sure(m));
		return;
	}
	OK(ncclEpExtGetLastError(NULL, &code, &text));
	CHECK_INT(code, result);
	CHECK(strlen(text) > 12 && !strchr(text, '\n'));
}

/* All ranks had the same arguments, so they have the same result. */
static void agree(struct fuzz *f, ncclResult_t result)
{
	results[f->w->rank] = result;
	world_meet(f->w);
	for (int r = 0; r < RANKS; r++) {
		CHECK_INT(results[r], result);
	}
	world_meet(f->w);
}

static void choose(struct fuzz *f, struct oracle_problem *p, uint32_t *flags)
{
	uint64_t *s = &f->state;

	*p = bench_problem(RANKS, RANKS * (1 + (uint32_t)world_draw(s, 3)), 0, 0,
			   1 + (uint32_t)world_draw(s, 6),
			   world_draw(s, 2) ? ORACLE_EXPERT_MAJOR : ORACLE_RANK_MAJOR);
	p->topk = 1 + (uint32_t)world_draw(s, p->experts);
	p->hidden = 128 * (1 + (uint32_t)world_draw(s, 2));
	p->max_tokens += (uint32_t)world_draw(s, 3);
	*flags = world_draw(s, 2) ? BENCH_MASK : 0;
	*flags |= world_draw(s, 2) ? BENCH_IDS64 : 0;
	if (world_draw(s, 3) == 0) {
		p->quant = ORACLE_QUANT_FP8;
	} else if (world_draw(s, 3) == 0) {
		p->quant = ORACLE_QUANT_FORWARD;
	}
}

static void run_case(struct world *w, void *arg)
{
	const uint64_t *number = arg;
	struct fuzz f = { .w = w, .number = *number, .state = *number * 31337 + 5 };
	struct oracle_problem p;
	ncclEpGroup_t group;
	uint32_t flags;
	struct bench b;
	char text[300];

	choose(&f, &p, &flags);
	bench_describe(&p, flags, text, sizeof(text));
	check_context("case %llu: %s", (unsigned long long)*number, text);
	group = bench_group(w, &p, flags);
	bench_open(&b, w, group, &p, flags);
	f.b = &b;
	bench_pair(&b);
	for (f.calls = 1; f.calls <= CALLS; f.calls++) {
		uint64_t which = world_draw(&f.state, sizeof(calls) / sizeof(calls[0]));
		/* calls may draw differently often: the next one starts from the same number */
		uint64_t next = f.state + 1;

		agree(&f, calls[which](&f));
		f.state = next;
		if (f.calls % PERIOD == 0) {
			bench_pair(&b);
		}
	}
	check_context("case %llu: %s", (unsigned long long)*number, text);
	CHECK(f.failed > f.made / 4 &&
	      f.failed < f.made); /* the mistakes are neither all nor none */
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

int main(int argc, char **argv)
{
	uint64_t first = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t count = world_number(argc > 2 ? argv[2] : NULL, 16);
	double begin = world_now();

	setenv("VC_MEM_MB", "64", 1); /* groups of absurd sizes find no memory */
	for (uint64_t i = first; i < first + count; i++) {
		world_run(RANKS, run_case, &i);
	}
	printf("structs: cases %llu to %llu, %.1f s\n", (unsigned long long)first,
	       (unsigned long long)(first + count - 1), world_now() - begin);
	return check_end();
}
