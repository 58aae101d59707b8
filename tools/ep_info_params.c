/* SPDX-License-Identifier: Apache-2.0 */
/* Each variable with its value, where that comes from, and what it means. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/param.h"
#include "rdma/env.h"
#include "tools/nccl_env.h"
#include "tools/ep_info.h"

static void print_row(const char *name, const char *value, bool set, const char *help)
{
	char *text = strdup(value);

	if (text) {
		ep_log_flatten(text);
		printf("  %-34s %-12s %-12s %s\n", name, text,
		       set ? ep_conf_source(name) : "default", help);
	}
	free(text);
}

static void print_invalid(const char *name)
{
	struct ep_error error;

	ep_error_get(NULL, &error);
	print_row(name, "INVALID", true, error.text);
}

static void print_own(enum ep_param_id id)
{
	const struct ep_param_def *def = &ep_param_table[id];
	const char *text = getenv(def->name);
	int64_t value = def->initial;
	bool set = text && *text;
	char number[EP_PARAM_WORD_MAX];

	if (set && ep_param_parse(id, text, &value) != ncclSuccess) {
		print_invalid(def->name);
		return;
	}
	(void)ep_param_word(id, value, number);
	/* The node size may be a list. */
	print_row(def->name, set && id == EP_PARAM_NODE_SIZE ? text : number, set, def->help);
}

/* A range is of the family that is set, if that can be understood. */
static bool parses(enum ep_ib_var var, const char *text)
{
	const char *family = getenv(ep_ib_var_table[EP_IB_VAR_ADDR_FAMILY].name);
	struct ep_ib_env env = { .range_bits = -1 };

	if (var == EP_IB_VAR_ADDR_RANGE && family && *family) {
		(void)ep_ib_env_parse(&env, EP_IB_VAR_ADDR_FAMILY, family);
	}
	return ep_ib_env_parse(&env, var, text) == ncclSuccess;
}

/* Prints NCCL's variables that RDMA obeys. */
static void print_rdma(enum ep_ib_var var)
{
	const struct ep_ib_var_def *def = &ep_ib_var_table[var];
	const char *text = getenv(def->name);
	bool set = text && *text;
	char initial[16] = "AF_INET";

	if (var < EP_IB_VAR_NUMBERS) {
		snprintf(initial, sizeof(initial), "%d", def->initial);
	} else if (var == EP_IB_VAR_ADDR_RANGE) {
		snprintf(initial, sizeof(initial), "(any)");
	}
	if (set && !parses(var, text)) {
		print_invalid(def->name);
	} else if (set && var < EP_IB_VAR_NUMBERS && ep_ib_env_too_much(var, text)) {
		printf("  %-34s %-12d %-12s %s; %s is more than NICs have room for\n", def->name,
		       def->max, ep_conf_source(def->name), def->help, text);
	} else {
		print_row(def->name, set ? text : initial, set, def->help);
	}
}

void ep_info_params(void)
{
	puts("Parameters");
	printf("  %-34s %-12s %-12s %s\n", "name", "value", "source", "meaning");
	for (int i = 0; i < EP_PARAMS; i++) {
		print_own((enum ep_param_id)i);
	}
	for (int i = 0; i < EP_IB_VARS; i++) {
		print_rdma((enum ep_ib_var)i);
	}
	for (int i = 0; i < ep_nccl_vars; i++) {
		const char *text = getenv(ep_nccl_var_table[i].name);
		bool set = text && *text;

		print_row(ep_nccl_var_table[i].name, set ? text : ep_nccl_var_table[i].unset, set,
			  ep_nccl_var_table[i].help);
	}
	for (char **e = environ; e && *e; e++) {
		char name[EP_PARAM_NAME_MAX + 1];
		const char *nearest;

		if (ep_param_unknown(*e, name, &nearest)) {
			const char *source = ep_conf_source(name);

			ep_log_flatten(name);
			printf("  %-34s %-12s %-12s has no effect%s%s\n", name, "UNKNOWN", source,
			       nearest ? ", did you mean " : "", nearest ? nearest : "");
		}
	}
}
