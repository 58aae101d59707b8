/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lends libnccl_ep.so what libnccl-net-ep.so has from NCCL, in a process that has both: NCCL's
 * logger. The first exports a function, the second looks for it by name.
 */
#ifndef EP_CORE_NCCL_LOGGER_H
#define EP_CORE_NCCL_LOGGER_H

#include "core/log.h"

#define EP_NCCL_LOGGER_PLUGIN "libnccl-net-ep.so"
#define EP_NCCL_LOGGER_NAME "nccl_net_ep_log"

/*
 * The function of that name. It stays callable, as the plugin is never unmapped; false: NCCL has given the
 * plugin no logger, or has finalized it.
 */
typedef bool ep_nccl_logger_fn(int level, unsigned int subsys, const char *text);

/* Log lines go to NCCL's logger from now on, if the plugin is loaded and has it. */
void ep_nccl_logger_use(void);

#endif
