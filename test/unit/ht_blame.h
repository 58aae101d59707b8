/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that asks whom a wait has to name. */
#ifndef TEST_UNIT_HT_BLAME_H
#define TEST_UNIT_HT_BLAME_H

#include "device/ht/layout.h"

struct ht_blame_args {
	struct ep_ht_common c;
	uint64_t waited_ns;
	uint32_t peer;
	uint32_t *named;
};

#ifdef __cplusplus
extern "C"
#endif
	void
	ht_blame_kernel(void);

#endif
