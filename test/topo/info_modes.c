/* SPDX-License-Identifier: Apache-2.0 */
/* ep_info's choice of posting modes for every combination of what a machine may have. */
#include <stdlib.h>
#include <string.h>

#include "core/param.h"
#include "support/check.h"
#include "tools/ep_info.h"

static struct ep_info_facts machine;

void ep_info_probe(struct ep_info_facts *facts, const struct ep_topo *topo,
		   const struct ep_info_nics *nics)
{
	*facts = machine;
}

#define BIT(fact) (1u << (fact))
#define PROXY                                                                                      \
	(BIT(EP_INFO_GPU) | BIT(EP_INFO_ENABLED) | BIT(EP_INFO_VERBS) | BIT(EP_INFO_PORT) |        \
	 BIT(EP_INFO_HEAP))

static const unsigned int needs[EP_GDA_MODES] = {
	[EP_GDA_GPU] = PROXY | BIT(EP_INFO_DEVX) | BIT(EP_INFO_DOORBELL) | BIT(EP_INFO_QUEUES),
	[EP_GDA_GPU_HOST] = PROXY | BIT(EP_INFO_DEVX) | BIT(EP_INFO_DOORBELL),
	[EP_GDA_CPU_DB] = PROXY | BIT(EP_INFO_DEVX),
	[EP_GDA_CPU_PROXY] = PROXY,
};

static void set_machine(unsigned int has)
{
	for (int i = 0; i < EP_INFO_FACTS; i++) {
		machine.fact[i].yes = has >> i & 1;
		snprintf(machine.fact[i].text, sizeof(machine.fact[i].text), "fact %d is %d.", i,
			 has >> i & 1);
	}
}

static void test_all(void)
{
	for (unsigned int has = 0; has < 1u << EP_INFO_FACTS; has++) {
		enum ep_gda_mode best = EP_GDA_AUTO;

		set_machine(has);
		for (int m = EP_GDA_CPU_PROXY; m >= EP_GDA_GPU; m--) {
			enum ep_info_fact_id lacks =
				ep_info_mode_lacks(&machine, NULL, (enum ep_gda_mode)m);
			bool can = (has & needs[m]) == needs[m];

			CHECK(can == (lacks == EP_INFO_FACTS), "has 0x%x, mode %d", has, m);
			CHECK(can || (needs[m] & ~has & BIT(lacks)), "has 0x%x, mode %d: %d", has,
			      m, lacks);
			best = can ? (enum ep_gda_mode)m : best;
		}
		CHECK(ep_info_mode_best(&machine, NULL) == best, "has 0x%x", has);
	}
}

/* What is printed has the line. */
static const struct ep_info_nics no_nics;

static void try_print(unsigned int has, const char *mode, const char *line)
{
	static char text[8192];
	FILE *out = tmpfile(), *before = stdout;

	CHECK(out, "tmpfile");
	set_machine(has);
	if (mode) {
		setenv("NCCL_EP_RDMA_MODE", mode, 1);
	} else {
		unsetenv("NCCL_EP_RDMA_MODE");
	}
	stdout = out;
	ep_info_rdma(NULL, &no_nics);
	stdout = before;
	rewind(out);
	text[fread(text, 1, sizeof(text) - 1, out)] = '\0';
	fclose(out);
	CHECK(strstr(text, line), "not \"%s\" in:\n%s", line, text);
}

/* A GPU whose own NICs can do more than another's. */
static void test_gpus(void)
{
	static const char *const bus[] = { "0000:13:00.0", "0000:23:00.0" };

	machine.ngpus = 2;
	for (int i = 0; i < 2; i++) {
		snprintf(machine.gpu[i].bus_id, sizeof(machine.gpu[i].bus_id), "%s", bus[i]);
		machine.gpu[i].port = true;
		machine.gpu[i].devx = i == 1;
	}
	try_print((BIT(EP_INFO_FACTS) - 1) & ~BIT(EP_INFO_DEVX), NULL,
		  "Groups with remote ranks use cpu_proxy.\n  GPU 0000:23:00.0 uses gpu.\n");
	try_print((BIT(EP_INFO_FACTS) - 1) & ~BIT(EP_INFO_PORT), NULL, "No path to ranks");
	machine.ngpus = 0;
}

int main(void)
{
	const unsigned int all = BIT(EP_INFO_FACTS) - 1;

	test_all();
	test_gpus();
	try_print(all, NULL, "  1 gpu        GPU rings, queues in GPU memory    possible\n");
	try_print(all, NULL, "Groups with remote ranks use gpu.\n");
	try_print(all, "3", "Groups with remote ranks use cpu_db, as NCCL_EP_RDMA_MODE says.\n");
	try_print(all, "cpu_db", "use cpu_db, as NCCL_EP_RDMA_MODE says.\n");
	for (int m = EP_GDA_GPU; m < EP_GDA_MODES; m++) {
		int64_t value;

		CHECK(ep_param_parse(EP_PARAM_RDMA_MODE, ep_gda_mode_name((enum ep_gda_mode)m),
				     &value) == ncclSuccess &&
			      value == m,
		      "mode %d", m);
	}
	try_print(all & ~BIT(EP_INFO_QUEUES), NULL, "Groups with remote ranks use gpu_host.\n");
	try_print(all & ~BIT(EP_INFO_QUEUES), NULL, "GPU memory    no: fact 7 is 0.\n");
	try_print(all & ~BIT(EP_INFO_DOORBELL), "1", "NCCL_EP_RDMA_MODE=gpu is not possible");
	try_print(PROXY, NULL, "Groups with remote ranks use cpu_proxy.\n");
	try_print(PROXY, "7", "NCCL_EP_RDMA_MODE=7 is not understood");
	try_print(PROXY & ~BIT(EP_INFO_PORT), NULL, "No path to ranks of other nodes");
	return check_end();
}
