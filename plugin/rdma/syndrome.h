/* SPDX-License-Identifier: Apache-2.0 */
/* Why a NIC failed a work request, in words. */
#ifndef EP_RDMA_SYNDROME_H
#define EP_RDMA_SYNDROME_H

#include "rdma/verbs.h"

struct ep_syndrome {
	uint8_t code;   /* MLX5_CQE_SYNDROME_* */
	uint8_t status; /* enum ibv_wc_status */
	const char *text;
	const char *next; /* what to do; NULL: the text has all */
};

/* NULL: unknown. */
const struct ep_syndrome *ep_syndrome_find(uint8_t code);
uint8_t ep_syndrome_of_status(enum ibv_wc_status status);

#endif
