/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers, descriptors and calls of a high-throughput bench. */
#include "support/ht_bench.h"
#include "support/roles.h"

#define GUARD HT_GUARD

bool ht_by_lines(void)
{
	const char *lines = getenv("NCCL_EP_LL_LINES");

	return lines && !strcmp(lines, "1");
}

ncclEpGroupConfig_t ht_group_config(const struct oracle_ht *h, uint32_t flags)
{
	static const uint32_t most[4] = { 0, 129, 257, 1025 };
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	size_t row = oracle_input_bytes(&h->p) +
		     (h->p.quant == ORACLE_QUANT_NONE ? 0 : 4 * oracle_scale_words(&h->p));

	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = h->p.experts;
	config.max_dispatch_tokens_per_rank = h->p.max_tokens;
	if (config.max_dispatch_tokens_per_rank < most[flags / HT_FOR_MORE % 4]) {
		config.max_dispatch_tokens_per_rank = most[flags / HT_FOR_MORE % 4];
	}
	config.max_recv_tokens_per_rank = h->limit;
	config.max_token_bytes =
		(uint32_t)(row > oracle_combine_bytes(&h->p) ? row : oracle_combine_bytes(&h->p));
	config.timeout_ns = UINT64_C(60000000000);
	config.overflow_policy = h->drop ? NCCL_EP_OVERFLOW_DROP : NCCL_EP_OVERFLOW_TRAP;
	config.num_topk = h->p.topk;
	if (h->filled) { /* a caller of API version 2 */
		config.size = NCCL_EP_GROUP_CONFIG_V2_SIZE;
	}
	config.zero_copy = flags & HT_ON ? NCCL_EP_ZERO_COPY_ON : NCCL_EP_ZERO_COPY_AUTO;
	return config;
}

ncclEpGroup_t ht_group(struct world *w, const struct oracle_ht *h, uint32_t flags,
		       double timeout_ms)
{
	ncclEpGroupConfig_t config = ht_group_config(h, flags);

	config.max_num_sms = 2;
	config.timeout_ns = (uint64_t)(timeout_ms * 1e6);
	return roles_group(w->comm, &h->p, &config);
}

/* A tensor without elements has no storage, as that of many callers. */
static void describe(struct bench_tensor *d, ncclDataType_t type, unsigned int ndim, size_t n0,
		     size_t n1)
{
	d->t.data = n0 && !d->window ? d->data : NULL;
	tensor_describe(d, type, ndim, n0, n1, 0);
}

static void allocate(struct ht_bench *b, struct bench_tensor *d, size_t bytes)
{
	if (bytes && b->flags & HT_WINDOW) {
		tensor_allocate_window(b->w, d, HT_WINDOW_OFFSET, bytes, GUARD);
	} else {
		tensor_allocate(d, bytes);
	}
}

static size_t scale_bytes(const struct oracle_ht *h)
{
	return h->p.quant == ORACLE_QUANT_NONE ? 0 : 4 * (size_t)oracle_scale_words(&h->p);
}

uint64_t ht_most_rows(const struct oracle_ht *h)
{
	const struct oracle_problem *p = &h->p;
	uint64_t rows = (uint64_t)oracle_senders(p) * p->max_tokens, local = oracle_local(p);

	if (h->limit) {
		return h->limit;
	}
	if (h->expert_major) {
		rows *= p->topk < local ? p->topk : local;
		rows += local * (h->alignment > 1 ? h->alignment - 1 : 0);
	}
	return rows;
}

void ht_open(struct ht_bench *b, struct world *w, ncclEpGroup_t group, const struct oracle_ht *h,
	     uint32_t flags)
{
	const struct oracle_problem *p = &h->p;
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpLayout_t layout = h->expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT;
	size_t most = p->max_tokens, local = oracle_held(p, (uint32_t)w->rank);
	size_t rows = local ? ht_most_rows(h) : 0, bytes = 0;
	char why[128];

	memset(b, 0, sizeof(*b));
	b->w = w;
	b->h = *h;
	world_nodes_of(b->node, p->nranks);
	b->h.node = b->node;
	b->flags = flags;
	b->group = group;
	if (oracle_problem_prepare(&b->h.p, why, sizeof(why))) {
		check_fail(__FILE__, __LINE__, "%s", why);
		exit(1);
	}
	tensor_allocate(&b->ids, most * p->topk * 8);
	tensor_allocate(&b->in_tokens, most * oracle_input_bytes(p));
	tensor_allocate(&b->in_scales, most * scale_bytes(h));
	tensor_allocate(&b->weights, most * p->topk * 4);
	allocate(b, &b->out_tokens, rows * oracle_input_bytes(p));
	allocate(b, &b->out_scales, rows * scale_bytes(h));
	tensor_allocate(&b->out_weights, rows * p->topk * 4);
	tensor_allocate(&b->out_idx, rows * p->topk * 8);
	allocate(b, &b->combine_in, rows * oracle_combine_bytes(&h->p));
	tensor_allocate(&b->combine_out, most * oracle_combine_bytes(&h->p));
	tensor_allocate(&b->in_gradients, rows * p->topk * 4);
	tensor_allocate(&b->out_gradients, most * p->topk * 4);
	tensor_allocate(&b->counters, local * 8);
	tensor_allocate(&b->offsets, local * 8);
	tensor_allocate(&b->total, 8);
	config.dispatch_output_per_expert_alignment = h->alignment;
	if (flags & HT_OWN_MEM) {
		NEED_OK(ncclEpHandleMemSize(group, layout, &config, &bytes, (int)p->topk));
		bytes += flags & HT_MORE_MEM ? 65536 : 0;
		tensor_allocate(&b->mem, bytes);
		describe(&b->mem, ncclUint8, 1, bytes, 0);
	}
	if (!(flags & HT_NO_HANDLE)) {
		NEED_OK(ncclEpInitHandle(&b->handle, group, layout, &config, (int)p->topk,
					 flags & HT_OWN_MEM ? &b->mem.t : NULL));
	}
	ht_load(b, p->seed, p->tokens);
}

