/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call costs the host. The thread that calls goes step by step: the processor traps behind
 * each instruction, and a signal handler counts those of the library, and of the C library where
 * that works for it. CUDA's share, and the clock's, is counted by calls, which run without traps.
 *
 * An operation makes the calls that a table here has, and no system call. It takes about as many
 * instructions as the table says, and as many for 400 tokens as for one. Ranks cost some each,
 * experts none.
 *
 *     host_cost [FILE]     FILE gets how often each address of the library was reached, as
 *                          `addr2line` takes it
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
#include "support/bench.h"
#include "support/ht_bench.h"

#define OPERATIONS 3

#if !defined(__x86_64__)

int main(void)
{
	printf("it knows the traps of x86_64 alone\n");
	return 77;
}

#else

#define CALLS_MOST 32
#define TEXT_MOST (16u << 20)

struct text {
	uintptr_t begin, end, loaded;
};

static struct text library, program, others[4]; /* others: the virtual cluster, its clock */
static int other_count;
static FILE *file;

/* Of rank 0, whose thread alone is traced. */
static struct {
	bool inside; /* the library, or the C library for it */
	uint64_t instructions, system_calls;
	uintptr_t call[CALLS_MOST]; /* where it has left the library */
	uint32_t calls;
	uint32_t *at; /* [TEXT_MOST] with a file */
} cost;

static bool within(const struct text *t, uintptr_t at)
{
	return at >= t->begin && at < t->end;
}

#define TRAP_FLAG 0x100 /* of the processor's flags */

/* Where a call that runs without traps returns to: traps again, and goes on behind the call. */
void resume(void);
__attribute__((used)) static uintptr_t resume_at;

__asm__(".text\n"
	"resume:\n"
	"	pushq resume_at(%rip)\n"
	"	pushfq\n"
	"	orq $0x100, (%rsp)\n"
	"	popfq\n"
	"	ret\n");

/* Before the instruction at its address. */
static void trapped(int sig, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t at = (uintptr_t)registers[REG_RIP], *stack = (uintptr_t *)registers[REG_RSP];
	const unsigned char *code = (const unsigned char *)at;

	(void)sig;
	(void)info;
	if (within(&library, at)) {
		cost.inside = true;
		if (cost.at && at - library.begin < TEXT_MOST) {
			cost.at[at - library.begin]++;
		}
	} else if (within(&program, at)) {
		cost.inside = false;
	}
	for (int i = 0; cost.inside && i < other_count; i++) {
		if (within(&others[i], at)) {
			cost.inside = false;
			cost.call[cost.calls++ % CALLS_MOST] = at;
			resume_at = *stack;
			*stack = (uintptr_t)resume;
			registers[REG_EFL] &= ~TRAP_FLAG;
		}
	}
	if (cost.inside) {
		cost.instructions++;
		cost.system_calls += code[0] == 0x0f && code[1] == 0x05;
	}
}

/* Sets and takes away the trap flag, below what a function may keep under its stack pointer. */
#define FLAGS(change)                                                                              \
	__asm__ volatile("leaq -128(%%rsp), %%rsp; pushfq; " change                                \
			 ", (%%rsp); popfq; leaq 128(%%rsp), %%rsp" ::                             \
				 : "memory", "cc")

static __attribute__((noinline)) void trace_begin(void)
{
	cost.inside = false;
	cost.instructions = cost.system_calls = cost.calls = 0;
	FLAGS("orq $0x100");
}

static __attribute__((noinline)) void trace_end(void)
{
	FLAGS("andq $~0x100");
}

static int find_text(struct dl_phdr_info *info, size_t size, void *arg)
{
	bool own = strstr(info->dlpi_name, "libnccl_ep.so"), self = !*info->dlpi_name;
	bool other = strstr(info->dlpi_name, "libvcluster") ||
		     strstr(info->dlpi_name, "libvcclock");

	(void)size;
	(void)arg;
	for (int i = 0; (own || self || other) && i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X && !strstr(info->dlpi_name, "vdso")) {
			struct text *t = own ? &library : self ? &program : &others[other_count++];

			t->loaded = info->dlpi_addr;
			t->begin = info->dlpi_addr + p->p_vaddr;
			t->end = t->begin + p->p_memsz;
		}
	}
	return 0;
}

