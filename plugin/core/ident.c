/* SPDX-License-Identifier: Apache-2.0 */
/* Who a rank is, and whether two ranks share a host, a node or a process, or one has ended. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/build.h"
#include "core/cuda.h"
#include "core/ident.h"
#include "core/process.h"

static uint64_t process_id[2];
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void process_init(void)
{
	process_id[0] = ep_random_u64();
	process_id[1] = ep_random_u64();
}

#define HASH_BEGIN 0xcbf29ce484222325ull

static uint64_t hash(uint64_t h, const char *text)
{
	for (; *text; text++) {
		h = (h ^ (unsigned char)*text) * 0x100000001b3ull; /* FNV-1a */
	}
	return h;
}

/* Not that a file is missing or forbidden, but that this process can open none. */
static bool exhausted(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM;
}

const char *ep_no_files(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return exhausted(errno)
			       ? "this process can open no file: raise the limit (ulimit -n)"
			       : NULL;
	}
	close(fd);
	return NULL;
}

static ncclResult_t host_hash(const char *hostname, uint64_t *host)
{
	static const char path[] = "/proc/sys/kernel/random/boot_id";
	const char *override = getenv("NCCL_HOSTID");
	char boot_id[64];
	uint64_t h = HASH_BEGIN;

	if (override && *override) {
		*host = hash(h, override);
		return ncclSuccess;
	}
	h = hash(h, hostname);
	if (ep_file_read(path, boot_id, sizeof(boot_id)) > 0) {
		h = hash(h, boot_id);
	} else if (exhausted(errno)) { /* another host, for all that its peers see */
		return ep_fail(ncclSystemError,
			       "%s cannot be read: %s; raise the limit (ulimit -n)", path,
			       strerror(errno));
	}
	*host = h;
	return ncclSuccess;
}

ncclResult_t ep_ident_make(struct ep_ident *ident, int device)
{
	struct cudaDeviceProp prop;
	char state;

	memset(ident, 0, sizeof(*ident));
	pthread_once(&process_once, process_init);
	ident->build = hash(HASH_BEGIN, ep_build_text);
	if (gethostname(ident->hostname, sizeof(ident->hostname)) != 0 && errno != ENAMETOOLONG) {
		return ep_fail(ncclSystemError, "gethostname failed: %s", strerror(errno));
	}
	ident->hostname[sizeof(ident->hostname) - 1] = '\0';
	EP_CHECK(host_hash(ident->hostname, &ident->host));
	ident->process[0] = process_id[0];
	ident->process[1] = process_id[1];
	ident->pid_ns = ep_process_namespace();
	ident->pid = getpid();
	if (!ep_process_read(ident->pid, &state, &ident->start_time)) {
		if (exhausted(errno)) {
			return ep_fail(ncclSystemError,
				       "/proc/%d/stat cannot be read: %s; raise the limit "
				       "(ulimit -n)",
				       ident->pid, strerror(errno));
		}
		ident->pid_ns = 0; /* no /proc: nobody can find out whether we are alive */
	}
	ident->device = device;
	EP_CUDA(cudaDeviceGetPCIBusId(ident->bus_id, sizeof(ident->bus_id), device),
		"reading the GPU's PCI bus id");
	EP_CUDA(cudaGetDeviceProperties(&prop, device), "reading the GPU's properties");
	ident->mig = strstr(prop.name, " MIG ") != NULL;
	return ncclSuccess;
}

bool ep_ident_same_host(const struct ep_ident *a, const struct ep_ident *b)
{
	return a->host == b->host;
}

bool ep_ident_same_node(const struct ep_ident *a, const struct ep_ident *b)
{
	return a->node == b->node;
}

bool ep_ident_same_process(const struct ep_ident *a, const struct ep_ident *b)
{
	return a->process[0] == b->process[0] && a->process[1] == b->process[1];
}

const char *ep_ident_hosts_print(const struct ep_ident *a, const struct ep_ident *b,
				 char text[EP_IDENT_HOSTS_TEXT])
{
	text[0] = '\0';
	if (ep_ident_same_host(a, b) && strcmp(a->hostname, b->hostname) != 0) {
		snprintf(text, EP_IDENT_HOSTS_TEXT,
			 "hosts %s and %s count as one by NCCL_HOSTID: set another on each, or "
			 "give containers of one machine the same IPC namespace",
			 a->hostname, b->hostname);
	}
	return text;
}

bool ep_ident_gone(const struct ep_ident *self, const struct ep_ident *other)
{
	uint64_t start_time;
	char state;

	if (!self->pid_ns || self->pid_ns != other->pid_ns || !ep_ident_same_host(self, other)) {
		return false;
	}
	if (!ep_process_read(other->pid, &state, &start_time)) {
		return !exhausted(errno) && access("/proc/self/stat", R_OK) == 0;
	}
	return start_time != other->start_time || state == 'Z' || state == 'X';
}
