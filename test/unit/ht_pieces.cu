/* SPDX-License-Identifier: Apache-2.0 */
#include "device/ht/dispatch.h"

extern "C" struct ep_ht_piece ht_piece(uint32_t token_bytes, uint32_t scale_bytes,
				       uint32_t part_bytes, uint32_t part)
{
	struct ep_ht_dispatch_args a = {};

	a.token_bytes = token_bytes;
	a.scale_bytes = scale_bytes;
	a.part_bytes = part_bytes;
	return ep_ht_piece_make(a, part);
}

/* Which units are a warp's: {first, stride} of what it sends, and of what it receives. */
struct ht_deals {
	struct ep_ht_deal sent, received;
};

/* Of a kernel for several nodes, or for one. */
extern "C" struct ht_deals ht_deals(bool nodes, uint32_t send_blocks, uint32_t send_warps,
				    uint32_t nblocks, uint32_t nwarps, uint32_t block,
				    uint32_t warp)
{
	struct ep_simt_lane *before = ep_simt_self, self = {};
	struct ep_ht_dispatch_args a = {};
	struct ht_deals d;

	self.nblocks = nblocks;
	self.nwarps = nwarps;
	self.block = block;
	self.warp = warp;
	a.send_blocks = send_blocks;
	a.send_warps = send_warps;
	ep_simt_self = &self;
	d.sent = nodes ? ep_ht_deal_sent<true>(a) : ep_ht_deal_sent<false>(a);
	d.received = nodes ? ep_ht_deal_received<true>(a) : ep_ht_deal_received<false>(a);
	ep_simt_self = before;
	return d;
}
