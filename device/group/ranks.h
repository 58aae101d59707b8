/* SPDX-License-Identifier: Apache-2.0 */
/* A set of ranks, for the host and for kernels. */
#ifndef EP_DEVICE_GROUP_RANKS_H
#define EP_DEVICE_GROUP_RANKS_H

#include <stdint.h>
#include "device/simt/language.h"

#define EP_GROUP_MAX_RANKS 1024
#define EP_RANKS_WORDS (EP_GROUP_MAX_RANKS / 32)

struct ep_ranks {
	uint32_t words[EP_RANKS_WORDS]; /* bit r % 32 of word r / 32: rank r */
};

EP_HOST_DEV uint32_t ep_ranks_has(const struct ep_ranks *ranks, uint32_t r)
{
	return ranks->words[r / 32] >> (r & 31) & 1;
}

EP_HOST_DEV void ep_ranks_add(struct ep_ranks *ranks, uint32_t r)
{
	ranks->words[r / 32] |= 1u << (r & 31);
}

#endif
