/* SPDX-License-Identifier: Apache-2.0 */
/* The last lines of the kernel's log about NICs, GPUs and the bus between them. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/ep_info.h"

#define LINES 40
#define LINE 240
#define RECORD 8192 /* the kernel's limit */

static const char *const words[] = {
	"mlx5", "infiniband", "ib_uverbs", "rdma", "nvidia", "NVRM",     "peermem", "bnxt_re",
	"efa",  "irdma",      "bond",      "AER",  "DMAR",   "pcieport", "AMD-Vi",  "iommu",
};

/* A word of the text begins so. */
static bool concerns(const char *text)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		for (const char *at = strstr(text, words[i]); at; at = strstr(at + 1, words[i])) {
			if (at == text || !isalnum((unsigned char)at[-1])) {
				return true;
			}
		}
	}
	return false;
}

/* A record is "priority,number,microseconds,flags;text\n" and lines of properties. False: it is another form. */
static bool record_line(char *record, char line[LINE])
{
	char *text = strchr(record, ';'), *us = strchr(record, ',');

	us = us ? strchr(us + 1, ',') : NULL;
	if (!text || !us || us > text) {
		return false;
	}
	text[strcspn(text, "\n")] = '\0';
	snprintf(line, LINE, "[%12.6f] %s", (double)strtoull(us + 1, NULL, 10) / 1e6, text + 1);
	return true;
}

void ep_info_kernel_log(int fd)
{
	static char last[LINES][LINE], record[RECORD];
	unsigned int n = 0, first;
	ssize_t got;

	/* EPIPE: some lines were overwritten before they were read; the next ones are there. */
	while ((got = read(fd, record, sizeof(record) - 1)) > 0 || (got < 0 && errno == EPIPE)) {
		record[got > 0 ? got : 0] = '\0';
		if (record_line(record, last[n % LINES]) && concerns(last[n % LINES])) {
			n++;
		}
	}
	first = n > LINES ? n - LINES : 0;
	printf("Kernel log: %u lines about NICs, GPUs and their bus%s\n", n,
	       first ? ", of which the last ones" : "");
	for (; first < n; first++) {
		printf("  %s\n", last[first % LINES]);
	}
}

void ep_info_kernel(void)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0) {
		printf("Kernel log\n  cannot be read (%s): add what dmesg says of mlx5, nvidia and "
		       "pcieport\n",
		       strerror(errno));
		return;
	}
	ep_info_kernel_log(fd);
	close(fd);
}
