/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles that NCCL holds as `void *`: not addresses but numbers, of a slot in a table and of how often the
 * slot was used. So a pointer that is none, one of another kind, and one to what was closed are found
 * out without a look at memory behind it; asking takes no lock, which the data path could not bear.
 * (core/registry.h, which serves calls that are rarer, does take one.)
 */
#ifndef EP_NET_HANDLES_H
#define EP_NET_HANDLES_H

#include "core/error.h"

enum ep_net_kind {
	EP_NET_NONE,
	EP_NET_CONTEXT,
	EP_NET_LISTEN,
	EP_NET_CONNECT, /* a connection that its caller has no handle of yet */
	EP_NET_SEND,
	EP_NET_RECV,
	EP_NET_MR,
	EP_NET_REQUEST,
	EP_NET_BOOTSTRAP, /* a listener of a mesh */
	EP_NET_MESH,      /* ranks that reach each other's memory */
	EP_NET_RMA,       /* queue pairs of a mesh */
	EP_NET_SYM,       /* memory that all ranks of a mesh have registered */
	EP_NET_OP,        /* a request of such queue pairs */
	EP_NET_COLL,      /* ranks of collectives */
	EP_NET_GATHER,    /* a request of these */
};

/*
 * Bits of a handle, from the lowest: 4 kind, 20 slot, 33 use. All together 57, what NCCL's
 * descriptors for GPUs have room for. What has requests is in slots of 16 bits.
 */
#define EP_NET_KIND_BITS 4
#define EP_NET_SLOT_BITS 20
#define EP_NET_COMM_BITS 16
#define EP_NET_COMMS (1u << EP_NET_COMM_BITS)
static inline enum ep_net_kind ep_net_kind_of(const void *handle)
{
	return (enum ep_net_kind)((uintptr_t)handle & ((1u << EP_NET_KIND_BITS) - 1));
}

static inline uint32_t ep_net_slot_of(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> EP_NET_KIND_BITS) & ((1u << EP_NET_SLOT_BITS) - 1);
}

/* A request: 4 bits of kind, 16 of the slot of what it is of, 20 of its number, and 24 of its use, which is odd. */
#define EP_NET_REQUEST_BITS 20
#define EP_NET_USE_BITS 24
#define EP_NET_USE_MASK ((1u << EP_NET_USE_BITS) - 1)

static inline uint32_t ep_net_use_next(uint32_t use)
{
	return (use + 1) & EP_NET_USE_MASK;
}

/* Requests of what was closed are not taken for those of what has its slot now. */
static inline uint32_t ep_net_use_first(void)
{
	return (uint32_t)ep_now_ns() * 2654435761u & EP_NET_USE_MASK & ~1u;
}

static inline void *ep_net_request_handle(enum ep_net_kind kind, const void *owner, uint32_t number,
					  uint32_t use)
{
	uint64_t h = (uint64_t)kind | (uint64_t)ep_net_slot_of(owner) << EP_NET_KIND_BITS;

	h |= (uint64_t)number << (EP_NET_KIND_BITS + EP_NET_COMM_BITS);
	h |= (uint64_t)use << (EP_NET_KIND_BITS + EP_NET_COMM_BITS + EP_NET_REQUEST_BITS);
	return (void *)(uintptr_t)h;
}

static inline uint32_t ep_net_request_number(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> (EP_NET_KIND_BITS + EP_NET_COMM_BITS)) &
	       ((1u << EP_NET_REQUEST_BITS) - 1);
}

/* Whether the handle is of this use, and that has not ended. */
static inline bool ep_net_request_is(const void *handle, uint32_t use)
{
	return use & 1 && use == (uintptr_t)handle >> (EP_NET_KIND_BITS + EP_NET_COMM_BITS +
						       EP_NET_REQUEST_BITS);
}

/* Returns the object that a request of this kind belongs to, and its kind. NULL: it is no request. */
void *ep_net_request_owner(enum ep_net_kind kind, const void *request, enum ep_net_kind *owner);
/* An error: it is no request, or has ended. */
ncclResult_t ep_net_request_fail(const void *request);

/* Fails, with *handle NULL, where there is no memory, or there are too many of them. */
ncclResult_t ep_net_handle_new(enum ep_net_kind kind, void *object, void **handle);
/* NULL: there is no such object. */
void *ep_net_handle_get(enum ep_net_kind kind, const void *handle);
/* The same; NULL is an error, ncclInvalidArgument, whose text is set. */
void *ep_net_handle_find(enum ep_net_kind kind, const void *handle);
/* The object, for whoever calls first; NULL: there is no such object (any more). */
void *ep_net_handle_drop(enum ep_net_kind kind, const void *handle);
/* Drops and frees it; a handle of no such object (any more) is an error, NULL is nothing. */
ncclResult_t ep_net_handle_close(enum ep_net_kind kind, const void *handle,
				 void (*object_free)(void *object));
/* Drops one object of the kind that `of` is true of. NULL: there is none. */
void *ep_net_handle_drop_one(enum ep_net_kind kind,
			     bool (*of)(const void *object, const void *what), const void *what);

#endif
