// SPDX-License-Identifier: Apache-2.0
/* Ranks of one process, their memory, and what dispatch must leave in it. */
#include "ht_rig.h"
#include "device/kernels.h"
#include "support/check.h"

#define EPOCH_STAMP 77

uint32_t ht_word(uint32_t rank, uint32_t token, uint32_t i, bool scale)
{
	return (rank * 65537u + token * 2u + scale + 1) * 2654435761u ^ (i * 40503u + 7);
}

float ht_weight(uint32_t rank, uint32_t token, uint32_t k)
{
	return (float)(rank * 1000000 + token * 32 + k + 1);
}

uint32_t ht_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 8;
}

/* Some ids are negative, and some name an expert again, unless there shall be no holes. */
static void ids_make(const struct ht_shape *s, int32_t *id, uint32_t *state)
{
	uint32_t first = s->to[1] ? s->to[0] * s->nlocal : 0;
	uint32_t n = (s->to[1] ? s->to[1] - s->to[0] : s->ranks) * s->nlocal;

	for (uint32_t k = 0; k < s->topk; k++) {
		bool again;

		do {
			again = false;
			id[k] = (int32_t)(first + ht_random(state) % n);
			for (uint32_t j = 0; j < k; j++) {
				again |= id[j] == id[k];
			}
		} while (s->no_holes && again);
		if (!s->no_holes && ht_random(state) % 16 == 0) {
			id[k] = -1;
		}
	}
	if (!s->no_holes && ht_random(state) % 8 == 0) {
		memset(id, 0xff, s->topk * sizeof(*id)); /* a token for nobody */
	}
}

static void tables_make(const struct ht_shape *s, struct ht_tables *t)
{
	const struct oracle_problem shape = { .nranks = s->ranks,
					      .experts = s->ranks * s->nlocal,
					      .topk = s->topk,
					      .max_tokens = s->max_tokens };
	uint32_t state = s->seed * 2654435761u + 1;

	ht_tables_open(t, &shape);
	t->h.expert_major = s->layout == EP_HT_EXPERT_MAJOR;
	t->chunk_shift = s->chunk_shift;
	t->h.limit = s->limit;
	t->h.drop = s->limit != 0;
	t->h.alignment = s->alignment;
	for (uint32_t r = 0; r < s->ranks; r++) {
		t->tokens[r] = s->tokens[r];
		for (uint32_t i = 0; i < s->max_tokens; i++) {
			int32_t id[ORACLE_MAX_TOPK];

			ids_make(s, id, &state);
			if (i < s->tokens[r]) {
				memcpy(ht_tables_ids(t, r, i), id, s->topk * sizeof(*id));
			}
		}
	}
	ht_tables_make(t);
}

static void *device_memory(struct ht_world *w, size_t size, int fill)
{
	void *p;

	NEED(w->allocations < sizeof(w->memory) / sizeof(w->memory[0]));
	NEED_CUDA(cudaMalloc(&p, size ? size : 16));
	NEED_CUDA(cudaMemset(p, fill, size ? size : 16));
	w->memory[w->allocations++] = p;
	return p;
}

static void *device_copy(struct ht_world *w, const void *from, size_t size)
{
	void *p = device_memory(w, size, 0);

	NEED_CUDA(cudaMemcpy(p, from, size, cudaMemcpyHostToDevice));
	return p;
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
	uint64_t here = *at;

	*at += (bytes + 255) / 256 * 256;
	return here;
}

static uint32_t row_bytes(const struct ht_shape *s)
{
	return s->token_bytes + s->scale_bytes;
}

static uint32_t parts_of(const struct ht_shape *s)
{
	return (row_bytes(s) + s->part_bytes - 1) / s->part_bytes;
}

/* Returns the heap's size. */
static uint64_t areas_make(const struct ht_shape *s, struct ep_ht_dispatch_args *a)
{
	struct ep_ht_areas *m = &a->c.areas;
	uint64_t at = 0, r = s->ranks, width = a->c.width;

	a->c.g.progress_off = take(&at, 8 * r);
	a->c.g.clean_off = take(&at, EP_CLEAN_BYTES(r));
	m->form_off = take(&at, 2 * 8 * EP_HT_FORM_WORDS * r);
	m->done_off = take(&at, 8 * r * ep_ht_done_words((uint32_t)r));
	m->blame_off = take(&at, 8 * r);
	m->ended_off = take(&at, 4);
	m->weight_off = take(&at, 4 * r * s->max_tokens * width);
	m->ring_chunks = s->ring_chunks;
	m->parts = parts_of(s) + 1;
	m->arrived_off = take(&at, 8 * r * s->ring_chunks * m->parts);
	m->credit_off = take(&at, 8 * r * s->ring_chunks * m->parts);
	m->row_stride = (row_bytes(s) + 127) / 128 * 128;
	m->chunk_shift = s->chunk_shift;
	m->ring_off = take(&at, (r * s->ring_chunks << s->chunk_shift) * m->row_stride);
	return at;
}

