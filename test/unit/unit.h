// SPDX-License-Identifier: Apache-2.0
/* What the unit tests have in common: count failures, go on, end with a status. */
#ifndef EP_TEST_UNIT_H
#define EP_TEST_UNIT_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int unit_failures;

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                 \
			unit_failures++;                                                           \
		}                                                                                  \
	} while (0)

#define CHECK_HAS(text, part)                                                                      \
	do {                                                                                       \
		if (!strstr(text, part)) {                                                         \
			fprintf(stderr, "%s:%d: \"%s\" lacks \"%s\"\n", __FILE__, __LINE__, text,  \
				part);                                                             \
			unit_failures++;                                                           \
		}                                                                                  \
	} while (0)

#define CHECK_TEXT(text, expected)                                                                 \
	do {                                                                                       \
		if (strcmp(text, expected) != 0) {                                                 \
			fprintf(stderr, "%s:%d: \"%s\", not \"%s\"\n", __FILE__, __LINE__, text,   \
				expected);                                                         \
			unit_failures++;                                                           \
		}                                                                                  \
	} while (0)

static inline int unit_end(void)
{
	if (unit_failures) {
		fprintf(stderr, "%d checks failed\n", unit_failures);
	}
	return unit_failures != 0;
}

#endif
