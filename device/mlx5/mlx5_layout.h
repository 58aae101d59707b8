/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA send queues driven by kernels: what host set-up, kernels and NIC share. Plain C, included by
 * all of them.
 *
 * Part 1 is what an mlx5 NIC reads and writes. All of it is big endian, unless a comment states
 * otherwise; the types show only the width. Sources: Mellanox Adapters Programmer's Reference
 * Manual (PRM), rdma-core's public header <infiniband/mlx5dv.h> (test/gda/mlx5dv.c compares with it
 * member by member), rdma-core's providers/mlx5/mlx5.h for the layout of doorbells.
 *
 * Part 2 is our own state of a queue, in the byte order of the machine.
 */
#ifndef EP_DEVICE_MLX5_LAYOUT_H
#define EP_DEVICE_MLX5_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include "device/simt/language.h"

/* ------------------------------------------------------------------ Part 1: the NIC's formats */

/*
 * A send queue is a circular buffer of basic blocks (WQEBB) of 64 bytes, a power of two. A work
 * queue element (WQE) is a list of 16-byte segments; DS counts them, the control segment included.
 * Every WQE that we post fits one basic block, so that the index of a WQE is its block, and the
 * index in a completion plus one is the first that has not completed.
 *
 * Indices count blocks since the queue was made. The NIC sees them modulo 65536, whatever the size
 * of the buffer; software keeps 64 bits. (PRM, "Send Queue"; WQE index in the control segment.)
 */
#define EP_MLX5_WQEBB 64
#define EP_MLX5_SEGMENT 16
#define EP_MLX5_MAX_BYTES (1u << 30) /* of one message; bit 31 of byte_count means inline */
#define EP_MLX5_MAX_INLINE 28        /* bytes of data within one basic block */

/* mlx5dv.h: MLX5_OPCODE_* */
enum ep_mlx5_opcode {
	EP_MLX5_OP_NOP = 0x00,
	EP_MLX5_OP_WRITE = 0x08,
	EP_MLX5_OP_FETCH_ADD = 0x12
};

/*
 * fm_ce_se of the control segment: fence mode 7:5, completion 3:2, solicited 1 (PRM; mlx5dv.h:
 * MLX5_WQE_CTRL_*). Without CE_ALWAYS a WQE leaves a CQE only when it fails.
 */
enum ep_mlx5_fm_ce_se {
	EP_MLX5_CE_ALWAYS = 0x08,
	EP_MLX5_FM_NONE = 0x00,
	EP_MLX5_FM_SMALL_FENCE = 0x20,
	EP_MLX5_FM_FENCE =
		0x40, /* after earlier READs and atomics; where the queue places data out of
				  * order, UCX relies on it for atomics after WRITEs */
	EP_MLX5_FM_STRONG = 0x60 /* UCX: for WRITEs after WRITEs on such queues */
};

/* mlx5dv.h: struct mlx5_wqe_ctrl_seg */
struct ep_mlx5_ctrl_seg {
	uint32_t opmod_idx_opcode; /* opmod 31:24, WQE index 23:8, opcode 7:0 */
	uint32_t qpn_ds;           /* number of the queue pair 31:8, DS 5:0 */
	uint8_t signature;         /* 0 */
	uint8_t stream[2];         /* 0: dci_stream_channel_id */
	uint8_t fm_ce_se;
	uint32_t imm;
};

/* mlx5dv.h: struct mlx5_wqe_raddr_seg */
struct ep_mlx5_raddr_seg {
	uint64_t addr;
	uint32_t rkey;
	uint32_t reserved; /* 0 */
};

/* mlx5dv.h: struct mlx5_wqe_data_seg. A byte_count of 0 means 2 GiB: leave the segment out. */
struct ep_mlx5_data_seg {
	uint32_t byte_count;
	uint32_t lkey;
	uint64_t addr;
};

/* mlx5dv.h: struct mlx5_wqe_inl_data_seg, MLX5_INLINE_SEG. The data is not swapped. */
#define EP_MLX5_INLINE 0x80000000u
struct ep_mlx5_inline_seg {
	uint32_t byte_count; /* | EP_MLX5_INLINE */
	uint8_t data[EP_MLX5_MAX_INLINE];
};

