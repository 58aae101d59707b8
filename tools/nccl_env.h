/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's variables that count here too, and NCCL's configuration files. */
#ifndef EP_TOOLS_NCCL_ENV_H
#define EP_TOOLS_NCCL_ENV_H

/* Besides those of RDMA, with what their absence means. */
struct ep_nccl_var {
	const char *name, *unset, *help;
};
extern const struct ep_nccl_var ep_nccl_var_table[];
extern const int ep_nccl_vars; /* how many */

/*
 * Puts settings of NCCL's configuration files into the environment, as NCCL does in a job:
 * $NCCL_CONF_FILE, or ~/.nccl.conf without it, then /etc/nccl.conf. What is there first stays.
 */
void ep_conf_load(void);

/* Returns where a variable's value comes from: "environment", or the file. */
const char *ep_conf_source(const char *name);

#endif
