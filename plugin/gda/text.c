/* SPDX-License-Identifier: Apache-2.0 */
/* Failures in words. */
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "device/simt/wait_site.h"
#include "gda/failure.h"
#include "rdma/syndrome.h"

const char *ep_gda_mode_name(enum ep_gda_mode mode)
{
	static const char *const names[EP_GDA_MODES] = {
		[EP_GDA_AUTO] = "auto",           [EP_GDA_GPU] = "gpu",
		[EP_GDA_GPU_HOST] = "gpu_host",   [EP_GDA_CPU_DB] = "cpu_db",
		[EP_GDA_CPU_PROXY] = "cpu_proxy",
	};

	return (unsigned int)mode < EP_GDA_MODES ? names[mode] : "unknown";
}

static void ep_gda_cause_words(const struct ep_gda_cause *c, char *text, size_t size)
{
	unsigned long long ms = c->waited_ns / 1000000;

	switch (c->status) {
	case EP_MLX5_ERR_SLOT:
		snprintf(text, size, "no entry of the send queue came free within %llu ms", ms);
		break;
	case EP_MLX5_ERR_TURN:
		snprintf(text, size, "a kernel did not publish its work within %llu ms", ms);
		break;
	case EP_MLX5_ERR_LOCK:
		snprintf(text, size, "the doorbell was not released within %llu ms", ms);
		break;
	case EP_MLX5_ERR_COMPLETION:
		snprintf(text, size, "work did not complete within %llu ms", ms);
		break;
	default:
		snprintf(text, size, "its queue pair is in error state");
	}
}

/* Peer, local device and port, queue, syndrome and meaning, what to do. */
void ep_gda_cause_text(const struct ep_gda_queue *q, const struct ep_gda_cause *c, char *text,
		       size_t size)
{
	const struct ep_syndrome *m = c->syndrome ? ep_syndrome_find(c->syndrome) : NULL;
	char what[128], at[32] = "";

	if (c->note) {
		snprintf(what, sizeof(what), "%s", c->note);
	} else if (c->syndrome) {
		snprintf(what, sizeof(what), "%s (syndrome 0x%02x, vendor 0x%02x%s)",
			 m ? m->text : "unknown failure", c->syndrome, c->vendor,
			 c->overwritten ? ", the cause is not known any more" : "");
	} else {
		ep_gda_cause_words(c, what, sizeof(what));
	}
	if (c->index_known) {
		snprintf(at, sizeof(at), ", WQE %u", c->index);
	}
	snprintf(text, size,
		 "RDMA with rank %d (%s) failed: %s on %s:%d, queue %u (QP 0x%06x)%s%s%s", q->peer,
		 q->gda->host[q->peer], what, q->nic->base.name, q->nic->base.port, q->index,
		 q->qpn, at, m && m->next ? ": " : "", m && m->next ? m->next : "");
}
