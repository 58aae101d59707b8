/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a process that share a GPU: how many SMs each may hold while it waits for peers. */
#include <pthread.h>
#include <stdio.h>
#include "core/log.h"
#include "core/util.h"
#include "ep/ep.h"

static pthread_mutex_t resident_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_resident *resident_groups;

/* Sum of what the groups of one device ask for. */
struct resident_sum {
	uint32_t sm_count;
	uint32_t groups;
	uint32_t fixed;   /* blocks of high throughput whose number the caller has chosen */
	uint32_t sharing; /* groups of high throughput of which some operations have more by AUTO */
	uint32_t low;     /* groups of low latency */
	uint32_t holds;   /* limits of all together */
	uint32_t share;   /* what one of these gets besides what it has chosen */
	uint32_t recv_share; /* limit of a group of low latency */
	bool fits;
};

static uint32_t resident_minus(uint32_t a, uint32_t b)
{
	return a > b ? a - b : 0;
}

/*
 * Groups of low latency need to be limited from the second one on; then those of high throughput
 * leave them half of what nobody has chosen.
 */
static void resident_divide(struct resident_sum *sum, uint32_t most_shared)
{
	uint32_t others = resident_minus(sum->low, 1), left, high;

	left = resident_minus(sum->sm_count, sum->fixed + (sum->low ? 1 : 0));
	sum->share = others ? left / 2 : left;
	sum->share = sum->sharing ? sum->share / sum->sharing : 0;
	sum->share = (uint32_t)ep_max_u64(1, ep_min_u64(sum->share, most_shared));
	high = sum->sharing * sum->share;
	sum->recv_share = others ? resident_minus(left, high) / others : sum->sm_count;
	sum->fits = sum->fixed + (sum->low ? 1 : 0) + sum->sharing <= sum->sm_count &&
		    (!others || sum->recv_share);
	sum->recv_share = (uint32_t)ep_max_u64(1, sum->recv_share);
}

/* Adds up the groups of the device, under the lock. */
static struct resident_sum resident_count(int device)
{
	struct resident_sum s = { 0 };
	uint32_t most_shared = 0;

	for (const struct ep_resident *g = resident_groups; g; g = g->next) {
		if (g->device != device) {
			continue;
		}
		s.sm_count = g->sm_count;
		s.groups++;
		s.holds += ep_resident_limit(g);
		if (!g->all_wait) {
			s.low++;
			continue;
		}
		s.fixed += g->chosen;
		if (g->most > g->chosen) {
			s.sharing++;
			most_shared = (uint32_t)ep_max_u64(most_shared, g->most - g->chosen);
		}
	}
	resident_divide(&s, most_shared);
	return s;
}

/* Limits the groups of the device anew, under the lock. */
static struct resident_sum resident_limit_all(int device)
{
	struct resident_sum s = resident_count(device);

	for (struct ep_resident *g = resident_groups; g; g = g->next) {
		uint32_t share = g->all_wait ? g->chosen + s.share : s.recv_share;

		if (g->device == device) {
			__atomic_store_n(&g->limit, (uint32_t)ep_min_u64(g->most, share),
					 __ATOMIC_RELAXED);
		}
	}
	return resident_count(device);
}

void ep_resident_add(struct ep_resident *group)
{
	struct resident_sum s;

	pthread_mutex_lock(&resident_lock);
	group->next = resident_groups;
	resident_groups = group;
	s = resident_limit_all(group->device);
	pthread_mutex_unlock(&resident_lock);
	if (!s.fits) {
		EP_WARN("%u groups of this process share GPU %d and may hold %u of its %u SMs "
			"while they wait for peers: operations of different groups that run on "
			"different streams can lock each other up until the timeout. Give the "
			"groups fewer SMs (max_num_sms), run them on one stream, or destroy those "
			"that are not used",
			s.groups, group->device, s.holds, s.sm_count);
	}
}

void ep_resident_remove(struct ep_resident *group)
{
	pthread_mutex_lock(&resident_lock);
	for (struct ep_resident **at = &resident_groups; *at; at = &(*at)->next) {
		if (*at == group) {
			*at = group->next;
			(void)resident_limit_all(group->device);
			break;
		}
	}
	pthread_mutex_unlock(&resident_lock);
}

uint32_t ep_resident_limit(const struct ep_resident *group)
{
	return __atomic_load_n(&group->limit, __ATOMIC_RELAXED);
}

void ep_resident_describe(const struct ep_resident *group, char *text, size_t size)
{
	struct resident_sum s;

	pthread_mutex_lock(&resident_lock);
	s = resident_count(group->device);
	pthread_mutex_unlock(&resident_lock);
	text[0] = '\0';
	if (s.groups > 1) {
		snprintf(text, size, "; %u groups of this process may hold %u of this GPU's %u SMs",
			 s.groups, s.holds, s.sm_count);
	}
}