/* mlx5dv.h: struct mlx5_wqe_atomic_seg */
struct ep_mlx5_atomic_seg {
	uint64_t swap_add;
	uint64_t compare; /* fetch and add: not looked at */
};

/* A basic block in memory, as the words that are stored. */
struct __attribute__((aligned(EP_MLX5_WQEBB))) ep_mlx5_wqe {
	uint32_t w[EP_MLX5_WQEBB / 4];
};

/* The parts of each of our WQEs, for those who take one apart. */
struct ep_mlx5_wqe_write {
	struct ep_mlx5_ctrl_seg ctrl;
	struct ep_mlx5_raddr_seg raddr;
	struct ep_mlx5_data_seg data; /* DS 3; DS 2 without it: nothing to write */
	uint8_t unused[16];
};

struct ep_mlx5_wqe_inline {
	struct ep_mlx5_ctrl_seg ctrl;
	struct ep_mlx5_raddr_seg raddr;
	struct ep_mlx5_inline_seg data; /* DS 3 up to 12 bytes, then DS 4 */
};

struct ep_mlx5_wqe_atomic {
	struct ep_mlx5_ctrl_seg ctrl;
	struct ep_mlx5_raddr_seg raddr;
	struct ep_mlx5_atomic_seg atomic;
	struct ep_mlx5_data_seg data; /* where the old value goes: 8 bytes */
};

union ep_mlx5_wqe_view {
	struct ep_mlx5_wqe words;
	struct ep_mlx5_ctrl_seg ctrl;
	struct ep_mlx5_wqe_write write;
	struct ep_mlx5_wqe_inline in;
	struct ep_mlx5_wqe_atomic atomic;
};

/*
 * Doorbell record of a queue pair, 8 bytes (mlx5dv.h: MLX5_RCV_DBR, MLX5_SND_DBR). The send counter
 * is the index behind the last WQE handed over, modulo 65536.
 */
struct ep_mlx5_dbr {
	uint32_t recv;
	uint32_t send;
};

/* Doorbell record of a completion queue: never moved, because overruns are ignored (cqc.oi). */
struct ep_mlx5_cq_dbr {
	uint32_t consumer;
	uint32_t arm;
};

/*
 * Doorbell register: 8 bytes at this offset of a UAR page, written at once. The value looks like
 * the first half of a control segment; the NIC continues up to index + (DS + 3) / 4. We write the
 * next index with opcode 0 and DS 0 (the form that NVSHMEM and DOCA use; rdma-core writes the last
 * WQE's own words, which comes to the same).
 */
#define EP_MLX5_UAR_BYTES 4096
#define EP_MLX5_UAR_DOORBELL 0x800

/*
 * Completion, 64 bytes (mlx5dv.h: struct mlx5_cqe64, struct mlx5_err_cqe). The queue is collapsed
 * (cqc.cc) and ignores overruns (cqc.oi): the NIC writes every completion to entry 0. Software
 * fills the entry with 0xff before the queue is made, so that it reads as opcode 15 and, in the
 * index, as "nothing before 0 has completed". Software reads bytes 60..63 as one word, which the
 * NIC therefore must write last and at once.
 */
enum ep_mlx5_cqe_opcode {
	EP_MLX5_CQE_REQ = 0,
	EP_MLX5_CQE_REQ_ERR = 13,
	EP_MLX5_CQE_RESP_ERR = 14,
	EP_MLX5_CQE_INVALID = 15
};

/* mlx5dv.h: MLX5_CQE_SYNDROME_* */
enum ep_mlx5_syndrome {
	EP_MLX5_SYND_LOCAL_LENGTH = 0x01,
	EP_MLX5_SYND_LOCAL_QP_OP = 0x02,
	EP_MLX5_SYND_LOCAL_PROT = 0x04,
	EP_MLX5_SYND_FLUSHED = 0x05, /* after another failure of the queue, whose CQE it replaced */
	EP_MLX5_SYND_MW_BIND = 0x06,
	EP_MLX5_SYND_BAD_RESP = 0x10,
	EP_MLX5_SYND_LOCAL_ACCESS = 0x11,
	EP_MLX5_SYND_REMOTE_INVAL_REQ = 0x12,
	EP_MLX5_SYND_REMOTE_ACCESS = 0x13,
	EP_MLX5_SYND_REMOTE_OP = 0x14,
	EP_MLX5_SYND_RETRY_EXCEEDED = 0x15,
	EP_MLX5_SYND_RNR_EXCEEDED = 0x16,
	EP_MLX5_SYND_REMOTE_ABORTED = 0x22
};

