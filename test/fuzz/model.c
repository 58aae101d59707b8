/* SPDX-License-Identifier: Apache-2.0 */
/* Which arguments are right, as nccl_ep.h says it: structs of any call first. */
#include "fuzz/fuzz.h"

const char *model_import(void *own, const struct form *form, const void *caller)
{
	unsigned int prefix[2];

	memset(own, 0, form->size);
	if (!caller) {
		return form->optional ? NULL : "a struct is missing";
	}
	memcpy(prefix, caller, sizeof(prefix));
	if (prefix[0] < form->v1_size || prefix[1] != NCCL_EP_MAGIC) {
		return "size or magic of a struct";
	}
	memcpy(own, caller, prefix[0] < form->size ? prefix[0] : form->size);
	return NULL;
}

/* By ncclDataType_t. */
static const uint32_t type_bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 1 };

uint32_t model_elem(ncclDataType_t type)
{
	return type_bytes[type];
}

/* Bytes of a tensor; UINT64_MAX: more than there are numbers for. */
static uint64_t tensor_bytes(const ncclEpTensor_t *t)
{
	uint64_t n = type_bytes[t->datatype];
	bool over = false;

	for (unsigned int i = 0; i < t->ndim; i++) {
		if (t->sizes[i] == 0) {
			return 0;
		}
		over |= __builtin_mul_overflow(n, t->sizes[i], &n);
	}
	return over ? UINT64_MAX : n;
}

bool model_window(const struct fuzz *f, const ncclEpTensor_t *t, uint64_t *at)
{
	const struct ht_bench *b = f->ht ? &f->ht->b : NULL;
	const struct bench_tensor *with[] = { b ? &b->out_tokens : NULL, b ? &b->out_scales : NULL,
					      b ? &b->combine_in : NULL };
	uint64_t bytes = tensor_bytes(t), end;

	for (size_t i = 0; b && i < sizeof(with) / sizeof(with[0]); i++) {
		if (!t->win_hdl || with[i]->window != t->win_hdl) {
			continue;
		}
		*at = (uint64_t)(uintptr_t)with[i]->data - HT_WINDOW_OFFSET + t->win_offset;
		return !__builtin_add_overflow(t->win_offset, bytes ? bytes : 1, &end) &&
		       end <= HT_WINDOW_OFFSET + with[i]->bytes + HT_GUARD;
	}
	return false;
}

const char *model_tensor(const struct fuzz *f, const ncclEpTensor_t *t, unsigned int ndim,
			 struct model_tensor *out)
{
	if (!t) {
		return "a tensor is missing";
	}
	if (t->magic != NCCL_EP_TENSOR_MAGIC || t->size < NCCL_EP_TENSOR_V1_SIZE) {
		return "size or magic of a tensor";
	}
	if (t->ndim != ndim || !t->sizes || (unsigned int)t->datatype > 12) {
		return "dimensions or type of a tensor";
	}
	*out = (struct model_tensor){ .at = (uint64_t)(uintptr_t)t->data,
				      .elem = type_bytes[t->datatype],
				      .type = t->datatype };
	memcpy(out->size, t->sizes, ndim * sizeof(*t->sizes));
	if (!t->data && tensor_bytes(t) && !model_window(f, t, &out->at)) {
		return "a tensor has no storage";
	}
	return NULL;
}

const char *model_handle(const struct fuzz *f, ncclEpLayout_t layout, const void *config, int topk)
{
	const ncclEpGroupConfig_t *g = &f->config;
	uint64_t local = g->num_experts / FUZZ_RANKS, most;
	bool em = layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	ncclEpHandleConfig_t own;
	const char *wrong = model_import(&own, &form_handle_config, config);
	uint64_t align = own.dispatch_output_per_expert_alignment;

	if (wrong) {
		return wrong;
	}
	if ((unsigned int)layout > 31 || !(f->layouts >> layout & 1)) {
		return "layout";
	}
	if (topk < 1 || topk > 32 || (unsigned int)topk > g->num_experts) {
		return "num_topk";
	}
	if (g->algorithm == NCCL_EP_ALGO_LOW_LATENCY) {
		return NULL;
	}
	if (g->num_topk && (unsigned int)topk > g->num_topk) {
		return "num_topk above the group's";
	}
	if (!em) {
		return NULL;
	}
	if (!g->max_recv_tokens_per_rank && !g->num_topk) {
		return "eager and expert-major, and the group has no num_topk";
	}
	if (align > 1u << 30 || (align & (align - 1))) {
		return "alignment";
	}
	most = (uint64_t)FUZZ_RANKS * g->max_dispatch_tokens_per_rank *
	       ((uint64_t)topk < local ? (uint64_t)topk : local);
	most += local * (align ? align - 1 : 0);
	return most > INT32_MAX ? "rows with their padding" : NULL;
}