static void group_make(struct ht_world *w, uint32_t me)
{
	const struct ht_shape *s = &w->shape;
	struct ep_dev_group *g = &w->rank[me].args.c.g;
	struct ep_dev_seq seq[EP_GROUP_MAX_BLOCKS];
	struct ep_record *records;

	memset(seq, 0, sizeof(seq));
	for (uint32_t i = 0; i < EP_GROUP_MAX_BLOCKS; i++) {
		seq[i].busy = ep_seq_busy(1);
	}
	NEED_CUDA(cudaMallocHost((void **)&records, (EP_RECORDS + 1) * sizeof(*records)));
	memset(records, 0, (EP_RECORDS + 1) * sizeof(*records));
	w->rank[me].records = records;
	g->rank = g->index = me;
	g->nranks = s->ranks;
	g->banks = 1;
	g->by_ranks = ep_div_make(s->ranks);
	g->timeout_ns = 20000000000u;
	g->mask = device_memory(w, EP_MASK_BYTES(s->ranks), 0);
	g->seq = device_copy(w, seq, sizeof(seq));
	g->state = w->rank[me].state = device_memory(w, sizeof(*g->state), 0);
	g->records = records;
	g->async_error = &records[EP_RECORDS].valid;
	g->stats = device_memory(w, s->ranks * sizeof(*g->stats), 0);
	for (uint32_t r = 0; r < s->ranks; r++) {
		g->heap[r] = w->memory[r];
	}
	g->own = g->heap[me];
}

static void handle_make(struct ht_world *w, uint32_t me)
{
	const struct ht_shape *s = &w->shape;
	const struct ht_tables *t = &w->t;
	struct ep_ht_dev_handle *h = &w->rank[me].args.c.h;
	struct ep_ht_head head = t->head[me];
	size_t lists = (size_t)s->max_tokens * s->topk, at = me * lists, r = s->ranks;
	size_t starts = r * (t->chunks + 1) * 4;

	head.stamp = EPOCH_STAMP;
	h->head = device_copy(w, &head, sizeof(head));
	h->send_sel = device_copy(w, t->send_sel + at, lists * 4);
	h->send_row = device_copy(w, t->send_row + at, lists * 4);
	if (s->layout == EP_HT_EXPERT_MAJOR) {
		h->send_place = device_copy(w, t->send_place + at, lists * 4);
		h->zones = device_copy(w, t->zones + (size_t)me * s->nlocal,
				       s->nlocal * sizeof(*h->zones));
	}
	h->send_start = device_copy(w, (char *)t->start + me * starts, starts);
	h->recv_start = device_copy(w, (char *)t->recv_start + me * starts, starts);
	h->send_base = device_copy(w, t->send_base + me * r, r * 4);
	h->recv_base = device_copy(w, t->recv_base + me * (r + 1), (r + 1) * 4);
	h->recv_sel = device_copy(w, t->recv_sel[me], (size_t)head.rows * t->width * 4);
	h->scratch = device_memory(w, 4 * EP_HT_COUNTERS, 0);
}

/* One input, copied from what the caller's function says. */
static void *input_make(struct ht_world *w, uint32_t me, uint32_t bytes, bool scale)
{
	uint32_t n = w->shape.tokens[me], per = bytes / 4;
	uint32_t *rows = malloc((size_t)n * bytes + 16);
	void *p;

	NEED(rows);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < per; k++) {
			rows[(size_t)i * per + k] = ht_word(me, i, k, scale);
		}
	}
	p = device_copy(w, rows, (size_t)n * bytes);
	free(rows);
	return p;
}

static void weights_make(struct ht_world *w, uint32_t me)
{
	const struct ht_shape *s = &w->shape;
	uint32_t n = s->tokens[me] * s->topk;
	float *weights = malloc(n * sizeof(*weights) + 16);

	NEED(weights);
	for (uint32_t i = 0; i < n; i++) {
		weights[i] = ht_weight(me, i / s->topk, i % s->topk);
	}
	w->rank[me].args.topk_weights = device_copy(w, weights, n * sizeof(*weights));
	free(weights);
}

static void outputs_make(struct ht_world *w, uint32_t me)
{
	const struct ht_shape *s = &w->shape;
	struct ep_ht_dispatch_args *a = &w->rank[me].args;
	bool flat = s->layout == EP_HT_FLAT;
	uint64_t rows = flat ? w->t.head[me].rows : w->t.head[me].places;

	a->c.given_rows = (uint32_t)rows;
	a->fill_rows = s->fill_more ? (uint32_t)rows + s->fill_more : EP_HT_NONE;
	a->zero_to = s->zero_more ? (uint32_t)rows + s->zero_more : 0;
	rows += flat ? s->fill_more : s->zero_more;
	w->rank[me].out_rows = rows;
	rows += HT_GUARD_ROWS;
	a->out_tokens = device_memory(w, rows * s->token_bytes, 0);
	a->out_scales = device_memory(w, rows * s->scale_bytes, 0);
	if (!s->backward) {
		a->out_weights = device_memory(w, rows * 4 * (flat ? s->topk : 1), 0);
		if (flat) {
			a->out_idx = device_memory(w, rows * 8 * s->topk, 0);
		}
	}
}

