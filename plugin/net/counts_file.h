/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts of what connections have done. With NCCL_EP_NET_COUNTS=1 a process keeps them in a shared
 * file (core/shared_file.h) of the prefix "nccl-ep-net.", which ep_info reads: a head, and entries
 * of connections, as many as there were at once. Only the process writes; a reader sees each number
 * as it was at some time, and no two of the same time. The file goes when the process ends in
 * order. The next process of the user that counts removes the file of a process that was killed.
 */
#ifndef EP_NET_COUNTS_FILE_H
#define EP_NET_COUNTS_FILE_H

#include <stdint.h>

#define EP_NET_COUNTS_NAME "nccl-ep-net."
#define EP_NET_COUNTS_MAGIC 0x746e756f432d7065ull
#define EP_NET_COUNTS_VERSION 2u    /* any change of what follows */
#define EP_NET_COUNTS_ENTRIES 4096u /* at most */
#define EP_NET_COUNTS_STEP 64u      /* entries that the file grows by */
#define EP_NET_COUNTS_PATHS 8

enum ep_net_counts_state {
	EP_NET_COUNTS_FREE,
	EP_NET_COUNTS_SENDS,
	EP_NET_COUNTS_RECEIVES
};

struct ep_net_counts_path {
	char from[32], to[32]; /* ports; "": there are no more paths */
	uint64_t parts, bytes; /* of messages; sender */
	uint32_t open, pad;
};

struct ep_net_counts {
	uint32_t state;  /* enum ep_net_counts_state; set last, cleared first */
	uint32_t failed; /* code of its error; 0: none */
	uint64_t since;  /* when it was made, ns since 1970 */
	char nic[64], peer[64];
	uint64_t messages, bytes; /* sent, or received */
	uint64_t early;           /* sender: asked to send where nobody received yet */
	uint64_t full;            /* there was no room for a message or a receive */
	uint64_t flushes;
	uint64_t failovers; /* paths that were closed, */
	uint64_t failbacks; /* and opened again */
	uint64_t resent;    /* parts that were sent again over another path */
	uint64_t polls, completions;
	struct ep_net_counts_path path[EP_NET_COUNTS_PATHS];
};

struct ep_net_counts_file {
	uint64_t magic;
	uint32_t version, entries, entry_bytes, pid;
	/* the process, as /proc/<pid>/stat has it: in ticks since the machine's start */
	uint64_t started;
	char program[64];
	struct ep_net_counts entry[];
};

#endif
