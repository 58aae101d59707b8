/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's variables that count here too, besides those of RDMA, with what their absence means. */
#ifndef TOOLS_NCCL_VARS_H
#define TOOLS_NCCL_VARS_H

#define EP_NCCL_VARS 12
struct ep_nccl_var {
	const char *name, *unset, *help;
};
extern const struct ep_nccl_var ep_nccl_var_table[EP_NCCL_VARS];

#endif
