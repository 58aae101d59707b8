// SPDX-License-Identifier: Apache-2.0
/*
 * Prints what a shell completes of a tool's command line, from the tool's own table of options.
 *   completions bash|zsh ep_perf|ep_plot|ep_routes|ep_info|ep_topo
 */
#include <stdio.h>
#include <string.h>

#include "tools/options.h"
#include "tools/perf/args.h"

#define OPTIONS_MAX 64

struct entry {
	int id;
	const char *name, *arg, *help;
	bool optional;
};

struct tool {
	const char *name;
	bool operands; /* files */
	int n;
	struct entry entry[OPTIONS_MAX];
};

static void add(struct tool *t, struct entry e)
{
	if (t->n < OPTIONS_MAX) {
		t->entry[t->n++] = e;
	}
}

static void add_table(struct tool *t, const struct ep_option *o, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		add(t, (struct entry){ o[i].id, o[i].name, o[i].arg, o[i].help, o[i].optional });
	}
}

/* Of Python programs. A test compares them with their help. */
static const struct ep_option ep_plot_options[] = {
	{ 'o', "output", "FILE", false, "the picture, as .svg, .png or .html" },
	{ 256, "csv", "FILE", false, "the numbers" },
	{ 257, "names", "A,B", false, "names of the runs" },
	{ 259, "bars", NULL, false, "two runs beside each other, as bars and a table" },
	{ 260, "save", "FILE", false, "with --bars: its numbers" },
	{ 261, "tokens", "N,N", false, "with --bars: only of so many tokens" },
	{ 258, "fail-above", "R", false,
	  "status 1 if an operation takes more than R times that of the first file" },
	{ 'h', "help", NULL, false, "what there is" },
};

static const struct ep_option ep_routes_options[] = {
	{ 'o', "output", "FILE", false, "the trace" },
	{ 256, "layer", "N", false, "which layer" },
	{ 257, "tokens", "N", false, "tokens of each file" },
	{ 258, "topk", "K", false, "ids of a token, of counts" },
	{ 259, "forwards", "all|decode", false, "which forward passes" },
	{ 260, "seed", "N", false, "of the order of tokens" },
	{ 'h', "help", NULL, false, "what there is" },
};

static bool find(struct tool *t, const char *name)
{
	*t = (struct tool){ .name = name };
	if (strcmp(name, "ep_perf") == 0) {
		for (int i = 0; i < PERF_NOPTIONS; i++) {
			const struct perf_option *o = perf_option_table + i;

			add(t, (struct entry){ o->id, o->name, o->arg, o->help, false });
		}
		add(t, (struct entry){ 'h', "help", NULL, "what there is", false });
	} else if (strcmp(name, "ep_plot") == 0) {
		add_table(t, ep_plot_options, sizeof(ep_plot_options) / sizeof(ep_plot_options[0]));
		t->operands = true;
	} else if (strcmp(name, "ep_routes") == 0) {
		add_table(t, ep_routes_options,
			  sizeof(ep_routes_options) / sizeof(ep_routes_options[0]));
		t->operands = true;
	} else if (strcmp(name, "ep_info") == 0) {
		add_table(t, ep_info_options, EP_INFO_OPTIONS);
	} else if (strcmp(name, "ep_topo") == 0) {
		add_table(t, ep_topo_options, EP_TOPO_OPTIONS);
		t->operands = true;
	}
	return t->n > 0;
}

static bool is_file(const struct entry *e)
{
	return e->arg && strcmp(e->arg, "FILE") == 0;
}

static bool is_choice(const struct entry *e)
{
	return e->arg && strchr(e->arg, '|') != NULL;
}

/* "a|b" with blanks. */
static void put_choices(const struct entry *e)
{
	for (const char *c = e->arg; *c; c++) {
		putchar(*c == '|' ? ' ' : *c);
	}
}

/* ---- bash ---- */

static void put_pattern(const struct entry *e, const char *between)
{
	printf("%s--%s", between, e->name);
	if (e->id < 256) {
		printf("|-%c", e->id);
	}
}

static void put_bash(const struct tool *t)
{
	const char *between = "    ";

	printf("# Made from the options of %s(1).\n_%s() {\n", t->name, t->name);
	puts("    local cur=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}\n"
	     "    # --option=value is three words\n"
	     "    if [[ $cur == = ]]; then\n"
	     "        cur=\n"
	     "    elif [[ $option == = ]]; then\n"
	     "        option=${COMP_WORDS[COMP_CWORD - 2]}\n"
	     "    fi\n"
	     "    case $option in");
	for (int i = 0; i < t->n; i++) {
		const struct entry *e = t->entry + i;

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
	for (int i = 0; i < t->n; i++) {
		const struct entry *e = t->entry + i;

		if (e->arg && !is_choice(e) && !is_file(e)) {
			put_pattern(e, between);
			between = "|";
		}
	}
	puts(*between == '|' ? ") COMPREPLY=() && return ;;\n    esac" : "    esac");
	if (t->operands) {
		puts("    if [[ $cur != -* ]]; then\n"
		     "        compopt -o filenames 2>/dev/null\n"
		     "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
		     "        return\n"
		     "    fi");
	}
	printf("    mapfile -t COMPREPLY < <(compgen -W '");
	for (int i = 0; i < t->n; i++) {
		printf("%s--%s", i ? " " : "", t->entry[i].name);
	}
	printf("' -- \"$cur\")\n}\ncomplete -F _%s %s\n", t->name, t->name);
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

static void put_zsh_value(const struct entry *e)
{
	if (!e->arg) {
		return;
	}
	printf("%s:", e->optional ? ":" : "");
	put_zsh_text(e->arg);
	putchar(':');
	if (is_choice(e)) {
		putchar('(');
		put_choices(e);
		putchar(')');
	} else if (is_file(e)) {
		fputs("_files", stdout);
	}
}

static void put_zsh_option(const struct entry *e, bool letter)
{
	fputs("    '", stdout);
	if (e->id < 256) {
		printf("(-%c --%s)", e->id, e->name);
	}
	if (letter) {
		printf("-%c%s[", e->id, e->arg ? "+" : "");
	} else {
		printf("--%s%s[", e->name, !e->arg ? "" : e->optional ? "=-" : "=");
	}
	put_zsh_text(e->help);
	putchar(']');
	put_zsh_value(e);
	puts("' \\");
}

static void put_zsh(const struct tool *t)
{
	printf("#compdef %s\n# Made from the options of %s(1).\n_arguments \\\n", t->name, t->name);
	for (int i = 0; i < t->n; i++) {
		if (t->entry[i].id < 256) {
			put_zsh_option(&t->entry[i], true);
		}
		put_zsh_option(&t->entry[i], false);
	}
	puts(t->operands ? "    '*:file:_files'" : "    '*::'");
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
