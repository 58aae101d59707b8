/* SPDX-License-Identifier: Apache-2.0 */
/* The table of variables, and how their texts become values. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "core/log.h"
#include "core/param.h"

#define EP_PARAM_PREFIX "NCCL_EP_"

const struct ep_param_def ep_param_table[EP_PARAMS] = {
	[EP_PARAM_DEBUG] = { "NCCL_EP_DEBUG", 0, 0, 1,
			     "print the version when the library is loaded", NULL },
	[EP_PARAM_TIMEOUT_MS] = { "NCCL_EP_TIMEOUT_MS", 0, 0, 86400000,
				  "how long the device waits for a peer; 0: the group's timeout_ns",
				  NULL },
	[EP_PARAM_COMM_SMS] = { "NCCL_EP_COMM_SMS", 0, 0, INT32_MAX,
				"SMs of one operation; 0, or more than there are: by the group's "
				"config",
				NULL },
	[EP_PARAM_DISPATCH_SMS] = { "NCCL_EP_DISPATCH_SMS", 0, 0, INT32_MAX,
				    "SMs of a dispatch; 0, or more than there are: as if it were "
				    "not set, which is NCCL_EP_COMM_SMS, then the group's "
				    "dispatch_num_sms, then its max_num_sms",
				    NULL },
	[EP_PARAM_COMBINE_SMS] = { "NCCL_EP_COMBINE_SMS", 0, 0, INT32_MAX,
				   "the same for a combine, with the group's combine_num_sms",
				   NULL },
	[EP_PARAM_LL_SEND_SMS] = { "NCCL_EP_LL_SEND_SMS", 0, 0, 256,
				   "low latency: SMs that send; 0: chosen for each operation, or "
				   "if NCCL_EP_LL_RECV_SMS is set: half, at most what is left",
				   NULL },
	[EP_PARAM_LL_RECV_SMS] = { "NCCL_EP_LL_RECV_SMS", 0, 0, 256,
				   "low latency: SMs that receive; 0: chosen for each operation, or "
				   "if NCCL_EP_LL_SEND_SMS is set: half, at most what is left",
				   NULL },
	[EP_PARAM_LL_THREADS] = { "NCCL_EP_LL_THREADS", 512, 32, 512,
				  "low latency: threads of a block, a multiple of 32", NULL },
	[EP_PARAM_LL_LINES] = { "NCCL_EP_LL_LINES", -1, -1, 1,
				"rows carry their own flags, in low latency, and in high throughput "
				"those of few tokens on one node; needs NVLink. -1: if all GPUs have it, "
				"and in high throughput if SMs are enough. The same on all ranks",
				NULL },
	[EP_PARAM_MEMORY] = { "NCCL_EP_MEMORY", EP_MEMORY_AUTO, 0, EP_MEMORIES - 1,
			      "how processes map each other's memory: by NCCL's windows, or by CUDA "
			      "IPC. Forcing a mapping that some rank has not is an error. auto: the best "
			      "of these that all ranks can. host: it is host memory, for GPUs of one host "
			      "that cannot reach each other's, which is slow; one rank decides for all",
			      "auto|window|ipc|host" },
	[EP_PARAM_LL_DIRECT_BYTES] = { "NCCL_EP_LL_DIRECT_BYTES", 1 << 20, -1, INT64_C(1) << 40,
				       "low latency: with zero_copy AUTO NICs send from inputs that are "
				       "windows, if rows of max_dispatch_tokens_per_rank tokens have that "
				       "many bytes; -1: never. The same on all ranks",
				       NULL },
	[EP_PARAM_HT_RING_BYTES] = { "NCCL_EP_HT_RING_BYTES", 1 << 27, 0, 1 << 30,
				     "high throughput: memory for rows on their way to a rank; two chunks of "
				     "each rank (1 to 8 tokens each) always have room. The same on all ranks",
				     NULL },
	[EP_PARAM_HT_SEND_WARPS] = { "NCCL_EP_HT_SEND_WARPS", -1, -1, 15,
				     "high throughput on one node: warps of a block that send to others and "
				     "do nothing else, while the other warps receive; 0: all do both; -1: "
				     "chosen for each operation",
				     NULL },
	[EP_PARAM_OVERLAP] = { "NCCL_EP_OVERLAP", 0, 0, 1,
			       "high throughput: 1: an operation costs computation beside it least, by "
			       "SMs that are left to the library, which are few then, and by what its "
			       "warps do. The same on all ranks",
			       NULL },
	[EP_PARAM_EARLY_START] = { "NCCL_EP_EARLY_START", 1, 0, 1,
				   "1: a kernel may start while the one before it in its stream ends, and "
				   "waits for that one (programmatic dependent launch); 0: it starts "
				   "afterwards, and graphs have ordinary edges; see nccl_ep(7)",
				   NULL },
	[EP_PARAM_NVLS] = { "NCCL_EP_NVLS", 0, 0, 1,
			    "1: what goes to all ranks of a node goes by one multicast store, if all "
			    "ranks want it and NCCL lets them; never with NCCL_NVLS_ENABLE=0. The "
			    "communicator must outlive the group",
			    NULL },
	[EP_PARAM_NODE_SIZE] = { "NCCL_EP_NODE_SIZE", 0, 0, EP_PARAM_NODE_MAX,
				 "ranks of a node, or a list with those of each node: for tests, and "
				 "for GPUs that cannot reach each other; ranks of different nodes "
				 "use RDMA even on one host. The same on all ranks",
				 NULL },
	[EP_PARAM_RDMA_MODE] = { "NCCL_EP_RDMA_MODE", 0, 0, 4,
				 "who rings for RDMA: the GPU, with queues in its memory or in the "
				 "host's; a thread, for queues that the GPU writes (cpu_db); or a "
				 "thread posts verbs (cpu_proxy). auto: the first of these that is "
				 "possible",
				 "auto|gpu|gpu_host|cpu_db|cpu_proxy" },
	[EP_PARAM_RDMA_QUEUES] = { "NCCL_EP_RDMA_QUEUES", 0, 0, 15,
				   "RDMA: queue pairs for rows per remote rank; 0: 256 divided by the "
				   "number of remote ranks, 1 to 8; in high throughput 1 to 4. The "
				   "same on all ranks",
				   NULL },
	[EP_PARAM_RDMA_DEPTH] = { "NCCL_EP_RDMA_DEPTH", 256, 64, 32768,
				  "RDMA: entries of a send queue, a power of two", NULL },
	[EP_PARAM_BOOTSTRAP_TIMEOUT_MS] = { "NCCL_EP_BOOTSTRAP_TIMEOUT_MS", 100000, 1, 86400000,
					    "how long collective host calls wait for all ranks",
					    NULL },
	[EP_PARAM_CLOSE_TIMEOUT_MS] = { "NCCL_EP_CLOSE_TIMEOUT_MS", 10000, 0, 86400000,
					"how long GroupDestroy waits for remote ranks, and for "
					"the device beyond 3 timeouts",
					NULL },
	[EP_PARAM_LIVE] = { "NCCL_EP_LIVE", 1, 0, 1,
			    "ep_info --live shows what groups do and which rank waits for which, from files in "
			    "/dev/shm, and the log has waits of a tenth of the timeout; 0: neither",
			    NULL },
	[EP_PARAM_NET_COUNTS] = { "NCCL_EP_NET_COUNTS", 0, 0, 1,
				  "network plugin: 1: ep_info --net shows what each connection has "
				  "done, from a file in /dev/shm",
				  NULL },
	[EP_PARAM_COLLNET] = { "NCCL_EP_COLLNET", 0, 0, 1,
			       "1: the network plugin offers NCCL an all-gather between hosts, by "
			       "direct writes; see nccl-net-ep(7)",
			       NULL },
};

/* Read by other implementations of the API. */
static const char *const param_foreign[] = {
	"NCCL_EP_HOME",
	"NCCL_EP_JIT_SOURCE_DIR",
	"NCCL_EP_JIT_BUILD_INCLUDE_DIR",
	"NCCL_EP_JIT_CUDA_INCLUDE_DIR",
	"NCCL_EP_JIT_CACHE_DIR",
	"NCCL_EP_JIT_LOG",
	"NCCL_EP_JIT_NVCC",
	"NCCL_EP_ENV_VERBOSE",
	"NCCL_EP_SHUFFLE_SMS",
	"NCCL_EP_PREPROCESS_NUM_SMS",
	"NCCL_EP_HT_EM_LOCAL_DUP",
	"NCCL_EP_HT_EM_NVLINK_DUP",
	"NCCL_EP_HT_EM_PULL_PUSH",
	"NCCL_EP_HT_EM_AG_SCAN_MODE",
	"NCCL_EP_HT_EM_COUNT_UNFUSED",
	"NCCL_EP_HT_UNFUSED_SYNC",
	"NCCL_EP_DISABLE_GUARD",
	"NCCL_EP_TOKENS_PER_CHUNK",
	"NCCL_EP_DISPATCH_COPY_MODE",
	"NCCL_EP_DISPATCH_NUM_STAGES",
	"NCCL_EP_DISPATCH_NUM_PIPELINES",
	"NCCL_EP_COMBINE_NUM_STAGES_G2S",
	"NCCL_EP_COMBINE_NUM_STAGES_S2G",
	"NCCL_EP_COMBINE_NUM_PIPELINES",
};

