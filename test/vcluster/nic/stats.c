/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include "nic/stats.h"

#define VN_DECADES 6 /* below 10 us, 100 us, 1 ms, 10 ms, 100 ms, and more */

static const char *const vn_stat_name[VN_STATS] = {
	[VN_STAT_TURN] = "turns with work",
	[VN_STAT_NAP] = "naps",
	[VN_STAT_MESSAGE] = "messages",
	[VN_STAT_RESEND] = "packets sent again",
	[VN_STAT_COPY_OUT] = "copies from GPUs issued",
	[VN_STAT_COPY_IN] = "copies to GPUs issued",
	[VN_STAT_WORD] = "words to GPUs issued",
	[VN_STAT_WAIT_OUT] = "waits for copies from GPUs",
	[VN_STAT_WAIT_IN] = "waits for copies to GPUs",
	[VN_STAT_FETCH] = "reads of GPUs",
	[VN_STAT_PEEK] = "words of GPUs asked for",
};

static const char *const vn_count_name[VN_COUNTS] = {
	[VN_COUNT_DOORBELL] = "doorbells of GPU threads",
	[VN_COUNT_ROW] = "WQEs: writes of memory",
	[VN_COUNT_WORD] = "WQEs: writes of words",
	[VN_COUNT_ATOMIC] = "WQEs: atomics",
	[VN_COUNT_OTHER] = "WQEs: others",
	[VN_COUNT_HELD] = "WQEs held until others are done",
	[VN_COUNT_REPORTED] = "WQEs with a completion",
	[VN_COUNT_PEAK] = "most WQEs of a queue at once",
};

static atomic_ullong vn_counts[VN_COUNTS];

static struct {
	uint64_t n, ns, most, bytes, decade[VN_DECADES];
} vn_stats[VN_STATS];

void vn_stat(enum vn_stat stat, uint64_t start, uint64_t bytes)
{
	uint64_t ns, limit = 10000;
	int d = 0;

	if (!vn_config.stats || !start) {
		return;
	}
	ns = vn_now() - start;
	vn_stats[stat].n++;
	vn_stats[stat].ns += ns;
	vn_stats[stat].bytes += bytes;
	if (ns > vn_stats[stat].most) {
		vn_stats[stat].most = ns;
	}
	for (; d < VN_DECADES - 1 && ns >= limit; d++) {
		limit *= 10;
	}
	vn_stats[stat].decade[d]++;
}

void vn_count(enum vn_count count)
{
	if (vn_config.stats) {
		atomic_fetch_add_explicit(&vn_counts[count], 1, memory_order_relaxed);
	}
}

void vn_count_peak(uint64_t wqes)
{
	if (wqes > atomic_load_explicit(&vn_counts[VN_COUNT_PEAK], memory_order_relaxed)) {
		atomic_store_explicit(&vn_counts[VN_COUNT_PEAK], wqes, memory_order_relaxed);
	}
}

__attribute__((destructor)) static void vn_stats_print(void)
{
	if (!vn_config.stats) {
		return;
	}
	fprintf(stderr,
		"nic: %-27s %9s %11s %9s %11s   below 10 us, 100 us, 1 ms, 10 ms, 100 ms, more\n",
		"", "times", "ms in all", "mean us", "most us");
	for (int i = 0; i < VN_STATS; i++) {
		const uint64_t *d = vn_stats[i].decade, n = vn_stats[i].n;

		fprintf(stderr,
			"nic: %-27s %9llu %11.1f %9.1f %11.1f   %llu %llu %llu %llu %llu %llu   %.1f MB\n",
			vn_stat_name[i], (unsigned long long)n, (double)vn_stats[i].ns / 1e6,
			n ? (double)vn_stats[i].ns / (double)n / 1e3 : 0,
			(double)vn_stats[i].most / 1e3, (unsigned long long)d[0],
			(unsigned long long)d[1], (unsigned long long)d[2],
			(unsigned long long)d[3], (unsigned long long)d[4],
			(unsigned long long)d[5], (double)vn_stats[i].bytes / 1e6);
	}
	for (int i = 0; i < VN_COUNTS; i++) {
		fprintf(stderr, "nic: %-31s %9llu\n", vn_count_name[i],
			(unsigned long long)atomic_load(&vn_counts[i]));
	}
}
