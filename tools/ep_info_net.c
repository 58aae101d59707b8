/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of the network plugin's connections, from files of this machine's processes. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "core/shared_file.h"
#include "core/util.h"
#include "net/counts_file.h"
#include "tools/ep_info.h"

enum counter_of {
	OF_CONNECTION,
	OF_SENDER,
	OF_RECEIVER,
	OF_PORTS_LOST, /* of a connection whose ports have failed */
	OF_SENDERS_PATH
};

/* Each counter with its words, as ep_info(1) lists them. */
static const struct {
	enum counter_of of;
	const char *words;
	size_t at; /* a uint64_t of struct ep_net_counts, or of its path */
} counters[] = {
	{ OF_CONNECTION, "messages", offsetof(struct ep_net_counts, messages) },
	{ OF_CONNECTION, "bytes", offsetof(struct ep_net_counts, bytes) },
	{ OF_CONNECTION, "polls", offsetof(struct ep_net_counts, polls) },
	{ OF_CONNECTION, "completions", offsetof(struct ep_net_counts, completions) },
	{ OF_SENDER, "sends too early", offsetof(struct ep_net_counts, early) },
	{ OF_SENDER, "sends without room", offsetof(struct ep_net_counts, full) },
	{ OF_RECEIVER, "receives without room", offsetof(struct ep_net_counts, full) },
	{ OF_RECEIVER, "flushes", offsetof(struct ep_net_counts, flushes) },
	{ OF_PORTS_LOST, "failovers", offsetof(struct ep_net_counts, failovers) },
	{ OF_PORTS_LOST, "failbacks", offsetof(struct ep_net_counts, failbacks) },
	{ OF_PORTS_LOST, "parts sent again", offsetof(struct ep_net_counts, resent) },
	{ OF_SENDERS_PATH, "parts", offsetof(struct ep_net_counts_path, parts) },
	{ OF_SENDERS_PATH, "bytes", offsetof(struct ep_net_counts_path, bytes) },
};

/* Prints counters of `base` behind `before`, then with commas. */
static void print_counters(enum counter_of of, const void *base, const char *before)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(counters); i++) {
		if (counters[i].of == of) {
			printf("%s%" PRIu64 " %s", before,
			       *(const uint64_t *)((const char *)base + counters[i].at),
			       counters[i].words);
			before = ", ";
		}
	}
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
	print_counters(OF_CONNECTION, counts, "      ");
	print_counters(sends ? OF_SENDER : OF_RECEIVER, counts, "\n      ");
	if (counts->failovers) {
		print_counters(OF_PORTS_LOST, counts, "\n      ");
	}
	putchar('\n');
	for (int i = 0; i < EP_NET_COUNTS_PATHS && counts->path[i].from[0]; i++) {
		struct ep_net_counts_path *path = &counts->path[i];

		ep_info_clean(path->from, sizeof(path->from));
		ep_info_clean(path->to, sizeof(path->to));
		printf("      %s %s %s", path->from, sends ? "to" : "from", path->to);
		if (sends) {
			print_counters(OF_SENDERS_PATH, path, ", ");
		}
		puts(path->open ? "" : ", failed");
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
