/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include "core/util.h"
#include "rdma/syndrome.h"

static const struct ep_syndrome ep_syndromes[] = {
	{ MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, IBV_WC_LOC_LEN_ERR, "local length error", NULL },
	{ MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR, "work request not understood",
	  NULL },
	{ MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, IBV_WC_LOC_PROT_ERR,
	  "local memory is not registered for this", NULL },
	{ MLX5_CQE_SYNDROME_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, "flushed after an earlier failure",
	  NULL },
	{ MLX5_CQE_SYNDROME_MW_BIND_ERR, IBV_WC_MW_BIND_ERR, "memory window error", NULL },
	{ MLX5_CQE_SYNDROME_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR, "the peer's answer makes no sense",
	  NULL },
	{ MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR, "local access error", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, IBV_WC_REM_INV_REQ_ERR,
	  "the peer's NIC calls the request invalid", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
	  "remote access error, the peer's memory is not registered for this", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_OP_ERR, IBV_WC_REM_OP_ERR, "the peer's NIC failed", NULL },
	{ MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR,
	  "transport retry counter exceeded",
	  "the peer or the path to it is dead, see that rank's log and the ports; "
	  "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set how long is waited" },
	{ MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
	  "receiver-not-ready retries exceeded", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, IBV_WC_REM_ABORT_ERR, "aborted by the peer", NULL },
};

const struct ep_syndrome *ep_syndrome_find(uint8_t code)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_syndromes); i++) {
		if (ep_syndromes[i].code == code) {
			return &ep_syndromes[i];
		}
	}
	return NULL;
}

uint8_t ep_syndrome_of_status(enum ibv_wc_status status)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(ep_syndromes); i++) {
		if (ep_syndromes[i].status == status) {
			return ep_syndromes[i].code;
		}
	}
	return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
}
