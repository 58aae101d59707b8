/* SPDX-License-Identifier: Apache-2.0 */
#include "device/kernels.h"
#include "ht_route.h"

struct rig_pinned {
	struct ep_record records[EP_RECORDS];
	unsigned char *heap[RIG_RANKS];
	uint32_t async_error;
};

static void rig_place(struct rig *rig)
{
	const struct rig_shape *s = &rig->shape;
	uint64_t r = s->nranks, b = s->max_tokens, k = s->topk,
		 chunks = ep_ht_chunks(s->max_tokens, s->chunk_shift);
	uint64_t width = k < s->nlocal ? k : s->nlocal;
	uint64_t slots = r * b < s->limit ? r * b : s->limit;
	const uint64_t bytes[RIG_PIECES] = {
		[RIG_PROGRESS] = 8 * r,
		[RIG_SIGNATURE] = EP_SIGNATURE_BYTES(r),
		[RIG_SIGN] = 8 * r,
		[RIG_COUNT] = 8 * 2 * r * (r * (s->nlocal + 1) + 1),
		[RIG_START] = 8 * r * (chunks + 1),
		[RIG_SEL] = 16 * r * b * ((width + 1) / 2),
		[RIG_SCRATCH] = ep_ht_scratch_bytes(s->nranks, s->nranks * s->nlocal),
		[RIG_SEQ] = EP_GROUP_MAX_BLOCKS * sizeof(struct ep_dev_seq),
		[RIG_STATE] = sizeof(struct ep_dev_state),
		[RIG_STATS] = r * sizeof(struct ep_peer_stats),
		[RIG_HEAD] = sizeof(struct ep_ht_head),
		[RIG_SEND_SEL] = 4 * b * k,
		[RIG_SEND_ROW] = 4 * b * k,
		[RIG_SEND_PLACE] = s->layout == EP_HT_FLAT ? 0 : 4 * b * k,
		[RIG_SEND_START] = 4 * r * (chunks + 1),
		[RIG_SEND_BASE] = 4 * r,
		[RIG_RECV_BASE] = 4 * (r + 1),
		[RIG_RECV_START] = 4 * r * (chunks + 1),
		[RIG_RECV_SEL] = 4 * slots * width,
		[RIG_ZONES] = s->layout == EP_HT_FLAT ? 0 : s->nlocal * sizeof(struct ep_ht_zone),
		[RIG_IDS] = b * k * s->id_bytes,
		[RIG_COUNTERS] = (uint64_t)s->nlocal * s->counter_bytes,
		[RIG_OFFSETS] = (uint64_t)s->nlocal * s->counter_bytes,
		[RIG_TOTAL] = s->total_bytes,
	};
	uint64_t at = 0;

	for (int i = 0; i < RIG_PIECES; i++) {
		rig->off[i] = at;
		rig->bytes[i] = bytes[i];
		at += (bytes[i] + 64 + 255) & ~(uint64_t)255;
	}
	rig->off[RIG_PIECES] = at;
}