/* ---- what operations cost ---- */

#define AROUND(calls) "driver cudaGetDevice clock_gettime" calls " clock_gettime"
#define LAUNCH AROUND(" cudaLaunchKernelExC")
#define DIRECT AROUND(" driver ncclCommUserRank driver driver driver cudaLaunchKernelExC")
#define MASKED AROUND(" cudaLaunchKernelExC cudaStreamGetCaptureInfo")

/*
 * Of a kind of groups, where a run has one token, two ranks and two experts of each; instructions:
 * optimised.
 */
struct kind {
	const char *name;
	bool high, flat;
	bool rings; /* rows of few tokens, too, which else travel as lines */
	bool grows; /* compared with what more tokens, experts and ranks take */
	uint32_t flags;
	struct {
		const char *name, *calls;
		uint32_t instructions;
	} operation[OPERATIONS];
};

static const struct kind kinds[] = {
	{ .name = "low latency",
	  .grows = true,
	  .operation = { { "update", AROUND(""), 1300 },
			 { "dispatch", LAUNCH, 3600 },
			 { "combine", LAUNCH, 3300 } } },
	{ .name = "low latency, masks",
	  .flags = BENCH_MASK,
	  .operation = { { "update", AROUND(""), 1300 },
			 { "dispatch", MASKED, 3600 },
			 { "combine", MASKED, 3300 } } },
	{ .name = "high throughput, expert-major",
	  .high = true,
	  .operation = { { "update", LAUNCH, 2850 },
			 { "dispatch", LAUNCH, 4550 },
			 { "combine", LAUNCH, 3750 } } },
	{ .name = "high throughput, flat, lines",
	  .high = true,
	  .flat = true,
	  .operation = { { "update", LAUNCH, 2700 },
			 { "dispatch", LAUNCH, 4150 },
			 { "combine", LAUNCH, 3350 } } },
	{ .name = "high throughput, flat",
	  .high = true,
	  .rings = true,
	  .grows = true,
	  .flat = true,
	  .operation = { { "update", LAUNCH, 2700 },
			 { "dispatch", LAUNCH, 4850 },
			 { "combine", LAUNCH, 3800 } } },
	{ .name = "high throughput, flat, windows",
	  .high = true,
	  .flat = true,
	  .flags = HT_WINDOW,
	  .operation = { { "update", LAUNCH, 2700 },
			 { "dispatch", DIRECT, 5050 },
			 { "combine", DIRECT, 4000 } } },
};

struct run {
	const struct kind *kind;
	uint32_t ranks, tokens, local;
	uint64_t instructions[OPERATIONS];
};

/* The calls that the operation has made. What the driver was asked for by name has no name here. */
static void print_calls(char *text, size_t size)
{
	size_t n = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < cost.calls && i < CALLS_MOST && n < size; i++) {
		Dl_info info;
		bool named = dladdr((void *)cost.call[i], &info) && info.dli_sname;

		n += (size_t)snprintf(text + n, size - n, "%s%s", n ? " " : "",
				      named ? info.dli_sname : "driver");
	}
}

static void take(struct run *run, int op)
{
	const char *name = run->kind->operation[op].name;
	uint64_t known = run->kind->operation[op].instructions;
#ifdef __OPTIMIZE__
	uint64_t most = 2 * known;
#else
	uint64_t most = 6 * known;
#endif
	char calls[600];

	run->instructions[op] = cost.instructions;
	print_calls(calls, sizeof(calls));
	printf("%s, %u ranks, %u tokens: %s: %" PRIu64 " instructions; %s\n", run->kind->name,
	       run->ranks, run->tokens, name, cost.instructions, calls);
	CHECK_TEXT(calls, run->kind->operation[op].calls);
	CHECK_INT(cost.system_calls, 0);
	CHECK(cost.instructions > known / 2 && cost.instructions < most,
	      "%s: %" PRIu64 " instructions, and %" PRIu64 " are known", name, cost.instructions,
	      known);
	for (uint32_t i = 0; cost.at && i < TEXT_MOST; i++) {
		if (cost.at[i]) {
			fprintf(file, "%s, %u ranks, %u tokens: %s: 0x%" PRIxPTR " %u\n",
				run->kind->name, run->ranks, run->tokens, name,
				library.begin - library.loaded + i, cost.at[i]);
			cost.at[i] = 0;
		}
	}
}