struct __attribute__((aligned(64))) ep_mlx5_cqe {
	uint8_t other[44];
	uint32_t byte_count;
	union {
		uint64_t timestamp;
		struct {
			uint8_t reserved[4];
			uint8_t hw_syndrome;
			uint8_t hw_syndrome_type;
			uint8_t vendor_syndrome;
			uint8_t syndrome;
		} error;
	} u;
	uint32_t opcode_qpn;  /* opcode of the WQE 31:24, number of the queue pair 23:0 */
	uint16_t wqe_counter; /* index of the completed WQE */
	uint8_t signature;
	uint8_t op_own; /* opcode 7:4, format 3:2, solicited 1, owner 0 */
};
#define EP_MLX5_CQE_ERROR_AT 52 /* the word hw_syndrome .. syndrome */
#define EP_MLX5_CQE_DONE_AT 60  /* the word wqe_counter .. op_own */

_Static_assert(sizeof(struct ep_mlx5_ctrl_seg) == 16, "control segment");
_Static_assert(offsetof(struct ep_mlx5_ctrl_seg, fm_ce_se) == 11, "control segment");
_Static_assert(sizeof(struct ep_mlx5_raddr_seg) == 16, "remote address segment");
_Static_assert(sizeof(struct ep_mlx5_data_seg) == 16, "data segment");
_Static_assert(sizeof(struct ep_mlx5_inline_seg) == 32, "inline segment");
_Static_assert(sizeof(struct ep_mlx5_atomic_seg) == 16, "atomic segment");
_Static_assert(sizeof(struct ep_mlx5_wqe) == 64, "basic block");
_Static_assert(sizeof(struct ep_mlx5_wqe_write) == 64, "WRITE");
_Static_assert(sizeof(struct ep_mlx5_wqe_inline) == 64, "inline WRITE");
_Static_assert(sizeof(struct ep_mlx5_wqe_atomic) == 64, "atomics");
_Static_assert(offsetof(struct ep_mlx5_wqe_atomic, data) == 0x30, "atomics");
_Static_assert(sizeof(union ep_mlx5_wqe_view) == 64, "WQEs");
_Static_assert(sizeof(struct ep_mlx5_dbr) == 8 && offsetof(struct ep_mlx5_dbr, send) == 4, "dbr");
_Static_assert(sizeof(struct ep_mlx5_cqe) == 64, "CQE");
_Static_assert(offsetof(struct ep_mlx5_cqe, byte_count) == 44, "CQE");
_Static_assert(offsetof(struct ep_mlx5_cqe, u.error.hw_syndrome) == EP_MLX5_CQE_ERROR_AT, "CQE");
_Static_assert(offsetof(struct ep_mlx5_cqe, u.error.syndrome) == 55, "CQE");
_Static_assert(offsetof(struct ep_mlx5_cqe, opcode_qpn) == 56, "CQE");
_Static_assert(offsetof(struct ep_mlx5_cqe, wqe_counter) == EP_MLX5_CQE_DONE_AT, "CQE");
_Static_assert(offsetof(struct ep_mlx5_cqe, op_own) == 63, "CQE");

/* --------------------------------------------------------------- Part 2: a queue, as we see it */

#define EP_MLX5_MIN_DEPTH 64    /* so that the largest batch is no more than 3/4 of it */
#define EP_MLX5_MAX_DEPTH 32768 /* so that a 16-bit index shows which of the two it means */
#define EP_MLX5_MAX_BATCH 33    /* WQEs of one call: one per lane and a signal */

_Static_assert(4 * EP_MLX5_MAX_BATCH <= 3 * EP_MLX5_MIN_DEPTH, "a batch is at most 3/4 of a queue");

