/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "core/log.h"
#include "core/param.h"
#include "core/process.h"
#include "net/p2p/counts.h"

static struct {
	pthread_mutex_t lock;
	bool tried;
	struct ep_net_counts_file *file;
	char path[64];
	uint32_t next; /* where the search for a free entry begins */
} ep_net_counted = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* The lock is held. A file of an earlier process of this number is replaced. */
static bool ep_net_counts_make(void)
{
	size_t bytes = sizeof(struct ep_net_counts_file) +
		       EP_NET_COUNTS_ENTRIES * sizeof(struct ep_net_counts);
	struct ep_net_counts_file *file;
	char state;
	int fd;

	snprintf(ep_net_counted.path, sizeof(ep_net_counted.path),
		 EP_NET_COUNTS_DIR "/" EP_NET_COUNTS_NAME "%d", (int)getpid());
	(void)unlink(ep_net_counted.path);
	fd = open(ep_net_counted.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0) {
		return false;
	}
	if (ftruncate(fd, (off_t)bytes) != 0) {
		goto err_unlink;
	}
	file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED) {
		goto err_unlink;
	}
	close(fd);
	file->version = EP_NET_COUNTS_VERSION;
	file->entries = EP_NET_COUNTS_ENTRIES;
	file->entry_bytes = sizeof(struct ep_net_counts);
	file->pid = (uint32_t)getpid();
	(void)ep_process_read(getpid(), &state, &file->started);
	(void)ep_file_read("/proc/self/comm", file->program, sizeof(file->program));
	file->program[strcspn(file->program, "\n")] = '\0';
	__atomic_store_n(&file->magic, EP_NET_COUNTS_MAGIC, __ATOMIC_RELEASE);
	ep_net_counted.file = file;
	return true;

err_unlink:
	(void)unlink(ep_net_counted.path);
	close(fd);
	return false;
}

/* A free entry; NULL: nobody counts in the file. */
static struct ep_net_counts *ep_net_counts_take(void)
{
	struct ep_net_counts *e = NULL;

	pthread_mutex_lock(&ep_net_counted.lock);
	if (!ep_net_counted.tried) {
		ep_net_counted.tried = true;
		if (ep_param_or_initial(EP_PARAM_NET_COUNTS) && !ep_net_counts_make()) {
			EP_WARN("connections are not counted: %s cannot be made: %s",
				ep_net_counted.path, strerror(errno));
		}
	}
	for (uint32_t i = 0; ep_net_counted.file && !e && i < EP_NET_COUNTS_ENTRIES; i++) {
		e = &ep_net_counted.file->entry[ep_net_counted.next++ % EP_NET_COUNTS_ENTRIES];
		e = e->state == EP_NET_COUNTS_FREE && e->since == 0 ? e : NULL;
	}
	if (e) {
		memset(e, 0, sizeof(*e));
		e->since = 1; /* taken */
	}
	pthread_mutex_unlock(&ep_net_counted.lock);
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
	struct ep_net_counts *e = ep_net_counts_take();
	struct timespec now;

	e = e ? e : &c->own_counts;
	clock_gettime(CLOCK_REALTIME, &now);
	e->since = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	snprintf(e->nic, sizeof(e->nic), "%.63s", c->nic->label);
	snprintf(e->peer, sizeof(e->peer), "%.63s", c->peer);
	c->counts = e;
	for (uint32_t i = 0; i < c->npaths; i++) {
		ep_net_counts_path(c, i);
	}
	__atomic_store_n(&e->state, c->sender ? EP_NET_COUNTS_SENDS : EP_NET_COUNTS_RECEIVES,
			 __ATOMIC_RELEASE);
}

void ep_net_counts_close(struct ep_net_comm *c)
{
	struct ep_net_counts *e = c->counts;

	if (e != &c->own_counts) {
		pthread_mutex_lock(&ep_net_counted.lock);
		__atomic_store_n(&e->state, EP_NET_COUNTS_FREE, __ATOMIC_RELEASE);
		e->since = 0;
		pthread_mutex_unlock(&ep_net_counted.lock);
	}
}

/* The file of a process that was forked is its parent's. */
__attribute__((destructor)) static void ep_net_counts_end(void)
{
	if (ep_net_counted.file && ep_net_counted.file->pid == (uint32_t)getpid()) {
		(void)unlink(ep_net_counted.path);
	}
}
