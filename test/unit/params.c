// SPDX-License-Identifier: Apache-2.0
/* The parameter table: values, limits, misspelt names. */
#include <stdlib.h>
#include "core/param.h"
#include "unit/unit.h"

static const char *last_text(void)
{
	static struct ep_error e;

	ep_error_get(NULL, &e);
	return e.text;
}

static void test_table(void)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		const struct ep_param_def *d = &ep_param_table[i];

		CHECK(d->name && strncmp(d->name, "NCCL_EP_", 8) == 0 && d->help && d->help[0]);
		CHECK(d->min <= d->initial && d->initial <= d->max);
		CHECK(ep_param_known(d->name));
		CHECK_TEXT(ep_param_nearest(d->name), d->name);
	}
}

static void test_values(void)
{
	struct ep_params p;
	int64_t v = -7;

	CHECK(ep_params_read(&p) == ncclSuccess);
	for (int i = 0; i < EP_PARAMS; i++) {
		CHECK(!p.set[i] && p.value[i] == ep_param_table[i].initial);
	}
	setenv("NCCL_EP_TIMEOUT_MS", "250", 1);
	setenv("NCCL_EP_COMM_SMS", "", 1); /* empty counts as unset */
	CHECK(ep_params_read(&p) == ncclSuccess);
	CHECK(p.set[EP_PARAM_TIMEOUT_MS] && p.value[EP_PARAM_TIMEOUT_MS] == 250);
	CHECK(!p.set[EP_PARAM_COMM_SMS] && p.value[EP_PARAM_COMM_SMS] == 0);

	setenv("NCCL_EP_TIMEOUT_MS", "soon", 1);
	CHECK(ep_params_read(&p) == ncclInvalidUsage);
	CHECK_HAS(last_text(), "NCCL_EP_TIMEOUT_MS=soon is not a number");
	setenv("NCCL_EP_TIMEOUT_MS", "12x", 1);
	CHECK(ep_params_read(&p) == ncclInvalidUsage);
	setenv("NCCL_EP_TIMEOUT_MS", "-1", 1);
	CHECK(ep_params_read(&p) == ncclInvalidUsage);
	CHECK_HAS(last_text(), "NCCL_EP_TIMEOUT_MS=-1 is out of range: set it to 0..86400000");
	setenv("NCCL_EP_TIMEOUT_MS", "99999999999999999999", 1);
	CHECK(ep_params_read(&p) == ncclInvalidUsage);
	unsetenv("NCCL_EP_TIMEOUT_MS");
	CHECK(ep_params_read(&p) == ncclSuccess);

	CHECK(ep_param_parse(EP_PARAM_LL_THREADS, "33", &v) == ncclInvalidUsage && v == -7);
	CHECK_HAS(last_text(), "a multiple of 32");
	CHECK(ep_param_parse(EP_PARAM_LL_THREADS, "96", &v) == ncclSuccess && v == 96);
	CHECK(ep_param_parse(EP_PARAM_LL_LINES, "-1", &v) == ncclSuccess && v == -1);
}

static void test_switch(void)
{
	static const struct {
		const char *text;
		int on;
	} cases[] = { { "1", 1 },   { "yes", 1 },   { "", 0 },    { "0", 0 },
		      { "off", 0 }, { "FALSE", 0 }, { "TRUE", 1 } };
	int64_t v;

	for (size_t i = 0; i < EP_ARRAY_SIZE(cases); i++) {
		CHECK(ep_param_parse(EP_PARAM_DEBUG, cases[i].text, &v) == ncclSuccess);
		CHECK(v == cases[i].on);
	}
}

static void test_names(void)
{
	CHECK_TEXT(ep_param_nearest("NCCL_EP_TIMEOUT"), "NCCL_EP_TIMEOUT_MS");
	CHECK_TEXT(ep_param_nearest("NCCL_EP_LL_LINE"), "NCCL_EP_LL_LINES");
	CHECK_TEXT(ep_param_nearest("NCCL_EP_COM_SMS"), "NCCL_EP_COMM_SMS");
	CHECK(ep_param_nearest("NCCL_EP_SOMETHING_ELSE_ENTIRELY") == NULL);
	CHECK(!ep_param_known("NCCL_EP_TIMEOUT"));
	CHECK(ep_param_known("NCCL_EP_HOME")); /* other implementations' */
}

int main(void)
{
	test_table();
	test_values();
	test_switch();
	test_names();
	return unit_end();
}
