/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of GPUs that a variable names; CUDA's stand-in and NVML's, which are two libraries, ask. */
#ifndef VC_CUDA_PAIRS_H
#define VC_CUDA_PAIRS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Whether a variable such as VC_NO_PEER=0-3,1-2 names a pair of devices. */
static inline bool vc_pair_named(const char *variable, int from, int to)
{
	const char *text = getenv(variable);
	int a, b, used;

	while (text && sscanf(text, "%d-%d%n", &a, &b, &used) == 2) {
		if ((a == from && b == to) || (a == to && b == from)) {
			return true;
		}
		text += used;
		text += *text == ',';
	}
	return false;
}

#endif
