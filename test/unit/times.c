/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of making a group goes: exchanges do not count as this rank's own work. */
#include <string.h>
#include <unistd.h>
#include "ep/ep.h"
#include "support/check.h"

int main(void)
{
	struct ep_boot boot = { .exchanges = 2, .first_ns = 20000000 };
	struct ep_times t;
	char text[320];

	ep_times_start(&t);
	CHECK(t.phase_ns > 0 && t.phase_ns == t.start_ns);
	usleep(30000);
	boot.exchanged_ns += 20000000; /* of these 30 ms */
	ep_times_phase(&t, &boot, EP_TIME_GPUS);
	CHECK(t.own_ns[EP_TIME_GPUS] >= 10000000);
	CHECK_INT(t.own_ns[EP_TIME_GPUS], t.phase_ns - t.start_ns - 20000000);
	usleep(1000);
	ep_times_phase(&t, &boot, EP_TIME_MEMORY);
	ep_times_phase(&t, &boot, EP_TIME_MEMORY);
	CHECK_INT(t.own_ns[EP_TIME_GPUS] + t.own_ns[EP_TIME_MEMORY],
		  t.phase_ns - t.start_ns - 20000000);
	t = (struct ep_times){ .phase_ns = 51000000,
			       .own_ns = { 1000000, 2000000, 3000000, 4500000 } };
	boot.exchanged_ns = 40500000;
	ep_times_describe(&t, &boot, text, sizeof(text));
	CHECK(strncmp(text,
		      "51.0 ms: GPUs 1.0, kernels 2.0, memory 3.0, NICs 4.5, 2 exchanges by NCCL "
		      "40.5 (",
		      80) == 0);
	CHECK(strstr(text, ", 20.0)"));
	return check_end();
}