static atomic_flag param_checked_names = ATOMIC_FLAG_INIT;

static bool param_known(const char *name)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		if (strcmp(ep_param_table[i].name, name) == 0) {
			return true;
		}
	}
	for (size_t i = 0; i < EP_ARRAY_SIZE(param_foreign); i++) {
		if (strcmp(param_foreign[i], name) == 0) {
			return true;
		}
	}
	return false;
}

/* Insertions, deletions and replacements that turn a into b. */
static int param_distance(const char *a, const char *b)
{
	int row[EP_PARAM_NAME_MAX + 1];
	int nb = (int)strlen(b);

	for (int j = 0; j <= nb; j++) {
		row[j] = j;
	}
	for (int i = 0; a[i]; i++) {
		int diagonal = row[0];

		row[0] = i + 1;
		for (int j = 0; j < nb; j++) {
			int best = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			best = row[j] + 1 < best ? row[j] + 1 : best;
			best = diagonal + 1 < best ? diagonal + 1 : best;
			row[j + 1] = best;
		}
	}
	return row[nb];
}

bool ep_param_unknown(const char *entry, char name[EP_PARAM_NAME_MAX + 1], const char **nearest)
{
	size_t n = strcspn(entry, "=");
	int best = 6; /* further away is another word, not a slip */

	if (strncmp(entry, EP_PARAM_PREFIX, strlen(EP_PARAM_PREFIX)) != 0 ||
	    n > EP_PARAM_NAME_MAX) {
		return false;
	}
	memcpy(name, entry, n);
	name[n] = '\0';
	*nearest = NULL;
	for (int i = 0; i < EP_PARAMS; i++) {
		int d = param_distance(name, ep_param_table[i].name);

		if (d < best) {
			best = d;
			*nearest = ep_param_table[i].name;
		}
	}
	return !param_known(name);
}