void ht_reopen(struct ht_bench *b)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;

	config.dispatch_output_per_expert_alignment = b->h.alignment;
	OK(ncclEpHandleDestroy(b->handle));
	NEED_OK(ncclEpInitHandle(&b->handle, b->group,
				 b->h.expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR
						   : NCCL_EP_LAYOUT_FLAT,
				 &config, (int)b->h.p.topk, &b->mem.t));
}

static void free_tables(struct ht_bench *b)
{
	for (int r = 0; r < b->w->nranks; r++) {
		oracle_ht_table_free(b->tables[r]);
		b->tables[r] = NULL;
	}
}

void ht_close(struct ht_bench *b)
{
	struct bench_tensor *all[] = { &b->mem,           &b->ids,         &b->in_tokens,
				       &b->in_scales,     &b->weights,     &b->out_tokens,
				       &b->out_scales,    &b->out_weights, &b->out_idx,
				       &b->combine_in,    &b->combine_out, &b->in_gradients,
				       &b->out_gradients, &b->counters,    &b->offsets,
				       &b->total };

	OK(ncclEpHandleDestroy(b->handle));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		tensor_release(b->w, all[i]);
	}
	free_tables(b);
	oracle_problem_free(&b->h.p);
}

void ht_end(struct ht_bench *b)
{
	ht_close(b);
	OK(ncclEpGroupDestroy(b->group));
}

/* ---- inputs ---- */

static void describe_all(struct ht_bench *b)
{
	const struct oracle_ht *h = &b->h;
	const struct oracle_problem *p = &h->p;
	ncclDataType_t type = tensor_float(p->dtype);
	ncclDataType_t copied = p->quant == ORACLE_QUANT_NONE ? type : ncclFloat8e4m3;
	ncclDataType_t whole = b->flags & HT_COUNTER64 ? ncclInt64 : ncclInt32;
	size_t scales = oracle_scale_words(p), local = oracle_held(p, (uint32_t)b->w->rank);
	size_t rows = b->rows;
	struct bench_tensor *windows[] = { &b->out_tokens, &b->out_scales, &b->combine_in };

	describe(&b->ids, b->flags & HT_IDS64 ? ncclInt64 : ncclInt32, 2, b->tokens, p->topk);
	describe(&b->in_tokens, copied, 2, b->tokens, p->hidden);
	describe(&b->in_scales, ncclFloat32, 2, b->tokens, scales);
	describe(&b->weights, ncclFloat32, 2, b->tokens, p->topk);
	describe(&b->out_tokens, copied, 2, rows, p->hidden);
	describe(&b->out_scales, ncclFloat32, 2, rows, scales);
	describe(&b->out_weights, ncclFloat32, h->expert_major ? 1 : 2, rows, p->topk);
	describe(&b->out_idx, ncclInt64, 2, rows, p->topk);
	describe(&b->combine_in, type, 2, rows, p->hidden);
	describe(&b->combine_out, type, 2, b->tokens, p->hidden);
	describe(&b->in_gradients, ncclFloat32, h->expert_major ? 1 : 2, rows, p->topk);
	describe(&b->out_gradients, ncclFloat32, 2, b->tokens, p->topk);
	describe(&b->counters, h->expert_major ? whole : ncclInt32, 1, local, 0);
	describe(&b->offsets, whole, 1, local, 0);
	describe(&b->total, whole, 1, 1, 0);
	for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
		bool none = !rows && !(b->flags & HT_ON); /* as of a tensor that has no address */

		windows[i]->t.win_hdl = none ? NULL : windows[i]->window;
	}
}

void ht_move_windows(struct ht_bench *b)
{
	struct bench_tensor *windows[] = { &b->out_tokens, &b->out_scales, &b->combine_in };

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	world_meet(b->w); /* no rank stores into those of others */
	for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
		if (windows[i]->window) {
			tensor_move_window(b->w, windows[i]);
		}
	}
}

