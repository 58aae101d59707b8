/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures: what a rank passes to an operation, in the words that kernels compare, and in words
 * where two ranks differ.
 */
#include <stdio.h>
#include <string.h>
#include "ep/ep.h"

/* In EP_SIGNATURE_RECIPE, above the recipe's index in its table. */
#define EP_SIGNATURE_ROUND_SCALES 16u

/* In EP_SIGNATURE_DIRECTION, behind both directions. */
#define EP_SIGNATURE_ARRIVALS 2u

static struct ep_signature signature_begin(const struct ncclEpHandle *handle, uint32_t call)
{
	struct ep_signature s = { { 0 } };

	s.word[EP_SIGNATURE_CALL] = call;
	s.word[EP_SIGNATURE_LAYOUT] = (uint32_t)handle->layout;
	s.word[EP_SIGNATURE_TOPK] = handle->topk;
	s.word[EP_SIGNATURE_ALIGNMENT] = handle->alignment;
	return s;
}

struct ep_signature ep_signature_update(const struct ncclEpHandle *handle)
{
	return signature_begin(handle, EP_SIGNATURE_UPDATE);
}

/* 0: there is no such tensor. */
static void signature_tensor(struct ep_signature *signature, enum ep_signature_field type,
			     const struct ep_view *view, unsigned int dim)
{
	signature->word[type] = (uint32_t)view->datatype + 1;
	signature->word[type + 1] = (uint32_t)view->sizes[dim];
}

struct ep_signature ep_signature_dispatch(const struct ep_dispatch *dispatch)
{
	struct ep_signature s = signature_begin(dispatch->h, dispatch->config.send_only
								     ? EP_SIGNATURE_DISPATCH_SEND
								     : EP_SIGNATURE_DISPATCH);
	bool rounded = dispatch->recipe->format == EP_ROW_FP8 && dispatch->config.round_scales;

	s.word[EP_SIGNATURE_DIRECTION] = (uint32_t)dispatch->config.pass_direction;
	s.word[EP_SIGNATURE_RECIPE] = (uint32_t)(dispatch->recipe - ep_dispatch_recipes) |
				      (rounded ? EP_SIGNATURE_ROUND_SCALES : 0);
	signature_tensor(&s, EP_SIGNATURE_TOKENS_TYPE, &dispatch->tokens, 1);
	if (dispatch->recipe->value == NCCL_EP_DISP_QUANT_FWD) {
		signature_tensor(&s, EP_SIGNATURE_SCALES_TYPE, &dispatch->scales, 1);
	}
	return s;
}

struct ep_signature ep_signature_combine(const struct ep_combine *c)
{
	struct ep_signature s = signature_begin(
		c->h, c->config.send_only ? EP_SIGNATURE_COMBINE_SEND : EP_SIGNATURE_COMBINE);

	s.word[EP_SIGNATURE_DIRECTION] = (uint32_t)c->config.pass_direction;
	s.word[EP_SIGNATURE_RECIPE] = (uint32_t)(c->recipe - ep_combine_recipes);
	signature_tensor(&s, EP_SIGNATURE_TOKENS_TYPE, &c->out_tokens, 1);
	return s;
}

void ep_signature_windows(struct ep_signature *signature, uint64_t offset, uint64_t scale_offset)
{
	signature->word[EP_SIGNATURE_WINDOW] = 1;
	memcpy(&signature->word[EP_SIGNATURE_TOKENS_OFFSET], &offset, sizeof(offset));
	memcpy(&signature->word[EP_SIGNATURE_SCALES_OFFSET], &scale_offset, sizeof(scale_offset));
}

void ep_signature_arrivals(struct ep_signature *signature)
{
	signature->word[EP_SIGNATURE_DIRECTION] += EP_SIGNATURE_ARRIVALS;
}

/* Of all words but the origin. Two signatures have the same one once in 2^32. */
static uint32_t signature_hash(const struct ep_signature *signature)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (int i = 0; i < EP_SIGNATURE_ORIGIN; i++) {
		h = (h ^ signature->word[i]) * 0xd6e8feb86659fd93u;
		h ^= h >> 32;
	}
	return (uint32_t)h;
}

void ep_signature_launch(struct ep_dev_launch *launch, const struct ep_signature *signature)
{
	launch->signature = *signature;
	launch->hash = signature_hash(signature);
	launch->sent_hash = launch->hash;
}

void ep_signature_complete(struct ep_dev_launch *launch)
{
	launch->signature.word[EP_SIGNATURE_CALL]++;
	launch->hash = signature_hash(&launch->signature);
}

bool ep_signature_whole(const struct ep_signature_slot *slot, uint32_t step)
{
	uint32_t origin = slot->signature.word[EP_SIGNATURE_ORIGIN];
	uint32_t seal = ep_signature_seal(signature_hash(&slot->signature), origin);

	return slot->mark == ((uint64_t)step << 32 | seal);
}

/* ---- in words ---- */

static const char *const signature_calls[] = {
	[EP_SIGNATURE_UPDATE] = "UpdateHandle",
	[EP_SIGNATURE_DISPATCH] = "dispatch",
	[EP_SIGNATURE_DISPATCH_SEND] = "send_only dispatch",
	[EP_SIGNATURE_DISPATCH_RECV] = "Complete of a dispatch",
	[EP_SIGNATURE_COMBINE] = "combine",
	[EP_SIGNATURE_COMBINE_SEND] = "send_only combine",
	[EP_SIGNATURE_COMBINE_RECV] = "Complete of a combine",
};
static const char *const signature_directions[] = { "FWD", "BWD", "FWD with arrivals",
						    "BWD with arrivals" };