static void params_check_names(void)
{
	char name[EP_PARAM_NAME_MAX + 1];
	const char *nearest;

	for (char **e = environ; e && *e; e++) {
		if (ep_param_unknown(*e, name, &nearest)) {
			EP_WARN("environment variable %s is not known and has no effect%s%s%s",
				name, nearest ? "; did you mean " : "", nearest ? nearest : "",
				nearest ? "?" : "");
		}
	}
}

static ncclResult_t param_list_fail(const struct ep_param_def *def, const char *text)
{
	return ep_fail(ncclInvalidUsage,
		       "environment variable %s=%.64s is not a number or a list of numbers from "
		       "1 to %lld, 64 at most: set it to 4 or 1,2,3 for instance, or unset it",
		       def->name, text, (long long)def->max);
}

#define PARAM_LIST_PLAIN 4                   /* items whose digits a value can be */
#define PARAM_LIST_ODD 0x9e3779b97f4a7c15ull /* no item is lost by it */

static ncclResult_t param_list_parse(const struct ep_param_def *def, const char *text,
				     struct ep_param_list *list, int64_t *value)
{
	const char *p = text;
	uint64_t code = 0;
	char *end;

	list->count = 0;
	if (strcmp(text, "0") == 0) {
		*value = 0;
		return ncclSuccess; /* as if it were not set */
	}
	for (;;) {
		long item = strtol(p, &end, 10);

		if (end == p || item < 1 || item > def->max || list->count == EP_PARAM_LIST_MAX) {
			return param_list_fail(def, text);
		}
		list->item[list->count++] = (uint32_t)item;
		code *= list->count <= PARAM_LIST_PLAIN ? 10000 : PARAM_LIST_ODD;
		code += (uint64_t)item;
		while (*end == ' ') {
			end++;
		}
		if (!*end) {
			break;
		}
		if (*end != ',') {
			return param_list_fail(def, text);
		}
		p = end + 1;
	}
	*value = (int64_t)(code & INT64_MAX);
	return ncclSuccess;
}

/* Checks what else `v` must be. */
static bool param_step(enum ep_param_id id, int64_t v, const char **rule)
{
	switch (id) {
	case EP_PARAM_LL_THREADS:
		*rule = " (a multiple of 32)";
		return v % 32 == 0;
	case EP_PARAM_RDMA_DEPTH:
		*rule = " (a power of two)";
		return (v & (v - 1)) == 0;
	default:
		*rule = "";
		return true;
	}
}

/* Nothing but a number and spaces around it. */
static bool param_number(const char *text, long long *v)
{
	char *end;

	errno = 0;
	*v = strtoll(text, &end, 10);
	if (end == text || errno == ERANGE) {
		return false;
	}
	return end[strspn(end, " ")] == '\0';
}

int64_t ep_param_or_initial(enum ep_param_id id)
{
	const struct ep_param_def *def = &ep_param_table[id];
	const char *text = getenv(def->name);
	long long v;

	return text && param_number(text, &v) && v >= def->min && v <= def->max ? v : def->initial;
}

