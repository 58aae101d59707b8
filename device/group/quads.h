/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in quads of EP_QUAD_BYTES: the vec of a quad that a lane loads or stores in a tensor. */
#ifndef EP_DEVICE_GROUP_QUADS_H
#define EP_DEVICE_GROUP_QUADS_H

#include "device/group/group_layout.h"
#include "device/simt/simt.h"

/* Of a line, lanes 7, 15, 23 and 31 hold 8 bytes of data and the flag, the others 16 bytes. */
EP_DEV bool ep_quad_narrow(void)
{
	return (ep_lane() & 7) == 7;
}

/* 8 bytes at an odd multiple of 8 lie in the upper half of the aligned vec that was loaded. */
EP_DEV struct ep_vec16 ep_quad_vec_narrow(struct ep_vec16 vec, uint32_t off)
{
	if (off & 8) {
		vec.x = vec.z;
		vec.y = vec.w;
	}
	return vec;
}

/*
 * 16 bytes of a tensor at p, or 8 where `narrow`; zero where there is nothing (`there` is false).
 * Nobody writes the tensor while the kernel runs.
 */
EP_DEV struct ep_vec16 ep_quad_load(const unsigned char *p, bool narrow, bool there)
{
	struct ep_vec16 v = { 0, 0, 0, 0 };

	if (!there) {
		return v;
	}
	if (narrow) {
		struct ep_vec8 h = ep_ld8_nc(p);

		v.x = h.x;
		v.y = h.y;
		return v;
	}
	return ep_ld16_nc(p);
}

EP_DEV void ep_quad_store(unsigned char *p, struct ep_vec16 vec, bool narrow)
{
	if (narrow) {
		struct ep_vec8 h = { vec.x, vec.y };

		*(struct ep_vec8 *)p = h;
	} else {
		ep_st16(p, vec);
	}
}

#endif
