/* SPDX-License-Identifier: Apache-2.0 */
/* The file of counts of this process, and the entry that a connection has there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "core/log.h"
#include "core/param.h"
#include "core/process.h"
#include "core/shared_file.h"
#include "net/p2p.h"

static struct {
	pthread_mutex_t lock;
	bool tried;
	struct ep_net_counts_file *file; /* mapped for all entries; NULL: nothing counts there */
	struct ep_shared_file shared;
	uint32_t entries; /* that the file has memory for */
	uint32_t next;    /* where the search for a free entry begins */
} counted = { .lock = PTHREAD_MUTEX_INITIALIZER };

static size_t counts_bytes(uint32_t entries)
{
	return sizeof(struct ep_net_counts_file) + entries * sizeof(struct ep_net_counts);
}

/* Makes the file. The lock is held. Returns 0, or a code of errno. */
static int counts_make(void)
{
	struct ep_net_counts_file *file;
	char state;
	int error;

	error = ep_shared_file_make(&counted.shared, EP_NET_COUNTS_NAME,
				    counts_bytes(EP_NET_COUNTS_STEP));
	if (error) {
		return error;
	}
	/* (what lies behind the file's end gets memory before it is used) */
	file = mmap(NULL, counts_bytes(EP_NET_COUNTS_ENTRIES), PROT_READ | PROT_WRITE, MAP_SHARED,
		    counted.shared.fd, 0);
	if (file == MAP_FAILED) {
		error = errno;
		ep_shared_file_remove(&counted.shared);
		return error;
	}
	file->version = EP_NET_COUNTS_VERSION;
	file->entries = EP_NET_COUNTS_ENTRIES;
	file->entry_bytes = sizeof(struct ep_net_counts);
	file->pid = (uint32_t)getpid();
	(void)ep_process_read(getpid(), &state, &file->started);
	(void)ep_file_read("/proc/self/comm", file->program, sizeof(file->program));
	file->program[strcspn(file->program, "\n")] = '\0';
	__atomic_store_n(&file->magic, EP_NET_COUNTS_MAGIC, __ATOMIC_RELEASE);
	counted.file = file;
	counted.entries = EP_NET_COUNTS_STEP;
	return 0;
}

/* Finds an entry that no connection uses; NULL: there is none. The lock is held. */
static struct ep_net_counts *counts_find(void)
{
	struct ep_net_counts *e;

	for (uint32_t i = 0; counted.file && i < counted.entries; i++) {
		e = &counted.file->entry[counted.next++ % counted.entries];
		if (e->state == EP_NET_COUNTS_FREE && e->since == 0) {
			return e;
		}
	}
	return NULL;
}

/* Gives the file room for more entries. The lock is held. Returns 0, or a code of errno. */
static int counts_grow(void)
{
	uint32_t entries = counted.entries + EP_NET_COUNTS_STEP;
	int error;

	if (entries > EP_NET_COUNTS_ENTRIES) {
		return ENOSPC;
	}
	error = ep_shared_file_grow(&counted.shared, counts_bytes(entries));
	if (!error) {
		counted.next = counted.entries;
		counted.entries = entries;
	}
	return error;
}

/* Takes an entry for a connection; NULL: the file does not count it. */
static struct ep_net_counts *counts_take(void)
{
	struct ep_net_counts *e;
	int error = 0;

	pthread_mutex_lock(&counted.lock);
	if (!counted.tried) {
		counted.tried = true;
		error = ep_param_or_initial(EP_PARAM_NET_COUNTS) ? counts_make() : 0;
	}
	e = counts_find();
	if (!e && counted.file) {
		error = counts_grow();
		e = counts_find();
	}
	if (e) {
		memset(e, 0, sizeof(*e));
		e->since = 1; /* taken */
	}
	pthread_mutex_unlock(&counted.lock);
	if (error) {
		EP_WARN("a connection is not counted: its file in " EP_SHARED_DIR
			" has no room: %s (NCCL_EP_NET_COUNTS)",
			strerror(error));
	}
	return e;
}

void ep_net_counts_path(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_counts_path *r = &c->counts->path[path];
	const struct ep_net_qp *q = &c->qp[path]; /* the first of the path */
	const struct ep_nic_end *end = &c->local[q->local_port].end,
				*remote = &c->remote[q->remote_port].end;

	snprintf(r->from, sizeof(r->from), "%.26s:%u", end->name, end->port);
	snprintf(r->to, sizeof(r->to), "%.26s:%u", remote->name, remote->port);
	r->open = 1;
}

void ep_net_counts_open(struct ep_net_comm *c)
{
	struct ep_net_counts *e = counts_take();
	struct timespec now;

	e = e ? e : &c->own_counts;
	clock_gettime(CLOCK_REALTIME, &now);
	e->since = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	snprintf(e->nic, sizeof(e->nic), "%.63s", c->nic->label);
	snprintf(e->peer, sizeof(e->peer), "%.63s", c->peer);
	c->counts = e;
	for (uint32_t i = 0; i < c->npaths; i++) {
		ep_net_counts_path(c, i);
		e->path[i].open = ep_net_path_is_open(c, i);
		e->failovers += !e->path[i].open;
	}
	__atomic_store_n(&e->state, c->sender ? EP_NET_COUNTS_SENDS : EP_NET_COUNTS_RECEIVES,
			 __ATOMIC_RELEASE);
}

void ep_net_counts_close(struct ep_net_comm *c)
{
	struct ep_net_counts *e = c->counts;

	if (e != &c->own_counts) {
		pthread_mutex_lock(&counted.lock);
		__atomic_store_n(&e->state, EP_NET_COUNTS_FREE, __ATOMIC_RELEASE);
		e->since = 0;
		pthread_mutex_unlock(&counted.lock);
	}
}

/* Removes the file. A child of fork() leaves its parent's file alone. */
__attribute__((destructor)) static void counts_end(void)
{
	ep_shared_file_remove(&counted.shared);
}