static void rig_args(struct rig *rig, uint32_t r)
{
	const struct rig_shape *s = &rig->shape;
	struct rig_rank *rank = &rig->rank[r];
	struct ep_ht_route_args *a = &rank->args;
	struct ep_ht_common *c = &a->c;
	struct rig_pinned *pinned = (struct rig_pinned *)rank->records;
	unsigned char *at[RIG_PIECES];

	for (int i = 0; i < RIG_PIECES; i++) {
		at[i] = rig->bytes[i] ? rank->memory + rig->off[i] : NULL;
	}
	memset(a, 0, sizeof(*a));
	c->g.rank = c->g.index = r;
	c->g.nranks = s->nranks;
	c->g.banks = 1;
	c->g.by_ranks = ep_div_make(s->nranks);
	c->g.timeout_ns = UINT64_C(30000000000);
	c->g.seq = (struct ep_dev_seq *)at[RIG_SEQ];
	c->g.state = (struct ep_dev_state *)at[RIG_STATE];
	c->g.stats = (struct ep_peer_stats *)at[RIG_STATS];
	c->g.records = rank->records;
	c->g.async_error = &pinned->async_error;
	c->g.own = rank->memory;
	c->g.all_heaps = pinned->heap;
	for (uint32_t p = 0; p < s->nranks; p++) {
		pinned->heap[p] = rig->rank[p].memory;
		if (p < EP_GROUP_NEAR_RANKS) {
			c->g.heap[p] = rig->rank[p].memory;
		}
	}
	c->areas.chunk_shift = s->chunk_shift;
	c->g.signature_off = rig->off[RIG_SIGNATURE];
	c->areas.sign_off = rig->off[RIG_SIGN];
	c->areas.count_off = rig->off[RIG_COUNT];
	c->areas.start_off = rig->off[RIG_START];
	c->areas.sel_off = rig->off[RIG_SEL];
	c->h.head = (struct ep_ht_head *)at[RIG_HEAD];
	c->h.send_sel = (uint32_t *)at[RIG_SEND_SEL];
	c->h.send_row = (uint32_t *)at[RIG_SEND_ROW];
	c->h.send_place = (uint32_t *)at[RIG_SEND_PLACE];
	c->h.send_start = (uint32_t *)at[RIG_SEND_START];
	c->h.send_base = (uint32_t *)at[RIG_SEND_BASE];
	c->h.recv_base = (uint32_t *)at[RIG_RECV_BASE];
	c->h.recv_start = (uint32_t *)at[RIG_RECV_START];
	c->h.recv_sel = (uint32_t *)at[RIG_RECV_SEL];
	c->h.zones = (struct ep_ht_zone *)at[RIG_ZONES];
	c->h.scratch = (uint32_t *)at[RIG_SCRATCH];
	c->launch.halves = EP_HALF_SEND | EP_HALF_RECV;
	c->stamp = RIG_STAMP;
	c->launch.hash = 77;
	c->layout = s->layout;
	c->max_tokens = s->max_tokens;
	c->experts = s->nranks * s->nlocal;
	c->nlocal = s->nlocal;
	c->roles = (struct ep_ht_roles){
		0,         s->nranks, 0,         s->nranks,    r, r, s->nranks,
		s->nranks, r + 1,     s->nranks, s->nranks - 1
	};
	c->topk = s->topk;
	c->width = s->topk < s->nlocal ? s->topk : s->nlocal;
	c->areas.list_stride = ep_ht_list_bytes(c->width);
	c->limit = s->limit;
	c->by_local = ep_div_make(s->nlocal);
	c->by_width = ep_div_make(c->width);
	a->topk_idx = at[RIG_IDS];
	a->id_bytes = s->id_bytes;
	a->alignment = s->alignment;
	a->drop = s->drop;
	a->counters.bytes = s->counter_bytes;
	a->counters.total_bytes = s->total_bytes;
	a->counters.experts = s->no_counters & 1 ? NULL : at[RIG_COUNTERS];
	a->counters.offsets = s->no_counters & 2 || s->layout == EP_HT_FLAT ? NULL
									    : at[RIG_OFFSETS];
	a->counters.total = s->no_counters & 4 ? NULL : at[RIG_TOTAL];
	a->by_topk = ep_div_make(s->topk);
}

/* Handle memory and outputs hold anything at first. */
static void rig_fill(struct rig *rig, uint32_t r)
{
	struct rig_rank *rank = &rig->rank[r];
	struct ep_dev_seq *seq;

	memset(rank->copy, RIG_GUARD, rig->off[RIG_PIECES]);
	for (int i = 0; i < RIG_ZEROED; i++) {
		memset(rank->copy + rig->off[i], 0, rig->bytes[i]);
	}
	seq = rig_at(rig, r, RIG_SEQ);
	for (int i = 0; i < EP_GROUP_MAX_BLOCKS; i++) {
		seq[i].busy = ep_seq_busy(1);
	}
	NEED_CUDA(
		cudaMemcpy(rank->memory, rank->copy, rig->off[RIG_PIECES], cudaMemcpyHostToDevice));
}

