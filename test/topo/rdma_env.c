/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL_IB_*: defaults, every value at its limits and one beyond, words; then a flood of texts that
 * a shell could put there.
 *
 *     gda_env [FIRST COUNT]     seeds of the flood
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/check.h"
#include "support/reason.h"
#include "ib_vars.h"

static struct ep_ib_env env;
static const int *const fields[EP_IB_VAR_NUMBERS] = { [EP_IB_VAR_DISABLE] = &env.disable,
						      [EP_IB_VAR_GID_INDEX] = &env.gid_index,
						      [EP_IB_VAR_FLID_INDEX] = &env.flid_index,
						      [EP_IB_VAR_SL] = &env.sl,
						      [EP_IB_VAR_TC] = &env.tc,
						      [EP_IB_VAR_TIMEOUT] = &env.timeout,
						      [EP_IB_VAR_RETRY_CNT] = &env.retry_cnt,
						      [EP_IB_VAR_PKEY] = &env.pkey,
						      [EP_IB_VAR_PKEY_VALUE] = &env.pkey_value,
						      [EP_IB_VAR_ADAPTIVE] = &env.adaptive,
						      [EP_IB_VAR_RELAXED] = &env.relaxed,
						      [EP_IB_VAR_QPS] = &env.qps,
						      [EP_IB_VAR_SPLIT] = &env.split,
						      [EP_IB_VAR_AR_THRESHOLD] = &env.ar_threshold,
						      [EP_IB_VAR_ECE] = &env.ece,
						      [EP_IB_VAR_MERGE] = &env.merge,
						      [EP_IB_VAR_MQP_ALL] = &env.mqp_all,
						      [EP_IB_VAR_MQP_CNT] = &env.mqp_cnt,
						      [EP_IB_VAR_MQP_MS] = &env.mqp_ms,
						      [EP_IB_VAR_RECOVERY_MS] = &env.recovery_ms,
						      [EP_IB_VAR_DIAL_CNT] = &env.dial_cnt,
						      [EP_IB_VAR_DIAL_MS] = &env.dial_ms,
						      [EP_IB_VAR_FIFO_TC] = &env.fifo_tc };

static int field(enum ep_ib_var var)
{
	return !fields[var]               ? env.roce_version
	       : var == EP_IB_VAR_RELAXED ? env.relaxed != 0
					  : *fields[var];
}

static void test_defaults(void)
{
	ib_vars_clear();
	CHECK(ep_ib_env_read(&env) == ncclSuccess, "%s", last_text());
	CHECK(!env.disable && env.gid_index == -1 && env.sl == 0 && env.tc == -1, "%d",
	      env.gid_index);
	CHECK(env.timeout == 20 && env.retry_cnt == 7 && env.pkey == 0, "%d", env.timeout);
	CHECK(env.adaptive == -1 && env.pkey_value == -1, "%d", env.adaptive);
	CHECK(env.qps == 1 && !env.split && env.fifo_tc == -1, "%d", env.qps);
	CHECK(env.ar_threshold == 8192, "%d", env.ar_threshold);
	CHECK(env.relaxed && env.flid_index == 1, "%d", env.flid_index);
	CHECK(env.roce_version == 2 && !env.ipv6 && env.range_bits == -1, "%d", env.range_bits);
}

/* A value as NCCL reads numbers. */
static void try_number(enum ep_ib_var var, const char *text, bool good, long long value)
{
	const struct ep_ib_var_def *def = &ep_ib_var_table[var];
	char limits[64];

	env = (struct ep_ib_env){ .gid_index = 77, .timeout = 77 };
	ib_vars_clear();
	setenv(def->name, text, 1);
	if (good) {
		CHECK(ep_ib_env_read(&env) == ncclSuccess, "%s=%s: %s", def->name, text,
		      last_text());
		if (value < 0 && var == EP_IB_VAR_SL) {
			value = 0;
		} else if (value < 0 && var == EP_IB_VAR_ADAPTIVE) {
			value = -1; /* (NCCL's own word for it is -2) */
		}
		CHECK(env.sl_given == (var == EP_IB_VAR_SL && atoi(text) >= 0 && *text), "%s=%s",
		      def->name, text);
		value = var == EP_IB_VAR_RELAXED ? value != 0 : value;
		CHECK(field(var) == value, "%s=%s gives %d", def->name, text, field(var));
		return;
	}
	snprintf(limits, sizeof(limits), "%d..%d", def->min, def->max);
	CHECK(ep_ib_env_read(&env) == ncclInvalidUsage, "%s=%s is taken", def->name, text);
	CHECK(strstr(last_text(), def->name) && strstr(last_text(), limits), "%s", last_text());
	CHECK(env.gid_index == 77 && env.timeout == 77, "%s=%s: written", def->name, text);
}

