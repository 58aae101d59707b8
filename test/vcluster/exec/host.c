/* SPDX-License-Identifier: Apache-2.0 */
/* A host name for each virtual node, in place of libc's, and who has it. Without VC_NODE the machine's. */
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

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
