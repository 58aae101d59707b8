/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the kernel. Nothing else of topo/ is needed here: the library has this file, too. */
#include <fcntl.h>
#include <limits.h>
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
