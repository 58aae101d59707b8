/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "core/live.h"

#define EP_LIVE_LEAST 64 /* places; always a power of two, and at least half of them free */

struct ep_live {
	const void *object;
	enum ep_live_kind kind; /* NONE: the place is free */
	int owner;              /* the process that made it */
};

static pthread_mutex_t ep_live_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t ep_live_once = PTHREAD_ONCE_INIT;
static struct ep_live *ep_live_table;
static size_t ep_live_places, ep_live_count;

/* A child of fork() asks for the objects, too: no other thread may hold the lock when it is made. */
static void ep_live_fork(void)
{
	pthread_mutex_lock(&ep_live_lock);
}

static void ep_live_forked(void)
{
	pthread_mutex_unlock(&ep_live_lock);
}

static void ep_live_watch_forks(void)
{
	(void)pthread_atfork(ep_live_fork, ep_live_forked, ep_live_forked);
}

static size_t ep_live_home(const void *object)
{
	return (size_t)((uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15ull >> 32) &
	       (ep_live_places - 1);
}

/* The object's place, or the free one where it belongs. */
static struct ep_live *ep_live_find(const void *object)
{
	size_t i = ep_live_home(object);

	while (ep_live_table[i].kind && ep_live_table[i].object != object) {
		i = (i + 1) & (ep_live_places - 1);
	}
	return &ep_live_table[i];
}

static bool ep_live_grow(void)
{
	struct ep_live *old = ep_live_table, *table;
	size_t places = ep_live_places;

	if (2 * ep_live_count < places) {
		return true;
	}
	table = calloc(places ? 2 * places : EP_LIVE_LEAST, sizeof(*table));
	if (!table) {
		return false;
	}
	ep_live_table = table;
	ep_live_places = places ? 2 * places : EP_LIVE_LEAST;
	for (size_t i = 0; i < places; i++) {
		if (old[i].kind) {
			*ep_live_find(old[i].object) = old[i];
		}
	}
	free(old);
	return true;
}

bool ep_live_add(const void *object, enum ep_live_kind kind)
{
	int owner = (int)getpid();
	bool added;

	pthread_once(&ep_live_once, ep_live_watch_forks);
	pthread_mutex_lock(&ep_live_lock);
	added = ep_live_grow();
	if (added) {
		*ep_live_find(object) = (struct ep_live){ object, kind, owner };
		ep_live_count++;
	}
	pthread_mutex_unlock(&ep_live_lock);
	return added;
}

int ep_live_owner(const void *object, enum ep_live_kind kind)
{
	const struct ep_live *place;
	int owner = 0;

	pthread_mutex_lock(&ep_live_lock);
	place = ep_live_places ? ep_live_find(object) : NULL;
	if (place && place->kind == kind) {
		owner = place->owner;
	}
	pthread_mutex_unlock(&ep_live_lock);
	return owner;
}

bool ep_live_has(const void *object, enum ep_live_kind kind)
{
	return ep_live_owner(object, kind) != 0;
}

void ep_live_made(const void *object, enum ep_live_kind kind)
{
	struct ep_live *place;

	pthread_mutex_lock(&ep_live_lock);
	place = ep_live_find(object);
	if (place->kind == EP_LIVE_MAKING) {
		place->kind = kind;
	}
	pthread_mutex_unlock(&ep_live_lock);
}

/* Frees a place; those behind it that it stood in the way of move up. */
static void ep_live_vacate(struct ep_live *place)
{
	size_t gap = (size_t)(place - ep_live_table), mask = ep_live_places - 1;

	for (size_t i = (gap + 1) & mask; ep_live_table[i].kind; i = (i + 1) & mask) {
		size_t home = ep_live_home(ep_live_table[i].object);

		if (((i - home) & mask) >= ((i - gap) & mask)) {
			ep_live_table[gap] = ep_live_table[i];
			gap = i;
		}
	}
	ep_live_table[gap].kind = EP_LIVE_NONE;
	ep_live_count--;
}

bool ep_live_remove(const void *object, enum ep_live_kind kind)
{
	struct ep_live *place = NULL;

	pthread_mutex_lock(&ep_live_lock);
	if (ep_live_places) {
		place = ep_live_find(object);
		place = kind && place->kind == kind ? place : NULL;
	}
	if (place) {
		ep_live_vacate(place);
	}
	pthread_mutex_unlock(&ep_live_lock);
	return place != NULL;
}
