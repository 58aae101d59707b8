/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks must agree in to make a group: each field of the config and each variable, in both
 * modes. A difference names the field with both values; what may differ makes none.
 */
#include <string.h>
#include "ep/ep.h"
#include "support/check_nccl.h"

enum {
	LOW = 1,
	HIGH = 2
};

struct passed {
	ncclEpGroupConfig_t c;
	ncclEpExtRoles_t roles;
	struct ep_params params;
};

static cudaError_t some_alloc(void **ptr, size_t size, void *context)
{
	return cudaErrorMemoryAllocation;
}

static cudaError_t some_free(void *ptr, void *context)
{
	return cudaSuccess;
}

/*
 * Name of a row; modes in which a difference is an error; what rank 1 passes otherwise; the error.
 * Of a field that is of no account in a mode the error is not made there.
 */
#define CONFIG(M)                                                                                  \
	M(algorithm, LOW | HIGH, c->algorithm = 1 - c->algorithm, NULL)                            \
	M(experts, LOW | HIGH, c->num_experts = 24,                                                \
	  "config->num_experts is 12 on rank 0 but 24 on rank 1")                                  \
	M(tokens, LOW | HIGH, c->max_dispatch_tokens_per_rank = 100,                               \
	  "config->max_dispatch_tokens_per_rank is 128 on rank 0 but 100 on rank 1")               \
	M(bytes, LOW | HIGH, c->max_token_bytes = 512,                                             \
	  "config->max_token_bytes is 256 on rank 0 but 512 on rank 1")                            \
	M(buffer, LOW, c->rdma_buffer_size = 1 << 26,                                              \
	  "config->rdma_buffer_size is AUTO on rank 0 but 67108864 on rank 1")                     \
	M(masks, LOW, c->enable_mask = 1, "config->enable_mask is 0 on rank 0 but 1 on rank 1")    \
	M(topk, LOW | HIGH, c->num_topk = 3,                                                       \
	  "config->num_topk is unset on rank 0 but 3 on rank 1")                                   \
	M(zero_copy_off, LOW | HIGH, c->zero_copy = NCCL_EP_ZERO_COPY_OFF,                         \
	  "config->zero_copy is AUTO on rank 0 but OFF on rank 1")                                 \
	M(zero_copy_on, LOW | HIGH, c->zero_copy = NCCL_EP_ZERO_COPY_ON,                           \
	  "config->zero_copy is AUTO on rank 0 but ON on rank 1")                                  \
	M(received, HIGH, c->max_recv_tokens_per_rank = 777,                                       \
	  "config->max_recv_tokens_per_rank is 500 on rank 0 but 777 on rank 1")                   \
	M(eager, HIGH, c->max_recv_tokens_per_rank = NCCL_EP_AUTO,                                 \
	  "config->max_recv_tokens_per_rank is 500 on rank 0 but AUTO on rank 1")                  \
	M(overflow, HIGH, c->overflow_policy = NCCL_EP_OVERFLOW_DROP,                              \
	  "config->overflow_policy is TRAP on rank 0 but DROP on rank 1")                          \
	M(trap, 0, c->overflow_policy = NCCL_EP_OVERFLOW_TRAP, "AUTO means it")                    \
	M(sms, 0, c->max_num_sms = 5, "may differ")                                                \
	M(dispatch_sms, 0, c->dispatch_num_sms = 5, "may differ")                                  \
	M(combine_sms, 0, c->combine_num_sms = 5, "may differ")                                    \
	M(queues, 0, c->num_qp_per_rank = 9, "is not used")                                        \
	M(channels, 0, c->num_channels = 7, "is not used")                                         \
	M(timeout, 0, c->timeout_ns += 1000000000, "may differ")                                   \
	M(alloc, 0, c->alloc.alloc_fn = some_alloc; c->alloc.free_fn = some_free, "may differ")    \
	M(version, 0, c->version = 1, "is not examined")

#define CHANGE(name_, modes_, code_, text_)                                                        \
	static void name_(ncclEpGroupConfig_t *c)                                                  \
	{                                                                                          \
		code_;                                                                             \
	}
#define ROW(name_, modes_, code_, text_) { #name_, modes_, name_, text_ },

CONFIG(CHANGE)

static const struct row {
	const char *name;
	int modes;
	void (*change)(ncclEpGroupConfig_t *c);
	const char *text;
} rows[] = { CONFIG(ROW) };

static struct passed right(int mode)
{
	struct passed p = { .c = NCCL_EP_GROUP_CONFIG_INIT };

	p.c.algorithm = mode == LOW ? NCCL_EP_ALGO_LOW_LATENCY : NCCL_EP_ALGO_HIGH_THROUGHPUT;
	p.c.num_experts = 12;
	p.c.max_dispatch_tokens_per_rank = 128;
	p.c.max_recv_tokens_per_rank = 500;
	p.c.max_token_bytes = 256;
	for (int i = 0; i < EP_PARAMS; i++) {
		p.params.value[i] = ep_param_table[i].initial;
	}
	return p;
}

static struct ep_group_agreed agreed(const struct passed *p)
{
	struct ep_group_config made;

	OK(ep_group_config_make(&made, &p->c, &p->roles, &p->params, 3, 132));
	return ep_group_config_agreed(&made);
}

/* The fields that differ, as bits; the first of them is the one that is named. */
static uint32_t compare(const struct ep_group_agreed all[2])
{
	uint32_t bits = 0;

	for (int i = 0; i < EP_GROUP_AGREED; i++) {
		bits |= (uint32_t)(all[0].value[i] != all[1].value[i]) << i;
	}
	return bits;
}

