/* SPDX-License-Identifier: Apache-2.0 */
/* Callers' structs and descriptors with mistakes. */
#include <stdarg.h>
#include "fuzz/fuzz.h"
#include "nccl_ep/ext.h"

#define DRAW(below) world_draw(m->state, below)

void mutation_begin(struct mutation *m, uint64_t *state, const ncclEpTensor_t *spare)
{
	memset(m, 0, sizeof(*m));
	m->state = state;
	m->spare = spare;
}

void mutation_end(struct mutation *m)
{
	while (m->blocks > 0) {
		free(m->block[--m->blocks]);
	}
}

bool mutation_sure(const struct mutation *m)
{
	return m->count == 1 && m->sure;
}

static __attribute__((format(printf, 3, 4))) void note(struct mutation *m, bool sure,
						       const char *format, ...)
{
	size_t n = strlen(m->text);
	va_list args;

	m->count++;
	m->sure = sure;
	va_start(args, format);
	vsnprintf(m->text + n, sizeof(m->text) - n, format, args);
	va_end(args);
}

static void *fresh(struct mutation *m, size_t bytes)
{
	void *block = malloc(bytes);

	NEED(block && m->blocks < MUTATE_BLOCKS);
	memset(block, 0xee, bytes);
	m->block[m->blocks++] = block;
	return block;
}

uint64_t mutate_number(struct mutation *m, const char *name, uint64_t good)
{
	static const uint64_t values[] = { 0,
					   1,
					   2,
					   3,
					   4,
					   5,
					   7,
					   8,
					   16,
					   31,
					   32,
					   33,
					   64,
					   127,
					   128,
					   1024,
					   65535,
					   65536,
					   0x7fffffff,
					   0x80000000,
					   0xffffffff,
					   UINT64_C(0x100000000),
					   UINT64_C(0x7fffffffffffffff),
					   UINT64_C(0x8000000000000000),
					   UINT64_MAX };
	uint64_t v;

	switch (DRAW(4)) {
	case 0:
		v = good + 1 - 2 * DRAW(2);
		break;
	case 1:
		v = DRAW(0) >> DRAW(64);
		break;
	case 2:
		v = good ^ UINT64_C(1) << DRAW(64);
		break;
	default:
		v = values[DRAW(sizeof(values) / sizeof(values[0]))];
		break;
	}
	note(m, false, " %s 0x%llx", name, (unsigned long long)v);
	return v;
}

static uint32_t wrong_word(struct mutation *m, uint32_t good)
{
	switch (DRAW(4)) {
	case 0:
		return good ^ 1u << DRAW(32);
	case 1:
		return 0;
	case 2:
		return good == NCCL_EP_MAGIC ? NCCL_EP_TENSOR_MAGIC : NCCL_EP_MAGIC;
	default:
		return good + 1 + (uint32_t)DRAW(UINT32_MAX);
	}
}

/* A size that is too small for version 1 is refused; any other only ends the struct elsewhere. */
static void *resize(struct mutation *m, const struct form *form, const void *good)
{
	static const unsigned int more[] = { 1, 4, 8, 64, 1024 };
	unsigned int size;
	size_t real;
	void *copy;

	switch (DRAW(4)) {
	case 0:
		size = (unsigned int)DRAW(form->v1_size);
		break;
	case 1:
		size = form->size + more[DRAW(5)];
		break;
	case 2:
		size = UINT32_MAX - (unsigned int)DRAW(2) * 0x7fffffff;
		break;
	default:
		size = form->v1_size + (unsigned int)DRAW(form->size - form->v1_size + 1);
		break;
	}
	real = size > 65536 ? form->size : size < 8 ? 8 : size;
	copy = fresh(m, real);
	memcpy(copy, good, real < form->size ? real : form->size);
	memcpy(copy, &size, sizeof(size));
	note(m, size < form->v1_size, " %s->size %u", form->name, size);
	return copy;
}

static void mutate_field(struct mutation *m, const struct form *form, char *copy)
{
	uint32_t n = 0;
	const struct field *f;
	ncclEpTensor_t *t;
	uint64_t v = 0;
	uint32_t bytes;

	while (n < MUTATE_FIELDS && form->field[n].name) {
		n++;
	}
	if (n == 0) {
		return;
	}
	f = form->field + DRAW(n);
	if (f->kind == FIELD_TENSOR) {
		memcpy(&t, copy + f->offset, sizeof(t));
		t = mutate_tensor(m, f->name, t, f->any_extent, true);
		memcpy(copy + f->offset, &t, sizeof(t));
		return;
	}
	bytes = f->kind == FIELD_U64 ? 8 : 4;
	memcpy(&v, copy + f->offset, bytes);
	v = mutate_number(m, f->name, v);
	v = bytes == 4 ? (uint32_t)v : v;
	m->sure = v > f->most;
	memcpy(copy + f->offset, &v, bytes);
}

