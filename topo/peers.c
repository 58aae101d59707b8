/* SPDX-License-Identifier: Apache-2.0 */
/* How GPUs of a host reach each other's memory, and what that means for a group with such GPUs. */
#include <stdio.h>
#include "topo/topo.h"

#define PAIRS_SHOWN 28 /* all of eight GPUs */

enum ep_topo_reach ep_topo_reach(const struct ep_topo *topo, int gpu_a, int gpu_b)
{
	const struct ep_topo_gpu *a = &topo->gpu[gpu_a], *b = &topo->gpu[gpu_b];

	if (gpu_a == gpu_b) {
		return EP_TOPO_REACH_UNKNOWN;
	}
	if (a->host == b->host && (a->instance >= 0 || b->instance >= 0)) {
		return EP_TOPO_REACH_NONE;
	}
	if (a->nvml >= 0 && b->nvml >= 0 && topo->reach[a->nvml][b->nvml]) {
		return topo->reach[a->nvml][b->nvml];
	}
	return ep_topo_linked(topo, gpu_a, gpu_b) ? EP_TOPO_REACH_NVLINK : EP_TOPO_REACH_UNKNOWN;
}

/* Of a pair in both directions, the worse one. */
static enum ep_topo_reach pair_reach(const struct ep_topo *topo, int a, int b)
{
	enum ep_topo_reach there = ep_topo_reach(topo, a, b), back = ep_topo_reach(topo, b, a);

	return there < back ? there : back;
}

bool ep_topo_apart(const struct ep_topo *topo, int *gpu_a, int *gpu_b)
{
	for (int a = 0; a < topo->ngpus; a++) {
		for (int b = a + 1; b < topo->ngpus; b++) {
			if (pair_reach(topo, a, b) == EP_TOPO_REACH_NONE) {
				*gpu_a = a;
				*gpu_b = b;
				return true;
			}
		}
	}
	return false;
}

/* Prints the pairs that reach each other so. Returns whether there are any. */
static bool print_pairs(const struct ep_topo *topo, enum ep_topo_reach reach, const char *how,
			FILE *out)
{
	int n = 0, all = topo->ngpus * (topo->ngpus - 1) / 2, shown = 0;

	for (int a = 0; a < topo->ngpus; a++) {
		for (int b = a + 1; b < topo->ngpus; b++) {
			n += pair_reach(topo, a, b) == reach;
		}
	}
	if (!n) {
		return false;
	}
	fprintf(out, "# peers %s:%s", how, n == all ? " all GPUs" : "");
	for (int a = 0; a < topo->ngpus && n < all; a++) {
		for (int b = a + 1; b < topo->ngpus; b++) {
			if (pair_reach(topo, a, b) == reach && shown++ < PAIRS_SHOWN) {
				fprintf(out, " %d-%d", a, b);
			}
		}
	}
	if (shown > PAIRS_SHOWN) {
		fprintf(out, " and %d more pairs", shown - PAIRS_SHOWN);
	}
	return true;
}

/* Returns how many GPUs in a row reach each other wherever one cuts rows of that many: the most. */
static int row_of_peers(const struct ep_topo *topo)
{
	for (int n = topo->ngpus; n > 1; n--) {
		bool whole = true;

		for (int a = 0; a < topo->ngpus; a++) {
			for (int b = a + 1; b < topo->ngpus && b / n == a / n; b++) {
				whole &= pair_reach(topo, a, b) != EP_TOPO_REACH_NONE;
			}
		}
		if (whole) {
			return n;
		}
	}
	return 1;
}

void ep_topo_print_peers(const struct ep_topo *topo, FILE *out)
{
	bool known = false;

	for (int a = 0; a < topo->ngpus; a++) {
		known |= topo->gpu[a].nvml >= 0;
	}
	if (!known) {
		return;
	}
	if (print_pairs(topo, EP_TOPO_REACH_NVLINK, "by NVLink", out)) {
		fputc('\n', out);
	}
	if (print_pairs(topo, EP_TOPO_REACH_PCIE, "by PCIe", out)) {
		fputs("; a group with such a pair sends rows as bytes, not as lines\n", out);
	}
	if (print_pairs(topo, EP_TOPO_REACH_NONE, "without access", out)) {
		fprintf(out,
			"; a group with such a pair needs NCCL_EP_MEMORY=host (slow) or, with NICs, "
			"NCCL_EP_NODE_SIZE=%d\n",
			row_of_peers(topo));
	}
	if (print_pairs(topo, EP_TOPO_REACH_UNKNOWN, "not known", out)) {
		fputc('\n', out);
	}
}