static ncclResult_t operate_low(struct bench *b, int op)
{
	return op == 0   ? bench_update(b, b->w->stream)
	       : op == 1 ? bench_dispatch(b, b->w->stream)
			 : bench_combine(b, b->w->stream);
}

static ncclResult_t operate_high(struct ht_bench *b, int op)
{
	return op == 0   ? ht_update(b, b->w->stream)
	       : op == 1 ? ht_dispatch(b, false, b->w->stream)
			 : ht_combine(b, false, b->w->stream);
}

static void run_kind(struct world *w, void *arg)
{
	struct run *run = arg;
	struct oracle_problem p = bench_problem(w->nranks, run->local * (uint32_t)w->nranks, 2,
						run->kind->high ? 7168 : 64, run->tokens,
						ORACLE_EXPERT_MAJOR);
	struct oracle_ht h = { .p = p, .expert_major = !run->kind->flat };
	struct ht_bench high;
	struct bench low;
	ncclResult_t result;

	check_context("%s of %u tokens, rank %d", run->kind->name, run->tokens, w->rank);
	if (run->kind->high) {
		h.limit = (uint32_t)w->nranks * run->tokens * (run->kind->flat ? 1 : 2);
		ht_open(&high, w, ht_group(w, &h, run->kind->flags, 60000), &h, run->kind->flags);
		ht_step(&high); /* which also binds calls to other libraries */
	} else {
		bench_open(&low, w, bench_group(w, &p, run->kind->flags), &p, run->kind->flags);
		bench_pair(&low);
	}
	for (int op = 0; op < OPERATIONS; op++) {
		world_meet(w);
		if (w->rank > 0) {
			world_meet(w); /* behind rank 0: no thread waits for another's lock */
		} else {
			trace_begin();
		}
		result = run->kind->high ? operate_high(&high, op) : operate_low(&low, op);
		if (w->rank == 0) {
			trace_end();
			world_meet(w);
			take(run, op);
		}
		NEED_OK(result);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
	}
	if (run->kind->high) {
		ht_step(&high);
		ht_end(&high);
	} else {
		bench_pair(&low);
		bench_end(&low);
	}
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };

	dl_iterate_phdr(find_text, NULL);
	NEED(library.end > library.begin && program.end > program.begin && other_count > 0);
	NEED(sigaction(SIGTRAP, &action, NULL) == 0);
	if (argc > 1) {
		file = fopen(argv[1], "w");
		cost.at = calloc(TEXT_MOST, sizeof(*cost.at));
		NEED(file && cost.at);
	}
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		setenv("NCCL_EP_LL_LINES", kinds[i].rings ? "0" : "1", 1);
		struct run one = { .kind = &kinds[i], .ranks = 2, .tokens = 1, .local = 2 };
		struct run many = one, ranks = one;

		many.tokens = 400;
		many.local = 50;
		ranks.ranks = 8;
		world_run(2, run_kind, &one);
		if (!kinds[i].grows) {
			continue;
		}
		world_run(2, run_kind, &many);
		world_run(8, run_kind, &ranks);
		for (int op = 0; op < OPERATIONS; op++) {
			check_context("%s, %s", kinds[i].name, kinds[i].operation[op].name);
			CHECK(many.instructions[op] < one.instructions[op] + 300,
			      "%" PRIu64 " instructions for one token, %" PRIu64 " for 400",
			      one.instructions[op], many.instructions[op]);
			CHECK(ranks.instructions[op] < one.instructions[op] + 6 * 100,
			      "%" PRIu64 " instructions for two ranks, %" PRIu64 " for eight",
			      one.instructions[op], ranks.instructions[op]);
		}
	}
	return check_end();
}

#endif
