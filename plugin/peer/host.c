/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heaps in host memory, for GPUs of one host that cannot reach each other's memory.
 *
 * A heap is a file without a name (memfd_create), which each process of the host maps and gives to
 * its GPU. Each store to a peer, and each look at the own heap, crosses PCIe: this is right, and
 * slow. The kernels need no more of such memory than stores of 8 bytes that arrive whole, and
 * release and acquire of the system's scope. Rows travel as bytes. Words that several blocks of one
 * GPU count in by atomics are in that GPU's own memory, or in its own heap.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/cuda.h"
#include "core/shared_file.h"
#include "peer/state.h"

#define HOST_PIECE (UINT64_C(1) << 20)

/* A heap of this process, or one of another process that is mapped here. */
struct host_heap {
	struct host_heap *next;
	struct ep_pinned pinned;
	struct ep_context context; /* in which it is registered */
	int fd;                    /* by which others open it; -1: it is another process's */
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static struct host_heap *host_list;

/* Maps a file and gives it to the GPU. Takes the descriptor over where it succeeds. */
static bool host_take(int fd, bool own, uint64_t bytes, void **base, struct ep_reason *why)
{
	struct host_heap *h = calloc(1, sizeof(*h));
	void *at;

	if (!h) {
		return ep_reason_set(why, "out of host memory");
	}
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		(void)ep_reason_set(why, "mapping %llu bytes of host memory: %s",
				    (unsigned long long)bytes, strerror(errno));
		goto err_free;
	}
	if (!ep_pinned_take(&h->pinned, at, bytes, why)) {
		munmap(at, bytes);
		goto err_free;
	}
	if (h->pinned.dev != h->pinned.host) { /* ranks of one process use one address */
		(void)ep_reason_set(why, "the GPU has host memory at other addresses than the CPU");
		goto err_release;
	}
	h->context = ep_context_now();
	h->fd = own ? fd : -1;
	if (!own) {
		close(fd);
	}
	pthread_mutex_lock(&host_lock);
	h->next = host_list;
	host_list = h;
	pthread_mutex_unlock(&host_lock);
	*base = at;
	return true;

err_release:
	ep_pinned_free(&h->pinned, false);
err_free:
	free(h);
	return false;
}

static void host_give_back(void *base)
{
	struct host_heap **link = &host_list, *h;

	pthread_mutex_lock(&host_lock);
	while (*link && (*link)->pinned.host != base) {
		link = &(*link)->next;
	}
	h = *link;
	if (h) {
		*link = h->next;
	}
	pthread_mutex_unlock(&host_lock);
	if (h) {
		ep_pinned_free(&h->pinned, ep_context_ended(&h->context));
		if (h->fd >= 0) {
			close(h->fd);
		}
		free(h);
	}
}

/*
 * Puts memory behind each byte of the file, and returns 0 or an errno value: no bus error comes
 * later. By pieces, since a signal undoes the call that it interrupts, and a profiler sends many.
 */
static int host_fill(int fd, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += HOST_PIECE) {
		int error = ep_file_fill(fd, at, ep_min_u64(HOST_PIECE, bytes - at));

		if (error) {
			return error;
		}
	}
	return 0;
}

static bool host_alloc(void **base, uint64_t bytes, struct ep_reason *why)
{
	int fd = memfd_create("nccl-ep-heap", MFD_CLOEXEC), error;

	if (fd < 0) {
		return ep_reason_set(why, "memfd_create: %s", strerror(errno));
	}
	error = host_fill(fd, bytes);
	if (error) {
		(void)ep_reason_set(why, "no %llu bytes of host memory: %s%s",
				    (unsigned long long)bytes, strerror(error),
				    error == EFBIG ? " (ulimit -f)" : "");
	} else if (host_take(fd, true, bytes, base, why)) {
		return true;
	}
	close(fd);
	return false;
}

static ncclResult_t host_give(struct ep_heap_export *export, void *base)
{
	export->base = base;
	pthread_mutex_lock(&host_lock);
	for (const struct host_heap *h = host_list; h; h = h->next) {
		if (h->pinned.host == base) {
			export->fd = h->fd;
		}
	}
	pthread_mutex_unlock(&host_lock);
	return ncclSuccess;
}

/* Opens the file of a peer: -1 with *why where that fails, or where it is not of that size. */
static int host_open(const struct ep_ident *self, const struct ep_ident *peer, int fd,
		     uint64_t bytes, struct ep_reason *why)
{
	char path[64];
	struct stat st;
	int file;

	if (self->pid_ns != peer->pid_ns || !self->pid_ns) {
		(void)ep_reason_set(why, "the processes need the same PID namespace");
		return -1;
	}
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", peer->pid, fd);
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0) {
		(void)ep_reason_set(why, "%s: %s", path, strerror(errno));
	} else if (fstat(file, &st) || (uint64_t)st.st_size != bytes) {
		(void)ep_reason_set(why, "%s is another file", path);
		close(file);
		file = -1;
	}
	return file;
}

static ncclResult_t host_map(void **base, const struct ep_heap *heap,
			     const struct ep_heap_export *export, const struct ep_ident *idents,
			     int peer)
{
	struct ep_reason why;
	int fd = host_open(&idents[heap->rank], &idents[peer], export->fd, heap->bytes, &why);

	if (fd >= 0 && host_take(fd, false, heap->bytes, base, &why)) {
		return ncclSuccess;
	}
	if (fd >= 0) {
		close(fd);
	}
	return ep_fail(ncclSystemError,
		       "rank %d cannot map host memory of rank %d (pid %d on %.64s): %s",
		       heap->rank, peer, idents[peer].pid, idents[peer].hostname, why.text);
}

static void host_unmap(void *base, uint64_t bytes)
{
	(void)bytes;
	host_give_back(base);
}

/* A rank of the same process: its memory is all GPUs', and so is the address. */
static ncclResult_t host_map_within(void **base, const struct ep_heap *heap,
				    const struct ep_heap_export *export,
				    const struct ep_ident *idents, int peer)
{
	(void)heap;
	(void)idents;
	(void)peer;
	*base = export->base;
	return ncclSuccess;
}

static void host_unmap_within(void *base, uint64_t bytes)
{
	(void)base;
	(void)bytes;
}

static const struct ep_peer_mapping peer_host_within = {
	.name = "host memory",
	.in_host = true,
	.give = host_give,
	.map = host_map_within,
	.unmap = host_unmap_within,
};

const struct ep_peer_mapping ep_peer_host = {
	.name = "host memory",
	.lasting = true,
	.in_host = true,
	.within = &peer_host_within,
	.alloc = host_alloc,
	.free = host_give_back,
	.give = host_give,
	.map = host_map,
	.unmap = host_unmap,
};
