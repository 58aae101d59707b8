/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_TOPO_CHECK_H
#define TEST_TOPO_CHECK_H

#include <stdio.h>

static int failures;

#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			failures++;                                                                \
			printf("%s:%d: not true: %s: ", __FILE__, __LINE__, #cond);                \
			printf(__VA_ARGS__);                                                       \
			putchar('\n');                                                             \
		}                                                                                  \
	} while (0)

#endif
