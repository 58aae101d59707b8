/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/usable.h"

struct ep_topo_port *ep_topo_usable_at(const struct ep_topo_usable *usable, int u)
{
	return &usable->topo->nic[usable->port[u].nic].port[usable->port[u].port];
}

static enum ep_topo_why unusable(const struct ep_topo_nic *nic, const struct ep_topo_port *port,
				 const struct ep_topo_opts *opts, const struct ep_topo_hca *hca)
{
	if (!nic->rdma) {
		return EP_TOPO_WHY_NOT_RDMA;
	}
	if (opts->ib_disable) {
		return EP_TOPO_WHY_DISABLED;
	}
	/* A file without device names cannot be filtered by name. */
	if (nic->named && !ep_topo_hca_match(hca, nic->name, port->num)) {
		return EP_TOPO_WHY_FILTERED;
	}
	if (port->state == EP_TOPO_STATE_DOWN) {
		return EP_TOPO_WHY_DOWN;
	}
	if (opts->is_open && !opts->is_open(opts->is_open_arg, nic->name, port->num)) {
		return EP_TOPO_WHY_CLOSED;
	}
	return EP_TOPO_WHY_USED;
}

static uint32_t lesser_known(uint32_t a, uint32_t b)
{
	return a && (!b || a < b) ? a : b;
}

int ep_topo_usable_rank(const struct ep_topo_usable *usable, int gpu, int u)
{
	int nic = usable->port[u].nic;
	enum ep_topo_dist dist = ep_topo_dist_gpu_nic(usable->topo, gpu, nic);

	/* Of two equally far, the one on PCI is real hardware, the other software or hidden. Without a
	 * path it is farther than none. */
	return 2 * (int)dist + (dist == EP_TOPO_DISTANT || !usable->topo->nic[nic].pci.known);
}

/* Whether a port that the GPU has a path to reports a speed: then ports that do not may be dead. */
static bool any_speed(const struct ep_topo_usable *usable, int gpu)
{
	for (int u = 0; u < usable->n; u++) {
		if (ep_topo_usable_at(usable, u)->mbps &&
		    ep_topo_usable_rank(usable, gpu, u) < 2 * EP_TOPO_DISTANT) {
			return true;
		}
	}
	return false;
}

int ep_topo_usable_near(const struct ep_topo_usable *usable, int gpu, bool *may)
{
	bool known = any_speed(usable, gpu);
	int nearest = 2 * EP_TOPO_DISTANT;
	uint32_t best = 0;

	for (int u = 0; u < usable->n; u++) {
		int rank = ep_topo_usable_rank(usable, gpu, u);

		may[u] = !known || ep_topo_usable_at(usable, u)->mbps;
		nearest = may[u] && rank < nearest ? rank : nearest;
	}
	for (int u = 0; u < usable->n; u++) {
		may[u] &= ep_topo_usable_rank(usable, gpu, u) == nearest;
		if (may[u] && usable->port[u].mbps > best) {
			best = usable->port[u].mbps;
		}
	}
	for (int u = 0; u < usable->n; u++) {
		may[u] &= !usable->port[u].mbps || usable->port[u].mbps >= best / 2;
	}
	return nearest;
}

#define LAYERS 3

/* The link layer with the fastest of the ports that a GPU may use; if both have such, with more. */
static enum ep_topo_link_layer favourite(const struct ep_topo_usable *usable, int gpu)
{
	bool may[EP_TOPO_MAX_USABLE];
	uint64_t best[LAYERS] = { 0 }, sum[LAYERS] = { 0 };
	const enum ep_topo_link_layer ib = EP_TOPO_LINK_IB, eth = EP_TOPO_LINK_ETHERNET;

	ep_topo_usable_near(usable, gpu, may);
	for (int u = 0; u < usable->n; u++) {
		if (may[u]) {
			enum ep_topo_link_layer layer = ep_topo_usable_at(usable, u)->layer;
			uint64_t speed = 1 + (uint64_t)usable->port[u].mbps;

			best[layer] = speed > best[layer] ? speed : best[layer];
			sum[layer] += speed;
		}
	}
	if (!sum[ib] && !sum[eth]) {
		return EP_TOPO_LINK_UNKNOWN;
	}
	if (best[ib] != best[eth]) {
		return best[ib] > best[eth] ? ib : eth;
	}
	return sum[ib] >= sum[eth] ? ib : eth;
}

/* InfiniBand and Ethernet do not reach each other, and the ranks of a machine are in one group:
 * the layer that most GPUs would take counts for all. Ports that do not report theirs stay. */
static void keep_one_layer(struct ep_topo_usable *usable)
{
	const enum ep_topo_link_layer ib = EP_TOPO_LINK_IB, eth = EP_TOPO_LINK_ETHERNET;
	int votes[LAYERS] = { 0 }, kept = 0;
	uint64_t sum[LAYERS] = { 0 };
	enum ep_topo_link_layer keep;

	for (int g = 0; g < usable->topo->ngpus; g++) {
		votes[favourite(usable, g)]++;
	}
	if (!votes[ib] && !votes[eth]) {
		return;
	}
	for (int u = 0; u < usable->n; u++) {
		sum[ep_topo_usable_at(usable, u)->layer] += 1 + (uint64_t)usable->port[u].mbps;
	}
	keep = votes[ib] > votes[eth] || (votes[ib] == votes[eth] && sum[ib] >= sum[eth]) ? ib
											  : eth;
	for (int u = 0; u < usable->n; u++) {
		struct ep_topo_port *port = ep_topo_usable_at(usable, u);

		if (port->layer == keep || port->layer == EP_TOPO_LINK_UNKNOWN) {
			usable->port[kept++] = usable->port[u];
		} else {
			port->why = EP_TOPO_WHY_LAYER;
		}
	}
	usable->n = kept;
}

void ep_topo_usable_list(struct ep_topo_usable *usable, const struct ep_topo_opts *opts,
			 const struct ep_topo_hca *hca)
{
	usable->n = 0;
	for (int n = 0; n < usable->topo->nnics; n++) {
		struct ep_topo_nic *nic = &usable->topo->nic[n];

		for (int p = 0; p < nic->nports; p++) {
			struct ep_topo_port *port = &nic->port[p];

			port->users = 0;
			port->why = unusable(nic, port, opts, hca);
			if (port->why == EP_TOPO_WHY_USED) {
				usable->port[usable->n++] = (struct ep_topo_usable_port){
					n,     p,     lesser_known(port->mbps, nic->pci_mbps),
					false, false, false
				};
			}
		}
	}
	keep_one_layer(usable);
}
