/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON, for the library of topology and for tools. A key is NULL in an array. */
#ifndef EP_TOPO_JSON_H
#define EP_TOPO_JSON_H

#include <stdbool.h>
#include <stdio.h>

struct ep_json {
	FILE *out;
	bool more; /* a value stands before the next one */
	bool line; /* the next value begins a line */
};

/* Begins an object or array; the bracket is '{' or '['. */
void ep_json_open(struct ep_json *json, const char *key, char bracket);
/* Ends it; the bracket is '}' or ']'. */
void ep_json_close(struct ep_json *json, char bracket);
/* Writes a text of any bytes; null for NULL. */
void ep_json_text(struct ep_json *json, const char *key, const char *text);
/* Writes six digits; null for what is no finite number. */
void ep_json_number(struct ep_json *json, const char *key, double value);
void ep_json_bool(struct ep_json *json, const char *key, bool value);
/* Writes a value as it is formatted, such as "%d", or "null". */
void ep_json_print(struct ep_json *json, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Writes a text of any bytes between quotes, and nothing else. */
void ep_json_quote(FILE *out, const char *text);

#endif
