/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of rows in the order of experts: by the kernel, and once more on the host from ids. */
#include <string.h>
#include "device/kernels.h"
#include "ep/ht/ht.h"
#include "ht_route.h"

/* Local expert e of rank d that is the token's first one there, or EP_HT_NONE. */
static uint32_t first_expert(const struct rig *rig, uint32_t r, uint32_t token, uint32_t d)
{
	const struct rig_shape *s = &rig->shape;
	uint32_t first = EP_HT_NONE;

	for (uint32_t k = 0; k < s->topk; k++) {
		int64_t local = rig->rank[r].ids[token * s->topk + k] - (int64_t)d * s->nlocal;

		if (local >= 0 && local < s->nlocal && (uint32_t)local < first) {
			first = (uint32_t)local;
		}
	}
	return first;
}

/* Tokens of rank r that go to rank d, in the order of first experts there. Returns how many. */
static uint32_t list_of(const struct rig *rig, uint32_t r, uint32_t d, uint32_t *tokens)
{
	uint32_t n = 0;

	for (uint32_t e = 0; e < rig->shape.nlocal; e++) {
		for (uint32_t t = 0; t < rig->rank[r].tokens; t++) {
			if (first_expert(rig, r, t, d) == e) {
				tokens[n++] = t;
			}
		}
	}
	return n;
}

/* Which row of those from rank r to rank d a token has. */
static uint32_t row_of(const struct rig *rig, uint32_t r, uint32_t d, uint32_t token)
{
	uint32_t row = 0;

	for (uint32_t t = 0; t < token; t++) {
		row += first_expert(rig, r, t, d) != EP_HT_NONE;
	}
	return row;
}

/* Rows that come to an expert of rank d. */
static uint32_t rows_of(const struct rig *rig, uint32_t d, uint32_t expert)
{
	const struct rig_shape *s = &rig->shape;
	uint32_t rows = 0;

	for (uint32_t r = 0; r < s->nranks; r++) {
		for (uint32_t t = 0; t < rig->rank[r].tokens; t++) {
			bool has = false;

			for (uint32_t k = 0; k < s->topk; k++) {
				has |= rig->rank[r].ids[t * s->topk + k] ==
				       (int64_t)d * s->nlocal + expert;
			}
			rows += has;
		}
	}
	return rows;
}

static void check_counts(const struct rig *rig, uint32_t d, const struct ep_ht_dev_arrivals *v)
{
	const struct ep_ht_zone *zones = rig_at(rig, d, RIG_ZONES);
	const struct ep_ht_head *head = rig_at(rig, d, RIG_HEAD);

	CHECK_INT(v->head->failed, 0);
	CHECK_INT(v->head->experts, rig->shape.nlocal);
	CHECK_INT(v->head->routing, head->routing);
	for (uint32_t e = 0; e < rig->shape.nlocal; e++) {
		uint32_t rows = rows_of(rig, d, e);

		CHECK_INT(v->experts[e].missing, rows);
		CHECK_INT(v->experts[e].rows, rows);
		CHECK_INT(v->experts[e].first, zones[e].first);
	}
}

static void check_lists(const struct rig *rig, uint32_t me, const struct ep_ht_dev_arrivals *v)
{
	const struct rig_shape *s = &rig->shape;
	const uint32_t *base = rig_at(rig, me, RIG_RECV_BASE);
	uint32_t *tokens = calloc(s->max_tokens + 1, sizeof(*tokens)), n, wrong = 0;

	NEED(tokens);
	for (uint32_t r = 0; r < s->nranks; r++) {
		n = list_of(rig, me, r, tokens);
		CHECK_INT(v->rows[r], n);
		wrong += memcmp(v->send + (size_t)r * s->max_tokens, tokens, 4 * n) != 0;
		n = list_of(rig, r, me, tokens);
		CHECK_INT(v->rows[s->nranks + r], n);
		for (uint32_t i = 0; i < n; i++) {
			wrong += v->recv[base[r] + i] != base[r] + row_of(rig, r, me, tokens[i]);
		}
	}
	CHECK(wrong == 0, "rank %u: %u of its lists, and rows of them, are wrong", me, wrong);
	free(tokens);
}

/* Each place's expert is that in whose zone it is. */
static void check_experts(const struct rig *rig, uint32_t me, const struct ep_ht_dev_arrivals *v)
{
	const struct rig_shape *s = &rig->shape;
	const uint32_t *sel = rig_at(rig, me, RIG_RECV_SEL), *base = rig_at(rig, me, RIG_RECV_BASE);
	const struct ep_ht_zone *zones = rig_at(rig, me, RIG_ZONES);
	uint32_t width = s->topk < s->nlocal ? s->topk : s->nlocal, wrong = 0;

	for (uint32_t slot = 0; slot < base[s->nranks]; slot++) {
		for (uint32_t k = 0; k < width; k++) {
			uint32_t place = sel[slot * width + k],
				 e = v->recv_expert[slot * width + k];

			if (place == EP_HT_NONE) {
				break;
			}
			wrong += e >= s->nlocal || place < zones[e].first ||
				 place >= zones[e].first + zones[e].rows;
		}
	}
	CHECK(wrong == 0, "rank %u: %u places have a wrong expert", me, wrong);
}

/* `v` on the host's side of the same memory: the offset of both is the same everywhere. */
static struct ep_ht_dev_arrivals moved(struct ep_ht_dev_arrivals v, ptrdiff_t by)
{
	v.head = (void *)((char *)v.head + by);
	v.experts = (void *)((char *)v.experts + by);
	v.rows = (void *)((char *)v.rows + by);
	v.send = (void *)((char *)v.send + by);
	v.recv = (void *)((char *)v.recv + by);
	v.recv_expert = (void *)((char *)v.recv_expert + by);
	return v;
}

void lists_check(struct rig *rig)
{
	const struct rig_shape *s = &rig->shape;
	struct ep_shape shape = { .nranks = s->nranks,
				  .nlocal = s->nlocal,
				  .max_tokens = s->max_tokens,
				  .limit = s->limit };

	for (uint32_t r = 0; r < s->nranks; r++) {
		struct rig_rank *rank = &rig->rank[r];
		struct ep_ht_order_args a = { .c = rank->args.c };
		uint64_t bytes = ep_ht_arrivals_layout(&shape, s->topk, NULL, &a.arrivals);
		cudaLaunchConfig_t config = {
			.gridDim = { 2 * s->nranks + 2, 1, 1 },
			.blockDim = { 32 * EP_HT_ORDER_WARPS, 1, 1 },
			.dynamicSmemBytes =
				s->nlocal <= EP_HT_ORDER_SHARED ? ep_ht_order_sums(s->nlocal) : 0,
			.stream = rank->stream,
		};
		void *list[] = { &a };
		unsigned char *memory, *copy = malloc(bytes);

		NEED(copy);
		NEED_CUDA(cudaSetDevice(rank->device));
		NEED_CUDA(cudaMalloc((void **)&memory, bytes));
		ep_ht_arrivals_layout(&shape, s->topk, memory, &a.arrivals);
		NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ep_ht_order_kernel, list));
		NEED_CUDA(cudaStreamSynchronize(rank->stream));
		NEED_CUDA(cudaMemcpy(copy, memory, bytes, cudaMemcpyDeviceToHost));
		a.arrivals = moved(a.arrivals, copy - memory);
		check_counts(rig, r, &a.arrivals);
		check_lists(rig, r, &a.arrivals);
		check_experts(rig, r, &a.arrivals);
		NEED_CUDA(cudaFree(memory));
		free(copy);
	}
}
