/* SPDX-License-Identifier: Apache-2.0 */
/*
 * structs.c for high throughput: every call with mistakes, on a group of two ranks that make the
 * same. Here a model of what nccl_ep.h says (model.c) knows of each call whether it must fail, and
 * of one that is taken whether it ends the group, which another replaces then.
 *
 *     ht_structs FIRST COUNT      cases FIRST .. FIRST+COUNT-1
 */
#include "fuzz/fuzz.h"
#include "support/watch.h"

/* ---- dispatch, combine, and the routing of handles ---- */

#define DRAW(below) world_draw(&f->state, below)

/* Buffers hold whatever the others may still read: between meetings only. */
static void prepare(struct fuzz *f)
{
	const char *text;

	ht_poison(&f->ht->b);
	OK(ncclEpExtGetLastError(f->group, NULL, &text));
	snprintf(f->last, sizeof(f->last), "%s", text);
	world_meet(f->w);
	watch_start();
}

/* Has the group failed? Then no call on it works, and another takes its place. */
static void renew(struct fuzz *f, enum model_fate fate)
{
	struct oracle_ht h = f->ht->b.h;
	uint32_t flags = f->ht->b.flags;
	ncclResult_t now;
	size_t bytes;

	now = ncclEpHandleMemSize(f->group, f->layout, NULL, &bytes, (int)f->topk);
	if (fate == FATE_FINE || (fate == FATE_PERHAPS && now == ncclSuccess)) {
		CHECK_RESULT(now, ncclSuccess);
		fuzz_agree(f, now);
		return;
	}
	CHECK_RESULT(now, ncclInvalidUsage);
	fuzz_agree(f, now);
	CHECK_RESULT(ht_update(&f->ht->b, f->w->stream), ncclInvalidUsage);
	ht_fuzz_close(f);
	ht_fuzz_open(f, &h, flags);
	ht_step(&f->ht->b);
}

/* What was refused has begun nothing; what was taken is over. */
static void settle(struct fuzz *f, ncclResult_t result, enum model_fate fate)
{
	const char *text;

	if (result != ncclSuccess) {
		CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
		ht_check_untouched(&f->ht->b);
		return;
	}
	NEED_CUDA(cudaStreamSynchronize(f->w->stream));
	OK(ncclEpExtGetLastError(f->group, NULL, &text));
	CHECK(fate == FATE_PERHAPS || !strcmp(text, f->last) == (fate == FATE_FINE),
	      "the group says \"%s\"", text);
	renew(f, fate);
}

/* The model knows better than the single mistakes do. */
static void judge(struct fuzz *f, const char *call, ncclResult_t result, struct mutation *m,
		  const char *wrong)
{
	m->sure = false;
	fuzz_judge(f, call, result, m);
	CHECK((result != ncclSuccess) == !!wrong, "%s", wrong ? wrong : "nothing is wrong");
}

/* A window's tensor may say where it is; a handle may be a new one on the memory of another. */
static void vary(struct fuzz *f)
{
	struct ht_bench *b = &f->ht->b;
	struct bench_tensor *with[] = { &b->out_tokens, &b->out_scales, &b->combine_in };

	for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++) {
		if (with[i]->window) {
			with[i]->t.data = DRAW(2) ? NULL : with[i]->data;
		}
	}
	if (b->flags & HT_OWN_MEM && DRAW(4) == 0) {
		ht_reopen(b);
		f->ht->unrouted = true;
	}
}

/* Descriptors of one call, which may be changed. */
#define NUDGES 8
struct nudge {
	ncclEpTensor_t t[NUDGES];
	size_t sizes[NUDGES][2];
};

/* Another type, of elements that are no larger: buffers have room for them. */
static ncclDataType_t smaller(struct fuzz *f, ncclDataType_t type)
{
	static const ncclDataType_t types[] = { ncclInt64,   ncclFloat32,  ncclInt32,
						ncclFloat16, ncclBfloat16, ncclFloat8e4m3,
						ncclUint8 };
	ncclDataType_t t = types[DRAW(7)];

	return model_elem(t) <= model_elem(type) ? t : type;
}