void *mutate_struct(struct mutation *m, const struct form *form, const void *good, bool wrong)
{
	uint32_t magic;
	char *copy, *shifted;

	if (!good) {
		return NULL;
	}
	copy = fresh(m, form->size);
	memcpy(copy, good, form->size);
	for (uint32_t i = 0; i < MUTATE_FIELDS && form->field[i].name; i++) {
		ncclEpTensor_t *t;

		if (form->field[i].kind == FIELD_TENSOR) {
			memcpy(&t, copy + form->field[i].offset, sizeof(t));
			t = mutate_tensor(m, "", t, true, false);
			memcpy(copy + form->field[i].offset, &t, sizeof(t));
		}
	}
	switch (wrong ? DRAW(12) : 99) {
	case 0:
		note(m, !form->optional, " %s NULL", form->name);
		return NULL;
	case 1:
		memcpy(&magic, copy + 4, 4);
		magic = wrong_word(m, magic);
		memcpy(copy + 4, &magic, 4);
		note(m, true, " %s->magic 0x%x", form->name, magic);
		return copy;
	case 2:
	case 3:
		return resize(m, form, copy);
	case 4: /* legal: the library copies it first */
		shifted = fresh(m, form->size + 1);
		memcpy(shifted + 1, copy, form->size);
		note(m, false, " %s misaligned", form->name);
		return shifted + 1;
	case 99:
		return copy;
	default:
		mutate_field(m, form, copy);
		return copy;
	}
}

/*
 * Another window, none, or another place in it: that matters to some tensors, or if there is no
 * data.
 */
static void mutate_window(struct mutation *m, const char *name, ncclEpTensor_t *t)
{
	switch (DRAW(4)) {
	case 0:
		t->win_hdl = (ncclWindow_t)(uintptr_t)m->spare;
		note(m, !t->data, " %s.win_hdl not a window", name);
		break;
	case 1:
		t->win_hdl = NULL;
		note(m, !t->data, " %s.win_hdl NULL", name);
		break;
	case 2:
		t->win_offset += (uint64_t)16 << DRAW(5);
		note(m, false, " %s.win_offset %llu", name, (unsigned long long)t->win_offset);
		break;
	default:
		t->win_offset = mutate_number(m, name, t->win_offset);
		break;
	}
}

static void mutate_data(struct mutation *m, const char *name, ncclEpTensor_t *t)
{
	static const uint32_t shifts[] = { 1, 2, 4, 8, 16 };
	uint32_t shift = shifts[DRAW(5)];

	if (DRAW(3) == 0) {
		t->data = NULL;
		t->win_hdl = NULL;
		note(m, true, " %s.data NULL", name);
	} else if (!t->data || DRAW(4) == 0) {
		mutate_window(m, name, t);
	} else {
		/* every buffer has 16 bytes behind it */
		t->data = (char *)t->data + shift;
		note(m, shift < 4, " %s.data + %u", name, shift);
	}
}

ncclEpTensor_t *mutate_tensor(struct mutation *m, const char *name, const ncclEpTensor_t *good,
			      bool any_extent, bool wrong)
{
	ncclEpTensor_t *t;
	uint32_t dim;
	size_t old;

	if (!good && !wrong) {
		return NULL;
	}
	if (!good) {
		note(m, false, " %s present", name);
		good = m->spare;
		wrong = false;
	}
	t = fresh(m, sizeof(*t));
	*t = *good;
	t->sizes = fresh(m, good->ndim * sizeof(size_t));
	memcpy(t->sizes, good->sizes, good->ndim * sizeof(size_t));
	switch (wrong ? DRAW(10) : 99) {
	case 0:
		note(m, false, " %s NULL", name);
		return NULL;
	case 1:
		t->magic = wrong_word(m, t->magic);
		note(m, true, " %s.magic 0x%x", name, t->magic);
		break;
	case 2:
		t->size = (unsigned int)(DRAW(2) ? DRAW(NCCL_EP_TENSOR_V1_SIZE) : DRAW(0));
		note(m, t->size < NCCL_EP_TENSOR_V1_SIZE, " %s.size %u", name, t->size);
		break;
	case 3:
		t->ndim = (unsigned int)(DRAW(2) ? DRAW(8) : DRAW(0));
		note(m, t->ndim != good->ndim, " %s.ndim %u", name, t->ndim);
		break;
	case 4:
		t->datatype = (ncclDataType_t)(DRAW(2) ? DRAW(16) : DRAW(0));
		note(m, (unsigned int)t->datatype > 12, " %s.datatype %d", name, (int)t->datatype);
		break;
	case 5:
		t->sizes = NULL;
		note(m, true, " %s.sizes NULL", name);
		break;
	case 6:
		mutate_data(m, name, t);
		break;
	case 99:
		break;
	default:
		dim = (uint32_t)DRAW(t->ndim);
		old = t->sizes[dim];
		t->sizes[dim] = mutate_number(m, name, old);
		m->sure = !any_extent && t->sizes[dim] != old;
		break;
	}
	return t;
}