/* What the difference between rank 0 and rank 1 is called, on whichever rank that looks. */
static uint32_t differ(const struct passed *ours, const struct passed *theirs, const char *text)
{
	struct ep_group_agreed all[2] = { agreed(ours), agreed(theirs) };
	uint32_t bits = compare(all);

	if (!text) {
		CHECK_INT(bits, 0);
		OK(ep_group_agreed_check(all, sizeof(all[0]), 2));
		return 0;
	}
	CHECK(bits, "nobody compares it");
	CHECK_REASON(ep_group_agreed_check(all, sizeof(all[0]), 2), ncclInvalidArgument, text);
	return bits & -bits;
}

static uint32_t test_config(int mode)
{
	uint32_t found = 0;

	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		struct passed ours = right(mode), theirs = ours;
		const char *text = rows[i].text;

		check_context("%s, mode %d", rows[i].name, mode);
		rows[i].change(&theirs.c);
		if (!text) {
			text = mode == LOW ? "config->algorithm is LOW_LATENCY on rank 0 but "
					     "HIGH_THROUGHPUT on rank 1"
					   : "config->algorithm is HIGH_THROUGHPUT on rank 0 but "
					     "LOW_LATENCY on rank 1";
		}
		found |= differ(&ours, &theirs, rows[i].modes & mode ? text : NULL);
	}
	return found;
}

/* Which variables ranks must have alike, their own help says. */
static uint32_t test_variables(int mode)
{
	uint32_t found = 0;

	for (int i = 0; i < EP_PARAMS; i++) {
		const struct ep_param_def *def = &ep_param_table[i];
		struct passed ours = right(mode), theirs = ours;
		char text[200];

		check_context("%s, mode %d", def->name, mode);
		ours.params.value[i] = def->min + (i == EP_PARAM_LL_THREADS ? 32 : 1);
		theirs.params.value[i] = def->max < 64 ? def->max : 64;
		if (ours.params.value[i] == theirs.params.value[i]) {
			ours.params.value[i] = def->min;
		}
		snprintf(text, sizeof(text), "environment variable %s", def->name);
		if (!strstr(def->help, "same on all ranks")) {
			differ(&ours, &theirs, NULL);
		} else if (mode == HIGH || (i != EP_PARAM_HT_RING_BYTES && i != EP_PARAM_OVERLAP)) {
			found |= differ(&ours, &theirs, text);
			snprintf(text, sizeof(text), " is %lld on rank 0 but %lld on rank 1: ",
				 (long long)ours.params.value[i],
				 (long long)theirs.params.value[i]);
			(void)differ(&ours, &theirs, text);
		}
	}
	return found;
}

/* The ranks that hold experts and bring tokens. */
static uint32_t test_roles(void)
{
	static const struct {
		ncclEpExtRoles_t roles;
		const char *text;
	} theirs[] = {
		{ { 0, 0, 1, 2, 0, 2 }, "roles->first_holder is 0 on rank 0 but 1 on rank 1" },
		{ { 0, 0, 0, 1, 0, 2 }, "roles->num_holders is 2 on rank 0 but 1 on rank 1" },
		{ { 0, 0, 0, 2, 1, 2 }, "roles->first_sender is 0 on rank 0 but 1 on rank 1" },
		{ { 0, 0, 0, 2, 0, 3 }, "roles->num_senders is 2 on rank 0 but 3 on rank 1" },
	};
	uint32_t found = 0;

	for (size_t i = 0; i < EP_ARRAY_SIZE(theirs); i++) {
		struct passed one = right(LOW), other = one;

		check_context("roles %zu", i);
		one.roles = (ncclEpExtRoles_t){ 0, 0, 0, 2, 0, 2 };
		other.roles = theirs[i].roles;
		found |= differ(&one, &other, theirs[i].text);
	}
	return found;
}

/* What another environment has otherwise, which the other fields do not show. */
static uint32_t test_heap(int mode)
{
	static const char text[] = "the library's heap layout is ";
	struct passed ours = right(mode);
	struct ep_group_agreed all[2] = { agreed(&ours), agreed(&ours) };

	check_context("%s, mode %d", text, mode);
	all[1].value[EP_GROUP_AGREED - 1]++;
	CHECK_REASON(ep_group_agreed_check(all, sizeof(all[0]), 2), ncclInvalidArgument, text);
	return compare(all);
}

/* The first rank that differs from rank 0 is named. */
static void test_ranks(void)
{
	struct passed ours = right(LOW), theirs = ours;
	struct ep_group_agreed all[5];

	theirs.c.max_token_bytes = 512;
	for (int r = 0; r < 5; r++) {
		all[r] = agreed(r >= 3 ? &theirs : &ours);
	}
	OK(ep_group_agreed_check(all, sizeof(all[0]), 3));
	CHECK_REASON(ep_group_agreed_check(all, sizeof(all[0]), 5), ncclInvalidArgument,
		     "is 256 on rank 0 but 512 on rank 3: all ranks must pass the same");
}

int main(void)
{
	uint32_t found = 0;

	for (int mode = LOW; mode <= HIGH; mode++) {
		found |= test_config(mode) | test_variables(mode) | test_heap(mode);
	}
	found |= test_roles();
	CHECK_INT(found, (1u << EP_GROUP_AGREED) - 1); /* each field has been another one here */
	test_ranks();
	return check_end();
}