static void args_make(struct ht_world *w, uint32_t me)
{
	const struct ht_shape *s = &w->shape;
	struct ep_ht_dispatch_args *a = &w->rank[me].args;

	group_make(w, me);
	handle_make(w, me);
	a->c.launch = (struct ep_dev_launch){ .halves = EP_HALF_SEND | EP_HALF_RECV };
	a->c.stamp = EPOCH_STAMP;
	a->c.form[EP_HT_FORM_KIND] = 4711;
	a->c.layout = s->layout;
	a->c.num_tokens = s->tokens[me];
	a->c.limit = s->limit ? s->limit : EP_HT_NONE;
	a->tokens = input_make(w, me, s->token_bytes, false);
	a->scales = input_make(w, me, s->scale_bytes, true);
	if (!s->backward) {
		weights_make(w, me);
	}
	outputs_make(w, me);
	a->token_bytes = s->token_bytes;
	a->scale_bytes = s->scale_bytes;
	a->id_base = 100 * me;
	a->parts = parts_of(s);
	a->part_bytes = s->part_bytes;
	a->lag = s->lag;
	a->by_parts = ep_div_make(a->parts);
	a->stage_parts = s->stage_parts;
	a->is_direct = s->direct;
}

struct ht_world *ht_world_make(const struct ht_shape *s)
{
	struct ht_world *w = calloc(1, sizeof(*w));
	uint64_t heap = 0;

	NEED(w);
	w->shape = *s;
	tables_make(s, &w->t);
	for (uint32_t r = 0; r < s->ranks; r++) {
		struct ep_ht_common *c = &w->rank[r].args.c;

		c->max_tokens = s->max_tokens;
		c->nlocal = s->nlocal;
		c->topk = s->topk;
		c->width = w->t.width;
		c->by_local = ep_div_make(s->nlocal);
		c->by_width = ep_div_make(w->t.width);
		heap = areas_make(s, &w->rank[r].args);
	}
	for (uint32_t r = 0; r < s->ranks; r++) {
		device_memory(w, heap, 0); /* w->memory[r] */
	}
	for (uint32_t r = 0; r < s->ranks; r++) {
		args_make(w, r);
		NEED_CUDA(cudaStreamCreateWithFlags(&w->rank[r].stream, cudaStreamNonBlocking));
	}
	for (uint32_t r = 0; r < s->ranks; r++) {
		for (uint32_t d = 0; d < s->ranks; d++) {
			w->rank[r].args.direct[d] = w->rank[d].args.out_tokens;
			w->rank[r].args.direct_scales[d] = w->rank[d].args.out_scales;
		}
	}
	ht_world_poison(w);
	return w;
}

void ht_world_free(struct ht_world *w)
{
	for (uint32_t r = 0; r < w->shape.ranks; r++) {
		NEED_CUDA(cudaStreamDestroy(w->rank[r].stream));
		NEED_CUDA(cudaFreeHost(w->rank[r].records));
	}
	for (uint32_t i = 0; i < w->allocations; i++) {
		NEED_CUDA(cudaFree(w->memory[i]));
	}
	ht_tables_close(&w->t);
	free(w);
}

void ht_world_poison(struct ht_world *w)
{
	const struct ht_shape *s = &w->shape;

	for (uint32_t r = 0; r < s->ranks; r++) {
		struct ep_ht_dispatch_args *a = &w->rank[r].args;
		uint64_t rows = w->rank[r].out_rows + HT_GUARD_ROWS;

		NEED_CUDA(cudaMemset(a->out_tokens, HT_POISON, rows * s->token_bytes));
		NEED_CUDA(cudaMemset(a->out_scales, HT_POISON, rows * s->scale_bytes));
		if (a->out_weights) {
			NEED_CUDA(cudaMemset(a->out_weights, HT_POISON,
					     rows * 4 * (a->out_idx ? s->topk : 1)));
		}
		if (a->out_idx) {
			NEED_CUDA(cudaMemset(a->out_idx, HT_POISON, rows * 8 * s->topk));
		}
	}
	NEED_CUDA(cudaDeviceSynchronize());
}

void ht_world_launch(struct ht_world *w, int missing)
{
	const struct ht_shape *s = &w->shape;
	uint32_t shared = ep_ht_stage_bytes(s->warps, s->stage_parts, s->part_bytes);

	NEED_CUDA(cudaFuncSetAttribute((const void *)ep_ht_dispatch_kernel,
				       cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
	for (uint32_t r = 0; r < s->ranks; r++) {
		cudaLaunchConfig_t config = { .gridDim = { s->blocks, 1, 1 },
					      .blockDim = { 32 * s->warps, 1, 1 },
					      .dynamicSmemBytes = shared,
					      .stream = w->rank[r].stream };
		void *list[] = { &w->rank[r].args };

		if ((int)r != missing) {
			NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ep_ht_dispatch_kernel,
						      list));
		}
	}
}
