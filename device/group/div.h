/* SPDX-License-Identifier: Apache-2.0 */
/* Division by numbers that a launch fixes: a GPU takes some 20 instructions, this way 3. */
#ifndef EP_DEVICE_GROUP_DIV_H
#define EP_DEVICE_GROUP_DIV_H

#include <stdint.h>
#include "device/simt/language.h"

/* n / d by multiplication, for n < 2^31. */
struct ep_div {
	uint32_t d;
	uint32_t mul;
	uint32_t shift;
};

EP_HOST_DEV struct ep_div ep_div_make(uint32_t d)
{
	struct ep_div v = { d, 0, 31 };

	while ((uint64_t)1 << (v.shift - 31) < d) {
		v.shift++;
	}
	v.mul = (uint32_t)((((uint64_t)1 << v.shift) + d - 1) / d);
	return v;
}

EP_HOST_DEV uint32_t ep_div(uint32_t n, struct ep_div div)
{
	return (uint32_t)((uint64_t)n * div.mul >> div.shift);
}

#endif
