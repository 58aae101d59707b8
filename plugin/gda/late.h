/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to NICs about queues whose work is late. */
#ifndef EP_GDA_LATE_H
#define EP_GDA_LATE_H

#include "gda/state.h"

#define EP_GDA_ROUND_NS 1000000000ull /* work that takes longer is late */
#define EP_GDA_ASK_NS 5000000ull      /* for questions in a tick */

/* Both with `ask` held. Once in a round: which queues have work that was handed over a round ago? */
void ep_gda_late_mark(struct ep_gda *g, uint64_t now);
/* In each tick: asks about those that are due. */
void ep_gda_late_ask(struct ep_gda *g);

#endif
