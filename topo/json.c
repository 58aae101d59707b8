/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON: one object on one line, with its commas and its quotes. */
#include "topo/json.h"

#include <math.h>
#include <stdarg.h>

void ep_json_quote(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\') {
			fprintf(out, "\\%c", c);
		} else if (c < ' ' || c > '~') {
			fprintf(out, "\\u%04x", c);
		} else {
			fputc(c, out);
		}
	}
	fputc('"', out);
}

/* What stands before a value: a comma behind another one, and the key. */
static void begin(struct ep_json *json, const char *key)
{
	fputs(json->more ? json->line ? ",\n  " : ", " : json->line ? "\n  " : "", json->out);
	json->more = true;
	json->line = false;
	if (key) {
		ep_json_quote(json->out, key);
		fputs(": ", json->out);
	}
}

void ep_json_open(struct ep_json *json, const char *key, char bracket)
{
	begin(json, key);
	fputc(bracket, json->out);
	json->more = false;
}

void ep_json_close(struct ep_json *json, char bracket)
{
	fputc(bracket, json->out);
	json->more = true;
	json->line = false;
}

void ep_json_text(struct ep_json *json, const char *key, const char *text)
{
	begin(json, key);
	if (text) {
		ep_json_quote(json->out, text);
	} else {
		fputs("null", json->out);
	}
}

void ep_json_number(struct ep_json *json, const char *key, double value)
{
	begin(json, key);
	if (isfinite(value)) {
		fprintf(json->out, "%.6g", value);
	} else {
		fputs("null", json->out);
	}
}

void ep_json_bool(struct ep_json *json, const char *key, bool value)
{
	begin(json, key);
	fputs(value ? "true" : "false", json->out);
}

void ep_json_print(struct ep_json *json, const char *key, const char *fmt, ...)
{
	va_list args;

	begin(json, key);
	va_start(args, fmt);
	vfprintf(json->out, fmt, args);
	va_end(args);
}
