/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_NVML_H
#define EP_PEER_NVML_H

#include <stdbool.h>

/*
 * Whether NVLink joins GPU `self` and each of `count` others of this host that CUDA does not show to
 * this process. False also where nothing shows it.
 */
bool ep_peer_nvlink_hidden(const char *const *bus_ids, int count, const char *self);

#endif