static void nudge_one(ncclEpTensor_t *t, uint64_t kind, ncclDataType_t type)
{
	switch (kind) {
	case 0:
		t->sizes[0]--;
		break;
	case 1:
		t->sizes[0]++;
		break;
	case 2:
		t->sizes[0] = 0;
		break;
	case 3:
		t->sizes[t->ndim - 1] -= t->sizes[t->ndim - 1] > 16 ? 16 : 1;
		break;
	case 4:
		t->sizes[t->ndim - 1]--;
		break;
	case 5:
		t->datatype = model_elem(type) <= model_elem(t->datatype) ? type : t->datatype;
		break;
	case 6:
		t->win_hdl = NULL;
		break;
	case 7:
		t->win_offset += 8;
		break;
	case 8: /* the bytes of all have the number that they had, in 64 bits */
		t->sizes[0] += (size_t)1 << 60;
		break;
	default:
		t->data = t->data ? (char *)t->data + (kind == 9 ? 4 : 8) : NULL;
		break;
	}
}

/*
 * Small mistakes in descriptors, which mutate.c makes too seldom: the same in one of them, in some,
 * or in all. Returns whether any was made.
 */
static bool nudge(struct fuzz *f, struct nudge *own, ncclEpTensor_t ***list, uint32_t n)
{
	uint32_t which = DRAW(4) ? 1u << DRAW(n) : (uint32_t)DRAW(1u << n);
	uint64_t kind = DRAW(11);
	ncclDataType_t type = ncclUint8;

	if (DRAW(2)) {
		return false;
	}
	for (uint32_t i = 0; i < n; i++) {
		ncclEpTensor_t *t = *list[i];

		if (!t || !(which >> i & 1)) {
			continue;
		}
		own->t[i] = *t;
		memcpy(own->sizes[i], t->sizes, t->ndim * sizeof(size_t));
		own->t[i].sizes = own->sizes[i];
		type = type == ncclUint8 ? smaller(f, t->datatype) : type;
		nudge_one(&own->t[i], kind, type);
		*list[i] = &own->t[i];
	}
	return true;
}

/* A dispatch or a combine: structs of it are spoilt, or some of their descriptors. */
static ncclResult_t operate(struct fuzz *f, bool combine, uint32_t at, void *s[4],
			    ncclEpTensor_t ***with, uint32_t n)
{
	static const struct form *const forms[2][4] = {
		{ &form_in, &form_out, &form_info, &form_config },
		{ &form_combine_in, &form_combine_out, &form_combine_config },
	};
	ncclEpHandle_t handle = f->ht->b.handle;
	enum model_fate fate = FATE_FINE;
	struct nudge own;
	struct mutation m;
	const char *wrong;
	ncclResult_t result;

	if (nudge(f, &own, with, n)) {
		at &= at << DRAW(5);
	}
	prepare(f);
	mutation_begin(&m, &f->state, f->spare);
	for (uint32_t i = 0; i < 4 && forms[combine][i]; i++) {
		s[i] = mutate_struct(&m, forms[combine][i], s[i], at >> i & 1);
	}
	wrong = combine ? model_ht_combine(f, s, &fate) : model_ht_dispatch(f, s, &fate);
	result = combine ? ncclEpCombine(handle, s[0], s[1], s[2], f->w->stream)
			 : ncclEpDispatch(handle, s[0], s[1], s[2], s[3], f->w->stream);
	judge(f, combine ? "combine" : "dispatch", result, &m, wrong);
	settle(f, result, fate);
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_ht_dispatch(struct fuzz *f)
{
	uint32_t at = fuzz_places(f, 4);
	struct ht_dispatch_args a;

	vary(f);
	a = ht_dispatch_args(&f->ht->b, DRAW(2));
	return operate(f, false, at, (void *[]){ &a.in, &a.out, &a.info, &a.config },
		       (ncclEpTensor_t * *[]){ &a.in.tokens, &a.in.topk_weights, &a.in.scales,
					       &a.out.tokens, &a.out.topk_weights, &a.out.scales,
					       &a.out.topk_idx },
		       7);
}

ncclResult_t fuzz_ht_combine(struct fuzz *f)
{
	uint32_t at = fuzz_places(f, 3);
	struct ht_combine_args a;

	vary(f);
	a = ht_combine_args(&f->ht->b, DRAW(2));
	return operate(f, true, at, (void *[]){ &a.in, &a.out, &a.config, NULL },
		       (ncclEpTensor_t * *[]){ &a.in.tokens, &a.in.topk_weights, &a.out.tokens,
					       &a.out.topk_weights },
		       4);
}

/* There is nothing to complete. */
ncclResult_t fuzz_ht_complete(struct fuzz *f)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT, own;
	struct mutation m;
	const char *wrong;
	ncclResult_t result;
	void *c;

	prepare(f);
	mutation_begin(&m, &f->state, f->spare);
	c = mutate_struct(&m, &form_complete, &config, true);
	wrong = model_import(&own, &form_complete, c);
	result = ncclEpComplete(f->ht->b.handle, c, f->w->stream);
	judge(f, "complete", result, &m, wrong);
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	ht_check_untouched(&f->ht->b);
	mutation_end(&m);
	return result;
}