void rig_make(struct rig *rig, const struct rig_shape *shape, int devices)
{
	memset(rig, 0, sizeof(*rig));
	rig->shape = *shape;
	rig_place(rig);
	for (uint32_t r = 0; r < shape->nranks; r++) {
		struct rig_rank *rank = &rig->rank[r];

		rank->device = (int)r % devices;
		NEED_CUDA(cudaSetDevice(rank->device));
		NEED_CUDA(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
		NEED_CUDA(cudaMalloc((void **)&rank->memory, rig->off[RIG_PIECES]));
		NEED_CUDA(cudaHostAlloc((void **)&rank->records, sizeof(struct rig_pinned),
					cudaHostAllocMapped | cudaHostAllocPortable));
		memset(rank->records, 0, sizeof(struct rig_pinned));
		rank->copy = malloc(rig->off[RIG_PIECES]);
		rank->ids = calloc((size_t)shape->max_tokens * shape->topk, sizeof(*rank->ids));
		NEED(rank->copy && rank->ids);
		rig_fill(rig, r);
	}
	for (uint32_t r = 0; r < shape->nranks; r++) {
		rig_args(rig, r);
	}
	NEED_CUDA(cudaFuncSetAttribute((const void *)ep_ht_route_kernel,
				       cudaFuncAttributeMaxDynamicSharedMemorySize,
				       (int)ep_ht_route_shared(shape->nranks, shape->nranks,
							       shape->nranks * shape->nlocal)));
}

void rig_free(struct rig *rig)
{
	for (uint32_t r = 0; r < rig->shape.nranks; r++) {
		struct rig_rank *rank = &rig->rank[r];

		NEED_CUDA(cudaSetDevice(rank->device));
		NEED_CUDA(cudaStreamDestroy(rank->stream));
		NEED_CUDA(cudaFree(rank->memory));
		NEED_CUDA(cudaFreeHost(rank->records));
		free(rank->copy);
		free(rank->ids);
	}
}

void rig_load(struct rig *rig, uint32_t r)
{
	const struct rig_shape *s = &rig->shape;
	struct rig_rank *rank = &rig->rank[r];
	size_t n = (size_t)rank->tokens * s->topk;
	int32_t *narrow = malloc(4 * n + 4);

	NEED(narrow);
	for (size_t i = 0; i < n; i++) {
		narrow[i] = (int32_t)rank->ids[i];
	}
	NEED_CUDA(cudaSetDevice(rank->device));
	NEED_CUDA(cudaMemcpy(rank->memory + rig->off[RIG_IDS],
			     s->id_bytes == 8 ? (const void *)rank->ids : narrow, n * s->id_bytes,
			     cudaMemcpyHostToDevice));
	free(narrow);
	rank->args.c.num_tokens = rank->tokens;
}

void rig_launch(struct rig *rig, uint32_t r)
{
	const struct rig_shape *s = &rig->shape;
	struct rig_rank *rank = &rig->rank[r];
	cudaLaunchConfig_t config = {
		.gridDim = { s->blocks, 1, 1 },
		.blockDim = { s->threads, 1, 1 },
		.dynamicSmemBytes = ep_ht_route_shared(s->nranks, s->nranks, s->nranks * s->nlocal),
		.stream = rank->stream,
	};
	void *list[] = { &rank->args };

	NEED_CUDA(cudaSetDevice(rank->device));
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ep_ht_route_kernel, list));
}

void rig_wait(struct rig *rig, uint32_t r)
{
	NEED_CUDA(cudaSetDevice(rig->rank[r].device));
	NEED_CUDA(cudaStreamSynchronize(rig->rank[r].stream));
}

void rig_fetch(struct rig *rig, uint32_t r)
{
	struct rig_rank *rank = &rig->rank[r];
	uint64_t wrong = 0;

	NEED_CUDA(cudaSetDevice(rank->device));
	NEED_CUDA(
		cudaMemcpy(rank->copy, rank->memory, rig->off[RIG_PIECES], cudaMemcpyDeviceToHost));
	for (int i = 0; i < RIG_PIECES; i++) {
		for (uint64_t at = rig->off[i] + rig->bytes[i]; at < rig->off[i + 1]; at++) {
			wrong += rank->copy[at] != RIG_GUARD;
		}
		CHECK(wrong == 0, "rank %u, behind piece %d", r, i);
	}
}

void *rig_at(const struct rig *rig, uint32_t r, enum rig_piece piece)
{
	return rig->rank[r].copy + rig->off[piece];
}
