/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of live objects, a tree of their addresses under one lock. Each thread keeps what it has
 * found, until the set changes: calls ask for the same objects again and again.
 */
#include <pthread.h>
#include <search.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "core/registry.h"

struct registry_entry {
	const void *object;
	enum ep_registry_kind kind;
	int owner; /* the process that made it */
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;
static void *registry_tree; /* of entries; see tsearch(3) */

#define REGISTRY_SEEN 4 /* of a kind, that a thread keeps by their addresses */

static uint64_t registry_changes; /* written under the lock, read without */
static __thread struct registry_seen {
	struct registry_entry entry; /* owner 0: it was not there */
	uint64_t changes;            /* at that time */
} registry_seen[EP_REGISTRY_KINDS][REGISTRY_SEEN];

/*
 * A child of fork() asks for the objects, too: no other thread may hold the lock when it is made.
 */
static void registry_fork(void)
{
	pthread_mutex_lock(&registry_lock);
}

static void registry_forked(void)
{
	pthread_mutex_unlock(&registry_lock);
}

static void registry_watch_forks(void)
{
	(void)pthread_atfork(registry_fork, registry_forked, registry_forked);
}

static int registry_compare(const void *a, const void *b)
{
	const char *x = ((const struct registry_entry *)a)->object;
	const char *y = ((const struct registry_entry *)b)->object;

	return (x > y) - (x < y);
}

static struct registry_entry *registry_find(const void *object)
{
	struct registry_entry key = { .object = object };
	struct registry_entry **found = tfind(&key, &registry_tree, registry_compare);

	return found ? *found : NULL;
}

/* Under the lock: a thread that sees the new number and takes the lock finds the new set. */
static void registry_changed(void)
{
	__atomic_store_n(&registry_changes, registry_changes + 1, __ATOMIC_RELEASE);
}

bool ep_registry_add(const void *object, enum ep_registry_kind kind)
{
	struct registry_entry *entry = malloc(sizeof(*entry));
	bool added;

	if (!entry) {
		return false;
	}
	*entry = (struct registry_entry){ object, kind, (int)getpid() };
	pthread_once(&registry_once, registry_watch_forks);
	pthread_mutex_lock(&registry_lock);
	added = tsearch(entry, &registry_tree, registry_compare) != NULL;
	registry_changed();
	pthread_mutex_unlock(&registry_lock);
	if (!added) {
		free(entry);
	}
	return added;
}

static void registry_look(struct registry_seen *seen, const void *object,
			  enum ep_registry_kind kind)
{
	const struct registry_entry *entry;

	pthread_mutex_lock(&registry_lock);
	entry = registry_find(object);
	seen->entry = (struct registry_entry){ object, kind, 0 };
	if (entry && entry->kind == kind) {
		seen->entry.owner = entry->owner;
	}
	seen->changes = registry_changes;
	pthread_mutex_unlock(&registry_lock);
}

int ep_registry_owner(const void *object, enum ep_registry_kind kind)
{
	struct registry_seen *seen = &registry_seen[kind][(uintptr_t)object / 64 % REGISTRY_SEEN];

	if (seen->entry.object != object ||
	    seen->changes != __atomic_load_n(&registry_changes, __ATOMIC_ACQUIRE)) {
		registry_look(seen, object, kind);
	}
	return seen->entry.owner;
}

bool ep_registry_has(const void *object, enum ep_registry_kind kind)
{
	return ep_registry_owner(object, kind) != 0;
}

void ep_registry_made(const void *object, enum ep_registry_kind kind)
{
	struct registry_entry *entry;

	pthread_mutex_lock(&registry_lock);
	entry = registry_find(object);
	if (entry && entry->kind == EP_REGISTRY_MAKING) {
		entry->kind = kind;
		registry_changed();
	}
	pthread_mutex_unlock(&registry_lock);
}

bool ep_registry_remove(const void *object, enum ep_registry_kind kind)
{
	struct registry_entry *entry;
	bool there;

	pthread_mutex_lock(&registry_lock);
	entry = registry_find(object);
	there = entry && entry->kind == kind;
	if (there) {
		(void)tdelete(entry, &registry_tree, registry_compare);
		registry_changed();
		free(entry);
	}
	pthread_mutex_unlock(&registry_lock);
	return there;
}
