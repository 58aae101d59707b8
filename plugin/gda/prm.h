/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of an mlx5 device, as far as we give them: Mellanox Adapters Programmer's Reference
 * Manual (PRM). A field is a pair "bit offset, width"; bit 0 is the most significant one of the
 * first big-endian word. Where the public manual is silent the source is named.
 */
#ifndef EP_GDA_PRM_H
#define EP_GDA_PRM_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

/* A field of up to 32 bits, which lies within a word. */
static inline void ep_prm_set(void *p, uint32_t bit, uint32_t width, uint32_t value)
{
	unsigned char *at = (unsigned char *)p + bit / 32 * 4;
	uint32_t shift = 32 - width - bit % 32;
	uint32_t mask = (uint32_t)(((uint64_t)1 << width) - 1) << shift;
	uint32_t word;

	memcpy(&word, at, 4);
	word = htobe32((be32toh(word) & ~mask) | ((value << shift) & mask));
	memcpy(at, &word, 4);
}

static inline uint32_t ep_prm_get(const void *p, uint32_t bit, uint32_t width)
{
	const unsigned char *at = (const unsigned char *)p + bit / 32 * 4;
	uint32_t word;

	memcpy(&word, at, 4);
	return (be32toh(word) >> (32 - width - bit % 32)) & (uint32_t)(((uint64_t)1 << width) - 1);
}

/* A field of 64 bits, at a multiple of 32. */
static inline void ep_prm_set64(void *p, uint32_t bit, uint32_t width, uint64_t value)
{
	value = htobe64(value);
	memcpy((unsigned char *)p + bit / 8, &value, width / 8);
}

/* Every command. */
#define EP_PRM_OPCODE 0x0, 16
#define EP_PRM_OP_MOD 0x30, 16
#define EP_PRM_OPT_PARAM_MASK                                                                      \
	0x80, 32               /* of the transitions: what of the context is optional and set */
#define EP_PRM_OBJECT 0x48, 24 /* number of the queue, in and out */
/*
 * Extensions of queue pairs (enhanced connection establishment): CREATE_QP asks and gets it,
 * INIT2RTR passes what the other end can, too, and gets what is left; linux/mlx5/mlx5_ifc.h: ece
 */
#define EP_PRM_ECE_IN 0xa0, 32
#define EP_PRM_ECE_OUT 0x60, 32
#define EP_PRM_STATUS 0x0, 8
#define EP_PRM_SYNDROME 0x20, 32
#define EP_PRM_OUT_BYTES 16

#define EP_PRM_CMD_QUERY_HCA_CAP 0x100
#define EP_PRM_CMD_CREATE_CQ 0x400
#define EP_PRM_CMD_CREATE_QP 0x500
#define EP_PRM_CMD_RST2INIT 0x502
#define EP_PRM_CMD_INIT2RTR 0x503
#define EP_PRM_CMD_RTR2RTS 0x504
#define EP_PRM_CMD_RTS2RTS 0x505
#define EP_PRM_CMD_2ERR 0x507
#define EP_PRM_CMD_QUERY_QP 0x50b
#define EP_PRM_CMD_QUERY_LAG 0x842

