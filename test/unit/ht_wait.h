/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that look at a wait of high throughput, and that wait for copies that do not end. */
#ifndef TEST_UNIT_HT_WAIT_H
#define TEST_UNIT_HT_WAIT_H

#include "device/ht/ht_layout.h"

#define HT_STUCK_SLOTS 3

struct ht_wait_args {
	struct ep_ht_common c;
	uint64_t waited_ns;
	uint32_t expired; /* that is longer than the timeout */
	uint32_t peer;
	uint32_t leaves; /* the rank whose control queue is left then; 0: none */
	uint32_t *over;
};

#ifdef __cplusplus
extern "C" {
#endif
void ht_wait_kernel(void);
void ht_own_kernel(void);
void ht_stuck_kernel(void);
#ifdef __cplusplus
}
#endif

#endif
