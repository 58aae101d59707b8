/* SPDX-License-Identifier: Apache-2.0 */
/* Failures in words. */
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "device/simt/wait_site.h"
#include "gda/text.h"
#include "rdma/rc_qp.h"

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
	const char *what = c->status == EP_MLX5_ERR_SLOT   ? "no entry of the send queue came free"
			   : c->status == EP_MLX5_ERR_TURN ? "a kernel did not publish its work"
			   : c->status == EP_MLX5_ERR_LOCK ? "the doorbell was not released"
			   : c->status == EP_MLX5_ERR_COMPLETION ? "work did not complete"
								 : NULL;

	if (what) {
		snprintf(text, size, "%s within %llu ms", what,
			 (unsigned long long)c->waited_ns / 1000000);
	} else {
		snprintf(text, size, "its queue pair is in error state");
	}
}

void ep_gda_cause_text(const struct ep_gda_queue *queue, const struct ep_gda_cause *c, char *text,
		       size_t size)
{
	const struct ep_syndrome *m = c->syndrome ? ep_syndrome_find(c->syndrome) : NULL;
	bool gone = c->syndrome == EP_MLX5_SYND_RETRY_EXCEEDED &&
		    __atomic_load_n(&queue->nic->address_gone, __ATOMIC_RELAXED);
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
		 "RDMA with rank %d (%s) failed: %s on %s:%d, queue %u (QP 0x%06x)%s%s%s%s",
		 queue->peer, queue->gda->host[queue->peer], what, queue->nic->base.name,
		 queue->nic->base.port, queue->index, queue->qpn, at,
		 gone ? ", whose port has another address by now" : "", m && m->next ? ": " : "",
		 m && m->next ? m->next : "");
}
