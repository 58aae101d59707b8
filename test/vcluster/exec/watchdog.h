/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the process when a block makes no progress. */
#ifndef VC_WATCHDOG_H
#define VC_WATCHDOG_H

#include "exec/block.h"

void vc_watchdog_add(struct vc_block *block);
void vc_watchdog_remove(struct vc_block *block);
/* Prints what the threads of the block wait for. */
void vc_block_dump(struct vc_block *block);

#endif
