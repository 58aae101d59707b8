/* SPDX-License-Identifier: Apache-2.0 */
/* Writes nccl_ep_env(7) from the tables by which the library reads its environment. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/param.h"
#include "rdma/env.h"
#include "tools/nccl_env.h"

/* Text as roff prints it. */
static void put(const char *text)
{
	for (; *text; text++) {
		if (*text == '-') {
			fputs("\\-", stdout);
		} else if (*text == '\\') {
			fputs("\\e", stdout);
		} else if (*text == '~' || *text == '^') {
			fputs(*text == '~' ? "\\(ti" : "\\(ha", stdout);
		} else {
			putchar(*text);
		}
	}
}

/* Its name, what it may be, what it is when it is not set, what it does. */
static void put_variable(const char *name, const char *values, const char *unset, const char *help)
{
	fputs(".TP\n.B ", stdout);
	put(name);
	printf("\n\\&%c", toupper((unsigned char)help[0]));
	put(help + 1);
	fputs(strchr(".)", help[strlen(help) - 1]) ? "\n.br\n" : ".\n.br\n", stdout);
	if (*values) {
		fputs("Values: ", stdout);
		put(values);
		fputs(". ", stdout);
	}
	fputs("Not set: ", stdout);
	put(unset);
	fputs(".\n", stdout);
}

/* "a|b" as "a, b". */
static void put_words(char *out, const char *words)
{
	for (; *words; words++) {
		*out++ = (char)(*words == '|' ? ',' : *words);
		if (*words == '|') {
			*out++ = ' ';
		}
	}
	*out = '\0';
}

static void put_own(void)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		const struct ep_param_def *def = &ep_param_table[i];
		char values[80], unset[EP_PARAM_WORD_MAX];

		snprintf(values, sizeof(values), "%" PRId64 " to %" PRId64 "%s", def->min, def->max,
			 i == EP_PARAM_NODE_SIZE ? ", or a list of such" : "");
		if (def->words) {
			put_words(values, def->words);
		}
		if (i == EP_PARAM_RDMA_MODE) {
			snprintf(values + strlen(values), sizeof(values) - strlen(values),
				 "; or their numbers, %" PRId64 " to %" PRId64, def->min, def->max);
		}
		(void)ep_param_word((enum ep_param_id)i, def->initial, unset);
		put_variable(def->name, values, unset, def->help);
	}
}

static void put_rdma(void)
{
	for (int i = 0; i < EP_IB_VARS; i++) {
		const struct ep_ib_var_def *def = &ep_ib_var_table[i];
		char values[64], unset[24] = "AF_INET";

		snprintf(values, sizeof(values), "AF_INET, AF_INET6");
		if (i < EP_IB_VAR_NUMBERS) {
			snprintf(values, sizeof(values), "%d to %d", def->min, def->max);
			snprintf(unset, sizeof(unset), "%d", def->initial);
		} else if (i == EP_IB_VAR_ADDR_RANGE) {
			values[0] = '\0';
			snprintf(unset, sizeof(unset), "any address");
		}
		put_variable(def->name, values, unset, def->help);
	}
}

int main(void)
{
	fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
	      ".TH NCCL_EP_ENV 7 \"\" \"Switchyard\" \"NCCL EP\"\n"
	      ".SH NAME\n"
	      "nccl_ep_env \\- environment variables that the library reads\n"
	      ".SH DESCRIPTION\n"
	      "They are read when a group is created, afresh for each. A value that cannot be understood or\n"
	      "is out of range makes\n"
	      ".BR ncclEpCreateGroup (3)\n"
	      "return\n"
	      ".BR ncclInvalidUsage ,\n"
	      "with a text that names the variable, the value and what is allowed. A name that begins with\n"
	      ".B NCCL_EP_\n"
	      "and is not known is warned about. NCCL puts the lines of its configuration files into the\n"
	      "environment, and the library finds them there.\n"
	      ".B ep_info \\-p\n"
	      "prints all of them with their values, and where these come from.\n"
	      ".SH VARIABLES OF THIS LIBRARY\n",
	      stdout);
	put_own();
	fputs(".SH NVLINK MULTICAST\n"
	      ".B NCCL_EP_NVLS=1\n"
	      "takes effect in a group where all ranks have it, map each other's memory through NCCL's\n"
	      "windows, and get a multicast address of NCCL; in every other group each rank is stored to\n"
	      "by itself, as without it.\n"
	      ".B NCCL_NVLS_ENABLE=0\n"
	      "on one rank is enough to rule it out. A line of\n"
	      ".B NCCL_DEBUG=INFO\n"
	      "says which it is, and why. The address belongs to the communicator, so that\n"
	      ".B the communicator must outlive the group on all ranks:\n"
	      "kernels of a group whose communicator was destroyed or aborted on any rank of the node may\n"
	      "fault. After that the group can only be destroyed.\n"
	      ".BR ncclEpGroupDestroy (3)\n"
	      "makes no call on a communicator that is gone. Memory of a rank that left more than a second\n"
	      "before its peers comes back with the next group of the communicator, or with the\n"
	      "communicator's end. It has never run on hardware.\n"
	      ".SH VARIABLES OF NCCL THAT RDMA OBEYS\n",
	      stdout);
	put_rdma();
	fputs(".SH OTHER VARIABLES OF NCCL THAT COUNT HERE\n", stdout);
	for (int i = 0; i < ep_nccl_vars; i++) {
		const struct ep_nccl_var *v = &ep_nccl_var_table[i];

		put_variable(v->name, "", v->unset, v->help);
	}
	fputs(".SH SEE ALSO\n.BR ep_info (1),\n.BR nccl_ep (7)\n", stdout);
	return fflush(stdout) || ferror(stdout);
}
