/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_GDA_TEXT_H
#define EP_GDA_TEXT_H

#include "gda/state.h"

/* Peer, local device and port, queue, syndrome and meaning, what to do. */
void ep_gda_cause_text(const struct ep_gda_queue *queue, const struct ep_gda_cause *cause,
		       char *text, size_t size);

#endif
