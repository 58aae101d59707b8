/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a group's config, with all choices, and compares those of ranks. */
#ifndef EP_EP_GROUP_CONFIG_H
#define EP_EP_GROUP_CONFIG_H

#include "core/nodes.h"
#include "ep/algo.h"

/* Checks the fields and makes the choices. sm_count 0: unknown, checks against it are left out. */
ncclResult_t ep_group_config_make(struct ep_group_config *out, const ncclEpGroupConfig_t *config,
				  const struct ep_params *params, int nranks, uint32_t sm_count);

/* The part of a config in which ranks must agree. */
#define EP_GROUP_AGREED 17
struct ep_group_agreed {
	uint64_t value[EP_GROUP_AGREED];
};
struct ep_group_agreed ep_group_config_agreed(const struct ep_group_config *config);

/* Names the first field in which ranks differ. all[r] is at `stride` bytes. */
ncclResult_t ep_group_agreed_check(const void *all, size_t stride, int nranks);

#endif
