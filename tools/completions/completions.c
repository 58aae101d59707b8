/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what a shell completes of a tool's command line, from the tool's own table of options.
 *   completions bash|zsh ep_perf|ep_plot|ep_routes|ep_info|ep_topo
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tools/options.h"
#include "tools/perf/args.h"

#define OPTIONS_MAX 64

struct entry {
	int id;
	const char *name, *arg, *help;
};

struct tool {
	const char *name;
	bool operands; /* files */
	int n;
	struct entry entry[OPTIONS_MAX];
};

static void add(struct tool *tool, struct entry entry)
{
	if (tool->n < OPTIONS_MAX) {
		tool->entry[tool->n++] = entry;
	}
}

static void add_table(struct tool *tool, const struct ep_option *option, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		add(tool,
		    (struct entry){ option[i].id, option[i].name, option[i].arg, option[i].help });
	}
}

/* Of Python programs. A test compares them with their help. */
static const struct ep_option ep_plot_options[] = {
	{ 'o', "output", "FILE", "the picture, as .svg, .png or .html" },
	{ 256, "csv", "FILE", "the numbers" },
	{ 262, "table", "FILE", "tables in Markdown" },
	{ 257, "names", "A,B", "names of the runs" },
	{ 259, "bars", NULL, "two runs beside each other, as bars and a table" },
	{ 260, "save", "FILE", "with --bars: its numbers" },
	{ 261, "tokens", "N,N", "with --bars: only of so many tokens" },
	{ 258, "fail-above", "R",
	  "status 1 if an operation takes more than R times that of the first file" },
	{ 'h', "help", NULL, "what there is" },
};

static const struct ep_option ep_routes_options[] = {
	{ 'o', "output", "FILE", "the trace" },
	{ 256, "layer", "N", "which layer" },
	{ 257, "tokens", "N", "tokens of each file" },
	{ 258, "topk", "K", "ids of a token, of counts" },
	{ 259, "forwards", "all|decode", "which forward passes" },
	{ 260, "seed", "N", "of the order of tokens" },
	{ 'h', "help", NULL, "what there is" },
};

static bool find(struct tool *tool, const char *name)
{
	*tool = (struct tool){ .name = name };
	if (strcmp(name, "ep_perf") == 0) {
		for (int i = 0; i < PERF_NOPTIONS; i++) {
			const struct perf_option *o = perf_option_table + i;

			add(tool, (struct entry){ o->id, o->name, o->arg, o->help });
		}
		add(tool, (struct entry){ 'h', "help", NULL, "what there is" });
	} else if (strcmp(name, "ep_plot") == 0) {
		add_table(tool, ep_plot_options,
			  sizeof(ep_plot_options) / sizeof(ep_plot_options[0]));
		tool->operands = true;
	} else if (strcmp(name, "ep_routes") == 0) {
		add_table(tool, ep_routes_options,
			  sizeof(ep_routes_options) / sizeof(ep_routes_options[0]));
		tool->operands = true;
	} else if (strcmp(name, "ep_info") == 0) {
		add_table(tool, ep_info_options, EP_INFO_OPTIONS);
	} else if (strcmp(name, "ep_topo") == 0) {
		add_table(tool, ep_topo_options, EP_TOPO_OPTIONS);
		tool->operands = true;
	}
	return tool->n > 0;
}

static bool is_file(const struct entry *entry)
{
	return entry->arg && strcmp(entry->arg, "FILE") == 0;
}

static bool is_choice(const struct entry *entry)
{
	return entry->arg && strchr(entry->arg, '|') != NULL;
}

/* "a|b" with blanks. */
static void put_choices(const struct entry *entry)
{
	for (const char *c = entry->arg; *c; c++) {
		putchar(*c == '|' ? ' ' : *c);
	}
}

/* ---- bash ---- */

static void put_pattern(const struct entry *entry, const char *between)
{
	printf("%s--%s", between, entry->name);
	if (entry->id < 256) {
		printf("|-%c", entry->id);
	}
}

static void put_bash(const struct tool *tool)
{
	const char *between = "    ";

	printf("# Made from the options of %s(1).\n_%s() {\n", tool->name, tool->name);
	puts("    local cur=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}\n"
	     "    # --option=value is three words\n"
	     "    if [[ $cur == = ]]; then\n"
	     "        cur=\n"
	     "    elif [[ $option == = ]]; then\n"
	     "        option=${COMP_WORDS[COMP_CWORD - 2]}\n"
	     "    fi\n"
	     "    case $option in");
	for (int i = 0; i < tool->n; i++) {
		const struct entry *e = tool->entry + i;

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
	for (int i = 0; i < tool->n; i++) {
		const struct entry *e = tool->entry + i;

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
	for (int i = 0; i < tool->n; i++) {
		printf("%s--%s", i ? " " : "", tool->entry[i].name);
	}
	printf("' -- \"$cur\")\n}\ncomplete -F _%s %s\n", tool->name, tool->name);
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

static void put_zsh_value(const struct entry *entry)
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

static void put_zsh_option(const struct entry *entry, bool letter)
{
	fputs("    '", stdout);
	if (entry->id < 256) {
		printf("(-%c --%s)", entry->id, entry->name);
	}
	if (letter) {
		printf("-%c%s[", entry->id, entry->arg ? "+" : "");
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
	printf("#compdef %s\n# Made from the options of %s(1).\n_arguments \\\n", tool->name,
	       tool->name);
	for (int i = 0; i < tool->n; i++) {
		if (tool->entry[i].id < 256) {
			put_zsh_option(&tool->entry[i], true);
		}
		put_zsh_option(&tool->entry[i], false);
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