void ht_load(struct ht_bench *b, uint64_t seed, uint32_t tokens)
{
	free_tables(b);
	b->h.p.seed = seed;
	b->h.p.tokens = tokens;
	b->tokens = oracle_tokens(&b->h.p, (uint32_t)b->w->rank);
	for (uint32_t r = 0; r < b->h.p.nranks; r++) {
		b->tables[r] = oracle_ht_table_create(&b->h, r);
		NEED(b->tables[r]);
	}
	b->rows = !b->tables[b->w->rank]->nlocal ? 0
		  : b->h.limit                   ? b->h.limit
						 : b->tables[b->w->rank]->total;
	tensor_load(&(struct tensor_inputs){ &b->in_tokens, &b->in_scales, &b->ids, &b->weights,
					     b->flags & HT_IDS64 },
		    &b->h.p, (uint32_t)b->w->rank, b->tokens);
	describe_all(b);
}

/* What operations write. */
static uint32_t outputs(struct ht_bench *b, struct bench_tensor **list)
{
	struct bench_tensor *all[] = { &b->out_tokens,   &b->out_scales,    &b->out_weights,
				       &b->out_idx,      &b->combine_in,    &b->combine_out,
				       &b->in_gradients, &b->out_gradients, &b->counters,
				       &b->offsets,      &b->total };

	memcpy(list, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

void ht_poison(struct ht_bench *b)
{
	struct bench_tensor *list[16];
	uint32_t n = outputs(b, list);

	for (uint32_t i = 0; i < n; i++) {
		tensor_poison(list[i]);
	}
}

void ht_expert_work(struct ht_bench *b)
{
	const struct oracle_ht_table *t = b->tables[b->w->rank];
	size_t row = oracle_combine_bytes(&b->h.p), wide = b->h.expert_major ? 1 : b->h.p.topk;
	char *rows = tensor_fetch(&b->combine_in);
	float *gradients = tensor_fetch(&b->in_gradients);

	oracle_ht_work(&b->h, t, 0, t->count, rows, gradients);
	tensor_upload(&b->combine_in, rows, b->rows * row);
	tensor_upload(&b->in_gradients, gradients, b->rows * wide * 4);
	free(rows);
	free(gradients);
}

/* ---- calls ---- */

ncclEpLayoutInfo_t ht_update_info(struct ht_bench *b)
{
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;

	info.expert_counters = &b->counters.t;
	info.expert_offsets = b->h.expert_major ? &b->offsets.t : NULL;
	info.recv_total_counter = &b->total.t;
	return info;
}

bool ht_late_counts(const struct ht_bench *b)
{
	return b->flags & HT_LATE_COUNTS && b->h.expert_major;
}

ncclResult_t ht_update(struct ht_bench *b, cudaStream_t stream)
{
	ncclEpLayoutInfo_t info = ht_update_info(b);

	return ncclEpUpdateHandle(b->handle, &b->ids.t, ht_late_counts(b) ? NULL : &info, stream);
}

struct ht_dispatch_args ht_dispatch_args(struct ht_bench *b, bool backward)
{
	struct ht_dispatch_args a = { NCCL_EP_DISPATCH_INPUTS_INIT, NCCL_EP_DISPATCH_OUTPUTS_INIT,
				      NCCL_EP_LAYOUT_INFO_INIT, NCCL_EP_DISPATCH_CONFIG_INIT };

	a.in.tokens = &b->in_tokens.t;
	a.out.tokens = &b->out_tokens.t;
	a.config.pass_direction = backward ? NCCL_EP_BWD_PASS : NCCL_EP_FWD_PASS;
	if (b->h.p.quant != ORACLE_QUANT_NONE) {
		a.config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
		a.in.scales = &b->in_scales.t;
		a.out.scales = &b->out_scales.t;
	}
	if (!backward) {
		a.in.topk_weights = &b->weights.t;
		a.out.topk_weights = &b->out_weights.t;
		a.out.topk_idx = b->h.expert_major ? NULL : &b->out_idx.t;
	}
	if (ht_late_counts(b)) {
		a.info = ht_update_info(b); /* which the backward pass ignores */
	}
	a.info.recv_topk_idx_kind = b->flags & HT_GLOBAL ? NCCL_EP_EXPERT_ID_GLOBAL
							 : NCCL_EP_EXPERT_ID_AUTO;
	return a;
}

ncclResult_t ht_dispatch(struct ht_bench *b, bool backward, cudaStream_t stream)
{
	struct ht_dispatch_args a = ht_dispatch_args(b, backward);

	return ncclEpDispatch(b->handle, &a.in, &a.out, &a.info, &a.config, stream);
}

struct ht_combine_args ht_combine_args(struct ht_bench *b, bool backward)
{
	struct ht_combine_args a = { NCCL_EP_COMBINE_INPUTS_INIT, NCCL_EP_COMBINE_OUTPUTS_INIT,
				     NCCL_EP_COMBINE_CONFIG_INIT };

	a.in.tokens = &b->combine_in.t;
	a.out.tokens = &b->combine_out.t;
	if (b->h.p.combine_quant) {
		a.config.quant_recipe = NCCL_EP_COMB_QUANT_MXFP8;
	}
	if (backward) {
		a.config.pass_direction = NCCL_EP_BWD_PASS;
		a.in.topk_weights = &b->in_gradients.t;
		a.out.topk_weights = &b->out_gradients.t;
	}
	return a;
}

ncclResult_t ht_combine(struct ht_bench *b, bool backward, cudaStream_t stream)
{
	struct ht_combine_args a = ht_combine_args(b, backward);
	bool plain = !backward && !b->h.p.combine_quant;

	return ncclEpCombine(b->handle, &a.in, &a.out, plain ? NULL : &a.config, stream);
}

/* ---- checks ---- */

static void report(const struct oracle_verdict *verdict)
{
	if (verdict->wrong) {
		check_fail(__FILE__, __LINE__, "%llu wrong, first:\n%s",
			   (unsigned long long)verdict->wrong, verdict->text);
	}
}

/* All of a tensor of whole numbers. */
static int64_t *fetch_whole(const struct bench_tensor *d)
{
	void *host = tensor_fetch(d);
	int64_t *all = calloc(d->sizes[0] + 1, sizeof(*all));

	NEED(all);
	for (size_t i = 0; i < d->sizes[0]; i++) {
		all[i] = d->t.datatype == ncclInt64 ? ((int64_t *)host)[i] : ((int32_t *)host)[i];
	}
	free(host);
	return all;
}

void ht_check_counters(struct ht_bench *b)
{
	int64_t *counters = fetch_whole(&b->counters), *offsets = fetch_whole(&b->offsets);
	int64_t *total = fetch_whole(&b->total);
	struct oracle_verdict verdict = { 0 };

	oracle_ht_check_counters(&b->h, b->tables[b->w->rank], counters, offsets, total[0],
				 &verdict);
	report(&verdict);
	free(counters);
	free(offsets);
	free(total);
}

static bool all_bytes(const void *p, int value, size_t n)
{
	const unsigned char *c = p;

	for (size_t i = 0; i < n; i++) {
		if (c[i] != value) {
			return false;
		}
	}
	return true;
}

void ht_check_untouched(struct ht_bench *b)
{
	struct bench_tensor *list[16];
	uint32_t n = outputs(b, list);

	for (uint32_t i = 0; i < n; i++) {
		char *host = tensor_fetch(list[i]);

		CHECK(all_bytes(host, ORACLE_POISON, list[i]->bytes + GUARD),
		      "output %u was written", i);
		free(host);
	}
}

static void check_guard(const struct bench_tensor *d, const char *host, size_t used,
			const char *name)
{
	CHECK(all_bytes(host + used, ORACLE_POISON, d->bytes + GUARD - used),
	      "bytes behind %s were written", name);
}

void ht_check_dispatch(struct ht_bench *b, bool backward)
{
	const struct oracle_ht_table *t = b->tables[b->w->rank];
	const struct oracle_problem *p = &b->h.p;
	size_t row = oracle_input_bytes(p), scale = scale_bytes(&b->h);
	char *tokens = tensor_fetch(&b->out_tokens), *scales = tensor_fetch(&b->out_scales);
	float *weights = tensor_fetch(&b->out_weights);
	int64_t *idx = tensor_fetch(&b->out_idx);
	struct oracle_ht_output out = {
		.tokens = (uint8_t *)tokens,
		.scales = (uint8_t *)scales,
		.weights = backward ? NULL : weights,
		.idx = idx,
		.id_base = b->flags & HT_GLOBAL ? (int64_t)oracle_first_expert(p, t->rank) : 0,
	};
	struct oracle_verdict verdict = { 0 };

	oracle_ht_check_rows(&b->h, t, 0, t->count, &out, &verdict);
	report(&verdict);
	check_guard(&b->out_tokens, tokens, t->count * row, "outputs->tokens");
	check_guard(&b->out_scales, scales, t->count * scale, "outputs->scales");
	check_guard(&b->out_weights, (char *)weights,
		    backward ? 0 : t->count * 4 * (b->h.expert_major ? 1 : p->topk),
		    "outputs->topk_weights");
	check_guard(&b->out_idx, (char *)idx,
		    backward || b->h.expert_major ? 0 : t->count * 8 * p->topk,
		    "outputs->topk_idx");
	free(tokens);
	free(scales);
	free(weights);
	free(idx);
}

void ht_check_combine(struct ht_bench *b, bool backward)
{
	const struct oracle_problem *p = &b->h.p;
	size_t row = oracle_combine_bytes(&b->h.p);
	char *out = tensor_fetch(&b->combine_out);
	float *gradients = tensor_fetch(&b->out_gradients);
	struct oracle_ht_sums sums = { out, backward ? gradients : NULL };
	struct oracle_verdict verdict = { 0 };

	oracle_ht_check_sums(&b->h, b->tables, (uint32_t)b->w->rank, 0, b->tokens, &sums, &verdict);
	report(&verdict);
	check_guard(&b->combine_out, out, b->tokens * row, "outputs->tokens of combine");
	check_guard(&b->out_gradients, (char *)gradients,
		    backward ? (size_t)b->tokens * p->topk * 4 : 0, "gradients");
	free(out);
	free(gradients);
}

void ht_check_no_counters(const struct ht_bench *b)
{
	const struct bench_tensor *all[] = { &b->counters, &b->offsets, &b->total };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		char *host = tensor_fetch(all[i]);

		check_guard(all[i], host, 0, "counters that no call writes,");
		free(host);
	}
}

void ht_step(struct ht_bench *b)
{
	ht_poison(b);
	NEED_OK(ht_update(b, b->w->stream));
	for (int backward = 0; backward < 2; backward++) {
		NEED_SYNC(ht_dispatch(b, backward, b->w->stream), b->w->stream);
		if (!backward) {
			ht_check_counters(b);
		} else {
			ht_check_no_counters(b);
		}
		ht_check_dispatch(b, backward);
		if (b->h.p.quant == ORACLE_QUANT_NONE) {
			ht_expert_work(b);
			NEED_OK(ht_combine(b, backward, b->w->stream));
			/* behind it on the stream its input is the caller's, whoever is late */
			NEED_CUDA(cudaMemsetAsync(b->combine_in.data, ORACLE_UNREAD,
						  b->combine_in.bytes, b->w->stream));
			NEED_CUDA(cudaStreamSynchronize(b->w->stream));
			ht_check_combine(b, backward);
		}
		/* the other ranks read windows until their combine is over */
		world_meet(b->w);
		ht_poison(b);
		world_meet(b->w);
	}
}

/* ---- random problems ---- */

static uint32_t one_of(uint64_t *s, const uint32_t *values, uint32_t n)
{
	return values[world_draw(s, n)];
}

#define ONE_OF(s, ...)                                                                             \
	one_of(s, (const uint32_t[]){ __VA_ARGS__ },                                               \
	       sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

/* A case while it is drawn. */
struct draw {
	struct ht_case c;
	const char *kind;
	uint32_t most_tokens; /* that a rank brings, where a group may have many more */
	uint64_t s;           /* of world_draw() */
};

static bool is(const struct draw *d, const char *kind)
{
	return strcmp(d->kind, kind) == 0;
}

static uint32_t holders_of(const struct oracle_problem *p)
{
	return p->holders ? p->holders : p->nranks;
}

/* How many experts and tokens there are, and how long a row is. */
static void draw_sizes(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;
	uint32_t local = ONE_OF(&d->s, 1, 2, 3, 8, 9), holders = holders_of(p);

	p->experts = local * holders;
	p->topk = (uint32_t)world_draw(&d->s, p->experts < 12 ? p->experts : 12) + 1;
	if (world_draw(&d->s, 12) == 0) {
		p->topk = p->experts < 32 ? p->experts : 32;
	}
	p->dtype = (enum oracle_dtype)ONE_OF(&d->s, ORACLE_BF16, ORACLE_BF16, ORACLE_FP16,
					     ORACLE_FP32);
	p->hidden = ONE_OF(&d->s, 8, 24, 128, 520, 1792, 3584, 5000);
	p->max_tokens = ONE_OF(&d->s, 1, 7, 8, 9, 40, 65, 200);
	if (p->hidden > 2000 && p->max_tokens > 40) {
		p->max_tokens = 40;
	}
	if (is(d, "long")) {
		p->hidden = ONE_OF(&d->s, 2600, 3584, 5000);
		p->max_tokens = 2050;
	}
	if (is(d, "crowd")) {
		p->experts = (1 + local % 3) * holders;
		p->topk = (uint32_t)world_draw(&d->s, 8) + 1;
		p->hidden = ONE_OF(&d->s, 8, 24, 128);
		p->max_tokens = ONE_OF(&d->s, 3, 9, 17);
	}
	if (is(d, "wide")) {
		p->experts = 32 * holders;
		p->topk = 20 + (uint32_t)world_draw(&d->s, 13);
		p->hidden = ONE_OF(&d->s, 896, 1792, 3584);
		p->max_tokens = ONE_OF(&d->s, 1, 7, 9);
	}
	if (is(d, "few")) { /* sums are cut into pieces, the last of which may be empty */
		p->hidden = ONE_OF(&d->s, 8, 128, 520);
		p->max_tokens = ONE_OF(&d->s, 129, 200, 258);
	}
	if (is(d, "soak")) {
		p->hidden = ONE_OF(&d->s, 8, 24, 128, 520);
		p->max_tokens = ONE_OF(&d->s, 1, 7, 8, 17, 40);
	}
	if (is(d, "lines")) { /* of bytes that end in any line of a quad, and at its end */
		p->topk = ONE_OF(&d->s, 1, 2, 8, 32);
		p->topk = p->topk < p->experts ? p->topk : p->experts;
		p->hidden = ONE_OF(&d->s, 16, 48, 112, 128, 240, 480, 496, 1040, 1936, 3360);
		p->hidden /= p->dtype == ORACLE_FP32 ? 4 : 2;
		p->max_tokens =
			ONE_OF(&d->s, 1, 2, 9, 40, p->hidden < 1000 && p->topk <= 2 ? 258 : 33);
		if (d->c.seed % 16 == 7 || d->c.seed % 16 == 8) { /* four quads are a piece */
			p->topk = 1;
			p->hidden = p->dtype == ORACLE_FP32 ? 2532 : 5064;
			p->max_tokens = 33;
		}
		if (d->c.seed % 16 == 9) { /* of a warp, all lanes have experts of one rank */
			p->experts = 32 * p->nranks;
			p->topk = 32;
			p->max_tokens = 9;
		}
	}
	p->tokens = p->max_tokens - (uint32_t)world_draw(&d->s, p->max_tokens / 2 + 1);
	d->c.second = 1 + (uint32_t)world_draw(&d->s, p->max_tokens);
	if (is(d, "long")) {
		p->tokens = 1 + p->tokens % 70;
		d->c.second = 1 + d->c.second % 70;
	}
}

static void draw_routing(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	switch (world_draw(&d->s, 5)) {
	case 0:
		p->routing.family = ORACLE_ZIPF;
		p->routing.zipf_exponent = UINT64_C(1) << 32;
		break;
	case 1:
		p->routing.family = ORACLE_HOT;
		p->routing.hot_ppm = (uint32_t)world_draw(&d->s, 2) ? 1000000 : 400000;
		p->routing.hot_rank = p->first_holder + (uint32_t)world_draw(&d->s, holders_of(p));
		break;
	default:
		p->routing.family = ORACLE_UNIFORM;
	}
	p->drop_ppm = ONE_OF(&d->s, 0, 0, 100000, 700000);
	p->duplicate_ppm = ONE_OF(&d->s, 0, 0, 0, 300000);
	p->uneven = world_draw(&d->s, 3) == 0;
	if (is(d, "lines") && d->c.seed % 2) {
		p->duplicate_ppm = 300000;
	}
	if (is(d, "lines") && d->c.seed % 16 == 9) {
		p->drop_ppm = 0;
		p->routing.family = ORACLE_HOT;
		p->routing.hot_ppm = 1000000;
		p->routing.hot_rank = 1;
	}
}

static void make_mxfp8(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	p->combine_quant = ORACLE_COMBINE_MXFP8;
	p->dtype = ORACLE_BF16;
	p->hidden = 512 * ONE_OF(&d->s, 1, 2, 3, 7, 14);
	p->max_tokens = ONE_OF(&d->s, 1, 9, 40);
	p->tokens = 1 + p->tokens % p->max_tokens;
	d->c.second = 1 + d->c.second % p->max_tokens;
	d->c.h.expert_major = 1;
	d->most_tokens = p->max_tokens;
	if (d->c.seed % 4 == 0) { /* few contributions: parts are larger than sums */
		p->topk = p->topk > 2 ? 2 : p->topk;
		p->max_tokens = 2050;
	}
}

/* The layout, and how many rows a rank takes. */
static void draw_rows(struct draw *d)
{
	struct oracle_ht *h = &d->c.h;
	struct oracle_problem *p = &h->p;
	uint32_t local, most;

	d->most_tokens = p->max_tokens;

	h->expert_major = is(d, "em") || is(d, "wide") || is(d, "few") ||
			  (!is(d, "flat") && world_draw(&d->s, 2));
	h->expert_major = is(d, "lines") ? (int)(d->c.seed / 2 % 2) : h->expert_major;
	if (is(d, "mxfp8")) {
		make_mxfp8(d);
	}
	if (h->expert_major) {
		h->alignment = ONE_OF(&d->s, 0, 1, 4, 16, 128);
	}
	local = oracle_local(p);
	most = d->most_tokens * oracle_senders(p);
	if (h->expert_major) {
		most = most * (p->topk < local ? p->topk : local) +
		       local * (h->alignment ? h->alignment : 1);
	}
	most = most < p->max_tokens ? p->max_tokens : most;
	h->limit = world_draw(&d->s, 3) ? most : 0;
	if (is(d, "drop") || (is(d, "lines") && d->c.seed % 5 < 2)) {
		h->drop = 1;
		h->limit = p->max_tokens + (uint32_t)world_draw(&d->s, most - p->max_tokens + 1);
	}
}

/* All rows go to one rank, and the tables of a rank with many tokens come late. */
static void make_cut(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	p->routing.family = ORACLE_HOT;
	p->routing.hot_ppm = 1000000;
	p->routing.hot_rank = p->first_holder + (uint32_t)d->c.seed % holders_of(p);
	p->drop_ppm = p->duplicate_ppm = 0;
	p->topk = p->experts < 4 ? p->experts : 4;
	p->hidden = 8;
	p->uneven = 1;
	p->max_tokens = p->tokens = d->c.second = 400;
	d->c.h.drop = 1;
	d->c.h.limit = p->max_tokens;
}

static void make_forward(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	p->quant = ORACLE_QUANT_FORWARD;
	p->hidden = 512 * (1 + (uint32_t)world_draw(&d->s, 6));
	if (d->c.seed % 4 == 3) { /* a row and its scales are cut into two parts */
		p->hidden = 512 * 32;
		p->max_tokens = p->tokens = d->c.second = 9;
		d->c.h.limit = 0;
	}
}

/* Chunks from which nothing goes anywhere, among others. */
static void make_gaps(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	p->topk = 1 + (uint32_t)world_draw(&d->s, 1);
	p->drop_ppm = ONE_OF(&d->s, 800000, 930000);
	p->max_tokens = 100 + (uint32_t)world_draw(&d->s, 200);
	p->tokens = p->max_tokens;
	p->uneven = 0;
	p->hidden = ONE_OF(&d->s, 8, 128, 5000);
	d->c.second = p->max_tokens;
	d->c.h.limit = 0;
}

/*
 * Flat rows to which two ranks contribute at most, so that a warp of combine has two slots: both
 * are one row's, or one is, or a row has none. A row is one part or, the longest, three, of which
 * the last one is shorter.
 */
static void make_pairs(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	p->routing.family = ORACLE_UNIFORM;
	p->drop_ppm = ONE_OF(&d->s, 0, 300000);
	p->uneven = 0;
	p->experts = 2 * holders_of(p);
	p->topk = 2;
	p->dtype = (enum oracle_dtype)ONE_OF(&d->s, ORACLE_BF16, ORACLE_FP16, ORACLE_FP32);
	p->hidden = ONE_OF(&d->s, 7168, 10000, 14336, 42880) / (p->dtype == ORACLE_FP32 ? 4 : 2);
	p->max_tokens = p->tokens = 27;
	d->c.second = ONE_OF(&d->s, 1, 2, 13);
	d->c.h.expert_major = 0;
	d->c.h.alignment = d->c.h.limit = 0;
}

/*
 * So many rows, and SMs, that the library chooses warps that only send, on two ranks of which one
 * has an SM more. Flat rows: all warps of some blocks, with 24 SMs on both ranks, with 23 in
 * dispatch on one of them, with 20 only in combine there. Expert-major: some warps of some blocks.
 */
static void make_senders(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;
	bool experts = d->c.seed % 4 == 3;

	p->routing.family = ORACLE_UNIFORM;
	p->dtype = ORACLE_BF16;
	p->quant = ORACLE_QUANT_NONE;
	p->topk = experts ? 1 : p->topk;
	p->hidden = experts ? 3584 : 8;
	p->max_tokens = p->tokens = 2000;
	d->c.second = 1100;
	d->c.h.expert_major = experts;
	d->c.h.alignment = d->c.h.limit = 0;
}

/* In eager mode and in windows, and to some ranks no rows come. */
static void make_idle(struct draw *d)
{
	struct oracle_problem *p = &d->c.h.p;

	p->routing.family = ORACLE_HOT;
	p->routing.hot_ppm = 1000000;
	p->routing.hot_rank = (uint32_t)d->c.seed % p->nranks;
	d->c.h.expert_major = d->c.seed % 4 == 0;
	d->c.h.limit = 0;
	d->c.flags |= HT_WINDOW;
}

/*
 * Of each eight tokens the first and the last one go to the next rank, and no other: it is told of
 * one row long before the other.
 */
static uint32_t thin_ahead(const struct oracle_problem *p, uint32_t token)
{
	(void)p;
	return token % 8 == 0 || token % 8 == 7;
}

/*
 * Of each eight tokens the first ones go each to another rank, and the rest nowhere: a rank has
 * read its row of the eight, and its place is free, while they are still being sent.
 */
static uint32_t head_ahead(const struct oracle_problem *p, uint32_t token)
{
	return token % 8 < p->nranks - 1 ? token % 8 + 1 : 0;
}

/*
 * Each token goes to the first expert of the rank that is so many ahead of its own, or nowhere
 * where that is 0. With roles it is the holder of that number.
 */
static int32_t *lines_make(const struct oracle_problem *p,
			   uint32_t (*ahead)(const struct oracle_problem *p, uint32_t token))
{
	uint32_t n = p->nranks * p->max_tokens, holders = holders_of(p);
	int32_t *lines = malloc((size_t)n * ORACLE_MAX_TOPK * sizeof(*lines));

	NEED(lines);
	memset(lines, 0xff, (size_t)n * ORACLE_MAX_TOPK * sizeof(*lines));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t rank = i / p->max_tokens, far = ahead(p, i % p->max_tokens);

		if (far) {
			lines[(size_t)i * ORACLE_MAX_TOPK] =
				(int32_t)((rank + far) % holders * (p->experts / holders));
		}
	}
	return lines;
}

/* Tokens go where lines_make() sends them, in chunks of eight. */
static void make_lines(struct draw *d, uint32_t hidden, uint32_t tokens, uint32_t second,
		       uint32_t (*ahead)(const struct oracle_problem *p, uint32_t token))
{
	struct oracle_problem *p = &d->c.h.p;

	p->topk = 1;
	p->dtype = ORACLE_BF16;
	p->hidden = hidden;
	p->max_tokens = p->tokens = tokens;
	p->drop_ppm = p->duplicate_ppm = 0;
	p->uneven = 0;
	p->routing.family = ORACLE_FILE;
	p->routing.nlines = p->nranks * p->max_tokens;
	p->routing.lines = lines_make(p, ahead);
	d->c.second = second;
	d->c.h.expert_major = 1;
	d->c.h.limit = 0;
	d->c.flags |= 3 * HT_FOR_MORE;
}

static void draw_soak(struct draw *d)
{
	struct oracle_ht *h = &d->c.h;

	if (h->expert_major && h->p.dtype == ORACLE_BF16) { /* which has every recipe */
		h->p.hidden = 512;
	}
	h->drop = h->limit && world_draw(&d->s, 3) == 0;
	if (h->drop) {
		h->limit = h->p.max_tokens + (uint32_t)world_draw(&d->s, h->limit);
	}
	d->c.flags |= world_draw(&d->s, 3) ? 0 : HT_WINDOW | (world_draw(&d->s, 2) ? HT_ON : 0);
}

static uint32_t draw_sms(struct draw *d)
{
	static const uint32_t senders[] = { 23, 24, 20, 20 };

	return is(d, "pairs")     ? 1
	       : is(d, "thin")    ? 1 /* and each warp sends some chunks and receives as many */
	       : is(d, "head")    ? 5
	       : is(d, "few")     ? 16
	       : is(d, "senders") ? senders[d->c.seed & 3]
	       : is(d, "crowd")   ? 1 + (uint32_t)(d->c.seed & 1)
				  : ONE_OF(&d->s, 2, 2, 3, 5);
}

struct ht_case ht_case_draw(int nranks, const char *kind, uint64_t seed)
{
	static const char *const kinds[] = {
		"flat", "em", "soak", "drop", "gaps", "forward", "cut"
	};
	struct draw d = { .c.seed = seed, .kind = kind, .s = seed * 977 + 13 };
	struct oracle_ht *h = &d.c.h;
	bool roles = !strncmp(kind, "roles", 5), odd = seed & 1;

	h->p = (struct oracle_problem){ .seed = seed, .nranks = (uint32_t)nranks };
	if (roles) {
		d.kind = kind[5] == '_' ? kind + 6 : kinds[seed % (sizeof(kinds) / sizeof(*kinds))];
		roles_draw(&h->p, seed);
	}
	draw_sizes(&d);
	draw_routing(&d);
	draw_rows(&d);
	if (is(&d, "cut")) {
		make_cut(&d);
	} else if (is(&d, "forward")) {
		make_forward(&d);
	} else if (is(&d, "gaps")) {
		make_gaps(&d);
	} else if (is(&d, "pairs")) {
		make_pairs(&d);
	} else if (is(&d, "senders")) {
		make_senders(&d);
	}
	d.c.flags = (uint32_t)world_draw(&d.s, 32) & ~(uint32_t)HT_WINDOW;
	if (is(&d, "window") || (is(&d, "gaps") && odd)) {
		d.c.flags |= HT_WINDOW | (odd ? HT_ON : 0);
	} else if (is(&d, "drop") && odd) { /* what is dropped does not depend on it */
		d.c.flags |= HT_WINDOW | HT_ON;
	} else if (is(&d, "crowd") && odd) {
		d.c.flags |= HT_WINDOW | (seed & 2 ? HT_ON : 0);
	} else if (is(&d, "idle")) {
		make_idle(&d);
	} else if (is(&d, "thin")) {
		make_lines(&d, 7168, 56, 40, thin_ahead);
	} else if (is(&d, "head")) {
		make_lines(&d, 8, 320, 320, head_ahead);
	} else if (is(&d, "soak")) {
		draw_soak(&d);
	}
	/* A limit would have to hold so many tokens. */
	if (!h->drop && seed % 4 && !is(&d, "thin") && !is(&d, "head")) {
		d.c.flags |= ht_by_lines() ? 0 : (uint32_t)(seed % 4) * HT_FOR_MORE;
		h->limit = 0;
	}
	if (roles) { /* a rank without experts has no rows, so no window for them */
		d.c.flags &= ~(uint32_t)(HT_WINDOW | HT_ON);
	}
	d.c.flags |= seed % 3 ? 0 : HT_LATE_COUNTS;
	h->filled = !h->expert_major && h->limit && seed / 2 % 2 == 0;
	d.c.sms = draw_sms(&d);
	return d.c;
}

void ht_case_context(const struct ht_case *c, const struct world *w)
{
	const struct oracle_problem *p = &c->h.p;

	check_context(
		"seed %llu: %u ranks (holders %u:%u, senders %u:%u), %u experts, top-%u, hidden %u, type %d, %u then %u of %u "
		"tokens%s, %s, limit %u%s, alignment %u, quant %d, drop %u, duplicates %u, "
		"flags 0x%x, %u SMs%s; rank %d",
		(unsigned long long)c->seed, p->nranks, p->first_holder, p->holders,
		p->first_sender, p->senders, p->experts, p->topk, p->hidden, (int)p->dtype,
		p->tokens, c->second, p->max_tokens, p->uneven ? " uneven" : "",
		c->h.expert_major ? "em" : "flat", c->h.limit, c->h.drop ? " drop" : "",
		c->h.alignment, (int)p->quant, p->drop_ppm, p->duplicate_ppm, c->flags, c->sms,
		c->note, w->rank);
}

ncclEpGroup_t ht_case_group(const struct ht_case *c, struct world *w)
{
	ncclEpGroupConfig_t config = ht_group_config(&c->h, c->flags);
	/* ranks need not have as many */
	uint32_t wanted = c->sms + (c->sms > 2 ? (uint32_t)w->rank % 2 : 0);
	int sms = 0;

	NEED_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, w->device));
	config.max_num_sms = wanted < (uint32_t)sms ? wanted : (uint32_t)sms;
	return roles_group(w->comm, &c->h.p, &config);
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
