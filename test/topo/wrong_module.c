/* SPDX-License-Identifier: Apache-2.0 */
/* A topology module of another version. */
#include "topo/module.h"

#include <errno.h>

int ep_topo_module_query(int abi, struct ep_topo_module_query *query)
{
	return abi == EP_TOPO_MODULE_ABI + 1 ? 0 : -EPROTO;
}
