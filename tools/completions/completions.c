/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what a shell completes of a tool's command line, from the tool's own table of options.
 *   completions bash|zsh ep_perf|ep_plot|ep_routes|ep_info|ep_topo
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tools/option_tables.h"
#include "tools/perf/perf.h"

struct tool {
	struct ep_options options;
	bool operands; /* files */
};

/* Of Python programs. A test compares them with their help. */
static const struct ep_option plot[] = {
	{ .letter = 'o',
	  .name = "output",
	  .arg = "FILE",
	  .help = "the picture, as .svg, .png or .html" },
	{ .name = "csv", .arg = "FILE", .help = "the numbers" },
	{ .name = "table", .arg = "FILE", .help = "tables in Markdown" },
	{ .name = "names", .arg = "A,B", .help = "names of the runs" },
	{ .name = "bars", .help = "two runs beside each other, as bars and a table" },
	{ .name = "save", .arg = "FILE", .help = "with --bars: its numbers" },
	{ .name = "tokens", .arg = "N,N", .help = "with --bars: only of so many tokens" },
	{ .name = "fail-above",
	  .arg = "R",
	  .help = "status 1 if an operation takes more than R times that of the first file" },
	{ .letter = 'h', .name = "help", .help = "what there is" },
};

static const struct ep_option routes[] = {
	{ .letter = 'o', .name = "output", .arg = "FILE", .help = "the trace" },
	{ .name = "layer", .arg = "N", .help = "which layer" },
	{ .name = "tokens", .arg = "N", .help = "tokens of each file" },
	{ .name = "topk", .arg = "K", .help = "ids of a token, of counts" },
	{ .name = "forwards", .arg = "all|decode", .help = "which forward passes" },
	{ .name = "seed", .arg = "N", .help = "of the order of tokens" },
	{ .letter = 'h', .name = "help", .help = "what there is" },
};

static bool find(struct tool *tool, const char *name)
{
	const struct tool tools[] = {
		{ perf_option_table, false },
		{ { .tool = "ep_plot", .row = plot, .n = sizeof(plot) / sizeof(plot[0]) }, true },
		{ { .tool = "ep_routes", .row = routes, .n = sizeof(routes) / sizeof(routes[0]) },
		  true },
		{ ep_info_options, false },
		{ ep_topo_options, true },
	};

	for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++) {
		if (strcmp(name, tools[i].options.tool) == 0) {
			*tool = tools[i];
			return true;
		}
	}
	return false;
}

static bool is_file(const struct ep_option *entry)
{
	return entry->arg && strcmp(entry->arg, "FILE") == 0;
}

static bool is_choice(const struct ep_option *entry)
{
	return entry->arg && strchr(entry->arg, '|') != NULL;
}

/* "a|b" with blanks. */
static void put_choices(const struct ep_option *entry)
{
	for (const char *c = entry->arg; *c; c++) {
		putchar(*c == '|' ? ' ' : *c);
	}
}

/* ---- bash ---- */

static void put_pattern(const struct ep_option *entry, const char *between)
{
	printf("%s--%s", between, entry->name);
	if (entry->letter) {
		printf("|-%c", entry->letter);
	}
}

static void put_bash(const struct tool *tool)
{
	const char *between = "    ";

	printf("# Made from the options of %s(1).\n_%s() {\n", tool->options.tool,
	       tool->options.tool);
	puts("    local cur=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}\n"
	     "    # --option=value is three words\n"
	     "    if [[ $cur == = ]]; then\n"
	     "        cur=\n"
	     "    elif [[ $option == = ]]; then\n"
	     "        option=${COMP_WORDS[COMP_CWORD - 2]}\n"
	     "    fi\n"
	     "    case $option in");
	for (size_t i = 0; i < tool->options.n; i++) {
		const struct ep_option *e = &tool->options.row[i];

		if (is_choice(e)) {
			put_pattern(e, "    ");
			printf(") mapfile -t COMPREPLY < <(compgen -W '");
			put_choices(e);
			puts("' -- \"$cur\") && return ;;");
		} else if (is_file(e)) {
			put_pattern(e, "    ");
			puts(") compopt -o filenames 2>/dev/null\n"
			     "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") && return ;;");
		}
	}
	/* values of which nothing is known */
	for (size_t i = 0; i < tool->options.n; i++) {
		const struct ep_option *e = &tool->options.row[i];

		if (e->arg && !is_choice(e) && !is_file(e)) {
			put_pattern(e, between);
			between = "|";
		}
	}
	puts(*between == '|' ? ") COMPREPLY=() && return ;;\n    esac" : "    esac");
	if (tool->operands) {
		puts("    if [[ $cur != -* ]]; then\n"
		     "        compopt -o filenames 2>/dev/null\n"
		     "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
		     "        return\n"
		     "    fi");
	}
	printf("    mapfile -t COMPREPLY < <(compgen -W '");
	for (size_t i = 0; i < tool->options.n; i++) {
		printf("%s--%s", i ? " " : "", tool->options.row[i].name);
	}
	printf("' -- \"$cur\")\n}\ncomplete -F _%s %s\n", tool->options.tool, tool->options.tool);
}

/* ---- zsh ---- */

static void put_zsh_text(const char *text)
{
	for (; *text; text++) {
		if (*text == '\'') {
			fputs("'\\''", stdout);
		} else if (strchr("[]:\\", *text)) {
			printf("\\%c", *text);
		} else {
			putchar(*text);
		}
	}
}

static void put_zsh_value(const struct ep_option *entry)
{
	if (!entry->arg) {
		return;
	}
	putchar(':');
	put_zsh_text(entry->arg);
	putchar(':');
	if (is_choice(entry)) {
		putchar('(');
		put_choices(entry);
		putchar(')');
	} else if (is_file(entry)) {
		fputs("_files", stdout);
	}
}

static void put_zsh_option(const struct ep_option *entry, bool letter)
{
	fputs("    '", stdout);
	if (entry->letter) {
		printf("(-%c --%s)", entry->letter, entry->name);
	}
	if (letter) {
		printf("-%c%s[", entry->letter, entry->arg ? "+" : "");
	} else {
		printf("--%s%s[", entry->name, entry->arg ? "=" : "");
	}
	put_zsh_text(entry->help);
	putchar(']');
	put_zsh_value(entry);
	puts("' \\");
}

static void put_zsh(const struct tool *tool)
{
	printf("#compdef %s\n# Made from the options of %s(1).\n_arguments \\\n",
	       tool->options.tool, tool->options.tool);
	for (size_t i = 0; i < tool->options.n; i++) {
		if (tool->options.row[i].letter) {
			put_zsh_option(&tool->options.row[i], true);
		}
		put_zsh_option(&tool->options.row[i], false);
	}
	puts(tool->operands ? "    '*:file:_files'" : "    '*::'");
}

int main(int argc, char **argv)
{
	struct tool t;

	if (argc != 3 || !find(&t, argv[2])) {
		fputs("usage: completions bash|zsh ep_perf|ep_plot|ep_routes|ep_info|ep_topo\n",
		      stderr);
		return 2;
	}
	if (strcmp(argv[1], "zsh") == 0) {
		put_zsh(&t);
	} else {
		put_bash(&t);
	}
	return fflush(stdout) || ferror(stdout);
}
