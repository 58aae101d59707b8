/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <unistd.h>
#include "core/registry.h"

struct ep_registry_entry {
	const void *object;
	enum ep_registry_kind kind;
	int owner; /* the process that made it */
};

static pthread_mutex_t ep_registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t ep_registry_once = PTHREAD_ONCE_INIT;
static void *ep_registry_tree; /* of entries; see tsearch(3) */

/* A child of fork() asks for the objects, too: no other thread may hold the lock when it is made. */
static void ep_registry_fork(void)
{
	pthread_mutex_lock(&ep_registry_lock);
}

static void ep_registry_forked(void)
{
	pthread_mutex_unlock(&ep_registry_lock);
}

static void ep_registry_watch_forks(void)
{
	(void)pthread_atfork(ep_registry_fork, ep_registry_forked, ep_registry_forked);
}

static int ep_registry_compare(const void *a, const void *b)
{
	const char *x = ((const struct ep_registry_entry *)a)->object;
	const char *y = ((const struct ep_registry_entry *)b)->object;

	return (x > y) - (x < y);
}

static struct ep_registry_entry *ep_registry_find(const void *object)
{
	struct ep_registry_entry key = { .object = object };
	struct ep_registry_entry **found = tfind(&key, &ep_registry_tree, ep_registry_compare);

	return found ? *found : NULL;
}

bool ep_registry_add(const void *object, enum ep_registry_kind kind)
{
	struct ep_registry_entry *entry = malloc(sizeof(*entry));
	bool added;

	if (!entry) {
		return false;
	}
	*entry = (struct ep_registry_entry){ object, kind, (int)getpid() };
	pthread_once(&ep_registry_once, ep_registry_watch_forks);
	pthread_mutex_lock(&ep_registry_lock);
	added = tsearch(entry, &ep_registry_tree, ep_registry_compare) != NULL;
	pthread_mutex_unlock(&ep_registry_lock);
	if (!added) {
		free(entry);
	}
	return added;
}

int ep_registry_owner(const void *object, enum ep_registry_kind kind)
{
	const struct ep_registry_entry *entry;
	int owner;

	pthread_mutex_lock(&ep_registry_lock);
	entry = ep_registry_find(object);
	owner = entry && entry->kind == kind ? entry->owner : 0;
	pthread_mutex_unlock(&ep_registry_lock);
	return owner;
}

bool ep_registry_has(const void *object, enum ep_registry_kind kind)
{
	return ep_registry_owner(object, kind) != 0;
}

void ep_registry_made(const void *object, enum ep_registry_kind kind)
{
	struct ep_registry_entry *entry;

	pthread_mutex_lock(&ep_registry_lock);
	entry = ep_registry_find(object);
	if (entry && entry->kind == EP_REGISTRY_MAKING) {
		entry->kind = kind;
	}
	pthread_mutex_unlock(&ep_registry_lock);
}

bool ep_registry_remove(const void *object, enum ep_registry_kind kind)
{
	struct ep_registry_entry *entry;
	bool there;

	pthread_mutex_lock(&ep_registry_lock);
	entry = ep_registry_find(object);
	there = entry && entry->kind == kind;
	if (there) {
		(void)tdelete(entry, &ep_registry_tree, ep_registry_compare);
		free(entry);
	}
	pthread_mutex_unlock(&ep_registry_lock);
	return there;
}
