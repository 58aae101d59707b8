/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the NICs that are chosen. */
#include <stdio.h>
#include <string.h>
#include "gda/address.h"
#include "gda/devx.h"
#include "gda/gda_nic.h"
#include "gda/state.h"
#include "rdma/choose.h"

static bool ep_gda_nic_open(struct ep_gda *g, struct ep_gda_nic *nic,
			    const struct ep_port_list *list, const struct ep_port *port,
			    struct ep_reason *why, ncclResult_t *result)
{
	struct ep_nic *base = &nic->base;

	if (!ep_nic_open(base, list, port, &g->env, why, result)) {
		return false;
	}
	base->devx = base->devx && ep_gda_devx_open(nic, &base->no_devx);
	return true;
}

/* As NVML spells it for MIG instances, which share their GPU's address. "": unknown. */
static void ep_gda_mig_uuid(int device, char text[48])
{
	struct cudaDeviceProp prop;
	size_t at;

	text[0] = '\0';
	if (cudaGetDeviceProperties(&prop, device) != cudaSuccess) {
		(void)cudaGetLastError();
		return;
	}
	at = (size_t)snprintf(text, 48, "MIG-");
	for (int i = 0; i < 16; i++) {
		at += (size_t)snprintf(text + at, 48 - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				       (unsigned char)prop.uuid.bytes[i]);
	}
}

bool ep_gda_nics_open(struct ep_gda *g, const struct ep_gda_config *c, struct ep_reason *why,
		      ncclResult_t *result)
{
	char uuid[48];
	struct ep_nic_user who = { c->bus_id, uuid, c->device, c->place };
	struct ep_port chosen[EP_GDA_MAX_NICS];
	struct ep_port_list list;
	int n = EP_GDA_MAX_NICS;
	bool ok = ep_port_list_open(&list, why);

	if (ok) {
		ep_gda_mig_uuid(c->device, uuid);
		*result = ep_nic_choose(&who, &list, chosen, &n);
		ok = *result == ncclSuccess;
	}
	for (int i = 0; ok && i < n; i++) {
		g->nnics = i + 1;
		ok = ep_gda_nic_open(g, &g->nic[i], &list, &chosen[i], why, result);
	}
	ep_port_list_close(&list);
	return ok;
}

void ep_gda_nics_close(struct ep_gda *g)
{
	for (int i = g->nnics - 1; i >= 0; i--) {
		ep_gda_address_release(&g->nic[i]);
		ep_nic_close(&g->nic[i].base, g->nic[i].keep);
	}
	g->nnics = 0;
}