static const char *const signature_layouts[] = { "UNSET", "EXPERT_MAJOR", "RANK_MAJOR", "FLAT" };
static const char *const signature_windows_used[] = { "no", "yes" };

#define EP_SIGNATURE_NAMES(names_) names_, EP_ARRAY_SIZE(names_)

/* By field. Without names a value is a number, or a type. */
static const struct {
	const char *what;
	const char *const *names;
	size_t count;
} signature_fields[EP_SIGNATURE_WORDS] = {
	[EP_SIGNATURE_CALL] = { "the call", EP_SIGNATURE_NAMES(signature_calls) },
	[EP_SIGNATURE_DIRECTION] = { "config->pass_direction",
				     EP_SIGNATURE_NAMES(signature_directions) },
	[EP_SIGNATURE_LAYOUT] = { "the handle's layout", EP_SIGNATURE_NAMES(signature_layouts) },
	[EP_SIGNATURE_TOPK] = { "the handle's num_topk", NULL, 0 },
	[EP_SIGNATURE_RECIPE] = { "config->quant_recipe", NULL, 0 },
	[EP_SIGNATURE_TOKENS_TYPE] = { "the type of tokens", NULL, 0 },
	[EP_SIGNATURE_TOKENS_EXTENT] = { "the number of elements per token", NULL, 0 },
	[EP_SIGNATURE_SCALES_TYPE] = { "the type of inputs->scales", NULL, 0 },
	[EP_SIGNATURE_SCALES_EXTENT] = { "the number of scales per token", NULL, 0 },
	[EP_SIGNATURE_ALIGNMENT] = { "the handle's dispatch_output_per_expert_alignment", NULL, 0 },
	[EP_SIGNATURE_WINDOW] = { "whether received rows are in a window, as that of an empty "
				  "tensor has to be, too,",
				  EP_SIGNATURE_NAMES(signature_windows_used) },
	[EP_SIGNATURE_TOKENS_OFFSET] = { "win_offset of the received tokens", NULL, 0 },
	[EP_SIGNATURE_SCALES_OFFSET] = { "win_offset of the received scales", NULL, 0 },
};

const char *ep_signature_call(const struct ep_signature *signature)
{
	uint32_t call = signature->word[EP_SIGNATURE_CALL];

	return call && call < EP_ARRAY_SIZE(signature_calls) ? signature_calls[call] : "operation";
}

static const char *signature_origin(uint32_t call, bool halves)
{
	if (call == EP_SIGNATURE_DISPATCH_RECV || call == EP_SIGNATURE_COMBINE_RECV) {
		return "the number of the send_only operation";
	}
	return halves ? "the number of the handle's last dispatch"
		      : "the number of the UpdateHandle whose routing is in handle_mem";
}

static void signature_print_recipe(const struct ep_signature *signature, char *text, size_t size)
{
	const struct ep_recipe *recipes = signature->word[EP_SIGNATURE_CALL] < EP_SIGNATURE_COMBINE
						  ? ep_dispatch_recipes
						  : ep_combine_recipes;
	uint32_t v = signature->word[EP_SIGNATURE_RECIPE], i = 0;

	while (recipes[i].name && i != (v & ~EP_SIGNATURE_ROUND_SCALES)) {
		i++;
	}
	if (!recipes[i].name) { /* a rank with another version of the library */
		snprintf(text, size, "%u", v);
		return;
	}
	snprintf(text, size, "%s%s", recipes[i].name,
		 v & EP_SIGNATURE_ROUND_SCALES ? " with round_scales" : "");
}

/* The field begins at `i`. */
static void signature_print(const struct ep_signature *signature, uint32_t i, char *text,
			    size_t size)
{
	uint32_t v = signature->word[i];
	uint64_t offset;

	if (i == EP_SIGNATURE_TOKENS_OFFSET || i == EP_SIGNATURE_SCALES_OFFSET) {
		memcpy(&offset, &signature->word[i], sizeof(offset));
		snprintf(text, size, "%llu", (unsigned long long)offset);
	} else if (i == EP_SIGNATURE_RECIPE) {
		signature_print_recipe(signature, text, size);
	} else if (i == EP_SIGNATURE_TOKENS_TYPE || i == EP_SIGNATURE_SCALES_TYPE) {
		snprintf(text, size, "%s", v ? ep_dtype_name((ncclDataType_t)(v - 1)) : "none");
	} else if (i == EP_SIGNATURE_ORIGIN && (!v || v == EP_SIGNATURE_REFUSED)) {
		snprintf(text, size, "%s", v ? "of no use (see the error of that rank)" : "none");
	} else if (v < signature_fields[i].count && signature_fields[i].names[v]) {
		snprintf(text, size, "%s", signature_fields[i].names[v]);
	} else {
		snprintf(text, size, "%u", v);
	}
}

void ep_signature_explain(const struct ep_signature *theirs, int rank,
			  const struct ep_signature *ours, int self, bool halves, char *text,
			  size_t size)
{
	char its[64], mine[64];
	uint32_t i = 0;

	while (i + 1 < EP_SIGNATURE_WORDS && theirs->word[i] == ours->word[i]) {
		i++;
	}
	if (i != EP_SIGNATURE_ORIGIN && !signature_fields[i].what) {
		i--; /* the high word of an offset */
	}
	signature_print(theirs, i, its, sizeof(its));
	signature_print(ours, i, mine, sizeof(mine));
	snprintf(text, size, "%s is %s on rank %d, %s on rank %d",
		 i == EP_SIGNATURE_ORIGIN ? signature_origin(ours->word[EP_SIGNATURE_CALL], halves)
					  : signature_fields[i].what,
		 its, rank, mine, self);
}