/* ---- routing ---- */

/* What a counter says, if it is there. */
static void check_counter(const ncclEpTensor_t *t, const int64_t *want, uint64_t n,
			  const char *name)
{
	int64_t got[64];

	if (!t) {
		return;
	}
	NEED(n <= sizeof(got) / sizeof(got[0]));
	NEED_CUDA(cudaMemcpy(got, t->data, n * (t->datatype == ncclInt64 ? 8 : 4),
			     cudaMemcpyDeviceToHost));
	for (uint64_t i = 0; i < n; i++) {
		int64_t v = t->datatype == ncclInt64 ? got[i] : ((int32_t *)got)[i];

		CHECK(v == want[i], "%s[%llu] is %lld, not %lld", name, (unsigned long long)i,
		      (long long)v, (long long)want[i]);
	}
}

static void check_info(struct fuzz *f, const void *info)
{
	const struct ht_bench *b = &f->ht->b;
	const struct oracle_ht_table *t = b->tables[f->w->rank];
	int64_t total = (int64_t)t->total;
	ncclEpLayoutInfo_t i;

	model_import(&i, &form_info, info);
	check_counter(i.expert_counters, t->counters, t->nlocal, "expert_counters");
	if (b->h.expert_major) {
		check_counter(i.expert_offsets, t->offsets, t->nlocal, "expert_offsets");
	}
	check_counter(i.recv_total_counter, &total, 1, "recv_total_counter");
}

/* Are these the bench's ids, whatever describes them? */
static bool same_ids(const struct fuzz *f, const ncclEpTensor_t *ids)
{
	const struct bench_tensor *good = &f->ht->b.ids;

	return ids->datatype == good->t.datatype && ids->sizes[0] == good->sizes[0] &&
	       ids->sizes[1] == good->sizes[1] &&
	       (ids->data == good->data || ids->data == f->ht->wide.data);
}

/* With other ids, or other zones, other rows come: more than there may be, perhaps. */
static enum model_fate fate_of(const struct fuzz *f, bool same)
{
	return same || !f->ht->b.h.limit || f->ht->b.h.drop ? FATE_FINE : FATE_PERHAPS;
}

