/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strange environments. Each case is a process of its own, one or two ranks in it, which creates a
 * group, dispatches and combines: a setting that the documentation allows must give right results,
 * any other a one-line reason that names the variable. It must never crash, abort or hang.
 *
 *     environment FIRST COUNT      cases FIRST .. FIRST+COUNT-1, -v in front: prints them
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/param.h"
#include "support/bench.h"

#define REFUSED 3 /* exit status of a child whose group was refused, with a reason */
#define CHILD_SECONDS 60
#define SETTINGS 3
#define VALUE_MAX 9000

#define DRAW(below) world_draw(&s, below)

/*
 * What is documented of each variable is what its row of the library's table says. Here are those
 * of which this test knows more, or for which it cannot know the outcome.
 */
static const struct {
	int64_t most; /* that this device can do; 0: as in the table */
	int64_t step; /* 0: any number */
	bool slow;    /* small values let a correct run expire: only refusals are certain */
	bool out;     /* it is not tried */
} special[EP_PARAMS] = {
	[EP_PARAM_DEBUG] = { .out = true }, /* any word means on */
	[EP_PARAM_TIMEOUT_MS] = { .slow = true },
	[EP_PARAM_LL_SEND_SMS] = { .most = 4 },
	[EP_PARAM_LL_RECV_SMS] = { .most = 4 },
	[EP_PARAM_LL_THREADS] = { .step = 32 },
	[EP_PARAM_MEMORY] = { .out = true },     /* words */
	[EP_PARAM_NODE_SIZE] = { .out = true },  /* nodes need a NIC */
	[EP_PARAM_RDMA_DEPTH] = { .out = true }, /* powers of two */
	[EP_PARAM_BOOTSTRAP_TIMEOUT_MS] = { .slow = true },
};

enum outcome {
	MUST_WORK,
	MUST_BE_REFUSED,
	EITHER
};

struct setting {
	char *name;
	char *value;
	enum outcome outcome;
};

struct test_case {
	uint32_t nranks;
	struct setting set[SETTINGS];
	uint32_t settings;
	enum outcome outcome;
};

struct outcome_of_ranks {
	ncclResult_t result[WORLD_MAX];
};

/* ---- The child: what a program does ---------------------------------------------------------- */

/* Prints the reason, which must be there. */
static void refused(ncclResult_t result)
{
	ncclResult_t code;
	const char *text;

	OK(ncclEpExtGetLastError(NULL, &code, &text));
	CHECK_INT(code, result);
	CHECK(strlen(text) > 12 && !strchr(text, '\n'));
	for (const char *c = text; *c; c++) {
		CHECK((unsigned char)*c >= ' ');
	}
	switch ((int)result) {
	case ncclInvalidArgument:
	case ncclInvalidUsage:
	case ncclUnhandledCudaError:
	case ncclSystemError:
	case ncclRemoteError:
		break;
	default:
		check_fail(__FILE__, __LINE__, "undocumented result %d: %s", (int)result, text);
	}
	fprintf(stderr, "reason: %s\n", text);
}

/* A wait that the environment made too short may have expired, and has a reason then. */
static ncclResult_t use(struct world *w, ncclEpGroup_t group, const struct oracle_problem *p,
			bool hurried)
{
	ncclResult_t code = ncclSuccess;
	const char *text = "";
	struct bench b;

	bench_open(&b, w, group, p, 0);
	if (!hurried) {
		bench_pair(&b);
		bench_load_tokens(&b, 7, p->tokens - 1);
		bench_pair(&b);
	} else {
		code = bench_update(&b, w->stream);
		code = code == ncclSuccess ? bench_dispatch(&b, w->stream) : code;
		code = code == ncclSuccess ? bench_combine(&b, w->stream) : code;
		NEED_CUDA(cudaStreamSynchronize(w->stream));
	}
	OK(ncclEpExtGetLastError(group, &code, &text));
	CHECK(code == ncclSuccess || (hurried && code == ncclRemoteError));
	bench_close(&b);
	return code;
}