/* The place of `text` among words separated by '|'; -1: it is none of them. */
static int64_t param_place(const char *words, const char *text)
{
	size_t n = strlen(text);

	for (int64_t place = 0;; place++) {
		size_t length = strcspn(words, "|");

		if (length == n && strncmp(words, text, n) == 0) {
			return place;
		}
		if (!words[length]) {
			return -1;
		}
		words += length + 1;
	}
}

const char *ep_param_word(enum ep_param_id id, int64_t value, char buffer[EP_PARAM_WORD_MAX])
{
	const char *words = ep_param_table[id].words;

	if (!words) {
		snprintf(buffer, EP_PARAM_WORD_MAX, "%lld", (long long)value);
		return buffer;
	}
	for (; value > 0; value--) {
		words += strcspn(words, "|") + 1;
	}
	snprintf(buffer, EP_PARAM_WORD_MAX, "%.*s", (int)strcspn(words, "|"), words);
	return buffer;
}

/* A word; of RDMA modes their numbers will do. */
static ncclResult_t param_word_parse(enum ep_param_id id, const char *text, int64_t *value)
{
	const struct ep_param_def *def = &ep_param_table[id];
	int64_t place = param_place(def->words, text);
	bool numbers = id == EP_PARAM_RDMA_MODE;
	char range[48] = "";
	long long v;

	if (numbers && place < 0 && param_number(text, &v) && v >= def->min && v <= def->max) {
		place = v;
	}
	if (place < 0) {
		if (numbers) {
			snprintf(range, sizeof(range), " (%lld..%lld)", (long long)def->min,
				 (long long)def->max);
		}
		return ep_fail(ncclInvalidUsage,
			       "environment variable %s=%.64s: set it to one of %s%s, or unset it",
			       def->name, text, def->words, range);
	}
	*value = place;
	return ncclSuccess;
}

ncclResult_t ep_param_parse(enum ep_param_id id, const char *text, int64_t *value)
{
	const struct ep_param_def *def = &ep_param_table[id];
	struct ep_param_list list;
	const char *rule;
	long long v;

	if (id == EP_PARAM_DEBUG) { /* a switch: any word is "on", as in other implementations */
		*value = *text && strcmp(text, "0") != 0 && strcasecmp(text, "off") != 0 &&
			 strcasecmp(text, "false") != 0;
		return ncclSuccess;
	}
	if (id == EP_PARAM_NODE_SIZE) {
		return param_list_parse(def, text, &list, value);
	}
	if (def->words) {
		return param_word_parse(id, text, value);
	}
	if (!param_number(text, &v)) {
		return ep_fail(
			ncclInvalidUsage,
			"environment variable %s=%.64s is not a number: set it to %lld..%lld "
			"or unset it",
			def->name, text, (long long)def->min, (long long)def->max);
	}
	if (!param_step(id, v, &rule) || v < def->min || v > def->max) {
		return ep_fail(
			ncclInvalidUsage,
			"environment variable %s=%lld is out of range: set it to %lld..%lld%s "
			"or unset it",
			def->name, v, (long long)def->min, (long long)def->max, rule);
	}
	*value = v;
	return ncclSuccess;
}

ncclResult_t ep_params_read(struct ep_params *params)
{
	char word[EP_PARAM_WORD_MAX];

	if (!atomic_flag_test_and_set(&param_checked_names)) {
		params_check_names();
	}
	params->node_size.count = 0;
	for (int i = 0; i < EP_PARAMS; i++) {
		const char *text = getenv(ep_param_table[i].name);

		params->value[i] = ep_param_table[i].initial;
		params->set[i] = text && *text;
		if (params->set[i]) {
			EP_CHECK(ep_param_parse((enum ep_param_id)i, text, &params->value[i]));
			EP_INFO(EP_LOG_ENV, "%s set by environment to %s", ep_param_table[i].name,
				ep_param_word((enum ep_param_id)i, params->value[i], word));
		}
	}
	if (params->set[EP_PARAM_NODE_SIZE]) {
		const struct ep_param_def *def = &ep_param_table[EP_PARAM_NODE_SIZE];
		int64_t unused;

		EP_CHECK(param_list_parse(def, getenv(def->name), &params->node_size, &unused));
	}
	return ncclSuccess;
}

bool ep_param_nvls_allowed(struct ep_reason *why)
{
	const char *text = getenv("NCCL_NVLS_ENABLE");
	char *end;

	/* NCCL ignores a text that is no number; whoever wrote it may have meant "off". */
	if (text && (strtoll(text, &end, 0) == 0 || *end)) {
		return ep_reason_set(why, "NCCL_NVLS_ENABLE=%.16s", text);
	}
	return true;
}
