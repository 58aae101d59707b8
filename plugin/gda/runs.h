/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of words that ranks exchange, as runs. A run of an ascending list is of numbers that
 * follow each other, of any other list of equal words: a byte or two each. Whatever the words are,
 * the list can be written.
 */
#ifndef EP_GDA_RUNS_H
#define EP_GDA_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#define EP_GDA_RUNS_BYTES(words) (6u * (words)) /* a list takes no more */

struct ep_gda_writer {
	unsigned char *at;
	bool ascending;
	uint32_t base;         /* ascending: the number behind the last run */
	uint32_t value, count; /* the run that is not written yet */
};

void ep_gda_runs_begin(struct ep_gda_writer *writer, unsigned char *at, bool ascending);
/* Ascending: more than the word before. */
void ep_gda_runs_put(struct ep_gda_writer *writer, uint32_t word);
/* The list's end. Another one of the same kind may follow, it begins anew. */
void ep_gda_runs_end(struct ep_gda_writer *writer);

struct ep_gda_reader {
	const unsigned char *at, *end;
	bool ascending;
	uint32_t base;
};

void ep_gda_runs_open(struct ep_gda_reader *reader, const unsigned char *at, uint32_t bytes,
		      bool ascending);
/* The next run: `count` words from `value` on, or `count` times `value`. False: there is none. */
bool ep_gda_runs_next(struct ep_gda_reader *reader, uint32_t *value, uint32_t *count);
/* The next list begins. */
void ep_gda_runs_again(struct ep_gda_reader *reader);

#endif
