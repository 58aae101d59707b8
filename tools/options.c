/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines by a table: parsed, explained, reported. */
#include "tools/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64 /* options of a program */

__attribute__((format(printf, 2, 3))) static void complain(const struct ep_options *all,
							   const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (all->complain) {
		all->complain("%s", text);
	} else {
		fprintf(stderr, "%s: %s\n", all->tool, text);
	}
}

/* Finds the word of that place in "one|two|three". Returns its length; 0: there is none. */
static size_t find_word(const char *words, int place, const char **word)
{
	for (; place > 0 && *words; words++) {
		place -= *words == '|';
	}
	*word = words;
	return strcspn(words, "|");
}

/* Each returns 0, or -1 with what is allowed. */
static int parse_number(const struct ep_option *o, const char *text, void *to, char want[128])
{
	char *end;
	unsigned long long number;

	errno = 0;
	number = strtoull(text, &end, 0);
	if (end != text && (*end == 'K' || *end == 'k')) {
		errno = number > UINT64_MAX / 1024 ? ERANGE : errno;
		number *= 1024;
		end++;
	}
	/* (strtoull() takes a number below 0 for one near 2^64) */
	if (errno || end == text || *end || strchr(text, '-') || (double)number < o->low ||
	    (double)number > o->high) {
		snprintf(want, 128, "a number from %.0f to %.0f", o->low, o->high);
		return -1;
	}
	*(uint32_t *)to = (uint32_t)number;
	return 0;
}

static int parse_real(const struct ep_option *o, const char *text, void *to, char want[128])
{
	char *end;
	double real = strtod(text, &end);

	if (end == text || *end || !(real >= o->low && real <= o->high)) {
		snprintf(want, 128, "a number from %g to %g", o->low, o->high);
		return -1;
	}
	*(double *)to = real;
	return 0;
}

static int parse_choice(const struct ep_option *o, const char *text, void *to, char want[128])
{
	const char *word;
	size_t n;

	snprintf(want, 128, "one of");
	for (int i = 0; (n = find_word(o->arg, i, &word)) != 0; i++) {
		if (strlen(text) == n && memcmp(text, word, n) == 0) {
			*(int *)to = i;
			return 0;
		}
		snprintf(want + strlen(want), 128 - strlen(want), " %.*s", (int)n, word);
	}
	return -1;
}

static int parse_one(const struct ep_options *all, const struct ep_option *o, const char *text,
		     void *to)
{
	char want[128], name[48];
	int bad = 0;

	switch (o->kind) {
	case EP_OPTION_FLAG:
	case EP_OPTION_OFF:
		*(int *)to = o->kind == EP_OPTION_FLAG;
		break;
	case EP_OPTION_NUMBER:
		bad = parse_number(o, text, to, want);
		break;
	case EP_OPTION_REAL:
		bad = parse_real(o, text, to, want);
		break;
	case EP_OPTION_CHOICE:
		bad = parse_choice(o, text, to, want);
		break;
	default:
		*(const char **)to = text;
	}
	if (bad) {
		snprintf(name, sizeof(name), o->letter ? "-%c (--%s)" : "%.0d--%s", o->letter,
			 o->name);
		complain(all, "%s: got '%.80s', allowed is %s", name, text, want);
	}
	return bad;
}

/* Says why getopt_long() has not taken an option: `c` is '?' or ':', as it returns. */
static void refuse(const struct ep_options *all, int c, char **argv)
{
	const char *argument = argv[optind - 1], *instead;
	const char letter[] = { '-', (char)optopt, '\0' };

	/* Words have numbers from 256 on. A letter may be one of several, behind anything. */
	if (optopt && optopt < 256) {
		argument = letter;
	}
	instead = all->instead ? all->instead(argument) : NULL;
	if (c == ':') {
		complain(all, "%s needs a value. Try '%s -h'.", argument, all->tool);
	} else if (optopt >= 256) {
		complain(all, "%s takes no value. Try '%s -h'.", argument, all->tool);
	} else if (instead) {
		complain(all, "'%s' is of nccl-tests; %s. Try '%s -h'.", argument, instead,
			 all->tool);
	} else {
		complain(all, "'%s' is not an option. Try '%s -h'.", argument, all->tool);
	}
}

bool ep_options_range(const char *text, uint32_t *first, uint32_t *n)
{
	char more;

	return strspn(text, "0123456789:") == strlen(text) &&
	       sscanf(text, "%9u:%9u%c", first, n, &more) == 2;
}