ncclResult_t fuzz_ht_update(struct fuzz *f)
{
	struct ht_bench *b = &f->ht->b;
	ncclEpLayoutInfo_t info = ht_update_info(b);
	uint32_t at = fuzz_places(f, 3);
	ncclEpTensor_t *ids = &b->ids.t;
	struct nudge own;
	struct mutation m;
	const char *wrong;
	ncclResult_t result;
	bool same;
	void *i;

	if (nudge(f, &own,
		  (ncclEpTensor_t * *[]){ &info.expert_counters, &info.expert_offsets,
					  &info.recv_total_counter, &ids },
		  4)) {
		at &= at << DRAW(5);
	}
	prepare(f);
	mutation_begin(&m, &f->state, f->spare);
	ids = mutate_tensor(&m, "topk_idx", ids, true, at & 1);
	i = mutate_struct(&m, &form_info, &info, at & 6);
	wrong = model_ht_ids(f, ids, f->topk);
	wrong = wrong ? wrong : model_ht_info(f, f->layout, i);
	result = ncclEpUpdateHandle(b->handle, ids, i, f->w->stream);
	judge(f, "update", result, &m, wrong);
	if (result != ncclSuccess) {
		settle(f, result, FATE_FINE);
		mutation_end(&m);
		return result;
	}
	NEED_CUDA(cudaStreamSynchronize(f->w->stream));
	same = same_ids(f, ids);
	if (same) {
		check_info(f, i);
	}
	if (same) {
		settle(f, result, FATE_FINE);
	} else {
		renew(f, fate_of(f, same));
	}
	NEED_SYNC(ht_update(b, f->w->stream), f->w->stream);
	f->ht->unrouted = false;
	mutation_end(&m);
	return result;
}

/* The ids lie where those of any top-k have room. */
ncclResult_t fuzz_ht_create(struct fuzz *f)
{
	struct ht_bench *b = &f->ht->b;
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT, own;
	ncclEpHandle_t untouched = (ncclEpHandle_t)&config, handle = untouched;
	ncclEpLayoutInfo_t info = ht_update_info(b);
	uint32_t at = fuzz_places(f, 4);
	ncclEpLayout_t layout = f->layout;
	ncclEpTensor_t good = b->ids.t, *ids;
	struct mutation m;
	const char *wrong;
	ncclResult_t result;
	void *c, *i;

	config.dispatch_output_per_expert_alignment = f->alignment;
	good.data = f->ht->wide.data;
	NEED_CUDA(cudaMemcpy(good.data, b->ids.data, b->ids.bytes, cudaMemcpyDeviceToDevice));
	prepare(f);
	mutation_begin(&m, &f->state, f->spare);
	ids = mutate_tensor(&m, "topk_idx", &good, true, at & 1);
	if (at & 2) {
		layout = (ncclEpLayout_t)mutate_number(&m, "layout", (uint64_t)layout);
	}
	c = mutate_struct(&m, &form_handle_config, &config, at & 4);
	i = mutate_struct(&m, &form_info, &info, at & 8);
	wrong = ids && ids->ndim == 2 && ids->sizes && ids->sizes[1] <= INT32_MAX
			? model_handle(f, layout, c, (int)ids->sizes[1])
			: "ids";
	wrong = wrong ? wrong : model_ht_ids(f, ids, ids->sizes[1]);
	wrong = wrong ? wrong : model_ht_info(f, layout, i);
	result = ncclEpCreateHandle(&handle, f->group, layout, ids, i, c, f->w->stream);
	judge(f, "create", result, &m, wrong);
	CHECK((handle != untouched) == (result == ncclSuccess));
	if (result != ncclSuccess) {
		settle(f, result, FATE_FINE);
	} else {
		NEED_CUDA(cudaStreamSynchronize(f->w->stream));
		OK(ncclEpHandleDestroy(handle));
		model_import(&own, &form_handle_config, c);
		renew(f,
		      fate_of(f, same_ids(f, ids) && layout == f->layout &&
					 own.dispatch_output_per_expert_alignment == f->alignment));
	}
	mutation_end(&m);
	return result;
}

ncclResult_t fuzz_ht_received(struct fuzz *f)
{
	const struct ht_bench *b = &f->ht->b;
	const struct oracle_ht_table *t = b->tables[f->w->rank];
	uint64_t tokens = UINT64_MAX, rows = UINT64_MAX;
	ncclEpHandle_t fresh;
	ncclResult_t result;

	OK(ncclEpExtNumRecvTokens(b->handle, DRAW(2) ? &tokens : NULL, DRAW(2) ? &rows : NULL,
				  f->w->stream));
	CHECK(tokens == UINT64_MAX || b->h.drop || tokens == t->slots);
	CHECK(rows == UINT64_MAX || rows >= t->slots || b->h.drop);
	tokens = 5;
	NEED_OK(ncclEpInitHandle(&fresh, f->group, f->layout, NULL, (int)f->topk, NULL));
	result = ncclEpExtNumRecvTokens(fresh, &tokens, NULL, f->w->stream);
	judge(f, "received rows", result, &(struct mutation){ .text = "" }, "no routing");
	CHECK_INT(tokens, 5);
	OK(ncclEpHandleDestroy(fresh));
	return result;
}