/*
 * How kernels hand WQEs over.
 *   MMIO   the kernel writes the doorbell record and then the doorbell register (`db`: device
 *          address of the register).
 *   INDEX  the kernel stores the 64-bit index behind the last WQE to `db` (host memory, release,
 *          system scope; never goes back), and a thread of the host does the rest: either it rings
 *          the doorbell of a queue in host memory, or it takes the WQEs of [old, new) as commands,
 *          posts them by verbs, and writes completions to the CQE line as a NIC would. `dbr` is not
 *          touched by kernels.
 */
enum ep_mlx5_handover {
	EP_MLX5_HANDOVER_MMIO = 0,
	EP_MLX5_HANDOVER_INDEX = 1
};

/* Data placement order that the connection really has (QPC read back after RTS), weakest last. */
enum ep_mlx5_tier {
	EP_MLX5_TIER_IBTA = 0,   /* as posted */
	EP_MLX5_TIER_OOO_RW = 1, /* WRITEs and READs in any order, atomics after them */
	EP_MLX5_TIER_OOO_ALL = 2 /* anything in any order */
};

/* How a signal with one writer travels; ep_mlx5_signal_policy() chooses. */
enum ep_mlx5_signal_policy {
	EP_MLX5_SIGNAL_WRITE = 0,        /* inline WRITE of the new value */
	EP_MLX5_SIGNAL_WRITE_STRONG = 1, /* the same with FM_STRONG */
	EP_MLX5_SIGNAL_ATOMIC = 2        /* fetch and add of the difference */
};

/*
 * A region that one key covers. `addr` is the address under which the NIC knows its first byte (the
 * IOVA of the registration, often but not always the address that kernels use).
 */
struct ep_mlx5_region {
	uint64_t addr;
	uint64_t bytes;
	uint32_t lkey; /* of local regions */
	uint32_t rkey; /* of remote regions */
};

#define EP_MLX5_MAX_NICS 8 /* of a rank */

/*
 * Local memory of the caller that NICs read: its address, and the key of each of this rank's NICs
 * (by ep_mlx5_qp.nic). addr 0: there is none.
 */
struct ep_mlx5_source {
	uint64_t addr;
	uint32_t lkey[EP_MLX5_MAX_NICS];
};

/* Indices of the region tables of a queue. */
enum ep_mlx5_region_id {
	EP_MLX5_REGION_HEAP,   /* may be registered with relaxed ordering */
	EP_MLX5_REGION_SIGNAL, /* signals and packets; never with relaxed ordering. May be the
				* heap's memory once more under another key. */
	EP_MLX5_REGIONS
};

/* Reasons for the end of a queue's use. 0: none. */
enum ep_mlx5_status {
	EP_MLX5_OK = 0,
	EP_MLX5_ERR_CQE = 1,        /* the NIC reported an error */
	EP_MLX5_ERR_SLOT = 2,       /* timeout: no entry of the send queue came free */
	EP_MLX5_ERR_COMPLETION = 3, /* timeout: WQEs did not complete */
	EP_MLX5_ERR_STOPPED = 4,    /* the host stopped it (`stop`) */
	EP_MLX5_ERR_ABORTED = 5     /* the group was aborted; nothing is known of this queue */
};

/*
 * First failure of a queue, for the host: pinned host memory, one per queue, zeroed by the host.
 * EP_MLX5_ERR_ABORTED leaves none. The CQE may be that of a flushed WQE which has replaced the
 * cause (syndrome 5): the host asks the NIC (QUERY_QP) then.
 */
struct ep_mlx5_error {
	uint32_t valid; /* written last, release, system scope */
	uint32_t status;
	uint32_t peer;
	uint32_t nic;
	uint32_t qpn;
	uint8_t hw_syndrome; /* these five: from the CQE, EP_MLX5_ERR_CQE only */
	uint8_t hw_syndrome_type;
	uint8_t vendor_syndrome;
	uint8_t syndrome;
	uint16_t wqe_counter;
	uint8_t cqe_opcode;
	uint8_t pad;
	uint32_t site;     /* enum ep_wait_site: what was being waited for */
	uint64_t reserved; /* the queue's counters at that time */
	uint64_t rung;
	uint64_t done;
	uint64_t waited_ns; /* timeouts: the bound that was exceeded */
};

