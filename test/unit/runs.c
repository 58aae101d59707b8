/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of words as runs: what is written is read again, is short where it can be, and bounded. */
#include <stdlib.h>
#include <string.h>
#include "gda/state.h"
#include "support/check_nccl.h"
#include "support/world.h"

#define MOST 4096u

static unsigned char text[EP_GDA_RUNS_BYTES(MOST) + 1];

/* Returns the length in bytes. */
static uint32_t write_list(const uint32_t *word, uint32_t n, bool ascending)
{
	struct ep_gda_writer w;

	memset(text, 0xa5, sizeof(text));
	ep_gda_runs_begin(&w, text, ascending);
	for (uint32_t i = 0; i < n; i++) {
		ep_gda_runs_put(&w, word[i]);
	}
	ep_gda_runs_end(&w);
	return (uint32_t)(w.at - text);
}

/* Writes and reads a list, and returns its length in bytes. */
static uint32_t round_trip(const uint32_t *word, uint32_t n, bool ascending)
{
	uint32_t bytes = write_list(word, n, ascending), at = 0, value, count, wrong = 0;
	struct ep_gda_reader r;

	CHECK(bytes <= EP_GDA_RUNS_BYTES(n) && text[EP_GDA_RUNS_BYTES(MOST)] == 0xa5);
	ep_gda_runs_open(&r, text, bytes, ascending);
	while (at < n && ep_gda_runs_next(&r, &value, &count)) {
		for (uint32_t i = 0; i < count && at < n; i++) {
			wrong += word[at++] != value + (ascending ? i : 0);
		}
	}
	CHECK(at == n && wrong == 0 && r.at == r.end);
	CHECK(!ep_gda_runs_next(&r, &value, &count));
	return bytes;
}

static void test_short(void)
{
	static uint32_t word[MOST];

	CHECK(round_trip(word, 0, true) == 0);
	for (uint32_t i = 0; i < MOST; i++) {
		word[i] = 0x1a7 + i;
	}
	CHECK(round_trip(word, MOST, true) <= 6); /* numbers that follow each other */
	CHECK(round_trip(word, 1, true) <= 4);
	for (uint32_t i = 0; i < MOST; i++) {
		word[i] = 0x40 + 8 * i;
	}
	CHECK(round_trip(word, MOST, true) <= MOST + 4); /* eight ranks take turns */
	memset(word, 0, sizeof(word));
	CHECK(round_trip(word, MOST, false) <= 4); /* all queues alike */
	for (uint32_t i = 0; i < MOST; i++) {
		word[i] = i & 7;
	}
	CHECK(round_trip(word, MOST, false) == MOST);
}

static void test_any(void)
{
	static uint32_t word[MOST];
	uint64_t seed = 7;

	for (uint32_t pass = 0; pass < 200; pass++) {
		uint32_t n = 1 + (uint32_t)world_draw(&seed, MOST), next = 0;
		uint32_t gap = 1u << world_draw(&seed, 20), run = 1u << world_draw(&seed, 8);

		for (uint32_t i = 0; i < n; i++) {
			next += world_draw(&seed, run) ? 0 : (uint32_t)world_draw(&seed, gap);
			word[i] = next++;
		}
		round_trip(word, n, true);
		for (uint32_t i = 0; i < n; i++) {
			word[i] = (uint32_t)world_draw(&seed, pass % 2 ? 8 : 1ull << 32);
		}
		round_trip(word, n, false);
	}
	word[0] = 0;
	word[1] = UINT32_MAX;
	round_trip(word, 2, true);
}

/* Two lists, one behind the other: numbers begin anew. */
static void test_again(void)
{
	uint32_t value, count;
	struct ep_gda_writer w;
	struct ep_gda_reader r;

	ep_gda_runs_begin(&w, text, true);
	ep_gda_runs_put(&w, 900);
	ep_gda_runs_end(&w);
	ep_gda_runs_put(&w, 3);
	ep_gda_runs_end(&w);
	ep_gda_runs_open(&r, text, (uint32_t)(w.at - text), true);
	CHECK(ep_gda_runs_next(&r, &value, &count) && value == 900 && count == 1);
	ep_gda_runs_again(&r);
	CHECK(ep_gda_runs_next(&r, &value, &count) && value == 3 && count == 1);
}

/* A list that was cut, or is anything: reading ends, within its bytes. */
static void test_broken(void)
{
	static uint32_t word[MOST];
	uint32_t bytes, value, count;
	struct ep_gda_reader r;
	uint64_t seed = 11;

	for (uint32_t i = 0; i < MOST; i++) {
		word[i] = 1000 * i;
	}
	bytes = write_list(word, MOST, true);
	/* a length that is one more than fits: reading would never end */
	ep_gda_runs_open(&r, (const unsigned char *)"\x0f\xf0\xff\xff\xff\x0f", 6, true);
	CHECK(!ep_gda_runs_next(&r, &value, &count));
	for (uint32_t pass = 0; pass < 2000; pass++) {
		unsigned char *copy = malloc(64);
		uint32_t n = (uint32_t)world_draw(&seed, 64), runs = 0;

		CHECK(copy && bytes > 64);
		for (uint32_t i = 0; copy && i < n; i++) {
			copy[64 - n + i] = pass % 2 ? text[i]
						    : (unsigned char)world_draw(&seed, 256);
		}
		ep_gda_runs_open(&r, copy + 64 - n, n, pass % 4 < 2);
		while (ep_gda_runs_next(&r, &value, &count)) {
			CHECK(count > 0);
			runs++;
		}
		CHECK(runs <= n);
		free(copy);
	}
}

int main(void)
{
	test_short();
	test_any();
	test_again();
	test_broken();
	return check_end();
}
