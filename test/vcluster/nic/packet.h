/* SPDX-License-Identifier: Apache-2.0 */
/* What travels between NICs. */
#ifndef VN_PACKET_H
#define VN_PACKET_H

#include <stdint.h>

enum vn_kind {
	VN_WRITE = 1,
	VN_READ,
	VN_ATOMIC,
	VN_ACK, /* this and all below are answers */
	VN_READ_DATA,
	VN_ATOMIC_OLD,
	VN_NAK,
	/*
	 * The packet was lost, or the other end ignores it. Real wires have no such answer: there the
	 * requester's timer finds out.
	 */
	VN_DROPPED,
	VN_RNR /* immediate data, and no receive is posted */
};

struct vn_packet {
	uint8_t kind, opcode;
	uint8_t opmod;    /* answers: tier of the responder */
	uint8_t syndrome; /* requests: 1 if packets must come in order */
	uint32_t dst_qpn, src_qpn;
	uint32_t psn;
	uint32_t len;   /* of the payload; READ: asked for */
	uint32_t bytes; /* of the payload that follows */
	uint32_t rkey;
	uint16_t mtu;
	uint16_t pad;
	uint32_t src_ip;
	uint64_t raddr;
	uint64_t add, boundary; /* add: immediate data, too */
	uint64_t idx;           /* of the requester's WQE; answers repeat it */
	uint32_t pkt;           /* number of the packet in that WQE */
	uint32_t dst_ip;        /* requests */
	uint32_t ece;           /* requests: what the requester does beyond the standard */
	uint32_t pad2;
};

#endif