/* ---- the cases ---- */

#define CASE_DRAW(below) world_draw(s, below)

static const fuzz_call_fn calls[] = {
	fuzz_ht_dispatch, fuzz_ht_dispatch, fuzz_ht_dispatch, fuzz_ht_dispatch, fuzz_ht_dispatch,
	fuzz_ht_dispatch, fuzz_ht_combine,  fuzz_ht_combine,  fuzz_ht_combine,  fuzz_ht_combine,
	fuzz_ht_update,   fuzz_ht_update,   fuzz_ht_update,   fuzz_ht_create,   fuzz_init,
	fuzz_mem_size,    fuzz_ht_complete, fuzz_masks,       fuzz_group,       fuzz_nobody,
	fuzz_memory,      fuzz_statistics,  fuzz_ht_received,
};

struct test_case {
	uint64_t number;
	uint64_t state;
	struct oracle_ht h;
	uint32_t flags;
	ncclEpGroupConfig_t config;
};

/* As many rows come to each rank: a mistake in rows is the same mistake everywhere. */
static void draw_routing(struct oracle_problem *p, uint64_t *s)
{
	uint32_t n = p->nranks * p->max_tokens, local = p->experts / p->nranks;
	int32_t *lines = malloc(n * ORACLE_MAX_TOPK * sizeof(*lines));

	NEED(lines);
	memset(lines, 0xff, n * ORACLE_MAX_TOPK * sizeof(*lines));
	for (uint32_t t = 0; t < p->max_tokens; t++) {
		uint32_t first = (uint32_t)CASE_DRAW(p->experts);

		for (uint32_t k = 0; k < p->topk; k++) {
			bool none = t > 0 && CASE_DRAW(6) == 0;

			for (uint32_t r = 0; r < p->nranks && !none; r++) {
				uint32_t id = (first + k + r * local) % p->experts;

				lines[(r * p->max_tokens + t) * ORACLE_MAX_TOPK + k] = (int32_t)id;
			}
		}
	}
	p->routing.family = ORACLE_FILE;
	p->routing.nlines = n;
	p->routing.lines = lines;
}

static void choose(struct test_case *c, uint64_t number)
{
	struct oracle_problem *p = &c->h.p;
	uint64_t state = number * 40503 + 7, *s = &state;
	uint32_t local = 1 + (uint32_t)CASE_DRAW(4), width;

	memset(c, 0, sizeof(*c));
	c->number = number;
	*p = (struct oracle_problem){ .seed = number, .nranks = FUZZ_RANKS };
	p->experts = local * p->nranks;
	p->topk = 1 + (uint32_t)CASE_DRAW(p->experts);
	p->tokens = 1 + (uint32_t)CASE_DRAW(12);
	p->max_tokens = p->tokens + (uint32_t)CASE_DRAW(3);
	p->dtype = (enum oracle_dtype)CASE_DRAW(3);
	p->hidden = 8 * (1 + (uint32_t)CASE_DRAW(40));
	if (CASE_DRAW(3) == 0) {
		p->quant = ORACLE_QUANT_FORWARD;
		p->hidden = 512;
	}
	c->h.expert_major = (int)CASE_DRAW(2);
	if (c->h.expert_major) {
		c->h.alignment = (uint32_t)CASE_DRAW(3) ? 1u << CASE_DRAW(5) : 0;
	}
	if (c->h.expert_major && number % 3 == 0) {
		p->combine_quant = ORACLE_COMBINE_MXFP8;
		p->dtype = ORACLE_BF16;
		p->hidden = 512;
	}
	width = p->topk < local ? p->topk : local;
	c->h.limit = p->nranks * p->max_tokens * (c->h.expert_major ? width : 1);
	if (c->h.expert_major && c->h.alignment > 1) {
		c->h.limit += local * (c->h.alignment - 1);
	}
	switch (CASE_DRAW(3)) {
	case 0:
		c->h.limit = 0;
		break;
	case 1:
		c->h.drop = 1;
		c->h.limit = p->max_tokens + (uint32_t)CASE_DRAW(c->h.limit - p->max_tokens + 1);
		break;
	default:
		break;
	}
	c->flags = (uint32_t)CASE_DRAW(32) & ~(uint32_t)HT_WINDOW;
	if (CASE_DRAW(2)) {
		c->flags |= HT_WINDOW | (CASE_DRAW(3) ? HT_ON : 0);
	}
	draw_routing(p, s);
	c->config = ht_group_config(&c->h, c->flags);
	c->config.max_num_sms = 1;
	c->config.timeout_ns = UINT64_C(40000000000);
	c->config.enable_mask = (unsigned int)CASE_DRAW(2); /* is ignored */
	if (CASE_DRAW(2) && (c->h.limit || !c->h.expert_major)) {
		c->config.num_topk = 0;
	}
	if (CASE_DRAW(4) == 0 && c->h.limit && !c->h.drop &&
	    c->config.zero_copy == NCCL_EP_ZERO_COPY_AUTO) {
		c->config.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
		c->config.num_topk = 0;
	}
	c->state = state;
}

