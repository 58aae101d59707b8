/* SPDX-License-Identifier: Apache-2.0 */
/* Routing families in words: uniform, zipf:s, power:a, khot:n,f, hot:f[,rank], group:G,g, file:NAME. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

#define BLANK " \t,\r\n"
#define QUOTED 60

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

/* One line of ids, which it fills up with -1. How many there are, or -1: they are not ids, or too many. */
static int parse_line(const char *at, int32_t *ids)
{
	int n = 0;

	for (uint32_t k = 0; k < ORACLE_MAX_TOPK; k++) {
		ids[k] = -1;
	}
	for (at += strspn(at, BLANK); *at; at += strspn(at, BLANK)) {
		char *end;
		long id = strtol(at, &end, 10);

		if (end == at || id < -1 || id > INT32_MAX || n == ORACLE_MAX_TOPK ||
		    (*end && !strchr(BLANK, *end))) {
			return -1;
		}
		ids[n++] = (int32_t)id;
		at = end;
	}
	return n;
}

/* The part of a line that is shown: its beginning, and nothing that a terminal takes for a command. */
static void quote(char *line)
{
	line[strcspn(line, "\n")] = '\0';
	if (strlen(line) > QUOTED) {
		strcpy(line + QUOTED - 3, "...");
	}
	for (; *line; line++) {
		*line = *line >= ' ' && *line <= '~' ? *line : '?';
	}
}

/* Room for one line more. */
static int grow(struct oracle_routing *routing, uint32_t *room)
{
	size_t more = *room ? 2 * (size_t)*room : 1024;
	int32_t *lines;
	struct oracle_line *read;

	if (routing->nlines < *room) {
		return 0;
	}
	lines = realloc(routing->lines, more * ORACLE_MAX_TOPK * sizeof(*lines));
	routing->lines = lines ? lines : routing->lines;
	read = realloc(routing->read, more * sizeof(*read));
	routing->read = read ? read : routing->read;
	*room = (uint32_t)more;
	return lines && read && more <= UINT32_MAX ? 0 : -1;
}

static int read_lines(FILE *file, const char *name, struct oracle_routing *routing, char *why,
		      size_t why_bytes)
{
	char line[1024];
	uint32_t room = 0;

	for (uint32_t number = 1; fgets(line, sizeof(line), file); number++) {
		int cut = !strchr(line, '\n') && !feof(file), n = -1;

		if (!cut && (line[strspn(line, BLANK)] == '\0' || line[0] == '#')) {
			continue;
		}
		if (grow(routing, &room)) {
			snprintf(why, why_bytes, "--routing: out of memory for %s", name);
			return -1;
		}
		if (!cut) {
			n = parse_line(line,
				       routing->lines + (size_t)routing->nlines * ORACLE_MAX_TOPK);
		}
		if (n < 0) {
			quote(line);
			snprintf(
				why, why_bytes,
				"%s:%u: got '%s', allowed is a line of at most %d expert ids, -1 or "
				"more",
				name, number, line, ORACLE_MAX_TOPK);
			return -1;
		}
		routing->read[routing->nlines++] = (struct oracle_line){ number, (uint32_t)n };
	}
	if (routing->nlines == 0) {
		snprintf(why, why_bytes, "--routing: %s has no lines of expert ids", name);
		return -1;
	}
	return 0;
}

static int load_file(const char *name, struct oracle_routing *routing, char *why, size_t why_bytes)
{
	FILE *file = fopen(name, "r");
	int rc;

	if (!file) {
		snprintf(why, why_bytes, "--routing: %s: %s", name, strerror(errno));
		return -1;
	}
	rc = read_lines(file, name, routing, why, why_bytes);
	fclose(file);
	routing->file = strdup(name);
	if (!rc && !routing->file) {
		snprintf(why, why_bytes, "--routing: out of memory for %s", name);
		rc = -1;
	}
	if (rc) {
		oracle_routing_free(routing);
	}
	return rc;
}

