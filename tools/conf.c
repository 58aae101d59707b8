/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/conf.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYSTEM_FILE "/etc/nccl.conf"
#define MAX_TEXT 1024 /* NCCL cuts names and values here */

struct entry {
	struct entry *next;
	const char *file;
	char name[];
};

static struct entry *entries;
static char user_file[PATH_MAX];

static void remember(const char *name, const char *file)
{
	size_t len = strlen(name) + 1;
	struct entry *e = malloc(sizeof(*e) + len);

	if (e) {
		e->next = entries;
		e->file = file;
		memcpy(e->name, name, len);
		entries = e;
	}
}

/* NAME=value with nothing around them; lines that are not are passed over. */
static void load_line(char *line, const char *file)
{
	char *equals;

	line[strcspn(line, "\n")] = '\0';
	if (*line && line[strlen(line) - 1] == '\r') {
		line[strlen(line) - 1] = '\0';
	}
	equals = strchr(line, '=');
	if (*line == '#' || !equals || equals == line) {
		return;
	}
	*equals = '\0';
	if (strlen(line) >= MAX_TEXT) {
		line[MAX_TEXT - 1] = '\0';
	}
	if (strlen(equals + 1) >= MAX_TEXT) {
		equals[MAX_TEXT] = '\0';
	}
	if (!getenv(line) && setenv(line, equals + 1, 0) == 0) {
		remember(line, file);
	}
}

static void load(const char *file)
{
	char line[4096];
	FILE *f = fopen(file, "re");
	bool tail = false; /* of a line that is longer */

	while (f && fgets(line, sizeof(line), f)) {
		bool whole = strchr(line, '\n') != NULL;

		if (!tail) {
			load_line(line, file);
		}
		tail = !whole;
	}
	if (f) {
		fclose(f);
	}
}

void ep_conf_load(void)
{
	const char *own = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");

	if (own && *own) {
		snprintf(user_file, sizeof(user_file), "%s", own);
		load(user_file);
	} else if (home) {
		snprintf(user_file, sizeof(user_file), "%s/.nccl.conf", home);
		load(user_file);
	}
	load(SYSTEM_FILE);
}

const char *ep_conf_source(const char *name)
{
	for (const struct entry *e = entries; e; e = e->next) {
		if (strcmp(e->name, name) == 0) {
			return e->file;
		}
	}
	return "environment";
}
