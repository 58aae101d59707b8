// SPDX-License-Identifier: Apache-2.0
/* Files of the kernel. Nothing else of topo/ is needed here: the library has this file, too. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "topo/tree.h"

bool ep_topo_read_line(const char *dir, const char *name, char *buf, size_t size)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path)) {
		return false;
	}
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return false;
	}
	ssize_t n = read(fd, buf, size - 1);

	close(fd);
	if (n < 0) {
		return false;
	}
	buf[n] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	return buf[0] != '\0';
}

uint32_t ep_topo_port_mbps(const char *class_dir, const char *device, int port)
{
	char name[EP_TOPO_NAME_LEN + 32], text[128];
	double gbps = 0;

	if (snprintf(name, sizeof(name), "%s/ports/%d/rate", device, port) < (int)sizeof(name) &&
	    ep_topo_read_line(class_dir, name, text, sizeof(text))) { /* "400 Gb/sec (4X NDR)" */
		gbps = strtod(text, NULL);
	}
	return gbps > 0 && gbps < 1e6 ? (uint32_t)(gbps * 1000) : 0;
}