static void child_rank(struct world *w, void *arg)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * (uint32_t)w->nranks, 2, 64, 5,
			      getpid() & 1 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	struct outcome_of_ranks *all = arg;
	ncclEpGroup_t group = NULL;
	const char *hurried = getenv("FUZZ_HURRIED");
	bool good = true;

	config.timeout_ns = UINT64_C(20000000000);
	all->result[w->rank] = ncclEpCreateGroup(&group, w->comm, &config);
	if (all->result[w->rank] != ncclSuccess) {
		CHECK(group == NULL);
		refused(all->result[w->rank]);
	}
	world_meet(w);
	for (int r = 0; r < w->nranks; r++) {
		good &= all->result[r] == ncclSuccess;
		/* nobody is left alone with a group, unless a wait was too short */
		CHECK(hurried || (all->result[r] == ncclSuccess) == (group != NULL));
	}
	world_meet(w);
	if (good) {
		all->result[w->rank] = use(w, group, &p, hurried);
	}
	OK(ncclEpGroupDestroy(group));
	world_meet(w);
	for (int r = 0; hurried && r < w->nranks; r++) {
		if (all->result[r] == ncclRemoteError) {
			/* what the communicator still waits for is nobody's concern here */
			exit(check_end() ? 1 : REFUSED);
		}
	}
}

static int child_main(const char *ranks)
{
	struct outcome_of_ranks all = { 0 };
	int nranks = (int)world_number(ranks, 1);

	world_run(nranks, child_rank, &all);
	if (check_end()) {
		return 1;
	}
	return all.result[0] == ncclSuccess ? 0 : REFUSED;
}

/* ---- The parent: cases ----------------------------------------------------------------------- */

static char *text_of(int64_t v, const char *format)
{
	char *text = malloc(64);

	NEED(text);
	snprintf(text, 64, format, (long long)v);
	return text;
}

/* Bytes that a shell could put there: anything but NUL. */
static char *garbage(uint64_t *state, uint32_t most)
{
	static const char *const pieces[] = { "%s",   "%n",    "%h",  "%p",      "%%", "^",
					      ",",    "=",     "0x",  "1e9",     "-",  "+",
					      " ",    "\n",    "\t",  "INIT",    "EP", "WARN",
					      "INFO", "TRACE", "ALL", "\x1b[31m" };
	uint64_t s = *state;
	uint32_t n = (uint32_t)DRAW(most);
	char *text = calloc(most + 16, 1);
	uint32_t at = 0;

	NEED(text);
	while (at < n) {
		if (DRAW(3) == 0) {
			const char *piece = pieces[DRAW(sizeof(pieces) / sizeof(pieces[0]))];

			strcpy(text + at, piece);
			at += (uint32_t)strlen(piece);
		} else {
			text[at++] = (char)(1 + DRAW(255));
		}
	}
	*state = s;
	return text;
}

static void draw_number(struct setting *v, enum ep_param_id id, uint64_t *state)
{
	static const int64_t extremes[] = { 0,          -1,        -2,        31,
					    33,         1000000,   INT32_MAX, INT32_MIN,
					    UINT32_MAX, INT64_MAX, INT64_MIN, 86400001 };
	const struct ep_param_def *def = &ep_param_table[id];
	int64_t most = special[id].most ? special[id].most : def->max;
	int64_t step = special[id].step ? special[id].step : 1;
	uint64_t s = *state;
	int64_t n = extremes[DRAW(sizeof(extremes) / sizeof(extremes[0]))];

	if (DRAW(2)) {
		n = def->min + step * (int64_t)DRAW((uint64_t)((most - def->min) / step + 1));
	}
	v->value = text_of(n, DRAW(4) ? "%lld" : "%lld ");
	v->outcome = n >= def->min && n <= most && n % step == 0 ? MUST_WORK : MUST_BE_REFUSED;
	if (v->outcome == MUST_WORK && special[id].slow && n != 0 && n < 30000) {
		v->outcome = EITHER;
	}
	*state = s;
}

static void draw_param(struct setting *v, uint64_t *state)
{
	static const char *const words[] = { "abc",
					     "1x",
					     "0x10",
					     "--1",
					     "1.5",
					     "1e3",
					     "nan",
					     "18446744073709551616",
					     "-9223372036854775809",
					     "99999999999999999999",
					     "on",
					     " ",
					     "\n",
					     "1\n2",
					     "4 4",
					     "%s%n",
					     "\x80\xff" };
	uint64_t s = *state;
	enum ep_param_id id;

	do {
		id = (enum ep_param_id)DRAW(EP_PARAMS);
	} while (special[id].out);
	v->name = strdup(ep_param_table[id].name);
	switch (DRAW(8)) {
	case 0:
	case 1:
		v->value = strdup(words[DRAW(sizeof(words) / sizeof(words[0]))]);
		v->outcome = MUST_BE_REFUSED;
		break;
	case 2:
		v->value = garbage(&s, DRAW(2) ? 40 : VALUE_MAX);
		v->outcome = EITHER;
		break;
	case 3:
		v->value = strdup("");
		v->outcome = MUST_WORK;
		break;
	default:
		draw_number(v, id, &s);
		break;
	}
	*state = s;
}

