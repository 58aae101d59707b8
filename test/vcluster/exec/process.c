/* SPDX-License-Identifier: Apache-2.0 */
/* Identity, environment, the end of the process. */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "exec/exec.h"

long vc_env_long(const char *name, long fallback)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text || !*text) {
		return fallback;
	}
	errno = 0;
	value = strtol(text, &end, 0);
	if (errno || *end) {
		vc_die(VC_EXIT_ILLEGAL, "%s=%s is not a number", name, text);
	}
	return value;
}

int vc_rank(void)
{
	static _Atomic int rank = -2;
	int known = atomic_load_explicit(&rank, memory_order_relaxed);

	if (known == -2) {
		known = (int)vc_env_long("RANK", -1);
		atomic_store_explicit(&rank, known, memory_order_relaxed);
	}
	return known;
}

void vc_die(int code, const char *fmt, ...)
{
	char text[1024];
	int at = 0;
	va_list list;

	if (getenv("RANK")) {
		at = snprintf(text, sizeof(text), "vcluster: rank %s: ", getenv("RANK"));
	} else {
		at = snprintf(text, sizeof(text), "vcluster: pid %d: ", (int)getpid());
	}
	va_start(list, fmt);
	at += vsnprintf(text + at, sizeof(text) - (size_t)at - 1, fmt, list);
	va_end(list);
	if (at > (int)sizeof(text) - 2) {
		at = (int)sizeof(text) - 2;
	}
	text[at] = '\n';
	text[at + 1] = 0;
	fflush(stdout);
	fputs(text, stderr);
	fflush(stderr);
	_exit(code);
}

/* ---- host names of virtual nodes, in place of libc's; without VC_NODE the machine's ---- */

#define VC_HOST "vc-node-"

/* The executor's sources are built with hidden names. */
__attribute__((visibility("default"))) int gethostname(char *name, size_t size)
{
	const char *node = getenv("VC_NODE");
	struct utsname machine;
	int n;

	if (uname(&machine) != 0) {
		return -1;
	}
	n = node ? snprintf(name, size, VC_HOST "%s", node)
		 : snprintf(name, size, "%s", machine.nodename);
	if (n < 0 || (size_t)n >= size) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return 0;
}

/* What a call becomes where the compiler fortifies it, as that of Ubuntu does. */
int __gethostname_chk(char *name, size_t size, size_t room);
__attribute__((visibility("default"))) int __gethostname_chk(char *name, size_t size, size_t room)
{
	return gethostname(name, size < room ? size : room);
}

/* All virtual nodes are this machine. */
__attribute__((visibility("default"))) int getaddrinfo(const char *name, const char *service,
						       const struct addrinfo *hints,
						       struct addrinfo **found)
{
	int (*libc)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	void *next = dlsym(RTLD_NEXT, "getaddrinfo");

	if (!next) {
		return EAI_SYSTEM;
	}
	memcpy(&libc, &next, sizeof(libc));
	if (name && strncmp(name, VC_HOST, strlen(VC_HOST)) == 0) {
		name = "127.0.0.1";
	}
	return libc(name, service, hints, found);
}
