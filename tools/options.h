/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a program in one table, by which they are parsed, explained, completed and reported.
 */
#ifndef EP_TOOLS_OPTIONS_H
#define EP_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "topo/json.h"

enum ep_option_kind {
	EP_OPTION_HELP,    /* parsing ends with 'h' */
	EP_OPTION_VERSION, /* parsing ends with 'V' */
	EP_OPTION_FLAG,    /* int, becomes 1 */
	EP_OPTION_OFF,     /* int, becomes 0 */
	EP_OPTION_NUMBER,  /* uint32_t from low to high; behind it K is 1024 */
	EP_OPTION_REAL,    /* double from low to high */
	EP_OPTION_CHOICE,  /* int, the place of a word in `arg`, "one|two|three" */
	EP_OPTION_TEXT,    /* const char * */
};

struct ep_option {
	char letter; /* 0: it has none */
	const char *name;
	const char *arg;     /* NULL: it takes no value */
	const char *initial; /* what it is without the option, for the help; NULL: nothing */
	const char *help;
	enum ep_option_kind kind;
	size_t at; /* of its value in the program's struct */
	double low, high;
	const char *json; /* its key in reports; NULL: it is in none */
};

struct ep_options {
	const char *tool;
	const struct ep_option *row;
	size_t n;
	/* Prints why an option is refused; NULL: "TOOL: ..." goes to standard error. */
	void (*complain)(const char *format, ...) __attribute__((format(printf, 1, 2)));
	/* Returns what the program has in place of an option that is not its own, or NULL. */
	const char *(*instead)(const char *argument);
};

/*
 * Parses the command line into the program's struct, up to optind. Returns 0; 'h' or 'V' where help
 * or version was asked for; -1 where an option was refused, which has been said.
 */
int ep_options_parse(const struct ep_options *all, void *to, int argc, char **argv);

/* Reads "FIRST:N", of at most nine digits each. Returns false if the text is none. */
bool ep_options_range(const char *text, uint32_t *first, uint32_t *n);

/* Prints a line for each option, more if its help is long. */
void ep_options_print(const struct ep_options *all, FILE *out);

/* Writes the values of all options that have a key. */
void ep_options_report(const struct ep_options *all, const void *from, struct ep_json *json);

/* Copies the word of a choice, by the option's name; returns it. */
const char *ep_options_word(const struct ep_options *all, const char *name, int place,
			    char word[32]);

/*
 * Closes `f`, unless it is stdout. True if all that was written there has arrived; else it prints
 * why not.
 */
bool ep_output_end(FILE *f, const char *tool, const char *name);

#endif