/* Logging does as it is told or does nothing, but never stands in the way. */
static void draw_logging(struct setting *v, uint64_t *state)
{
	static const char *const names[] = { "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE" };
	static const char *const files[] = {
		"/dev/full", "/dev/null", "/",   ".",           "/nonexistent/x", "%h.%p", "%",
		"%%%",       "%p%p%p%h",  "log", "/dev/stderr", "/proc/self/mem", ""
	};
	uint64_t s = *state;
	uint32_t which = (uint32_t)DRAW(3);

	v->name = strdup(names[which]);
	v->outcome = MUST_WORK;
	if (which == 2 && DRAW(3)) {
		v->value = strdup(files[DRAW(sizeof(files) / sizeof(files[0]))]);
	} else {
		v->value = garbage(&s, DRAW(3) ? 24 : VALUE_MAX);
		for (char *c = v->value; *c; c++) {
			*c = *c == '/' ? '_' : *c; /* files stay where they can be removed */
		}
	}
	*state = s;
}

/* Names that look like ours; they are warned about and mean nothing. */
static void draw_unknown(struct setting *v, uint64_t *state)
{
	uint64_t s = *state;
	const char *known = ep_param_table[DRAW(EP_PARAMS)].name;
	size_t most = DRAW(3) ? 90 : VALUE_MAX;
	char *tail = garbage(&s, (uint32_t)most);

	v->name = calloc(most + 64, 1);
	NEED(v->name);
	for (char *c = tail; *c; c++) {
		*c = *c == '=' ? '_' : *c;
	}
	snprintf(v->name, most + 64, "%s%s", DRAW(2) ? known : "NCCL_EP_", tail);
	for (uint32_t i = 0; i < EP_PARAMS; i++) {
		if (!strcmp(v->name, ep_param_table[i].name)) {
			strcat(v->name, "X");
		}
	}
	free(tail);
	v->value = garbage(&s, 30);
	v->outcome = MUST_WORK;
	*state = s;
}

static void choose(struct test_case *c, uint64_t number)
{
	uint64_t s = number * 104729 + 11;
	bool sms = false;

	memset(c, 0, sizeof(*c));
	c->nranks = 1 + (uint32_t)DRAW(2);
	c->settings = DRAW(3) ? 1 : 1 + (uint32_t)DRAW(SETTINGS);
	for (uint32_t i = 0; i < c->settings; i++) {
		struct setting *v = c->set + i;

		switch (DRAW(8)) {
		case 0:
		case 1:
			draw_logging(v, &s);
			break;
		case 2:
			draw_unknown(v, &s);
			break;
		default:
			draw_param(v, &s);
			break;
		}
		NEED(v->name && v->value);
	}
	for (uint32_t i = 0; i < c->settings; i++) {
		enum outcome o = c->set[i].outcome;
		bool again = false;

		for (uint32_t j = i + 1; j < c->settings; j++) {
			again |= !strcmp(c->set[i].name, c->set[j].name); /* the last one counts */
		}
		if (again) {
			continue;
		}
		/* counts of SMs limit each other */
		if (strstr(c->set[i].name, "_SMS") && o == MUST_WORK) {
			o = sms ? EITHER : o;
			sms = true;
		}
		if (o == MUST_BE_REFUSED || (o == EITHER && c->outcome == MUST_WORK)) {
			c->outcome = o;
		}
	}
}

static void free_case(struct test_case *c)
{
	for (uint32_t i = 0; i < c->settings; i++) {
		free(c->set[i].name);
		free(c->set[i].value);
	}
}

static void print_case(const struct test_case *c, uint64_t number, char *text, size_t size)
{
	size_t n = (size_t)snprintf(text, size, "case %llu, %u ranks:", (unsigned long long)number,
				    c->nranks);

	for (uint32_t i = 0; i < c->settings && n < size; i++) {
		n += (size_t)snprintf(text + n, size - n, " %.70s=\"%.60s\"%s", c->set[i].name,
				      c->set[i].value, strlen(c->set[i].value) > 60 ? "..." : "");
	}
	for (char *p = text; *p; p++) {
		*p = (unsigned char)*p < ' ' || (unsigned char)*p > '~' ? '?' : *p;
	}
}