const char *model_group(const void *config)
{
	static const struct form form = {
		"config", NCCL_EP_GROUP_CONFIG_SIZE, NCCL_EP_GROUP_CONFIG_V1_SIZE, false, { { 0 } }
	};
	ncclEpGroupConfig_t c;
	const char *wrong = model_import(&c, &form, config);

	if (wrong) {
		return wrong;
	}
	if (!c.num_experts || c.num_experts % FUZZ_RANKS || !c.max_dispatch_tokens_per_rank ||
	    !c.max_token_bytes || c.num_topk > c.num_experts) {
		return "sizes";
	}
	if (c.algorithm == NCCL_EP_ALGO_LOW_LATENCY) {
		return c.max_dispatch_tokens_per_rank > 65535 ? "tokens" : NULL;
	}
	if (c.max_token_bytes % 16) {
		return "max_token_bytes";
	}
	if (c.max_recv_tokens_per_rank > INT32_MAX ||
	    (c.max_recv_tokens_per_rank &&
	     c.max_recv_tokens_per_rank < c.max_dispatch_tokens_per_rank)) {
		return "max_recv_tokens_per_rank";
	}
	return !c.max_recv_tokens_per_rank && c.overflow_policy == NCCL_EP_OVERFLOW_DROP
		       ? "DROP in eager mode"
		       : NULL;
}

/* ---- dispatch, combine and routing of high throughput ---- */

/* Rows as they travel: [rows][columns]. */
struct rows {
	struct model_tensor t;
	uint64_t bytes; /* of a row */
};

static const char *model_rows(const struct fuzz *f, const ncclEpTensor_t *t, struct rows *r)
{
	const char *wrong = model_tensor(f, t, 2, &r->t);

	if (wrong) {
		return wrong;
	}
	if (!r->t.size[1] || __builtin_mul_overflow(r->t.size[1], r->t.elem, &r->bytes) ||
	    r->bytes > UINT32_MAX || r->bytes % 16) {
		return "bytes of a row";
	}
	return r->t.at % 16 ? "address of rows" : NULL;
}

/* Weights: [rows][K], or [rows] where a row is of one expert. */
static const char *model_weights(const struct fuzz *f, const ncclEpTensor_t *t, bool by_row,
				 struct model_tensor *out)
{
	const char *wrong = model_tensor(f, t, by_row ? 1 : 2, out);

	if (wrong) {
		return wrong;
	}
	return out->type != ncclFloat32 || out->at % 4 || (!by_row && out->size[1] != f->topk)
		       ? "weights"
		       : NULL;
}

/*
 * Tokens: those of the routing, if the handle knows them, else up to B, and others end the group.
 */
static const char *model_tokens(const struct fuzz *f, uint64_t tokens, enum model_fate *fate)
{
	if (tokens != f->ht->b.tokens) {
		if (!f->ht->unrouted || tokens > f->config.max_dispatch_tokens_per_rank) {
			return "tokens";
		}
		*fate = FATE_DOOMED;
	}
	return NULL;
}

/* Rows that come here: all, or those below the limit. */
static uint64_t due(const struct fuzz *f)
{
	const struct ht_bench *b = &f->ht->b;
	uint64_t total = b->tables[b->w->rank]->total;

	return b->h.limit && b->h.limit < total ? b->h.limit : total;
}

/*
 * zero_copy ON: received rows are in a window, and where it says if peers store to it: flat ones of
 * one node.
 */
