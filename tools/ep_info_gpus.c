/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of each GPU, as a rank with that GPU would choose them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ep_info.h"

static void take(struct ep_info_gpu *gpu, const struct ep_info_nics *nics, int port)
{
	gpu->port = true;
	if (gpu->devx && nics->no_devx[port][0]) {
		gpu->devx = false;
		snprintf(gpu->no_devx, sizeof(gpu->no_devx), "GPU %s has %s, which %s", gpu->bus_id,
			 nics->port[port].name, nics->no_devx[port]);
	}
}

/* Those that the topology gives it; false if there are none. */
static bool take_near(struct ep_info_gpu *gpu, const struct ep_topo *topo,
		      const struct ep_info_nics *nics)
{
	int g = topo ? ep_topo_find_gpu(topo, gpu->bus_id, NULL) : -1;

	gpu->known = g >= 0;
	for (int i = 0; g >= 0 && i < topo->gpu[g].nrails; i++) {
		const struct ep_topo_rail *rail = &topo->gpu[g].rail[i];
		const struct ep_topo_nic *nic = &topo->nic[rail->nic];
		int num = nic->port[rail->port].num;
		int at = ep_info_nics_find(nics, nic->name, num);

		if (at >= 0 && nic->no_gdr) {
			snprintf(
				gpu->no_port, sizeof(gpu->no_port),
				"%.100s has gdr=\"0\" for %s:%d, the nearest NIC of GPU %s: correct "
				"the file",
				topo->path, nic->name, num, gpu->bus_id);
			return true;
		}
		if (at >= 0 && !ep_topo_gdr_allowed(topo, g, rail->nic)) {
			const char *level = getenv("NCCL_NET_GDR_LEVEL");

			snprintf(gpu->no_port, sizeof(gpu->no_port),
				 "NCCL_NET_GDR_LEVEL=%.16s forbids GPU %s its nearest NIC %s:%d, "
				 "which is at distance %s: unset it or set it to %s",
				 level ? level : "", gpu->bus_id, nic->name, num,
				 ep_topo_dist_name(rail->dist), ep_topo_level_name(rail->dist));
			return true;
		}
		if (at >= 0) {
			take(gpu, nics, at);
		}
	}
	return gpu->port;
}

void ep_info_gpus_match(struct ep_info_facts *facts, const struct ep_topo *topo,
			const struct ep_info_nics *nics)
{
	for (int i = 0; i < facts->ngpus; i++) {
		struct ep_info_gpu *gpu = &facts->gpu[i];

		gpu->port = gpu->known = false;
		gpu->devx = true;
		if (!take_near(gpu, topo, nics) && nics->n) {
			take(gpu, nics,
			     (int)(ep_port_by_place(nics->port, nics->n, (uint32_t)i) -
				   nics->port));
		}
		gpu->devx &= gpu->port;
	}
}
