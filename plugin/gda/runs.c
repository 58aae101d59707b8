/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run is a byte with two digits: how far its word is from where the run before it ended (in lists
 * that do not ascend: the word), and its length less one. With a digit of 15 the rest follows,
 * in bytes of seven bits, the lowest first; with the eighth bit one more follows.
 */
#include "gda/runs.h"

#define EP_RUNS_DIGIT 15u

void ep_gda_runs_begin(struct ep_gda_writer *writer, unsigned char *at, bool ascending)
{
	*writer = (struct ep_gda_writer){ .at = at, .ascending = ascending };
}

static void ep_runs_rest(struct ep_gda_writer *writer, uint32_t v)
{
	if (v < EP_RUNS_DIGIT) {
		return;
	}
	for (v -= EP_RUNS_DIGIT; v > 0x7f; v >>= 7) {
		*writer->at++ = (unsigned char)(v | 0x80);
	}
	*writer->at++ = (unsigned char)v;
}

static uint32_t ep_runs_digit(uint32_t v)
{
	return v < EP_RUNS_DIGIT ? v : EP_RUNS_DIGIT;
}

static void ep_runs_flush(struct ep_gda_writer *writer)
{
	uint32_t step = writer->value - (writer->ascending ? writer->base : 0);

	if (!writer->count) {
		return;
	}
	*writer->at++ =
		(unsigned char)(ep_runs_digit(step) << 4 | ep_runs_digit(writer->count - 1));
	ep_runs_rest(writer, step);
	ep_runs_rest(writer, writer->count - 1);
	writer->base = writer->value + writer->count;
	writer->count = 0;
}

void ep_gda_runs_put(struct ep_gda_writer *writer, uint32_t word)
{
	if (writer->count && word == writer->value + (writer->ascending ? writer->count : 0)) {
		writer->count++;
		return;
	}
	ep_runs_flush(writer);
	writer->value = word;
	writer->count = 1;
}

void ep_gda_runs_end(struct ep_gda_writer *writer)
{
	ep_runs_flush(writer);
	writer->base = 0;
}

void ep_gda_runs_open(struct ep_gda_reader *reader, const unsigned char *at, uint32_t bytes,
		      bool ascending)
{
	*reader = (struct ep_gda_reader){ .at = at, .end = at + bytes, .ascending = ascending };
}

void ep_gda_runs_again(struct ep_gda_reader *reader)
{
	reader->base = 0;
}

/* *v is a digit, and becomes what it stands for. */
static bool ep_runs_take(struct ep_gda_reader *reader, uint32_t *v)
{
	uint64_t rest = 0;

	if (*v < EP_RUNS_DIGIT) {
		return true;
	}
	for (unsigned int shift = 0; shift < 35 && reader->at < reader->end; shift += 7) {
		unsigned char byte = *reader->at++;

		rest |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*v += (uint32_t)rest;
			return rest <= UINT32_MAX - EP_RUNS_DIGIT;
		}
	}
	return false;
}

bool ep_gda_runs_next(struct ep_gda_reader *reader, uint32_t *value, uint32_t *count)
{
	uint32_t step, more;

	if (reader->at == reader->end) {
		return false;
	}
	step = *reader->at >> 4;
	more = *reader->at++ & 0xf;
	if (!ep_runs_take(reader, &step) || !ep_runs_take(reader, &more) || more == UINT32_MAX) {
		return false;
	}
	*value = step + (reader->ascending ? reader->base : 0);
	*count = more + 1;
	reader->base = *value + *count;
	return true;
}