static const char *model_zero_copy(const struct fuzz *f, const ncclEpTensor_t *t)
{
	bool flat = !f->ht->b.h.expert_major;
	uint32_t node[FUZZ_RANKS];
	uint64_t at;

	if (f->config.zero_copy != NCCL_EP_ZERO_COPY_ON) {
		return NULL;
	}
	if (!t->win_hdl) {
		return flat || t->sizes[0] ? "no window" : NULL;
	}
	world_nodes_of(node, FUZZ_RANKS);
	if (!flat || node[0] != node[1]) {
		return NULL;
	}
	return !model_window(f, t, &at) || (t->sizes[0] && t->data && (uintptr_t)t->data != at)
		       ? "not in the window"
		       : NULL;
}

/* ---- dispatch ---- */

static bool copied(ncclDataType_t t, bool with_scales)
{
	switch ((int)t) {
	case ncclInt8:
	case ncclUint8:
		return !with_scales;
	case ncclFloat16:
	case ncclBfloat16:
	case ncclFloat32:
	case ncclFloat8e4m3:
	case ncclFloat8e5m2:
	case 12:
		return true;
	default:
		return false;
	}
}

static bool scale(ncclDataType_t t)
{
	return t == ncclUint8 || ((int)t != 12 && copied(t, true));
}

struct dispatch {
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpDispatchConfig_t config;
	struct rows from, to;
};

static bool odd_offset(const ncclEpTensor_t *t)
{
	return t->win_hdl && t->win_offset % 16;
}

static const char *model_scales(const struct fuzz *f, const struct dispatch *d)
{
	struct rows from, to;
	const char *wrong = model_rows(f, d->in.scales, &from);

	wrong = wrong ? wrong : model_rows(f, d->out.scales, &to);
	if (wrong) {
		return wrong;
	}
	if (!scale(from.t.type) || from.t.type != to.t.type || from.t.size[1] != to.t.size[1]) {
		return "types or extents of scales";
	}
	if (from.t.size[0] != d->from.t.size[0] || to.t.size[0] != d->to.t.size[0]) {
		return "rows of scales";
	}
	if (odd_offset(d->in.tokens) || odd_offset(d->in.scales) || odd_offset(d->out.tokens) ||
	    odd_offset(d->out.scales)) {
		return "offset in a window";
	}
	if (!d->out.tokens->win_hdl != !d->out.scales->win_hdl) {
		return "one window for two";
	}
	if (d->from.bytes + from.bytes > f->config.max_token_bytes) {
		return "bytes of a row and its scales";
	}
	return model_zero_copy(f, d->out.scales);
}

/* *rows: what the outputs have, weights too. */
static const char *model_forward(const struct fuzz *f, const struct dispatch *d, uint64_t *rows)
{
	bool em = f->ht->b.h.expert_major;
	struct model_tensor in, out, idx;
	const char *wrong = model_weights(f, d->in.topk_weights, false, &in);

	wrong = wrong ? wrong : model_weights(f, d->out.topk_weights, em, &out);
	if (wrong) {
		return wrong;
	}
	if (in.size[0] != d->from.t.size[0] || !out.size[0] != !*rows) {
		return "rows of weights";
	}
	*rows = out.size[0] < *rows ? out.size[0] : *rows;
	if (em) {
		return d->out.topk_idx ? "ids" : NULL;
	}
	wrong = model_tensor(f, d->out.topk_idx, 2, &idx);
	if (wrong) {
		return wrong;
	}
	return idx.type != ncclInt64 || idx.at % 8 || idx.size[0] != out.size[0] ||
			       idx.size[1] != f->topk
		       ? "ids"
		       : NULL;
}

static const char *model_recipe(const struct dispatch *d)
{
	switch ((int)d->config.quant_recipe) {
	case NCCL_EP_DISP_QUANT_NONE:
		return d->in.scales || d->out.scales ? "scales" : NULL;
	case NCCL_EP_DISP_QUANT_FWD:
		return !d->in.scales || !d->out.scales || d->config.round_scales ? "FWD" : NULL;
	default:
		return "recipe";
	}
}

