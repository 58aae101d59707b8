/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast addresses: nothing is mapped there, and what a kernel stores there goes to the memory of
 * several ranks.
 */
#ifndef VC_MULTICAST_H
#define VC_MULTICAST_H

#include <stddef.h>
#include <stdint.h>

#define VC_MULTICAST_MEMBERS 1024

/* The address of `size` bytes for memory at each of the `count` addresses; NULL: no memory. */
void *vc_multicast_make(uint8_t *const *member, uint32_t count, size_t size);
void vc_multicast_end(void *address);

#endif
