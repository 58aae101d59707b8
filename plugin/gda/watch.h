/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that looks for failures. */
#ifndef EP_GDA_WATCH_H
#define EP_GDA_WATCH_H

#include "gda/state.h"

bool ep_gda_watch_start(struct ep_gda *g, struct ep_reason *why);
void ep_gda_watch_stop(struct ep_gda *g);

#endif