/* Each gets what follows the family's name. 0, or -1: it is not what the family wants. */
static int parse_zipf(const char *text, struct oracle_routing *routing)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->zipf_exponent = (((uint64_t)value << 32) + 500000) / 1000000;
	return value >= 0 && value <= 4000000 && *end == '\0' ? 0 : -1;
}

static int parse_power(const char *text, struct oracle_routing *routing)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->power_ppm = (uint32_t)value;
	return value >= 1001000 && value <= 4000000 && *end == '\0' ? 0 : -1;
}

static int parse_khot(const char *text, struct oracle_routing *routing)
{
	const char *end = "";
	int64_t value = -1;
	int used = 0;

	if (sscanf(text, "%u,%n", &routing->hot_experts, &used) == 1 && used) {
		value = parse_millionths(text + used, &end);
		routing->hot_ppm = (uint32_t)value;
	}
	return value >= 0 && value <= 1000000 && *end == '\0' ? 0 : -1;
}

static int parse_hot(const char *text, struct oracle_routing *routing)
{
	const char *end;
	int64_t value = parse_millionths(text, &end);

	routing->hot_ppm = (uint32_t)value;
	if (*end == ',') {
		char *rest;

		routing->hot_rank = (uint32_t)strtoul(end + 1, &rest, 10);
		end = rest;
	}
	return value >= 0 && value <= 1000000 && *end == '\0' ? 0 : -1;
}

static int parse_group(const char *text, struct oracle_routing *routing)
{
	int used = 0;

	return sscanf(text, "%u,%u%n", &routing->groups, &routing->groups_used, &used) == 2 &&
			       text[used] == '\0'
		       ? 0
		       : -1;
}

int oracle_routing_parse(const char *text, struct oracle_routing *routing, char *why,
			 size_t why_bytes)
{
	static const struct {
		const char *prefix;
		enum oracle_family family;
		int (*parse)(const char *text, struct oracle_routing *routing);
		const char *allowed;
	} families[] = {
		{ "zipf:", ORACLE_ZIPF, parse_zipf, "zipf:s with s from 0 to 4" },
		{ "power:", ORACLE_POWER, parse_power, "power:a with a from 1.001 to 4" },
		{ "khot:", ORACLE_KHOT, parse_khot, "khot:n,f with n experts and f from 0 to 1" },
		{ "hot:", ORACLE_HOT, parse_hot, "hot:f[,rank] with f from 0 to 1" },
		{ "group:", ORACLE_GROUP, parse_group, "group:G,g with two numbers" },
	};

	memset(routing, 0, sizeof(*routing));
	snprintf(routing->text, sizeof(routing->text), "%s", text);
	if (!strcmp(text, "uniform")) {
		routing->family = ORACLE_UNIFORM;
		return 0;
	}
	if (!strncmp(text, "file:", 5)) {
		routing->family = ORACLE_FILE;
		return load_file(text + 5, routing, why, why_bytes);
	}
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		size_t length = strlen(families[i].prefix);

		if (strncmp(text, families[i].prefix, length)) {
			continue;
		}
		routing->family = families[i].family;
		if (families[i].parse(text + length, routing) == 0) {
			return 0;
		}
		snprintf(why, why_bytes, "--routing: got '%s', allowed is %s", text,
			 families[i].allowed);
		return -1;
	}
	snprintf(
		why, why_bytes,
		"--routing: got '%s', allowed is one of uniform, zipf:s, power:a, khot:n,f, hot:f[,rank], "
		"group:G,g, file:NAME",
		text);
	return -1;
}

void oracle_routing_free(struct oracle_routing *routing)
{
	free(routing->lines);
	free(routing->read);
	free(routing->file);
	routing->lines = NULL;
	routing->read = NULL;
	routing->file = NULL;
	routing->nlines = 0;
}
