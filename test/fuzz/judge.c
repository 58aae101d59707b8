/* SPDX-License-Identifier: Apache-2.0 */
/* What is expected of any call, and the run of a case. */
#include "fuzz/calls.h"

#define CALLS 150 /* of a case */
#define PERIOD 15 /* calls between pairs that must be right */

static const ncclResult_t documented[] = { ncclSuccess,      ncclInvalidArgument,
					   ncclInvalidUsage, ncclUnhandledCudaError,
					   ncclSystemError,  ncclRemoteError };

/* Results of the ranks, for them to compare. */
static ncclResult_t results[FUZZ_RANKS];

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

uint32_t fuzz_places(struct fuzz *f, uint32_t n)
{
	uint32_t set = 1u << world_draw(&f->state, n);

	return world_draw(&f->state, 3)
		       ? set
		       : set | 1u << world_draw(&f->state, n) | 1u << world_draw(&f->state, n);
}

void fuzz_agree(struct fuzz *f, ncclResult_t result)
{
	results[f->w->rank] = result;
	world_meet(f->w);
	for (int r = 0; r < FUZZ_RANKS; r++) {
		CHECK_INT(results[r], result);
	}
	world_meet(f->w);
}

void fuzz_run(struct fuzz *f, const fuzz_call_fn *calls, size_t n, void (*pair)(struct fuzz *f))
{
	pair(f);
	f->odd_ids = false;
	for (f->calls = 1; f->calls <= CALLS; f->calls++) {
		uint64_t which = world_draw(&f->state, n);
		/* calls may draw differently often: the next one starts from the same number */
		uint64_t next = f->state + 1;

		fuzz_agree(f, calls[which](f));
		f->state = next;
		if (f->calls % PERIOD == 0) {
			fuzz_agree(f, fuzz_feasible(f));
			f->state = next;
			pair(f);
			f->odd_ids = false;
		}
	}
	/* the mistakes are neither all nor none */
	CHECK(f->failed > f->made / 4 && f->failed < f->made);
}
