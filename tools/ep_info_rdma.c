/* SPDX-License-Identifier: Apache-2.0 */
/* Which ways of posting RDMA are possible here, from what was found out. */
#include <stdio.h>
#include <stdlib.h>

#include "core/param.h"
#include "tools/ep_info.h"

static const struct {
	const char *text;
	enum ep_info_fact_id last; /* it needs all facts up to this one */
} modes[EP_GDA_MODES] = {
	[EP_GDA_GPU] = { "GPU rings, queues in GPU memory", EP_INFO_QUEUES },
	[EP_GDA_GPU_HOST] = { "GPU rings, queues in host memory", EP_INFO_DOORBELL },
	[EP_GDA_CPU_DB] = { "CPU rings for GPU-written queues", EP_INFO_DEVX },
	[EP_GDA_CPU_PROXY] = { "CPU proxy posts verbs", EP_INFO_HEAP },
};

static const char *const names[EP_INFO_FACTS] = {
	[EP_INFO_GPU] = "GPU",
	[EP_INFO_ENABLED] = "RDMA permitted",
	[EP_INFO_VERBS] = "libibverbs",
	[EP_INFO_PORT] = "usable RDMA port",
	[EP_INFO_HEAP] = "GPU memory registration",
	[EP_INFO_DEVX] = "mlx5 device with DevX",
	[EP_INFO_DOORBELL] = "doorbell mapped into the GPU",
	[EP_INFO_QUEUES] = "queues in GPU memory",
};

static bool has(const struct ep_info_facts *facts, const struct ep_info_gpu *gpu, int fact)
{
	if (gpu && fact == EP_INFO_PORT) {
		return gpu->port;
	}
	return gpu && fact == EP_INFO_DEVX ? gpu->devx : facts->fact[fact].yes;
}

enum ep_info_fact_id ep_info_mode_lacks(const struct ep_info_facts *facts,
					const struct ep_info_gpu *gpu, enum ep_gda_mode mode)
{
	int i = 0;

	while (i <= (int)modes[mode].last && has(facts, gpu, i)) {
		i++;
	}
	return i <= (int)modes[mode].last ? (enum ep_info_fact_id)i : EP_INFO_FACTS;
}

enum ep_gda_mode ep_info_mode_best(const struct ep_info_facts *facts, const struct ep_info_gpu *gpu)
{
	for (int m = EP_GDA_GPU; m < EP_GDA_MODES; m++) {
		if (ep_info_mode_lacks(facts, gpu, (enum ep_gda_mode)m) == EP_INFO_FACTS) {
			return (enum ep_gda_mode)m;
		}
	}
	return EP_GDA_AUTO;
}

static void print_fact(const char *what, const struct ep_info_fact *fact)
{
	printf("  %-34s %-4s %s\n", what, fact->yes ? "yes" : "no", fact->text);
}

/* Ranks choose for themselves: GPUs with a better mode than the least. */
static void print_better(const struct ep_info_facts *facts, enum ep_gda_mode least)
{
	for (int i = 0; i < facts->ngpus; i++) {
		const struct ep_info_gpu *gpu = &facts->gpu[i];
		enum ep_gda_mode best = ep_info_mode_best(facts, gpu);

		if (best != least && best != EP_GDA_AUTO) {
			printf("  GPU %s uses %s.\n", gpu->bus_id, ep_gda_mode_name(best));
		}
	}
}

static void print_choice(const struct ep_info_facts *facts)
{
	const struct ep_param_def *def = &ep_param_table[EP_PARAM_RDMA_MODE];
	const char *text = getenv(def->name);
	enum ep_gda_mode least = ep_info_mode_best(facts, NULL), mode;
	int64_t wanted = EP_GDA_AUTO;

	if (text && *text && ep_param_parse(EP_PARAM_RDMA_MODE, text, &wanted) != ncclSuccess) {
		printf("  %s=%.64s is not understood: no group with remote ranks\n", def->name,
		       text);
		return;
	}
	mode = wanted == EP_GDA_AUTO ? least : (enum ep_gda_mode)wanted;
	if (mode == EP_GDA_AUTO) {
		puts("  No path to ranks of other nodes: groups span one NVLink domain.");
	} else if (ep_info_mode_lacks(facts, NULL, mode) != EP_INFO_FACTS) {
		printf("  %s=%s is not possible: no group with remote ranks\n", def->name,
		       ep_gda_mode_name(mode));
	} else {
		printf("  Groups with remote ranks use %s%s.\n", ep_gda_mode_name(mode),
		       wanted == EP_GDA_AUTO ? "" : ", as NCCL_EP_RDMA_MODE says");
		if (wanted == EP_GDA_AUTO) {
			print_better(facts, least);
		}
	}
}

void ep_info_rdma(const struct ep_topo *topo, const struct ep_info_nics *nics)
{
	struct ep_info_facts facts;

	ep_info_probe(&facts, topo, nics);
	puts("RDMA");
	for (int i = 0; i < EP_INFO_FACTS; i++) {
		print_fact(names[i], &facts.fact[i]);
	}
	print_fact("NIC writes seen in order", &facts.order);
	for (int i = 0; i < nics->n; i++) {
		if (nics->bond[i][0]) {
			printf("  %-34s      %s:%d is a bond of %s, %u Mbit/s\n", "",
			       nics->port[i].name, nics->port[i].port, nics->bond[i],
			       nics->port[i].mbps);
		}
	}
	puts("  Posting modes, best first (for NCCL_EP_RDMA_MODE, by name or number):");
	for (int m = EP_GDA_GPU; m < EP_GDA_MODES; m++) {
		enum ep_info_fact_id lacks = ep_info_mode_lacks(&facts, NULL, (enum ep_gda_mode)m);

		printf("  %d %-10s %-34s %s%s\n", m, ep_gda_mode_name((enum ep_gda_mode)m),
		       modes[m].text, lacks == EP_INFO_FACTS ? "possible" : "no: ",
		       lacks == EP_INFO_FACTS ? "" : facts.fact[lacks].text);
	}
	print_choice(&facts);
}