/* QUERY_HCA_CAP: op_mod is the set << 1, | 1 for the present values; they follow the header. */
#define EP_PRM_CAP_IN_BYTES 16
#define EP_PRM_CAP_OUT_BYTES (16 + 4096)
#define EP_PRM_CAP_AT 16
#define EP_PRM_CAPS_GENERAL 0x0
#define EP_PRM_CAPS_ROCE 0x4
#define EP_PRM_CAP_LOG_MAX_QP_SZ 0x88, 8
#define EP_PRM_CAP_DATA_IN_ORDER 0x62, 1  /* linux/mlx5/mlx5_ifc.h: qp_data_in_order */
#define EP_PRM_CAP_ECE_SUPPORT 0xa3, 1    /* the same: ece_support */
#define EP_PRM_CAP_QPC_EXTENSION 0x122, 1 /* linux/mlx5/mlx5_ifc.h */
#define EP_PRM_CAP_LOG_MAX_RA_REQ_QP 0x14a, 6
#define EP_PRM_CAP_RTS2RTS_LAG_TX_PORT_AFFINITY 0x152, 1
#define EP_PRM_CAP_LOG_MAX_RA_RES_QP 0x15a, 6
#define EP_PRM_CAP_LOG_MAX_MSG 0x1c3, 5
#define EP_PRM_CAP_OOO_RW_RC 0x1ca, 1 /* UCX, ib_mlx5_ifc.h: dp_ordering_ooo_; also _ALL_ below */
#define EP_PRM_CAP_INIT2_LAG_TX_PORT_AFFINITY 0x1f8, 1
#define EP_PRM_CAP_CQE_VERSION 0x1fc, 4
#define EP_PRM_CAP_CQ_OI 0x220, 1
#define EP_PRM_CAP_RC 0x23f, 1
#define EP_PRM_CAP_QP_ERROR_SYNDROME 0x273, 1 /* linux/mlx5/mlx5_ifc.h */
#define EP_PRM_CAP_LAG_TX_PORT_AFFINITY 0x278, 1
#define EP_PRM_CAP_NUM_LAG_PORTS 0x27c, 4
#define EP_PRM_CAP_OOO_ALL_RC 0x334, 1
#define EP_PRM_CAP_SQ_TS_FORMAT 0x440, 2 /* the same */
/* RoCE */
#define EP_PRM_ROCE_CAP_QP_TS_FORMAT 0x1e, 2 /* linux/mlx5/mlx5_ifc.h */

/* QUERY_LAG, and what it reports of the bond that the port is; linux/mlx5/mlx5_ifc.h: lagc */
#define EP_PRM_QUERY_LAG_BYTES 16 /* in and out */
#define EP_PRM_LAG_PORT_SELECT_MODE 0x55, 3
#define EP_PRM_LAG_BY_QUEUE 0
#define EP_PRM_LAG_STATE 0x5d, 3 /* 0: it is none */

/* CREATE_CQ */
#define EP_PRM_CREATE_CQ_BYTES 272
#define EP_PRM_CQC_AT (0x80 / 8)
#define EP_PRM_CQ_UMEM_OFFSET 0x280, 64
#define EP_PRM_CQ_UMEM_ID 0x2c0, 32
#define EP_PRM_CQ_UMEM_VALID 0x2e0, 1
/* within the context */
#define EP_PRM_CQC_DBR_UMEM_VALID 0x6, 1
#define EP_PRM_CQC_CC 0xb, 1 /* collapsed: every entry is entry 0 */
#define EP_PRM_CQC_OI 0xe, 1 /* overruns are ignored */
#define EP_PRM_CQC_DBR_UMEM_ID 0x20, 32
#define EP_PRM_CQC_LOG_CQ_SIZE 0x63, 5
#define EP_PRM_CQC_UAR_PAGE 0x68, 24
#define EP_PRM_CQC_EQN 0xb8, 8
#define EP_PRM_CQC_DBR_ADDR 0x1c0, 64