void ht_fuzz_open(struct fuzz *f, const struct oracle_ht *h, uint32_t flags)
{
	struct ht_fuzz *ht = f->ht;

	memset(ht, 0, sizeof(*ht));
	NEED_OK(ncclEpCreateGroup(&f->group, f->w->comm, &f->config));
	ht_open(&ht->b, f->w, f->group, h, flags);
	ht->wide.bytes = (size_t)h->p.max_tokens * ORACLE_MAX_TOPK * 8 + 64;
	NEED_CUDA(cudaMalloc((void **)&ht->wide.data, ht->wide.bytes));
	NEED_CUDA(cudaMemset(ht->wide.data, 0, ht->wide.bytes));
	f->spare = &ht->b.weights.t;
	f->ids = &ht->b.ids.t;
}

void ht_fuzz_close(struct fuzz *f)
{
	NEED_CUDA(cudaFree(f->ht->wide.data));
	ht_end(&f->ht->b);
}

static void pair(struct fuzz *f)
{
	ht_step(&f->ht->b);
	f->ht->unrouted = false;
}

static void run_case(struct world *w, void *arg)
{
	const struct test_case *c = arg;
	const struct oracle_problem *p = &c->h.p;
	struct ht_fuzz ht;
	struct fuzz f = {
		.w = w,
		.ht = &ht,
		.config = c->config,
		.layout = c->h.expert_major ? NCCL_EP_LAYOUT_EXPERT_MAJOR : NCCL_EP_LAYOUT_FLAT,
		.layouts = 1u << NCCL_EP_LAYOUT_EXPERT_MAJOR | 1u << NCCL_EP_LAYOUT_FLAT,
		.topk = p->topk,
		.alignment = c->h.alignment,
		.number = c->number,
		.state = c->state,
	};

	check_context("case %llu: %s", (unsigned long long)c->number,
		      c->h.expert_major ? "em" : "flat");
	ht_fuzz_open(&f, &c->h, c->flags);
	fuzz_run(&f, calls, sizeof(calls) / sizeof(calls[0]), pair);
	ht_fuzz_close(&f);
}

int main(int argc, char **argv)
{
	uint64_t first = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t count = world_number(argc > 2 ? argv[2] : NULL, 28);
	double begin = world_now();
	struct test_case c;

	setenv("VC_MEM_MB", "64", 1); /* groups of absurd sizes find no memory */
	for (uint64_t i = first; i < first + count; i++) {
		choose(&c, i);
		world_run(FUZZ_RANKS, run_case, &c);
		free(c.h.p.routing.lines);
	}
	printf("ht_structs: cases %llu to %llu, %.1f s\n", (unsigned long long)first,
	       (unsigned long long)(first + count - 1), world_now() - begin);
	return check_end();
}