static const char *model_room(const struct fuzz *f, const struct dispatch *d, uint64_t rows,
			      enum model_fate *fate)
{
	const struct oracle_ht *h = &f->ht->b.h;
	bool v1 = f->config.size < NCCL_EP_GROUP_CONFIG_V2_SIZE, eager = !h->limit;
	uint64_t all = d->to.t.size[0];
	/*
	 * Peers store to a window, where the host looks up who comes; else a tensor for any routing
	 * will do.
	 */
	bool asks = rows < ht_most_rows(h) || (eager && !h->expert_major && d->out.tokens->win_hdl);
	bool waits = f->config.size < NCCL_EP_GROUP_CONFIG_V3_SIZE || !eager || !h->expert_major;

	if (!waits) {
		*fate = rows < due(f) ? FATE_DOOMED : *fate;
		return NULL;
	}
	if ((!eager && !v1 && all < h->limit) || (h->expert_major && h->drop && rows < h->limit)) {
		return "rows below the limit";
	}
	if (rows < due(f)) {
		return "rows that come";
	}
	/* where the host asks the device, it sees the tokens of the routing, too */
	if (*fate == FATE_DOOMED && asks) {
		return "tokens of the routing";
	}
	return NULL;
}

const char *model_ht_dispatch(const struct fuzz *f, void *const *args, enum model_fate *fate)
{
	struct dispatch d;
	const char *wrong = model_import(&d.in, &form_in, args[0]);
	uint64_t rows;

	wrong = wrong ? wrong : model_import(&d.out, &form_out, args[1]);
	wrong = wrong ? wrong : model_import(&d.info, &form_info, args[2]);
	wrong = wrong ? wrong : model_import(&d.config, &form_config, args[3]);
	wrong = wrong ? wrong : model_recipe(&d);
	wrong = wrong ? wrong : model_rows(f, d.in.tokens, &d.from);
	wrong = wrong ? wrong : model_rows(f, d.out.tokens, &d.to);
	wrong = wrong ? wrong : model_tokens(f, d.from.t.size[0], fate);
	if (wrong) {
		return wrong;
	}
	rows = d.to.t.size[0];
	if (!copied(d.from.t.type, d.config.quant_recipe != NCCL_EP_DISP_QUANT_NONE) ||
	    d.from.t.type != d.to.t.type || d.from.t.size[1] != d.to.t.size[1]) {
		return "types or extents of tokens";
	}
	if (d.from.bytes > f->config.max_token_bytes) {
		return "bytes of a row";
	}
	if ((unsigned int)d.config.pass_direction > NCCL_EP_BWD_PASS ||
	    (unsigned int)d.info.recv_topk_idx_kind > NCCL_EP_EXPERT_ID_GLOBAL) {
		return "direction or kind of ids";
	}
	if (d.config.quant_recipe == NCCL_EP_DISP_QUANT_FWD) {
		wrong = model_scales(f, &d);
	}
	if (d.config.pass_direction == NCCL_EP_FWD_PASS) {
		wrong = wrong ? wrong : model_forward(f, &d, &rows);
		if (f->ht->b.h.expert_major && f->config.size >= NCCL_EP_GROUP_CONFIG_V3_SIZE) {
			wrong = wrong ? wrong : model_ht_info(f, f->layout, args[2]);
		}
	} else if (d.in.topk_weights || d.out.topk_weights || d.out.topk_idx) {
		wrong = "weights backward";
	}
	wrong = wrong ? wrong : model_room(f, &d, rows, fate);
	return wrong ? wrong : model_zero_copy(f, d.out.tokens);
}

/* ---- combine ---- */

struct combine {
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t config;
	struct rows from, to;
};

static const char *model_gradients(const struct fuzz *f, const struct combine *c, uint64_t *rows)
{
	struct model_tensor in, out;
	const char *wrong = model_weights(f, c->in.topk_weights, f->ht->b.h.expert_major, &in);

	wrong = wrong ? wrong : model_weights(f, c->out.topk_weights, false, &out);
	if (wrong) {
		return wrong;
	}
	if (out.size[0] != c->to.t.size[0] || !in.size[0] != !*rows) {
		return "rows of gradients";
	}
	*rows = in.size[0] < *rows ? in.size[0] : *rows;
	return NULL;
}

