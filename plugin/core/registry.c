/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "core/registry.h"

#define EP_REGISTRY_LEAST 64 /* places; always a power of two, and at least half of them free */

struct ep_registry_entry {
	const void *object;
	enum ep_registry_kind kind; /* NONE: the place is free */
	int owner;                  /* the process that made it */
};

static pthread_mutex_t ep_registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t ep_registry_once = PTHREAD_ONCE_INIT;
static struct ep_registry_entry *ep_registry_table;
static size_t ep_registry_places, ep_registry_count;

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

static size_t ep_registry_home(const void *object)
{
	return (size_t)((uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15ull >> 32) &
	       (ep_registry_places - 1);
}

/* The object's place, or the free one where it belongs. */
static struct ep_registry_entry *ep_registry_find(const void *object)
{
	size_t i = ep_registry_home(object);

	while (ep_registry_table[i].kind && ep_registry_table[i].object != object) {
		i = (i + 1) & (ep_registry_places - 1);
	}
	return &ep_registry_table[i];
}

static bool ep_registry_grow(void)
{
	struct ep_registry_entry *old = ep_registry_table, *table;
	size_t places = ep_registry_places;

	if (2 * ep_registry_count < places) {
		return true;
	}
	table = calloc(places ? 2 * places : EP_REGISTRY_LEAST, sizeof(*table));
	if (!table) {
		return false;
	}
	ep_registry_table = table;
	ep_registry_places = places ? 2 * places : EP_REGISTRY_LEAST;
	for (size_t i = 0; i < places; i++) {
		if (old[i].kind) {
			*ep_registry_find(old[i].object) = old[i];
		}
	}
	free(old);
	return true;
}

bool ep_registry_add(const void *object, enum ep_registry_kind kind)
{
	int owner = (int)getpid();
	bool added;

	pthread_once(&ep_registry_once, ep_registry_watch_forks);
	pthread_mutex_lock(&ep_registry_lock);
	added = ep_registry_grow();
	if (added) {
		*ep_registry_find(object) = (struct ep_registry_entry){ object, kind, owner };
		ep_registry_count++;
	}
	pthread_mutex_unlock(&ep_registry_lock);
	return added;
}

int ep_registry_owner(const void *object, enum ep_registry_kind kind)
{
	const struct ep_registry_entry *place;
	int owner = 0;

	pthread_mutex_lock(&ep_registry_lock);
	place = ep_registry_places ? ep_registry_find(object) : NULL;
	if (place && place->kind == kind) {
		owner = place->owner;
	}
	pthread_mutex_unlock(&ep_registry_lock);
	return owner;
}

bool ep_registry_has(const void *object, enum ep_registry_kind kind)
{
	return ep_registry_owner(object, kind) != 0;
}

void ep_registry_made(const void *object, enum ep_registry_kind kind)
{
	struct ep_registry_entry *place;

	pthread_mutex_lock(&ep_registry_lock);
	place = ep_registry_find(object);
	if (place->kind == EP_REGISTRY_MAKING) {
		place->kind = kind;
	}
	pthread_mutex_unlock(&ep_registry_lock);
}

/* Frees a place; those behind it that it stood in the way of move up. */
static void ep_registry_vacate(struct ep_registry_entry *place)
{
	size_t gap = (size_t)(place - ep_registry_table), mask = ep_registry_places - 1;

	for (size_t i = (gap + 1) & mask; ep_registry_table[i].kind; i = (i + 1) & mask) {
		size_t home = ep_registry_home(ep_registry_table[i].object);

		if (((i - home) & mask) >= ((i - gap) & mask)) {
			ep_registry_table[gap] = ep_registry_table[i];
			gap = i;
		}
	}
	ep_registry_table[gap].kind = EP_REGISTRY_NONE;
	ep_registry_count--;
}

bool ep_registry_remove(const void *object, enum ep_registry_kind kind)
{
	struct ep_registry_entry *place = NULL;

	pthread_mutex_lock(&ep_registry_lock);
	if (ep_registry_places) {
		place = ep_registry_find(object);
		place = kind && place->kind == kind ? place : NULL;
	}
	if (place) {
		ep_registry_vacate(place);
	}
	pthread_mutex_unlock(&ep_registry_lock);
	return place != NULL;
}