/* In the child: never returns. Output goes to files of the directory. */
static void become_child(const struct test_case *c, const char *self)
{
	char ranks[8];

	snprintf(ranks, sizeof(ranks), "%u", c->nranks);
	for (uint32_t i = 0; i < c->settings; i++) {
		if (setenv(c->set[i].name, c->set[i].value, 1)) {
			_exit(99);
		}
	}
	if (c->outcome == EITHER) {
		setenv("FUZZ_HURRIED", "1", 1);
	}
	if (!freopen("out", "w", stdout) || !freopen("err", "w", stderr)) {
		_exit(98);
	}
	execl(self, self, "child", ranks, (char *)NULL);
	_exit(97);
}

/* Waits; kills what does not end. Returns the status of waitpid, -1 after a hang. */
static int await(pid_t pid)
{
	double end = world_now() + CHILD_SECONDS;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (world_now() > end) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		usleep(2000);
	}
	return status;
}

static char *slurp(const char *name)
{
	char *text = calloc(1, 20000);
	FILE *file = fopen(name, "r");

	NEED(text);
	if (file) {
		(void)!fread(text, 1, 19999, file);
		fclose(file);
	}
	return text;
}

static void judge(const struct test_case *c, int status, const char *errors)
{
	const char *reason = strstr(errors, "reason: ");
	bool named = false;

	if (status == -1) {
		check_fail(__FILE__, __LINE__, "it hangs: %s", errors);
		return;
	}
	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != REFUSED)) {
		check_fail(__FILE__, __LINE__, "it ended with %s %d: %s",
			   WIFEXITED(status) ? "status" : "signal",
			   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), errors);
		return;
	}
	CHECK(c->outcome != MUST_WORK || WEXITSTATUS(status) == 0, "%s", errors);
	if (c->outcome != MUST_BE_REFUSED) {
		return;
	}
	for (uint32_t i = 0; reason && i < c->settings; i++) {
		named |= strstr(reason, c->set[i].name) != NULL;
	}
	CHECK(WEXITSTATUS(status) == REFUSED && named, "status %d: %s", WEXITSTATUS(status),
	      errors);
}

static void clear_directory(void)
{
	DIR *dir = opendir(".");
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
			(void)unlink(entry->d_name);
		}
	}
	if (dir) {
		closedir(dir);
	}
}

static void run_case(const char *self, uint64_t number, bool verbose)
{
	struct test_case c;
	char text[900];
	char *errors;
	double begin = world_now();
	int status;
	pid_t pid;

	choose(&c, number);
	print_case(&c, number, text, sizeof(text));
	check_context("%s", text);
	pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		become_child(&c, self);
	}
	status = await(pid);
	errors = slurp("err");
	judge(&c, status, errors);
	if (verbose) {
		printf("%s: %s %d after %.1f s, %s\n", text,
		       status == -1 || WIFEXITED(status) ? "status" : "signal",
		       status == -1        ? -1
		       : WIFEXITED(status) ? WEXITSTATUS(status)
					   : WTERMSIG(status),
		       world_now() - begin, errors);
		fflush(stdout);
	}
	free(errors);
	free_case(&c);
	clear_directory();
}

int main(int argc, char **argv)
{
	char directory[] = "/tmp/ep-environment-XXXXXX", self[4096];
	bool verbose = argc > 1 && !strcmp(argv[1], "-v");
	double begin = world_now();
	uint64_t first, count;
	ssize_t n;

	if (argc == 3 && !strcmp(argv[1], "child")) {
		return child_main(argv[2]);
	}
	first = world_number(argc > 1 + verbose ? argv[1 + verbose] : NULL, 1);
	count = world_number(argc > 2 + verbose ? argv[2 + verbose] : NULL, 60);
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	NEED(n > 0 && mkdtemp(directory) && chdir(directory) == 0);
	self[n] = '\0';
	for (uint64_t i = first; i < first + count; i++) {
		run_case(self, i, verbose);
	}
	NEED(chdir("/") == 0 && rmdir(directory) == 0);
	printf("environment: cases %llu to %llu, %.1f s\n", (unsigned long long)first,
	       (unsigned long long)(first + count - 1), world_now() - begin);
	return check_end();
}
