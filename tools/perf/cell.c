/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the table. A cell begins with a space, so that two never become one number. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "perf.h"

static void put(char out[PERF_CELL], const char *text, int width)
{
	snprintf(out, PERF_CELL, " %*.*s", width - 1, PERF_CELL - 2, text);
}

/* Microseconds: with a decimal if that fits into 7 columns; from a second on "1.23s". */
void perf_cell_time(char out[PERF_CELL], double value, int width)
{
	char text[PERF_CELL] = "-";

	if (value >= 999999.5) {
		snprintf(text, sizeof(text), "%.*fs", value < 99.995e6 ? 2 : 0, value / 1e6);
	} else if (!isnan(value)) {
		snprintf(text, sizeof(text), "%.*f", value < 9999.95 ? 1 : 0, value);
	}
	put(out, text, width);
}

/* 1234, 123, 12.3, 1.23, 0.12, 2e-4: three digits, or what is left of them in 4 columns. */
void perf_cell_rate(char out[PERF_CELL], double value, int width)
{
	char text[PERF_CELL] = "-";
	char *zero;

	if (value == 0 || value >= 0.00995) {
		snprintf(text, sizeof(text), "%.*f",
			 value >= 99.95   ? 0
			 : value >= 9.995 ? 1
					  : 2,
			 value);
	} else if (!isnan(value)) {
		snprintf(text, sizeof(text), "%.0e", value);
		zero = strstr(text, "-0");
		if (zero) { /* 2e-04 */
			memmove(zero + 1, zero + 2, strlen(zero + 1));
		}
	}
	put(out, text, width);
}

/* 123, 12, 1.2, <.1 */
void perf_cell_percent(char out[PERF_CELL], double value, int width)
{
	char text[PERF_CELL] = "-";

	if (value > 0 && value < 0.05) {
		snprintf(text, sizeof(text), "<.1");
	} else if (!isnan(value)) {
		snprintf(text, sizeof(text), "%.*f", value < 9.95 ? 1 : 0, value);
	}
	put(out, text, width);
}
