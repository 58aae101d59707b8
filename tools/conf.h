/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TOOLS_CONF_H
#define EP_TOOLS_CONF_H

/*
 * Puts settings of NCCL's configuration files into the environment, as NCCL does in a job:
 * $NCCL_CONF_FILE, or ~/.nccl.conf without it, then /etc/nccl.conf. What is there first stays.
 */
void ep_conf_load(void);

/* Where a variable's value comes from: "environment", or the file. */
const char *ep_conf_source(const char *name);

#endif
