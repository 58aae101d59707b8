/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of ep_perf's table: they never touch, and keep what the numbers say. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/perf/perf.h"
#include "support/check.h"

static void check_cell(void (*format)(char out[PERF_CELL], double value, int width), int width,
		       double value, const char *want)
{
	char out[PERF_CELL];

	format(out, value, width);
	CHECK_TEXT(out, want);
}

/*
 * Any value: a space first, `width` columns as far as digits fit, and about the value when read
 * back.
 */
static void check_sweep(void (*format)(char out[PERF_CELL], double value, int width), int width)
{
	double most = pow(10, width - 1) - 1;

	for (double value = 1e-9; value < 1e9; value *= 1.07) {
		char out[PERF_CELL];

		format(out, value, width);
		CHECK(out[0] == ' ' && strlen(out) >= (size_t)width);
		CHECK(value >= most || strlen(out) == (size_t)width);
		CHECK(format != perf_cell_rate || fabs(atof(out) - value) <= 0.5 * value);
	}
}

int main(void)
{
	check_cell(perf_cell_time, 7, 3.36, "    3.4");
	check_cell(perf_cell_time, 7, 9999.9, " 9999.9");
	check_cell(perf_cell_time, 7, 999999.4, " 999999");
	check_cell(perf_cell_time, 7, 999999.6, "  1.00s");
	check_cell(perf_cell_time, 7, 28952610, " 28.95s");
	check_cell(perf_cell_time, 7, 123456789, "   123s");
	check_cell(perf_cell_time, 7, NAN, "      -");
	check_cell(perf_cell_rate, 5, 326.4, "  326");
	check_cell(perf_cell_rate, 5, 12.34, " 12.3");
	check_cell(perf_cell_rate, 5, 0.125, " 0.12");
	check_cell(perf_cell_rate, 5, 0.000186616, " 2e-4");
	check_cell(perf_cell_rate, 5, 0, " 0.00");
	check_cell(perf_cell_rate, 5, NAN, "    -");
	check_cell(perf_cell_percent, 4, 99.7, " 100");
	check_cell(perf_cell_percent, 4, 4.26, " 4.3");
	check_cell(perf_cell_percent, 4, 0.01, " <.1");
	check_cell(perf_cell_percent, 4, 0, " 0.0");
	check_sweep(perf_cell_time, 7);
	check_sweep(perf_cell_rate, 5);
	check_sweep(perf_cell_percent, 4);
	return check_end();
}
