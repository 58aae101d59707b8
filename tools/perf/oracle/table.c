/* SPDX-License-Identifier: Apache-2.0 */
/* The routing of all ranks, and an index of the tokens that one rank receives. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

#define MAX_LINES 8

void oracle_blame(struct oracle_verdict *verdict, const char *format, ...)
{
	size_t used = strlen(verdict->text);
	va_list args;

	verdict->wrong++;
	if (verdict->lines >= MAX_LINES || used + 2 >= sizeof(verdict->text)) {
		return;
	}
	verdict->lines++;
	va_start(args, format);
	vsnprintf(verdict->text + used, sizeof(verdict->text) - used - 1, format, args);
	va_end(args);
	strcat(verdict->text, "\n");
}

int oracle_fetch(const struct oracle_mem *mem, void *to, const void *from, size_t bytes)
{
	if (mem && mem->read) {
		return bytes ? mem->read(mem->context, to, from, bytes) : 0;
	}
	memcpy(to, from, bytes);
	return 0;
}

int oracle_put(const struct oracle_mem *mem, void *to, const void *from, size_t bytes)
{
	if (mem && mem->write) {
		return bytes ? mem->write(mem->context, to, from, bytes) : 0;
	}
	memcpy(to, from, bytes);
	return 0;
}

int oracle_is_poison(const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (bytes[i] != ORACLE_POISON) {
			return 0;
		}
	}
	return 1;
}

uint64_t oracle_row_key(const uint8_t *row)
{
	uint64_t words[2];

	memcpy(words, row, ORACLE_KEY_BYTES);
	return oracle_hash(words[0], words[1]);
}

uint32_t oracle_selections(const struct oracle_table *table, uint32_t src, uint32_t token,
			   uint32_t first, uint32_t extent)
{
	const int32_t *ids = table->ids[src] + (size_t)token * table->p->topk;
	uint32_t n = 0;

	for (uint32_t k = 0; k < table->p->topk; k++) {
		n += ids[k] >= (int32_t)first && ids[k] < (int32_t)(first + extent);
	}
	return n;
}

/* Rows are stable under truncation: the first block of a shorter row is that of the whole. */
static void index_entries(struct oracle_table *table)
{
	struct oracle_problem head = *table->p;
	uint8_t row[ORACLE_BLOCK * 4];
	float scales[4];

	head.hidden = head.hidden < ORACLE_BLOCK ? head.hidden : ORACLE_BLOCK;
	for (uint32_t i = 0; i < table->nheads; i++) {
		table->heads[i] = ORACLE_NO_ENTRY;
	}
	for (uint32_t i = 0; i < table->nentries; i++) {
		struct oracle_entry *e = table->entries + i;
		uint32_t *slot;

		oracle_output_row(&head, e->src, e->token, row, scales);
		e->key = oracle_row_key(row);
		slot = table->heads + (e->key & (table->nheads - 1));
		e->next = *slot;
		e->block = ORACLE_NO_ENTRY;
		*slot = i;
	}
}

struct oracle_table *oracle_table_create(const struct oracle_problem *problem, uint32_t rank)
{
	struct oracle_table *t = calloc(1, sizeof(*t));
	size_t total = 0;
	int32_t *ids;

	if (!t) {
		return NULL;
	}
	t->p = problem;
	t->rank = rank;
	t->local = problem->experts / problem->nranks;
	for (uint32_t src = 0; src < problem->nranks; src++) {
		t->ntokens[src] = oracle_tokens(problem, src);
		total += t->ntokens[src];
	}
	for (t->nheads = 64; t->nheads < 2 * total;) {
		t->nheads *= 2;
	}
	t->all_ids = calloc(total * problem->topk + 1, sizeof(*t->all_ids));
	t->entries = calloc(total + 1, sizeof(*t->entries));
	t->heads = calloc(t->nheads, sizeof(*t->heads));
	if (!t->all_ids || !t->entries || !t->heads) {
		oracle_table_free(t);
		return NULL;
	}
	ids = t->all_ids;
	for (uint32_t src = 0; src < problem->nranks; src++) {
		t->ids[src] = ids;
		for (uint32_t token = 0; token < t->ntokens[src]; token++, ids += problem->topk) {
			oracle_route(problem, src, token, ids);
			if (oracle_selections(t, src, token, rank * t->local, t->local) &&
			    !oracle_absent(problem, rank)) {
				t->entries[t->nentries].src = src;
				t->entries[t->nentries++].token = token;
			}
		}
	}
	index_entries(t);
	return t;
}

void oracle_table_free(struct oracle_table *table)
{
	if (table) {
		free(table->all_ids);
		free(table->entries);
		free(table->heads);
		free(table);
	}
}
