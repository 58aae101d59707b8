/* SPDX-License-Identifier: Apache-2.0 */
#include "support/ht_case.h"

static uint32_t one_of(uint64_t *s, const uint32_t *values, uint32_t n)
{
	return values[world_draw(s, n)];
}

#define ONE_OF(s, ...)                                                                             \
	one_of(s, (const uint32_t[]){ __VA_ARGS__ },                                               \
	       sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static void draw_routing(struct oracle_problem *p, uint64_t *s)
{
	switch (world_draw(s, 5)) {
	case 0:
		p->routing.family = ORACLE_ZIPF;
		p->routing.zipf_exponent = UINT64_C(1) << 32;
		break;
	case 1:
		p->routing.family = ORACLE_HOT;
		p->routing.hot_ppm = (uint32_t)world_draw(s, 2) ? 1000000 : 400000;
		p->routing.hot_rank = (uint32_t)world_draw(s, p->nranks);
		break;
	default:
		p->routing.family = ORACLE_UNIFORM;
	}
	p->drop_ppm = ONE_OF(s, 0, 0, 100000, 700000);
	p->duplicate_ppm = ONE_OF(s, 0, 0, 0, 300000);
	p->uneven = world_draw(s, 3) == 0;
}

struct ht_case ht_case_draw(int nranks, const char *kind, uint64_t seed)
{
	uint64_t s = seed * 977 + 13;
	struct ht_case c = { .seed = seed };
	struct oracle_problem *p = &c.h.p;
	uint32_t local = ONE_OF(&s, 1, 2, 3, 8, 9), most;

	*p = (struct oracle_problem){ .seed = seed, .nranks = (uint32_t)nranks };
	p->experts = local * p->nranks;
	p->topk = (uint32_t)world_draw(&s, p->experts < 12 ? p->experts : 12) + 1;
	if (world_draw(&s, 12) == 0) {
		p->topk = p->experts < 32 ? p->experts : 32;
	}
	p->dtype =
		(enum oracle_dtype)ONE_OF(&s, ORACLE_BF16, ORACLE_BF16, ORACLE_FP16, ORACLE_FP32);
	p->hidden = ONE_OF(&s, 8, 24, 128, 520, 1792, 3584, 5000);
	p->max_tokens = ONE_OF(&s, 1, 7, 8, 9, 40, 65, 200);
	if (p->hidden > 2000 && p->max_tokens > 40) {
		p->max_tokens = 40;
	}
	if (!strcmp(kind, "long")) {
		p->hidden = ONE_OF(&s, 2600, 3584, 5000);
		p->max_tokens = 2050;
	}
	if (!strcmp(kind, "crowd")) {
		p->experts = (1 + local % 3) * p->nranks;
		p->topk = (uint32_t)world_draw(&s, 8) + 1;
		p->hidden = ONE_OF(&s, 8, 24, 128);
		p->max_tokens = ONE_OF(&s, 3, 9, 17);
	}
	if (!strcmp(kind, "soak")) {
		p->hidden = ONE_OF(&s, 8, 24, 128, 520);
		p->max_tokens = ONE_OF(&s, 1, 7, 8, 17, 40);
	}
	p->tokens = p->max_tokens - (uint32_t)world_draw(&s, p->max_tokens / 2 + 1);
	c.second = 1 + (uint32_t)world_draw(&s, p->max_tokens);
	if (!strcmp(kind, "long")) {
		p->tokens = 1 + p->tokens % 70;
		c.second = 1 + c.second % 70;
	}
	draw_routing(p, &s);
	c.h.expert_major = !strcmp(kind, "em") || (strcmp(kind, "flat") && world_draw(&s, 2));
	if (c.h.expert_major) {
		c.h.alignment = ONE_OF(&s, 0, 1, 4, 16, 128);
	}
	local = p->experts / p->nranks;
	most = p->max_tokens * p->nranks;
	if (c.h.expert_major) {
		most = most * (p->topk < local ? p->topk : local) +
		       local * (c.h.alignment ? c.h.alignment : 1);
	}
	c.h.limit = world_draw(&s, 3) ? most : 0;
	if (!strcmp(kind, "drop")) {
		c.h.drop = 1;
		c.h.limit = p->max_tokens + (uint32_t)world_draw(&s, most - p->max_tokens + 1);
	}
	if (!strcmp(kind, "cut")) { /* and the tables of a rank with many tokens come late */
		p->routing.family = ORACLE_HOT;
		p->routing.hot_ppm = 1000000;
		p->routing.hot_rank = (uint32_t)seed % p->nranks;
		p->drop_ppm = p->duplicate_ppm = 0;
		p->topk = p->experts < 4 ? p->experts : 4;
		p->hidden = 8;
		p->uneven = 1;
		p->max_tokens = p->tokens = c.second = 400;
		c.h.drop = 1;
		c.h.limit = p->max_tokens;
	}
	if (!strcmp(kind, "forward")) {
		p->quant = ORACLE_QUANT_FORWARD;
		p->hidden = 512 * (1 + (uint32_t)world_draw(&s, 6));
		if (seed % 4 == 3) { /* a row and its scales are cut into two parts */
			p->hidden = 512 * 32;
			p->max_tokens = p->tokens = c.second = 9;
			c.h.limit = 0;
		}
	}
	if (!strcmp(kind, "gaps")) { /* chunks from which nothing goes anywhere, among others */
		p->topk = 1 + (uint32_t)world_draw(&s, p->experts > 1);
		p->drop_ppm = ONE_OF(&s, 800000, 930000);
		p->max_tokens = 100 + (uint32_t)world_draw(&s, 200);
		p->tokens = p->max_tokens;
		p->uneven = 0;
		p->hidden = ONE_OF(&s, 8, 128, 5000);
		c.second = p->max_tokens;
		c.h.limit = 0;
	}
	c.flags = (uint32_t)world_draw(&s, 32) & ~(uint32_t)HT_WINDOW;
	if (!strcmp(kind, "window") || (!strcmp(kind, "gaps") && seed & 1)) {
		c.flags |= HT_WINDOW | (seed & 1 ? HT_ON : 0);
	}
	if (!strcmp(kind, "drop") && seed & 1) { /* what is dropped does not depend on it */
		c.flags |= HT_WINDOW | HT_ON;
	}
	if (!strcmp(kind, "idle")) {
		p->routing.family = ORACLE_HOT;
		p->routing.hot_ppm = 1000000;
		p->routing.hot_rank = (uint32_t)seed % p->nranks;
		c.h.expert_major = seed % 4 == 0;
		c.h.limit = 0;
		c.flags |= HT_WINDOW;
	}
	if (!strcmp(kind, "soak")) {
		c.h.drop = c.h.limit && world_draw(&s, 3) == 0;
		if (c.h.drop) {
			c.h.limit = p->max_tokens + (uint32_t)world_draw(&s, c.h.limit);
		}
		c.flags |= world_draw(&s, 3) ? 0 : HT_WINDOW | (world_draw(&s, 2) ? HT_ON : 0);
	}
	if (!strcmp(kind, "crowd")) {
		c.flags |= seed & 1 ? HT_WINDOW | (seed & 2 ? HT_ON : 0) : 0;
	}
	if (!c.h.drop && seed % 4) { /* a limit would have to hold so many tokens */
		c.flags |= (uint32_t)(seed % 4) * HT_FOR_MORE;
		c.h.limit = 0;
	}
	c.sms = strcmp(kind, "crowd") ? ONE_OF(&s, 2, 2, 3, 5) : 1 + (uint32_t)(seed & 1);
	return c;
}

void ht_case_context(const struct ht_case *c, const struct world *w)
{
	const struct oracle_problem *p = &c->h.p;

	check_context(
		"seed %llu: %u ranks, %u experts, top-%u, hidden %u, type %d, %u then %u of %u "
		"tokens%s, %s, limit %u%s, alignment %u, quant %d, drop %u, duplicates %u, "
		"flags 0x%x, %u SMs%s; rank %d",
		(unsigned long long)c->seed, p->nranks, p->experts, p->topk, p->hidden,
		(int)p->dtype, p->tokens, c->second, p->max_tokens, p->uneven ? " uneven" : "",
		c->h.expert_major ? "em" : "flat", c->h.limit, c->h.drop ? " drop" : "",
		c->h.alignment, (int)p->quant, p->drop_ppm, p->duplicate_ppm, c->flags, c->sms,
		c->note, w->rank);
}

ncclEpGroup_t ht_case_group(const struct ht_case *c, struct world *w)
{
	ncclEpGroupConfig_t config = ht_group_config(&c->h, c->flags);
	ncclEpGroup_t group = NULL;
	/* ranks need not have as many */
	uint32_t wanted = c->sms + (c->sms > 2 ? (uint32_t)w->rank % 2 : 0);
	int sms = 0;

	NEED_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, w->device));
	config.max_num_sms = wanted < (uint32_t)sms ? wanted : (uint32_t)sms;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	return group;
}

void ht_case_run(struct world *w, void *arg)
{
	const struct ht_case *c = arg;
	ncclEpGroup_t group;
	struct ht_bench b;

	ht_case_context(c, w);
	group = ht_case_group(c, w);
	ht_open(&b, w, group, &c->h, c->flags);
	ht_step(&b);
	ht_move_windows(&b);
	ht_load(&b, c->seed + 5000000, c->second);
	ht_step(&b);
	ht_end(&b);
}