/* ---- the structs of operations and handles, as mutate.c wants to know them ---- */

#define AT(type, member) #member, offsetof(type, member)
#define TENSOR(type, member)                                                                       \
	{                                                                                          \
		AT(type, member), FIELD_TENSOR, 0, false                                           \
	}
#define WORD(type, member, most)                                                                   \
	{                                                                                          \
		AT(type, member), FIELD_U32, most, false                                           \
	}
#define ANY UINT64_MAX

const struct form form_in = {
	"inputs",
	NCCL_EP_DISPATCH_INPUTS_SIZE,
	NCCL_EP_DISPATCH_INPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpDispatchInputs_t, tokens), TENSOR(ncclEpDispatchInputs_t, topk_weights),
	  TENSOR(ncclEpDispatchInputs_t, scales) },
};
const struct form form_out = {
	"outputs",
	NCCL_EP_DISPATCH_OUTPUTS_SIZE,
	NCCL_EP_DISPATCH_OUTPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpDispatchOutputs_t, tokens), TENSOR(ncclEpDispatchOutputs_t, topk_weights),
	  TENSOR(ncclEpDispatchOutputs_t, scales), TENSOR(ncclEpDispatchOutputs_t, topk_idx) },
};
const struct form form_info = {
	"layout_info",
	NCCL_EP_LAYOUT_INFO_SIZE,
	NCCL_EP_LAYOUT_INFO_V1_SIZE,
	true,
	{ TENSOR(ncclEpLayoutInfo_t, expert_counters),
	  TENSOR(ncclEpLayoutInfo_t, src_rank_counters), TENSOR(ncclEpLayoutInfo_t, expert_offsets),
	  TENSOR(ncclEpLayoutInfo_t, recv_total_counter),
	  WORD(ncclEpLayoutInfo_t, recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL) },
};
const struct form form_config = {
	"config",
	NCCL_EP_DISPATCH_CONFIG_SIZE,
	NCCL_EP_DISPATCH_CONFIG_V1_SIZE,
	true,
	{ WORD(ncclEpDispatchConfig_t, send_only, ANY),
	  WORD(ncclEpDispatchConfig_t, round_scales, ANY),
	  WORD(ncclEpDispatchConfig_t, pass_direction, NCCL_EP_FWD_PASS),
	  WORD(ncclEpDispatchConfig_t, quant_recipe, NCCL_EP_EXT_DISP_QUANT_NVFP4) },
};
const struct form form_combine_in = {
	"inputs",
	NCCL_EP_COMBINE_INPUTS_SIZE,
	NCCL_EP_COMBINE_INPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpCombineInputs_t, tokens), TENSOR(ncclEpCombineInputs_t, topk_weights),
	  TENSOR(ncclEpCombineInputs_t, scales) },
};
const struct form form_combine_out = {
	"outputs",
	NCCL_EP_COMBINE_OUTPUTS_SIZE,
	NCCL_EP_COMBINE_OUTPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpCombineOutputs_t, tokens), TENSOR(ncclEpCombineOutputs_t, topk_weights) },
};
const struct form form_combine_config = {
	"config",
	NCCL_EP_COMBINE_CONFIG_SIZE,
	NCCL_EP_COMBINE_CONFIG_V1_SIZE,
	true,
	{ WORD(ncclEpCombineConfig_t, send_only, ANY),
	  WORD(ncclEpCombineConfig_t, pass_direction, NCCL_EP_FWD_PASS),
	  WORD(ncclEpCombineConfig_t, quant_recipe, NCCL_EP_EXT_COMB_QUANT_FP8) },
};
const struct form form_handle_config = {
	"config",
	NCCL_EP_HANDLE_CONFIG_SIZE,
	NCCL_EP_HANDLE_CONFIG_V1_SIZE,
	true,
	{ { AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment), FIELD_U64, ANY,
	    false } },
};
const struct form form_complete = {
	"config", NCCL_EP_COMPLETE_CONFIG_SIZE, NCCL_EP_COMPLETE_CONFIG_V1_SIZE, true, { { 0 } },
};