/*
 * A send queue. In memory of the GPU that drives it, or in pinned host memory. Pointers are
 * addresses for that GPU.
 *
 * Before a kernel uses it, the host zeroes the second and third part, fills the CQE with 0xff and
 * the doorbell record with 0; the same when the queue pair has gone through RESET. Counters only
 * grow: done <= rung <= reserved; WQEs exist only below done + depth. Kernels own the
 * counters while they run; the host may look at any time.
 */
struct __attribute__((aligned(128))) ep_mlx5_qp {
	/* Written by the host, then only read. */
	struct ep_mlx5_wqe *sq;        /* `depth` of them */
	const struct ep_mlx5_cqe *cqe; /* the one entry */
	struct ep_mlx5_dbr *dbr;
	uint64_t *db;
	const struct ep_mlx5_region *local;  /* [EP_MLX5_REGIONS], keys of the NIC of this queue */
	const struct ep_mlx5_region *remote; /* [EP_MLX5_REGIONS], keys of the peer's NIC */
	struct ep_mlx5_error *record;
	const uint32_t *stop; /* host memory; not 0: every wait ends */
	uint32_t qpn;
	uint32_t depth;   /* a power of two, EP_MLX5_MIN_DEPTH..EP_MLX5_MAX_DEPTH */
	uint8_t handover; /* enum ep_mlx5_handover */
	uint8_t in_host;  /* `sq` or `dbr` lie in host memory */
	uint8_t tier;     /* enum ep_mlx5_tier */
	uint8_t signal;   /* enum ep_mlx5_signal_policy */
	uint32_t peer;    /* rank, for messages */
	uint32_t nic;     /* index of the NIC among this rank's */
	uint32_t sink_lkey;
	uint64_t sink; /* NIC's address of 8 registered bytes for unwanted atomic results */
	uint64_t pad0[4];

	/* Posting. */
	uint64_t reserved;   /* WQEs below are written */
	uint64_t rung;       /* WQEs below were handed to the NIC */
	uint32_t unsignaled; /* the last WQE asks for no completion */
	uint32_t pad1;
	uint64_t pad2[13];

	/* Completion. */
	uint64_t done;  /* WQEs below have completed, as far as somebody has looked */
	uint32_t error; /* enum ep_mlx5_status of the first failure */
	uint32_t pad3;
	uint64_t pad4[14];
};

_Static_assert(sizeof(struct ep_mlx5_region) == 24, "region");
_Static_assert(sizeof(struct ep_mlx5_source) == 40, "source");
_Static_assert(sizeof(struct ep_mlx5_error) == 64, "error record");
_Static_assert(offsetof(struct ep_mlx5_qp, reserved) == 128, "queue: posting line");
_Static_assert(offsetof(struct ep_mlx5_qp, done) == 256, "queue: completion line");
_Static_assert(sizeof(struct ep_mlx5_qp) == 384, "queue");

/*
 * The policy for a connection of that tier. `avoid_atomics`: atomics to this peer's memory crawl
 * (NICs behind a C2C link), or one of the NICs has none. `tier` is the weaker one of both ends: it
 * is the responder that places data. The policies of the two directions need not agree: the slot's
 * value is the same with each.
 *   tier 0: a WRITE lands after the WRITEs posted before it.
 *   tier 1: it need not; the requester holds an atomic back until the WRITEs are acknowledged.
 *   tier 2: nothing is held back; the atomic is sent with FM_FENCE (ep_mlx5_atomic_fm).
 */
EP_HOST_DEV uint8_t ep_mlx5_signal_policy(uint32_t tier, int avoid_atomics)
{
	if (tier == EP_MLX5_TIER_IBTA) {
		return EP_MLX5_SIGNAL_WRITE;
	}
	return avoid_atomics ? EP_MLX5_SIGNAL_WRITE_STRONG : EP_MLX5_SIGNAL_ATOMIC;
}

/* Fence mode of atomics that announce earlier WRITEs. */
EP_HOST_DEV uint32_t ep_mlx5_atomic_fm(uint32_t tier)
{
	return tier == EP_MLX5_TIER_OOO_ALL ? EP_MLX5_FM_FENCE : EP_MLX5_FM_NONE;
}

#endif