int ep_options_parse(const struct ep_options *all, void *to, int argc, char **argv)
{
	struct option longs[MOST + 1] = { { NULL, 0, NULL, 0 } };
	/* The colon: getopt_long() prints nothing, and tells what is missing. */
	char letters[2 * MOST + 2] = ":", *at = letters + 1;
	int c;

	for (size_t i = 0; i < all->n && i < MOST; i++) {
		const struct ep_option *o = &all->row[i];

		longs[i] = (struct option){ o->name, o->arg ? required_argument : no_argument, NULL,
					    (int)(256 + i) };
		if (o->letter) {
			*at++ = o->letter;
			if (o->arg) {
				*at++ = ':';
			}
		}
	}
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		size_t i = c >= 256 ? (size_t)c - 256 : 0;

		if (c == '?' || c == ':') {
			refuse(all, c, argv);
			return -1;
		}
		while (c < 256 && all->row[i].letter != c) {
			i++;
		}
		if (all->row[i].kind <= EP_OPTION_VERSION) {
			return all->row[i].kind == EP_OPTION_HELP ? 'h' : 'V';
		}
		if (parse_one(all, &all->row[i], optarg, (char *)to + all->row[i].at)) {
			return -1;
		}
	}
	return 0;
}

/*
 * " -b, --mintokens N tokens per rank: from this [128]"; help that is too long goes on below.
 */
static void print_option(const struct ep_option *o, FILE *out)
{
	char left[64], letter[8] = "    ";
	const char *help = o->help;
	size_t width = 58;

	if (o->letter) {
		snprintf(letter, sizeof(letter), "-%c, ", o->letter);
	}
	snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->arg ? " " : "",
		 o->arg ? o->arg : "");
	fprintf(out, strlen(left) > 26 ? "  %s\n%29s" : "  %-26s ", left, "");
	while (strlen(help) > width) {
		size_t cut = width;

		while (help[cut] != ' ') {
			cut--;
		}
		fprintf(out, "%.*s\n%29s", (int)cut, help, "");
		help += cut + 1;
	}
	fputs(help, out);
	if (o->initial && strlen(help) + strlen(o->initial) + 3 > width) {
		fprintf(out, "\n%29s[%s]\n", "", o->initial);
	} else if (o->initial) {
		fprintf(out, " [%s]\n", o->initial);
	} else {
		fputc('\n', out);
	}
}

void ep_options_print(const struct ep_options *all, FILE *out)
{
	for (size_t i = 0; i < all->n; i++) {
		print_option(&all->row[i], out);
	}
}

void ep_options_report(const struct ep_options *all, const void *from, struct ep_json *json)
{
	for (size_t i = 0; i < all->n; i++) {
		const struct ep_option *o = &all->row[i];
		const char *at = (const char *)from + o->at, *word;
		size_t n;

		if (!o->json) {
			continue;
		}
		switch (o->kind) {
		case EP_OPTION_FLAG:
		case EP_OPTION_OFF:
			ep_json_bool(json, o->json, *(const int *)at);
			break;
		case EP_OPTION_NUMBER:
			ep_json_print(json, o->json, "%u", *(const uint32_t *)at);
			break;
		case EP_OPTION_REAL:
			ep_json_number(json, o->json, *(const double *)at);
			break;
		case EP_OPTION_CHOICE: /* a word of digits is a number */
			n = find_word(o->arg, *(const int *)at, &word);
			ep_json_print(json, o->json,
				      strspn(word, "0123456789") < n ? "\"%.*s\"" : "%.*s", (int)n,
				      word);
			break;
		default:
			ep_json_text(json, o->json, *(const char *const *)at);
		}
	}
}

const char *ep_options_word(const struct ep_options *all, const char *name, int place,
			    char word[32])
{
	word[0] = '\0';
	for (size_t i = 0; i < all->n; i++) {
		const char *at;

		if (strcmp(all->row[i].name, name) == 0) {
			size_t n = find_word(all->row[i].arg, place, &at);

			snprintf(word, 32, "%.*s", (int)n, at);
		}
	}
	return word;
}

bool ep_output_end(FILE *f, const char *tool, const char *name)
{
	bool lost = ferror(f) != 0;

	errno = 0;
	if ((f == stdout ? fflush(f) : fclose(f)) == 0 && !lost) {
		return true;
	}
	fprintf(stderr, "%s: %s: not all results are there: %s\n", tool, name,
		errno ? strerror(errno) : "an earlier write failed");
	return false;
}