/* CREATE_QP and the transitions, which share the place of the context; QUERY_QP's answer too. */
#define EP_PRM_QP_BYTES 272
#define EP_PRM_QPC_AT (0xc0 / 8)
#define EP_PRM_QP_UMEM_OFFSET 0x800, 64 /* linux/mlx5/mlx5_ifc.h: wq_umem_offset */
#define EP_PRM_QP_UMEM_ID 0x840, 32
#define EP_PRM_QP_UMEM_VALID 0x860, 1
#define EP_PRM_QP_SHORT_BYTES 16 /* 2ERR, QUERY_QP */
/* QUERY_QP with extension, linux/mlx5/mlx5_ifc.h: qp_context_extension_bits */
#define EP_PRM_QUERY_QP_EXT 0x40, 1
#define EP_PRM_QUERY_QP_EXT_BYTES (272 + 192)
#define EP_PRM_QUERY_QP_VENDOR_SYNDROME 0x8f0, 8
#define EP_PRM_QUERY_QP_SYNDROME 0x8f8, 8
/* within the context */
#define EP_PRM_QPC_STATE 0x0, 4
#define EP_PRM_QPC_LAG_TX_PORT_AFFINITY 0x4, 4
#define EP_PRM_QPC_PM_STATE 0x13, 2
#define EP_PRM_QPC_DP_ORDERING_0 0x26, 1 /* UCX, ib_mlx5_ifc.h; also _1 below */
#define EP_PRM_QPC_PD 0x28, 24
#define EP_PRM_QPC_MTU 0x40, 3
#define EP_PRM_QPC_LOG_MSG_MAX 0x43, 5
#define EP_PRM_QPC_LOG_SQ_SIZE 0x51, 4
#define EP_PRM_QPC_TS_FORMAT 0x58, 2     /* linux/mlx5/mlx5_ifc.h */
#define EP_PRM_QPC_DATA_IN_ORDER 0x5a, 1 /* the same */
#define EP_PRM_QPC_UAR_PAGE 0x68, 24
#define EP_PRM_QPC_REMOTE_QPN 0xa8, 24
#define EP_PRM_QPC_PATH_AT (0xc0 / 8)
#define EP_PRM_QPC_LOG_SRA_MAX 0x388, 3
#define EP_PRM_QPC_RETRY_COUNT 0x38d, 3
#define EP_PRM_QPC_RNR_RETRY 0x390, 3
#define EP_PRM_QPC_NEXT_SEND_PSN 0x3c8, 24
#define EP_PRM_QPC_CQN_SND 0x3e8, 24
#define EP_PRM_QPC_LOG_RRA_MAX 0x488, 3
#define EP_PRM_QPC_ATOMIC_MODE 0x48c, 4
#define EP_PRM_QPC_RRE 0x490, 1
#define EP_PRM_QPC_RWE 0x491, 1
#define EP_PRM_QPC_RAE 0x492, 1
#define EP_PRM_QPC_DP_ORDERING_1 0x49c, 1
#define EP_PRM_QPC_MIN_RNR_NAK 0x4a3, 5
#define EP_PRM_QPC_NEXT_RCV_PSN 0x4a8, 24
#define EP_PRM_QPC_CQN_RCV 0x4e8, 24
#define EP_PRM_QPC_DBR_ADDR 0x500, 64
#define EP_PRM_QPC_RQ_TYPE 0x565, 3
#define EP_PRM_QPC_DBR_UMEM_VALID 0x683, 1
#define EP_PRM_QPC_DBR_UMEM_ID 0x720, 32
/* within the primary path */
#define EP_PRM_ADS_PKEY_INDEX 0x10, 16
#define EP_PRM_ADS_GRH 0x28, 1
#define EP_PRM_ADS_RLID 0x30, 16
#define EP_PRM_ADS_ACK_TIMEOUT 0x40, 5
#define EP_PRM_ADS_SRC_ADDR_INDEX 0x48, 8
#define EP_PRM_ADS_HOP_LIMIT 0x58, 8
#define EP_PRM_ADS_TCLASS 0x64, 8
#define EP_PRM_ADS_RGID_AT (0x80 / 8)
#define EP_PRM_ADS_DSCP 0x10a, 6
#define EP_PRM_ADS_UDP_SPORT 0x110, 16
#define EP_PRM_ADS_ETH_PRIO 0x121, 3
#define EP_PRM_ADS_SL 0x124, 4
#define EP_PRM_ADS_PORT 0x128, 8
#define EP_PRM_ADS_RMAC_HIGH 0x130, 16
#define EP_PRM_ADS_RMAC_LOW 0x140, 32

/* Values. */
#define EP_PRM_ECE_ASK 0x10000000u /* rdma-core: mlx5 provider, creation of queue pairs */
#define EP_PRM_ECE_VENDOR 0x02c9u  /* of what firmware reports */
#define EP_PRM_OPT_LAG_TX_PORT_AFFINITY (1u << 15)
#define EP_PRM_PM_MIGRATED 3
#define EP_PRM_ATOMIC_UP_TO_8 3 /* masked ones of 4 bytes, too */
#define EP_PRM_RQ_NONE 3
#define EP_PRM_TS_FREE_RUNNING 0 /* all that devices know which do not report formats */
#define EP_PRM_TS_DEFAULT 1
enum ep_prm_qp_state {
	EP_PRM_QP_RST = 0,
	EP_PRM_QP_INIT = 1,
	EP_PRM_QP_RTR = 2,
	EP_PRM_QP_RTS = 3,
	EP_PRM_QP_SQER = 4,
	EP_PRM_QP_ERR = 6,
	EP_PRM_QP_SQD = 7
};

#endif
