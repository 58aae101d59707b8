/* SPDX-License-Identifier: Apache-2.0 */
/* Failures in words. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "device/simt/wait_site.h"
#include "gda/state.h"

bool ep_gda_no(struct ep_gda_why *why, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why->text, sizeof(why->text), fmt, args);
	va_end(args);
	return false;
}

const char *ep_gda_mode_name(enum ep_gda_mode mode)
{
	static const char *const names[EP_GDA_MODES] = {
		[EP_GDA_AUTO] = "auto",           [EP_GDA_GPU] = "gpu",
		[EP_GDA_GPU_HOST] = "gpu_host",   [EP_GDA_CPU_DB] = "cpu_db",
		[EP_GDA_CPU_PROXY] = "cpu_proxy",
	};

	return (unsigned int)mode < EP_GDA_MODES ? names[mode] : "unknown";
}

struct ep_gda_meaning {
	uint8_t syndrome;
	uint8_t status; /* enum ibv_wc_status */
	const char *text;
	const char *next; /* NULL: the text says all */
};

static const struct ep_gda_meaning ep_gda_meanings[] = {
	{ EP_MLX5_SYND_LOCAL_LENGTH, IBV_WC_LOC_LEN_ERR, "local length error", NULL },
	{ EP_MLX5_SYND_LOCAL_QP_OP, IBV_WC_LOC_QP_OP_ERR, "work request not understood", NULL },
	{ EP_MLX5_SYND_LOCAL_PROT, IBV_WC_LOC_PROT_ERR, "local memory is not registered for this",
	  NULL },
	{ EP_MLX5_SYND_FLUSHED, IBV_WC_WR_FLUSH_ERR, "flushed after an earlier failure", NULL },
	{ EP_MLX5_SYND_MW_BIND, IBV_WC_MW_BIND_ERR, "memory window error", NULL },
	{ EP_MLX5_SYND_BAD_RESP, IBV_WC_BAD_RESP_ERR, "the peer's answer makes no sense", NULL },
	{ EP_MLX5_SYND_LOCAL_ACCESS, IBV_WC_LOC_ACCESS_ERR, "local access error", NULL },
	{ EP_MLX5_SYND_REMOTE_INVAL_REQ, IBV_WC_REM_INV_REQ_ERR,
	  "the peer's NIC calls the request invalid", NULL },
	{ EP_MLX5_SYND_REMOTE_ACCESS, IBV_WC_REM_ACCESS_ERR,
	  "remote access error, the peer's memory is not registered for this", NULL },
	{ EP_MLX5_SYND_REMOTE_OP, IBV_WC_REM_OP_ERR, "the peer's NIC failed", NULL },
	{ EP_MLX5_SYND_RETRY_EXCEEDED, IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded",
	  "the peer or the way to it is dead, see that rank's log and the ports; "
	  "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set how long is waited" },
	{ EP_MLX5_SYND_RNR_EXCEEDED, IBV_WC_RNR_RETRY_EXC_ERR,
	  "receiver-not-ready retries exceeded", NULL },
	{ EP_MLX5_SYND_REMOTE_ABORTED, IBV_WC_REM_ABORT_ERR, "aborted by the peer", NULL },
};

static const struct ep_gda_meaning *ep_gda_meaning(uint8_t syndrome)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_gda_meanings); i++) {
		if (ep_gda_meanings[i].syndrome == syndrome) {
			return &ep_gda_meanings[i];
		}
	}
	return NULL;
}

uint8_t ep_gda_syndrome_of(enum ibv_wc_status status)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_gda_meanings); i++) {
		if (ep_gda_meanings[i].status == status) {
			return ep_gda_meanings[i].syndrome;
		}
	}
	return EP_MLX5_SYND_LOCAL_QP_OP;
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
	const struct ep_gda_meaning *m = c->syndrome ? ep_gda_meaning(c->syndrome) : NULL;
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
		 q->gda->host[q->peer], what, q->nic->name, q->nic->port, q->index, q->qpn, at,
		 m && m->next ? ": " : "", m && m->next ? m->next : "");
}
