/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_GDA_COMMAND_H
#define EP_GDA_COMMAND_H

#include "core/error.h"

/* Of a DevX command: true if it was carried out. */
bool ep_gda_command(const char *what, int error, const void *out, struct ep_reason *why);

#endif
