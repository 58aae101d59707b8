/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of the network plugin's connections, from files of this machine's processes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "core/shared_file.h"
#include "net/counts_file.h"
#include "tools/ep_info.h"

static void print_path(struct ep_net_counts_path *path, bool sends)
{
	ep_info_clean(path->from, sizeof(path->from));
	ep_info_clean(path->to, sizeof(path->to));
	printf("      %s %s %s", path->from, sends ? "to" : "from", path->to);
	if (sends) {
		printf(", %" PRIu64 " parts, %" PRIu64 " bytes", path->parts, path->bytes);
	}
	puts(path->open ? "" : ", failed");
}

static void print_entry(struct ep_net_counts *counts)
{
	bool sends = counts->state == EP_NET_COUNTS_SENDS;
	struct timespec now;
	double s;

	clock_gettime(CLOCK_REALTIME, &now);
	s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - 1e-9 * (double)counts->since;
	ep_info_clean(counts->nic, sizeof(counts->nic));
	ep_info_clean(counts->peer, sizeof(counts->peer));
	printf("    %s %s %s, for %.1f s%s\n", counts->nic, sends ? "sends to" : "receives from",
	       counts->peer, s > 0 ? s : 0, counts->failed ? ", FAILED" : "");
	printf("      %" PRIu64 " messages, %" PRIu64 " bytes, %" PRIu64 " polls, %" PRIu64
	       " completions\n",
	       counts->messages, counts->bytes, counts->polls, counts->completions);
	if (sends) {
		printf("      %" PRIu64 " sends too early, %" PRIu64 " without room\n",
		       counts->early, counts->full);
	} else {
		printf("      %" PRIu64 " receives without room, %" PRIu64 " flushes\n",
		       counts->full, counts->flushes);
	}
	if (counts->failovers) {
		printf("      %" PRIu64 " failovers, %" PRIu64 " failbacks, %" PRIu64
		       " parts sent again\n",
		       counts->failovers, counts->failbacks, counts->resent);
	}
	for (int i = 0; i < EP_NET_COUNTS_PATHS && counts->path[i].from[0]; i++) {
		print_path(&counts->path[i], sends);
	}
}

/* Read, not mapped: the process may end and the file shrink at any time. */
static void print_entries(int fd)
{
	size_t at = sizeof(struct ep_net_counts_file);
	struct ep_net_counts e;
	int n = 0;

	for (uint32_t i = 0; i < EP_NET_COUNTS_ENTRIES; i++, at += sizeof(e)) {
		if (pread(fd, &e, sizeof(e), (off_t)at) != (ssize_t)sizeof(e)) {
			break;
		}
		if (e.state == EP_NET_COUNTS_SENDS || e.state == EP_NET_COUNTS_RECEIVES) {
			print_entry(&e);
			n++;
		}
	}
	if (!n) {
		puts("    no connections");
	}
}

static void print_file(void *arg, const char *path, int fd, const struct stat *st)
{
	struct ep_net_counts_file head;

	++*(int *)arg;
	if (fd < 0) {
		printf("  %s is another user's\n", path);
	} else if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
		   head.magic != EP_NET_COUNTS_MAGIC) {
		printf("  %s is not what it should be\n", path);
	} else if (head.version != EP_NET_COUNTS_VERSION || head.entries != EP_NET_COUNTS_ENTRIES ||
		   head.entry_bytes != sizeof(struct ep_net_counts)) {
		printf("  %s is of another version of the plugin (%" PRIu32 ", this program knows "
		       "%u)\n",
		       path, head.version, EP_NET_COUNTS_VERSION);
	} else {
		ep_info_clean(head.program, sizeof(head.program));
		printf("  process %" PRIu32 ", %s", head.pid, head.program);
		if (st->st_uid != geteuid()) {
			printf(" of user %u", (unsigned int)st->st_uid);
		}
		printf("%s\n", ep_shared_file_held(fd)
				       ? ""
				       : ", which has ended: the user's next one removes the file");
		print_entries(fd);
	}
}

void ep_info_net(void)
{
	int n = 0;

	puts("Connections of the network plugin");
	ep_shared_file_each(EP_NET_COUNTS_NAME, print_file, &n);
	if (!n) {
		puts("  no process counts: NCCL_EP_NET_COUNTS=1 makes it");
	}
}
