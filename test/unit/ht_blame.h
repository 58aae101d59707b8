/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that ask whom a wait has to name, and that wait for copies that do not end. */
#ifndef TEST_UNIT_HT_BLAME_H
#define TEST_UNIT_HT_BLAME_H

#include "device/ht/ht_layout.h"

#define HT_STUCK_SLOTS 3

struct ht_blame_args {
	struct ep_ht_common c;
	uint64_t waited_ns;
	uint32_t over; /* the wait has gone on for longer than it may */
	uint32_t peer;
	uint32_t *named;
};

#ifdef __cplusplus
extern "C" {
#endif
void ht_blame_kernel(void);
void ht_go_on_kernel(void);
void ht_own_kernel(void);
void ht_stuck_kernel(void);
#ifdef __cplusplus
}
#endif

#endif
