// SPDX-License-Identifier: Apache-2.0
/* Routing families in words: uniform, zipf:s, hot:f[,rank], group:G,g, file:NAME. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* A decimal number with up to six decimals, in millionths; *end behind it. -1: none there. */
static int64_t parse_millionths(const char *text, const char **end)
{
	int64_t value = 0;
	int64_t unit = 1000000;
	int digits = 0;

	for (; *text >= '0' && *text <= '9' && value < INT64_C(1000000000000); text++, digits++) {
		value = value * 10 + (*text - '0') * 1000000;
	}
	if (*text == '.') {
		for (text++; *text >= '0' && *text <= '9'; text++, digits++) {
			unit /= 10;
			value += (*text - '0') * unit;
		}
	}
	*end = text;
	return digits ? value : -1;
}

/* Appends one line of ids. 0, or -1: not numbers. */
static int parse_line(char *line, int32_t *ids)
{
	char *at = line;
	uint32_t n = 0;

	for (uint32_t k = 0; k < ORACLE_MAX_TOPK; k++) {
		ids[k] = -1;
	}
	while (at[strspn(at, " \t,\r\n")] && n < ORACLE_MAX_TOPK) {
		char *end;
		long id = strtol(at + strspn(at, " \t,\r\n"), &end, 10);

		if (end == at + strspn(at, " \t,\r\n") || id < -1 || id > INT32_MAX) {
			return -1;
		}
		ids[n++] = (int32_t)id;
		at = end;
	}
	return at[strspn(at, " \t,\r\n")] ? -1 : 0;
}

static int read_lines(FILE *file, const char *name, struct oracle_routing *routing, char *why,
		      size_t why_bytes)
{
	char line[1024];
	uint32_t room = 0;

	for (uint32_t number = 1; fgets(line, sizeof(line), file); number++) {
		if (line[strspn(line, " \t\r\n")] == '\0' || line[0] == '#') {
			continue;
		}
		if (routing->nlines == room) {
			size_t bytes = (room + 1024) * ORACLE_MAX_TOPK * sizeof(*routing->lines);
			int32_t *bigger = realloc(routing->lines, bytes);

			if (!bigger) {
				snprintf(why, why_bytes, "out of memory");
				return -1;
			}
			routing->lines = bigger;
			room += 1024;
		}
		if (parse_line(line, routing->lines + routing->nlines * ORACLE_MAX_TOPK)) {
			snprintf(why, why_bytes,
				 "%s:%u: got '%.*s', allowed is a line of at most %d expert ids",
				 name, number, (int)strcspn(line, "\n"), line, ORACLE_MAX_TOPK);
			return -1;
		}
		routing->nlines++;
	}
	if (routing->nlines == 0) {
		snprintf(why, why_bytes, "%s: no lines", name);
		return -1;
	}
	return 0;
}

static int load_file(const char *name, struct oracle_routing *routing, char *why, size_t why_bytes)
{
	FILE *file = fopen(name, "r");
	int rc;

	if (!file) {
		snprintf(why, why_bytes, "%s: %s", name, strerror(errno));
		return -1;
	}
	rc = read_lines(file, name, routing, why, why_bytes);
	fclose(file);
	if (rc) {
		oracle_routing_free(routing);
	}
	return rc;
}

int oracle_routing_parse(const char *text, struct oracle_routing *routing, char *why,
			 size_t why_bytes)
{
	const char *end = "";
	int64_t value;

	memset(routing, 0, sizeof(*routing));
	snprintf(routing->text, sizeof(routing->text), "%s", text);
	if (!strcmp(text, "uniform")) {
		routing->family = ORACLE_UNIFORM;
		return 0;
	}
	if (!strncmp(text, "zipf:", 5)) {
		routing->family = ORACLE_ZIPF;
		value = parse_millionths(text + 5, &end);
		routing->zipf_256ths = (uint32_t)((value * 256 + 500000) / 1000000);
		if (value >= 0 && value <= 4000000 && *end == '\0') {
			return 0;
		}
		snprintf(why, why_bytes,
			 "--routing: got '%s', allowed is zipf:s with s from 0 to 4", text);
		return -1;
	}
	if (!strncmp(text, "hot:", 4)) {
		routing->family = ORACLE_HOT;
		value = parse_millionths(text + 4, &end);
		routing->hot_ppm = (uint32_t)value;
		if (*end == ',') {
			char *rest;

			routing->hot_rank = (uint32_t)strtoul(end + 1, &rest, 10);
			end = rest;
		}
		if (value >= 0 && value <= 1000000 && *end == '\0') {
			return 0;
		}
		snprintf(why, why_bytes,
			 "--routing: got '%s', allowed is hot:f[,rank] with f from 0 to 1", text);
		return -1;
	}
	if (!strncmp(text, "group:", 6)) {
		int used = 0;

		routing->family = ORACLE_GROUP;
		if (sscanf(text + 6, "%u,%u%n", &routing->groups, &routing->groups_used, &used) ==
			    2 &&
		    text[6 + used] == '\0') {
			return 0;
		}
		snprintf(why, why_bytes,
			 "--routing: got '%s', allowed is group:G,g with two numbers", text);
		return -1;
	}
	if (!strncmp(text, "file:", 5)) {
		routing->family = ORACLE_FILE;
		return load_file(text + 5, routing, why, why_bytes);
	}
	snprintf(
		why, why_bytes,
		"--routing: got '%s', allowed is one of uniform, zipf:s, hot:f[,rank], group:G,g, file:NAME",
		text);
	return -1;
}

void oracle_routing_free(struct oracle_routing *routing)
{
	free(routing->lines);
	routing->lines = NULL;
	routing->nlines = 0;
}