static void test_numbers(void)
{
	static const char *const bad[] = { "x",  "1x", "--1", "1.5", "0x",   "1 2",
					   "",   " ",  "\n",  "1e1", "true", "99999999999999999999",
					   "-99" };
	char text[32];

	for (int v = 0; v < EP_IB_VAR_NUMBERS; v++) {
		enum ep_ib_var var = (enum ep_ib_var)v;
		const struct ep_ib_var_def *def = &ep_ib_var_table[v];

		for (int n = def->min - 1; n <= def->max && n < def->min + 300; n++) {
			snprintf(text, sizeof(text), "%d", n);
			try_number(var, text, n >= def->min, n);
		}
		snprintf(text, sizeof(text), "%d ", def->max);
		try_number(var, text, true, def->max);
		snprintf(text, sizeof(text), "0x%x", def->max);
		try_number(var, text, true, def->max);
		snprintf(text, sizeof(text), "%d", def->max + 1);
		try_number(var, text, def->most, def->max);
		snprintf(text, sizeof(text), "0x%x", (unsigned int)def->max + 0x100000u);
		try_number(var, text, def->most, def->max);
		for (size_t i = 0; i < EP_ARRAY_SIZE(bad); i++) {
			if (*bad[i]) {
				try_number(var, bad[i], false, 0);
			}
		}
		try_number(var, "", true, def->initial);
	}
}

/*
 * Widely copied numbers that only the low bits of reach a NIC elsewhere: said once, and the most.
 */
static void test_too_much(void)
{
	static const char *const name[] = { "NCCL_IB_TIMEOUT=50", "NCCL_IB_RETRY_CNT=10" };
	char path[] = "/tmp/gda_env_XXXXXX", said[1024];
	int fd = mkstemp(path);
	ssize_t n;

	ib_vars_clear();
	setenv("NCCL_DEBUG", "WARN", 1);
	setenv("NCCL_DEBUG_FILE", path, 1);
	setenv("NCCL_IB_TIMEOUT", "50", 1);
	setenv("NCCL_IB_RETRY_CNT", "10", 1);
	for (int i = 0; i < 2; i++) {
		CHECK(ep_ib_env_read(&env) == ncclSuccess, "%s", last_text());
		CHECK(env.timeout == 31 && env.retry_cnt == 7, "%d %d", env.timeout, env.retry_cnt);
	}
	n = pread(fd, said, sizeof(said) - 1, 0);
	said[n > 0 ? n : 0] = '\0';
	for (size_t i = 0; i < EP_ARRAY_SIZE(name); i++) {
		const char *first = strstr(said, name[i]);

		CHECK(first && !strstr(first + 1, name[i]), "not once %s: %s", name[i], said);
	}
	close(fd);
	unlink(path);
}

static void try_words(const char *family, const char *range, const char *trouble, int bits)
{
	ncclResult_t rc;

	ib_vars_clear();
	setenv("NCCL_IB_ADDR_FAMILY", family, 1);
	setenv("NCCL_IB_ADDR_RANGE", range, 1);
	rc = ep_ib_env_read(&env);
	if (trouble) {
		CHECK(rc == ncclInvalidUsage, "%s %s: taken", family, range);
		CHECK(strstr(last_text(), trouble), "%s", last_text());
	} else {
		CHECK(rc == ncclSuccess, "%s %s: %s", family, range, last_text());
		CHECK(env.range_bits == bits, "%s %s: %d bits", family, range, env.range_bits);
	}
}

static void test_words(void)
{
	try_words("", "", NULL, -1);
	try_words("AF_INET", "10.0.0.0/8", NULL, 104);
	try_words("", "10.1.2.3", NULL, 128);
	try_words("", "10.1.2.3/0", NULL, 96);
	try_words("AF_INET6", "2001:db8::/32", NULL, 32);
	try_words("AF_INET6", "::1", NULL, 128);
	try_words("inet", "", "NCCL_IB_ADDR_FAMILY", 0);
	try_words("AF_INET6 ", "", "NCCL_IB_ADDR_FAMILY", 0);
	try_words("", "10.0.0.0/33", "NCCL_IB_ADDR_RANGE", 0);
	try_words("", "10.0.0/8", "NCCL_IB_ADDR_RANGE", 0);
	try_words("", "10.0.0.0/", "NCCL_IB_ADDR_RANGE", 0);
	try_words("", "10.0.0.0/-1", "NCCL_IB_ADDR_RANGE", 0);
	try_words("", "10.0.0.0/8x", "NCCL_IB_ADDR_RANGE", 0);
	try_words("", "2001:db8::/32", "NCCL_IB_ADDR_FAMILY=AF_INET6", 0);
	try_words("AF_INET6", "10.0.0.0/8", "NCCL_IB_ADDR_RANGE", 0);
	try_words("AF_INET6", "2001:db8::/129", "NCCL_IB_ADDR_RANGE", 0);
}

