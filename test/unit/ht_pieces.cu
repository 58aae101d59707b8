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
