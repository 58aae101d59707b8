/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk copies: rows arrive whole through buffers used again and again, and each mistake is found.
 */
#include "child.h"
#include "kernels_bulk.h"

#define TIMEOUT_NS 20000000000ull

/* How a run looks to the host. */
struct run {
	void (*kernel)(void);
	uint32_t blocks, warps;
	uint32_t bytes, rows, nbuffers, add, mistake;
	uint64_t timeout_ns;
};

struct memory {
	size_t in, out; /* bytes */
	uint32_t *from, *to, *seen;
	struct test_bulk_args args;
};

/* Rows differ from each other, and in each word. */
static uint32_t word_of(size_t i)
{
	return (uint32_t)i * 2654435761u + 12345;
}

static void memory_make(const struct run *run, struct memory *m)
{
	uint32_t moved = run->kernel == test_bulk_rows ? run->rows * run->blocks * run->warps
						       : run->rows;

	memset(m, 0, sizeof(*m));
	m->in = (size_t)moved * run->bytes;
	m->out = run->kernel == test_bulk_pipe ? (size_t)moved * (run->warps - 1) * 4 : m->in;
	m->from = malloc(m->in);
	m->seen = malloc(m->out);
	NEED(!m->from || !m->seen);
	for (size_t i = 0; i < m->in / 4; i++) {
		m->from[i] = word_of(i);
	}
	NEED(cudaMalloc((void **)&m->args.from, m->in));
	NEED(cudaMalloc((void **)&m->args.to, m->out + 64));
	NEED(cudaMalloc((void **)&m->args.mail, m->in));
	NEED(cudaMalloc((void **)&m->args.flag, 16));
	OK(cudaMemcpy((void *)m->args.from, m->from, m->in, cudaMemcpyHostToDevice));
	OK(cudaMemset(m->args.to, 0, m->out));
	/* where a flag comes too early, the mail may look right already */
	if (run->mistake) {
		OK(cudaMemcpy(m->args.mail, m->from, m->in, cudaMemcpyHostToDevice));
	} else {
		OK(cudaMemset(m->args.mail, 0, m->in));
	}
	OK(cudaMemset(m->args.flag, 0, 16));
	m->args.late = m->args.flag + 2;
	m->args.timeout_ns = run->timeout_ns;
	m->args.bytes = run->bytes;
	m->args.rows = run->rows;
	m->args.nbuffers = run->nbuffers;
	m->args.add = run->add;
	m->args.mistake = run->mistake;
}

static void memory_free(struct memory *m)
{
	OK(cudaFree((void *)m->args.from));
	OK(cudaFree(m->args.to));
	OK(cudaFree(m->args.mail));
	OK(cudaFree(m->args.flag));
	free(m->from);
	free(m->seen);
}

/* Words of the output that are not what the host computes. */
static size_t memory_wrong(const struct run *run, const struct memory *m)
{
	size_t wrong = 0, words = run->bytes / 4;
	uint32_t readers = run->warps - 1, add = run->kernel == test_bulk_rows ? run->add : 0;
	size_t repeated = run->kernel == test_bulk_spread ? words : m->in / 4;

	if (run->kernel != test_bulk_pipe) {
		for (size_t i = 0; i < m->out / 4; i++) {
			wrong += m->seen[i] != m->from[i % repeated] + add;
		}
		return wrong;
	}
	for (uint32_t k = 0; k < run->rows; k++) {
		uint32_t sum = 0;

		for (size_t i = 0; i < words; i++) {
			sum += m->from[k * words + i];
		}
		for (uint32_t r = 0; r < readers; r++) {
			wrong += m->seen[k * readers + r] != sum;
		}
	}
	return wrong;
}

