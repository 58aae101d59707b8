/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that NCCL holds: numbers of slots in tables that grow, looked up without a lock. */
#include <pthread.h>
#include <stdlib.h>
#include "net/net.h"

#define EP_NET_CHUNK 1024u /* slots that are made together, and never freed */
#define EP_NET_NO_SLOT UINT32_MAX

struct ep_net_slot {
	uint64_t handle; /* 0: free */
	void *object;
	uint64_t uses;
	uint32_t next; /* free one */
};

/* Memory registrations are many, and requests name connections in fewer bits: a table for each. */
struct handle_table {
	uint32_t limit, n, free; /* n: slots that were used ever */
	struct ep_net_slot *chunk[(1u << EP_NET_SLOT_BITS) / EP_NET_CHUNK];
};

static struct handle_table tables[2] = {
	{ .limit = EP_NET_COMMS, .free = EP_NET_NO_SLOT },
	{ .limit = 1u << EP_NET_SLOT_BITS, .free = EP_NET_NO_SLOT },
};
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct handle_table *handle_table(enum ep_net_kind kind)
{
	return &tables[kind == EP_NET_MR || kind == EP_NET_SYM];
}

static struct ep_net_slot *slot_at(struct handle_table *table, uint32_t slot)
{
	struct ep_net_slot *chunk =
		__atomic_load_n(&table->chunk[slot / EP_NET_CHUNK], __ATOMIC_ACQUIRE);

	return chunk ? &chunk[slot % EP_NET_CHUNK] : NULL;
}

/* The lock is held. */
static uint32_t slot_take(struct handle_table *table)
{
	uint32_t slot = table->free;

	if (slot != EP_NET_NO_SLOT) {
		table->free = slot_at(table, slot)->next;
		return slot;
	}
	if (table->n == table->limit) {
		return EP_NET_NO_SLOT;
	}
	if (table->n % EP_NET_CHUNK == 0) {
		struct ep_net_slot *chunk = calloc(EP_NET_CHUNK, sizeof(*chunk));

		if (!chunk) {
			return EP_NET_NO_SLOT;
		}
		__atomic_store_n(&table->chunk[table->n / EP_NET_CHUNK], chunk, __ATOMIC_RELEASE);
	}
	return table->n++;
}

static const char *const kind_text[] = {
	[EP_NET_CONTEXT] = "context",
	[EP_NET_LISTEN] = "listener",
	[EP_NET_CONNECT] = "connection that is being made",
	[EP_NET_SEND] = "connection that sends",
	[EP_NET_RECV] = "connection that receives",
	[EP_NET_MR] = "registration of memory",
	[EP_NET_MESH_LISTEN] = "listener of ranks",
	[EP_NET_GIN] = "group of connected ranks",
	[EP_NET_SYM] = "registration of memory with ranks",
	[EP_NET_COLL] = "group of ranks for collectives",
};

ncclResult_t ep_net_handle_new(enum ep_net_kind kind, void *object, void **handle)
{
	struct handle_table *t = handle_table(kind);
	struct ep_net_slot *s;
	uint32_t slot;

	*handle = NULL;
	pthread_mutex_lock(&table_lock);
	slot = slot_take(t);
	if (slot != EP_NET_NO_SLOT) {
		s = slot_at(t, slot);
		*handle = (void *)(uintptr_t)(++s->uses << (EP_NET_KIND_BITS + EP_NET_SLOT_BITS) |
					      (uint64_t)slot << EP_NET_KIND_BITS | kind);
		__atomic_store_n(&s->object, object, __ATOMIC_RELAXED);
		__atomic_store_n(&s->handle, (uintptr_t)*handle, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&table_lock);
	return *handle ? ncclSuccess
		       : ep_fail(ncclSystemError, "no handle for one more %s, the limit is %u",
				 kind_text[kind], t->limit);
}

void *ep_net_handle_get(enum ep_net_kind kind, const void *handle)
{
	struct ep_net_slot *s = slot_at(handle_table(kind), ep_net_slot_of(handle));

	if (ep_net_kind_of(handle) != kind || !s ||
	    __atomic_load_n(&s->handle, __ATOMIC_ACQUIRE) != (uintptr_t)handle) {
		return NULL;
	}
	return __atomic_load_n(&s->object, __ATOMIC_RELAXED);
}

static ncclResult_t handle_fail(enum ep_net_kind kind, const void *handle)
{
	return ep_fail(ncclInvalidArgument, "%p is no %s, or was closed before", handle,
		       kind_text[kind]);
}

void *ep_net_handle_find(enum ep_net_kind kind, const void *handle)
{
	void *object = ep_net_handle_get(kind, handle);

	if (!object) {
		handle_fail(kind, handle);
	}
	return object;
}

void *ep_net_request_owner(enum ep_net_kind kind, const void *request, enum ep_net_kind *owner)
{
	struct ep_net_slot *s = NULL;
	uint64_t handle = 0;

	if (ep_net_kind_of(request) == kind) {
		s = slot_at(&tables[0], ep_net_slot_of(request) & (EP_NET_COMMS - 1));
	}
	if (s) {
		handle = __atomic_load_n(&s->handle, __ATOMIC_ACQUIRE);
	}
	*owner = ep_net_kind_of((void *)(uintptr_t)handle);
	return handle ? __atomic_load_n(&s->object, __ATOMIC_RELAXED) : NULL;
}

ncclResult_t ep_net_request_fail(const void *request)
{
	return ep_fail(ncclInvalidArgument, "%p is no request, or one that was tested to its end",
		       request);
}

/* The lock is held. */
static void *slot_drop(struct handle_table *table, uint32_t slot)
{
	struct ep_net_slot *s = slot_at(table, slot);
	void *object = s->object;

	__atomic_store_n(&s->handle, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&s->object, NULL, __ATOMIC_RELAXED);
	s->next = table->free;
	table->free = slot;
	return object;
}

void *ep_net_handle_drop(enum ep_net_kind kind, const void *handle)
{
	void *object = NULL;

	pthread_mutex_lock(&table_lock);
	if (ep_net_handle_get(kind, handle)) {
		object = slot_drop(handle_table(kind), ep_net_slot_of(handle));
	}
	pthread_mutex_unlock(&table_lock);
	return object;
}

ncclResult_t ep_net_handle_close(enum ep_net_kind kind, const void *handle,
				 void (*object_free)(void *object))
{
	void *object = handle ? ep_net_handle_drop(kind, handle) : NULL;

	if (handle && !object) {
		return handle_fail(kind, handle);
	}
	if (object) {
		object_free(object);
	}
	return ncclSuccess;
}

void *ep_net_handle_drop_one(enum ep_net_kind kind,
			     bool (*of)(const void *object, const void *what), const void *what)
{
	struct handle_table *t = handle_table(kind);
	void *object = NULL;

	pthread_mutex_lock(&table_lock);
	for (uint32_t i = 0; !object && i < t->n; i++) {
		const struct ep_net_slot *s = slot_at(t, i);

		if (s->handle && ep_net_kind_of((void *)(uintptr_t)s->handle) == kind &&
		    of(s->object, what)) {
			object = slot_drop(t, i);
		}
	}
	pthread_mutex_unlock(&table_lock);
	return object;
}
