/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_TOPO_IB_VARS_H
#define TEST_TOPO_IB_VARS_H

#include <stdlib.h>
#include "rdma/env.h"

/* No variable that chooses NICs and GIDs is set any more. */
static inline void ib_vars_clear(void)
{
	for (int i = 0; i < EP_IB_VARS; i++) {
		unsetenv(ep_ib_var_table[i].name);
	}
}

#endif