/* Returns how many words are wrong; *late: how many warps gave up. */
static size_t run_kernel(const struct run *run, uint32_t *late)
{
	uint32_t warps = run->kernel == test_bulk_rows ? run->warps : 1;
	size_t shared = (size_t)warps * run->nbuffers * run->bytes, wrong;
	struct memory m;

	memory_make(run, &m);
	OK(cudaFuncSetAttribute((const void *)run->kernel,
				cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
	OK(test_launch(run->kernel, run->blocks, run->warps * 32, &m.args, shared, NULL));
	OK(cudaDeviceSynchronize());
	OK(cudaMemcpy(m.seen, m.args.to, m.out, cudaMemcpyDeviceToHost));
	OK(cudaMemcpy(late, m.args.late, sizeof(*late), cudaMemcpyDeviceToHost));
	wrong = memory_wrong(run, &m);
	memory_free(&m);
	return wrong;
}

static void test_right(void)
{
	static const struct run runs[] = {
		{ test_bulk_rows, 2, 4, 16, 9, 2, 0, 0, TIMEOUT_NS },
		{ test_bulk_rows, 2, 4, 496, 9, 3, 0, 0, TIMEOUT_NS },
		{ test_bulk_rows, 2, 3, 528, 9, 3, 1, 0, TIMEOUT_NS },
		{ test_bulk_rows, 1, 4, 4096, 5, 4, 1, 0, TIMEOUT_NS },
		{ test_bulk_rows, 2, 4, 16384, 7, 3, 0, 0, TIMEOUT_NS },
		{ test_bulk_pipe, 1, 4, 1792, 17, 3, 0, 0, TIMEOUT_NS },
		{ test_bulk_pipe, 1, 2, 16, 9, 4, 0, 0, TIMEOUT_NS },
		{ test_bulk_flag, 2, 2, 2048, 9, 1, 0, 0, TIMEOUT_NS },
		{ test_bulk_flag, 2, 2, 512, 5, 1, 1, 0, TIMEOUT_NS },
		/* more than the engine keeps account of */
		{ test_bulk_spread, 1, 1, 16, 5000, 1, 0, 0, TIMEOUT_NS },
	};

	for (size_t i = 0; i < sizeof(runs) / sizeof(*runs); i++) {
		uint32_t late;
		size_t wrong = run_kernel(&runs[i], &late);

		if (wrong || late) {
			fprintf(stderr, "run %zu: %zu words are wrong, %u warps gave up\n", i,
				wrong, late);
			test_failures++;
		}
	}
}

static const struct run rows = { test_bulk_rows, 1, 2, 512, 6, 2, 1, 0, TIMEOUT_NS };
static const struct run many = { test_bulk_pipe, 1, 3, 512, 6, 2, 0, 0, TIMEOUT_NS };
/* No buffer is used twice. */
static const struct run once = { test_bulk_pipe, 1, 3, 512, 2, 2, 0, 0, TIMEOUT_NS };
static const struct run flag = { test_bulk_flag, 2, 2, 512, 4, 1, 0, 0, TIMEOUT_NS };
static const struct run mbar = { test_bulk_flag, 2, 2, 512, 4, 1, 1, 0, TIMEOUT_NS };
#define WRONG_DATA 3
#define GAVE_UP 4

static const struct mistake {
	uint32_t what;
	const struct run *run;
	int code;
	const char *text;
} mistakes[] = {
	{ BULK_WAIT_LOAD, &rows, 87, "where a bulk load is under way that nobody has waited for" },
	{ BULK_PARITY, &rows, 87, "where a bulk load is under way that nobody has waited for" },
	{ BULK_WAIT_READ, &rows, 87, "may still be reading: no ep_bulk_wait_read()" },
	{ BULK_WRITES_EARLY, &rows, 87, "wrote shared memory at 0x" },
	{ BULK_COMMIT, &rows, 87, "may still be reading: no ep_bulk_wait_read()" },
	{ BULK_FENCE_SHARED, &rows, 87,
	  "that threads have written, and no ep_bulk_fence_shared()" },
	{ BULK_ANNOUNCED, &rows, 87, "have announced 528 bytes, and its loads bring 512" },
	{ BULK_LATE_LOAD, &rows, 87, "have announced 512 bytes, and its loads bring 0" },
	{ BULK_SIZE, &rows, 87, "of 508 bytes: all three must be multiples of 16" },
	{ BULK_NOTHING, &rows, 87, "there must be something to copy" },
	{ BULK_ALIGNMENT, &rows, 87, "of 512 bytes: all three must be multiples of 16" },
	{ BULK_OUTSIDE, &rows, 87, "its shared side is not in the 2048 bytes of dynamic shared" },
	{ BULK_INIT, &rows, 87, "which is no barrier: ep_mbar_init() makes one" },
	{ BULK_INIT_TWICE, &rows, 87, "which is a barrier: ep_mbar_inval() first" },
	{ BULK_FENCE_INIT, &rows, 87, "without ep_mbar_fence_init() behind it" },
	{ BULK_ARRIVALS, &rows, 86, "polls for bulk of peer 5" },
	{ BULK_LANES, &rows, 87, "with other arguments than" },
	{ BULK_LEAVES_STORE, &rows, 87, "has not waited for a bulk store of 512 bytes" },
	{ BULK_LEAVES_LOAD, &rows, 87, "nobody has waited for a bulk load of 512 bytes" },
	{ BULK_ARRIVES_MORE, &rows, 87, "more than 1 arrivals in a phase of the barrier" },
	{ BULK_INVAL_EARLY, &rows, 87, "for which 1 loads are under way" },
	{ BULK_PARITY_2, &rows, 87, "for parity 2: it is 0 or 1" },
	{ BULK_EMPTY, &many, 87, "where another one is under way" },
	{ BULK_PIPE_WAIT, &once, WRONG_DATA, "words are wrong" },
	{ BULK_PIPE_PARITY, &once, WRONG_DATA, "words are wrong" },
	{ BULK_INIT_RACE, &many, 87, "ep_mbar_try_wait() of" },
	{ BULK_ARRIVES_TWICE, &many, 87, "barrier 2: comes to it again while" },
	{ BULK_FLAG_EARLY, &flag, WRONG_DATA, "words are wrong" },
	{ BULK_FENCE_GLOBAL, &flag, 87, "and no ep_bulk_fence_global() between them" },
	{ BULK_FENCE_GLOBAL, &mbar, 87, "and no ep_bulk_fence_global() between them" },
};

/* A race detector sees the engine as threads of their own. */
static const struct mistake races[] = {
	{ BULK_RIGHT, &many, 0, "" },
	{ BULK_PIPE_WAIT, &once, 66, "data race" },
	{ BULK_PIPE_PARITY, &once, 66, "data race" },
	{ BULK_FLAG_EARLY, &flag, 66, "data race" },
};

/* Found where loads are late. */
static const struct mistake early[] = {
	{ BULK_CREDIT_EARLY, &flag, WRONG_DATA, "words are wrong" },
	{ BULK_CREDIT_EARLY, &mbar, WRONG_DATA, "words are wrong" },
};

#define COUNT(list) (sizeof(list) / sizeof(*(list)))

static int child(const struct mistake *m)
{
	struct run run = *m->run;
	uint32_t late;
	size_t wrong;

	run.mistake = m->what;
	wrong = run_kernel(&run, &late);
	printf("%zu words are wrong, %u warps gave up\n", wrong, late);
	return test_failures ? 1 : late ? GAVE_UP : wrong ? WRONG_DATA : 0;
}

/*
 * Copies are as late as can be. `which` list is m, for the child. The watchdog is early only where
 * it is to bark: a busy machine, or a race detector that writes, can hold a kernel up for seconds.
 */
static void test_found(char *program, char *which, const struct mistake *m, size_t n,
		       const char *tsan)
{
	static char text[CHILD_TEXT];

	for (size_t i = 0; i < n; i++) {
		const char *const env[] = { "VC_SEED=0", tsan,
					    m[i].code == 86 ? "VC_WATCHDOG_S=2" : NULL, NULL };
		char number[24];
		char *args[] = { program, which, number, NULL };
		int status;

		snprintf(number, sizeof(number), "%zu", i);
		status = child_run(args, env, text);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != m[i].code) {
			fprintf(stderr, "mistake %u: wait status %#x, should be exit %d:\n%s\n",
				m[i].what, (unsigned int)status, m[i].code, text);
			test_failures++;
		}
		CHECK_TEXT(text, m[i].text);
	}
}

/*
 * Loads that are late are right, and come after what others do who have been told too early that
 * they may.
 */
static void test_late(char *program, char *which)
{
	const char *const some[] = { "VC_LOADS_LATE=5", NULL };
	const char *const all[] = { "VC_LOADS_LATE=1",
				    "TSAN_OPTIONS=report_bugs=0:atexit_sleep_ms=0", NULL };
	static char text[CHILD_TEXT];
	char *args[] = { program, which, NULL };
	int status = child_run(args, some, text);

	if (!WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "late loads: wait status %#x:\n%s\n", (unsigned int)status, text);
		test_failures++;
	}
	for (size_t i = 0; i < COUNT(early); i++) {
		char number[16];
		char *one[] = { program, which, number, NULL };
		int tries = 20; /* the others may get no processor meanwhile */

		snprintf(number, sizeof(number), "%zu", i);
		do {
			status = child_run(one, all, text);
		} while (!status && --tries);
		CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, early[i].code);
		CHECK_TEXT(text, early[i].text);
	}
}

static int child_of(char **argv)
{
	const struct mistake *list = !strcmp(argv[1], "races")   ? races
				     : !strcmp(argv[1], "early") ? early
								 : mistakes;

	if (argv[2]) {
		return child(list + atoi(argv[2]));
	}
	test_right();
	return test_result();
}

int main(int argc, char **argv)
{
	static char said[] = "mistakes", late[] = "early";
	const char *seed = getenv("VC_SEED");

	if (argc > 1) {
		return child_of(argv);
	}
	test_right();
	test_late(argv[0], late);
	if (!seed || !strcmp(seed, "0")) {
		/* a race detector would end some of them first */
		test_found(argv[0], said, mistakes, COUNT(mistakes),
			   "TSAN_OPTIONS=report_bugs=0:atexit_sleep_ms=0");
#ifdef __SANITIZE_THREAD__
		static char raced[] = "races";

		test_found(argv[0], raced, races, COUNT(races),
			   "TSAN_OPTIONS=exitcode=66:atexit_sleep_ms=0");
#endif
	}
	return test_result();
}