/* ---- a flood --------------------------------------------------------------------------------- */

static uint64_t seed;

static unsigned int draw(unsigned int n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned int)(seed >> 33) % n;
}

static void draw_text(char *text, size_t size)
{
	static const char *const pieces[] = { "-1",  "0",   "0x",       "7",        "20", "255",
					      "256", "%s",  "%n",       "10.",      "/",  "8",
					      ":",   "::",  "\n",       " ",        "AF", "AF_INET",
					      "_",   "1e9", "2001:db8", "\x1b[31m", "-",  "+" };
	size_t at = 0, most = draw(4) ? 1 + draw(4) : size;

	text[0] = '\0';
	for (size_t i = 0; i < most; i++) {
		char one[2] = { (char)(1 + draw(255)), '\0' };
		const char *piece = draw(4) ? pieces[draw(EP_ARRAY_SIZE(pieces))] : one;

		if (at + strlen(piece) + 1 > size) {
			break;
		}
		strcpy(text + at, piece);
		at += strlen(piece);
	}
}

/* What the documentation says is a value, by other means than the code's. */
static bool documented(enum ep_ib_var var, const char *text, bool ipv6)
{
	const struct ep_ib_var_def *def = &ep_ib_var_table[var];
	unsigned char address[16];
	char copy[64], *end;
	long long n;

	if (!*text) {
		return true;
	}
	if (var == EP_IB_VAR_ADDR_FAMILY) {
		return !strcmp(text, "AF_INET") || !strcmp(text, "AF_INET6");
	}
	if (var == EP_IB_VAR_ADDR_RANGE) {
		size_t len = strlen(text);
		const char *slash = strchr(text, '/');
		size_t head = slash ? (size_t)(slash - text) : len;

		if (head >= sizeof(copy)) {
			return false;
		}
		snprintf(copy, sizeof(copy), "%.*s", (int)head, text);
		if (inet_pton(ipv6 ? AF_INET6 : AF_INET, copy, address) != 1) {
			return false;
		}
		if (!slash) {
			return true;
		}
		if (!slash[1] || strspn(slash + 1, "0123456789") != strlen(slash + 1) ||
		    strlen(slash + 1) > 18) {
			return false;
		}
		return atoll(slash + 1) <= (ipv6 ? 128 : 32);
	}
	errno = 0;
	n = strtoll(text, &end, 0);
	return end != text && strspn(end, " ") == strlen(end) && !errno && n >= def->min &&
	       (n <= def->max || def->most);
}

static void flood(uint64_t first, uint64_t count)
{
	for (uint64_t i = first; i < first + count; i++) {
		enum ep_ib_var var;
		char text[300], family[300] = "";
		bool good;

		seed = i * 7919 + 3;
		var = (enum ep_ib_var)draw(EP_IB_VARS);
		draw_text(text, draw(8) ? 24 : sizeof(text));
		ib_vars_clear();
		setenv(ep_ib_var_table[var].name, text, 1);
		if (var != EP_IB_VAR_ADDR_FAMILY && draw(2)) {
			strcpy(family, "AF_INET6");
			setenv("NCCL_IB_ADDR_FAMILY", family, 1);
		}
		good = documented(var, text, *family);
		ncclResult_t rc = ep_ib_env_read(&env);

		CHECK(rc == (good ? ncclSuccess : ncclInvalidUsage), "seed %llu: %s=%s: %d",
		      (unsigned long long)i, ep_ib_var_table[var].name, text, rc);
		if (!good) {
			CHECK(strstr(last_text(), ep_ib_var_table[var].name), "%s", last_text());
			CHECK(!strpbrk(last_text(), "\n\x1b"), "seed %llu: %s",
			      (unsigned long long)i, last_text());
		}
	}
}

int main(int argc, char **argv)
{
	unsigned long long first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	unsigned long long count = argc > 2 ? strtoull(argv[2], NULL, 0) : 20000;

	test_too_much(); /* first: log lines are steered once */
	test_defaults();
	test_numbers();
	test_words();
	flood(first, count);
	printf("seeds %llu to %llu\n", first, first + count - 1);
	return check_end();
}