/* Can sums return by that recipe? */
static bool model_returns(const struct fuzz *f, const struct combine *c)
{
	uint32_t node[FUZZ_RANKS];

	if (c->config.quant_recipe != NCCL_EP_COMB_QUANT_MXFP8) {
		return c->config.quant_recipe == NCCL_EP_COMB_QUANT_NONE;
	}
	world_nodes_of(node, FUZZ_RANKS);
	return f->ht->b.h.expert_major && node[0] == node[1] && c->from.t.type == ncclBfloat16 &&
	       c->from.t.size[1] % 512 == 0;
}

const char *model_ht_combine(const struct fuzz *f, void *const *args, enum model_fate *fate)
{
	struct combine c;
	const char *wrong = model_import(&c.in, &form_combine_in, args[0]);
	ncclDataType_t type;
	uint64_t rows;

	wrong = wrong ? wrong : model_import(&c.out, &form_combine_out, args[1]);
	wrong = wrong ? wrong : model_import(&c.config, &form_combine_config, args[2]);
	wrong = wrong ? wrong : model_rows(f, c.in.tokens, &c.from);
	wrong = wrong ? wrong : model_rows(f, c.out.tokens, &c.to);
	wrong = wrong ? wrong : model_tokens(f, c.to.t.size[0], fate);
	if (wrong) {
		return wrong;
	}
	type = c.from.t.type;
	if (!model_returns(f, &c) || c.in.scales ||
	    (unsigned int)c.config.pass_direction > NCCL_EP_BWD_PASS) {
		return "recipe or direction";
	}
	if ((type != ncclBfloat16 && type != ncclFloat16 && type != ncclFloat32) ||
	    type != c.to.t.type || c.from.t.size[1] != c.to.t.size[1] ||
	    c.from.bytes > f->config.max_token_bytes) {
		return "types or extents of tokens";
	}
	rows = c.from.t.size[0];
	if (c.config.pass_direction == NCCL_EP_BWD_PASS) {
		wrong = model_gradients(f, &c, &rows);
	} else if (c.in.topk_weights) {
		wrong = "weights forward";
	}
	if (rows < due(f)) {
		*fate = FATE_DOOMED; /* nobody has told the host */
	}
	return wrong ? wrong : model_zero_copy(f, c.in.tokens);
}

/* ---- routing ---- */

const char *model_ht_ids(const struct fuzz *f, const ncclEpTensor_t *ids, uint64_t topk)
{
	struct model_tensor t;
	const char *wrong = model_tensor(f, ids, 2, &t);

	if (wrong) {
		return wrong;
	}
	return (t.type != ncclInt32 && t.type != ncclInt64) || t.at % t.elem ||
			       t.size[0] > f->config.max_dispatch_tokens_per_rank ||
			       t.size[1] != topk
		       ? "ids"
		       : NULL;
}

/* *elem: of all that came before, 0: nothing. */
static const char *model_counter(const struct fuzz *f, const ncclEpTensor_t *t, uint64_t extent,
				 uint32_t *elem)
{
	struct model_tensor c;
	const char *wrong;

	if (!t) {
		return NULL;
	}
	wrong = model_tensor(f, t, 1, &c);
	if (wrong) {
		return wrong;
	}
	if ((c.type != ncclInt32 && c.type != ncclInt64) || (*elem && c.elem != *elem) ||
	    c.size[0] < extent || c.at % c.elem) {
		return "counters";
	}
	*elem = c.elem;
	return NULL;
}

const char *model_ht_info(const struct fuzz *f, ncclEpLayout_t layout, const void *info)
{
	uint64_t local = f->config.num_experts / FUZZ_RANKS;
	bool em = layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	uint32_t elem = em ? 0 : 4;
	ncclEpLayoutInfo_t i;
	const char *wrong = model_import(&i, &form_info, info);

	wrong = wrong ? wrong : model_counter(f, i.expert_counters, local, &elem);
	if (em) {
		wrong = wrong ? wrong : model_counter(f, i.expert_offsets, local, &elem);
	} else {
		elem = 0; /* the total may be of either type */
	}
	return wrong ? wrong : model_counter(f, i.recv_total_counter, 1, &elem);
}
