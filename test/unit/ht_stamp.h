/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that does to the head of handle memory what the blocks of a routing do. */
#ifndef TEST_UNIT_HT_STAMP_H
#define TEST_UNIT_HT_STAMP_H

#include "device/ht/ht_layout.h"

enum ht_stamp_failure {
	HT_STAMP_NONE,
	HT_STAMP_BEFORE,
	HT_STAMP_AFTER
};

struct ht_stamp_args {
	struct ep_ht_route_args a;
	uint32_t *rows;   /* [1] of all ranks, to this one */
	uint32_t failure; /* when another block fails: enum ht_stamp_failure */
};

#ifdef __cplusplus
extern "C" {
#endif
void ht_stamp_kernel(void);
#ifdef __cplusplus
}
#endif

#endif
