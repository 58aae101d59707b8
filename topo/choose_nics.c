/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NICs each GPU uses.
 *
 *  1. Only ports of one link layer count, and of those only the nearest usable ones of a GPU that
 *     are at least half as fast as the best: striping over unequal NICs runs at the pace of the
 *     worst. Ports without a known speed count where the GPU reaches none with one.
 *  2. Every GPU gets one, nearest GPUs first, the fastest ports first, each port with as few users
 *     as can be.
 *  3. What is left over goes out evenly among GPUs that have the same choice, or not at all: one
 *     GPU with more bandwidth than its neighbours gains nothing in an exchange among all.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "topo/tree.h"

/* ---- the ports that there are to choose from ---- */

#define MAX_USABLE (EP_TOPO_MAX_NICS * EP_TOPO_MAX_PORTS)

struct usable_port {
	int nic, port;
	uint32_t mbps;
	bool candidate, slow, no_speed;
};

struct usable {
	struct ep_topo *topo;
	int n;
	struct usable_port port[MAX_USABLE];
};

static struct ep_topo_port *usable_at(const struct usable *usable, int u)
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

/* Ranks of one distance. */
#define RANKS 4

/* Whether a NIC is known to be at the socket of a GPU. */
static bool same_socket(const struct ep_topo *topo, int gpu, int nic)
{
	int a = topo->gpu[gpu].numa, b = topo->nic[nic].numa;

	return a >= 0 && a < EP_TOPO_MAX_NUMAS && b >= 0 && b < EP_TOPO_MAX_NUMAS &&
	       topo->socket[a] && topo->socket[a] == topo->socket[b];
}

/* Returns how far a port is from a GPU: smaller is nearer. A quarter of it is the distance. */
static int usable_rank(const struct usable *usable, int gpu, int u)
{
	int nic = usable->port[u].nic;
	enum ep_topo_dist dist = ep_topo_dist_gpu_nic(usable->topo, gpu, nic);

	/*
	 * Of two equally far, the one on PCI is real hardware, the other software or hidden.
	 * Without a path it is farther than none. A socket may have several NUMA nodes: what is at
	 * another one of them is nearer than what is at another socket.
	 */
	return RANKS * (int)dist +
	       2 * (dist == EP_TOPO_DISTANT || !usable->topo->nic[nic].pci.known) +
	       (dist == EP_TOPO_SYS && !same_socket(usable->topo, gpu, nic));
}

/* Whether a port that the GPU has a path to reports a speed: then ports that do not may be dead. */
static bool any_speed(const struct usable *usable, int gpu)
{
	for (int u = 0; u < usable->n; u++) {
		if (usable_at(usable, u)->mbps &&
		    usable_rank(usable, gpu, u) < RANKS * EP_TOPO_DISTANT) {
			return true;
		}
	}
	return false;
}

/*
 * Marks the ports that a GPU may use: the nearest ones that are at least half as fast as the
 * fastest of these. Returns their rank, or that of EP_TOPO_DISTANT if there is none.
 */
static int mark_nearest(const struct usable *usable, int gpu, bool *may)
{
	bool known = any_speed(usable, gpu);
	int nearest = RANKS * EP_TOPO_DISTANT;
	uint32_t best = 0;

	for (int u = 0; u < usable->n; u++) {
		int rank = usable_rank(usable, gpu, u);

		may[u] = !known || usable_at(usable, u)->mbps;
		nearest = may[u] && rank < nearest ? rank : nearest;
	}
	for (int u = 0; u < usable->n; u++) {
		may[u] &= usable_rank(usable, gpu, u) == nearest;
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
static enum ep_topo_link_layer favourite(const struct usable *usable, int gpu)
{
	bool may[MAX_USABLE];
	uint64_t best[LAYERS] = { 0 }, sum[LAYERS] = { 0 };
	const enum ep_topo_link_layer ib = EP_TOPO_LINK_IB, eth = EP_TOPO_LINK_ETHERNET;

	mark_nearest(usable, gpu, may);
	for (int u = 0; u < usable->n; u++) {
		if (may[u]) {
			enum ep_topo_link_layer layer = usable_at(usable, u)->layer;
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

/*
 * InfiniBand and Ethernet do not reach each other, and the ranks of a machine are in one group:
 * the layer that most GPUs would take counts for all. Ports that do not report theirs stay.
 */
static void keep_one_layer(struct usable *usable)
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
		sum[usable_at(usable, u)->layer] += 1 + (uint64_t)usable->port[u].mbps;
	}
	keep = votes[ib] > votes[eth] || (votes[ib] == votes[eth] && sum[ib] >= sum[eth]) ? ib
											  : eth;
	for (int u = 0; u < usable->n; u++) {
		struct ep_topo_port *port = usable_at(usable, u);

		if (port->layer == keep || port->layer == EP_TOPO_LINK_UNKNOWN) {
			usable->port[kept++] = usable->port[u];
		} else {
			port->why = EP_TOPO_WHY_LAYER;
		}
	}
	usable->n = kept;
}

/* Lists the usable ports, all of one link layer, and notes at the others why they are not. */
static void list_usable(struct usable *usable, const struct ep_topo_opts *opts,
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
				usable->port[usable->n++] = (struct usable_port){
					n,     p,     lesser_known(port->mbps, nic->pci_mbps),
					false, false, false
				};
			}
		}
	}
	keep_one_layer(usable);
}

/* ---- the choice ---- */

struct chooser {
	struct ep_topo *topo;
	struct usable *usable;
	bool *may; /* [gpu][usable port] */
	int *order;
};

static bool *may_row(const struct chooser *c, int gpu)
{
	return c->may + (size_t)gpu * (size_t)c->usable->n;
}

static int *users(const struct chooser *c, int u)
{
	return &usable_at(c->usable, u)->users;
}

static uint32_t speed(const struct chooser *c, int u)
{
	return c->usable->port[u].mbps;
}

static void find_candidates(struct chooser *c, int gpu)
{
	struct ep_topo_gpu *g = &c->topo->gpu[gpu];
	bool *may = may_row(c, gpu);
	int nearest = mark_nearest(c->usable, gpu, may);

	g->nrails = 0;
	g->dist = (enum ep_topo_dist)(nearest / RANKS);
	for (int u = 0; u < c->usable->n; u++) {
		c->usable->port[u].candidate |= may[u];
		int rank = usable_rank(c->usable, gpu, u);
		bool no_speed = !usable_at(c->usable, u)->mbps;

		c->usable->port[u].slow |= !may[u] && !no_speed && rank == nearest;
		c->usable->port[u].no_speed |= !may[u] && no_speed && rank <= nearest;
	}
}

static int count_may(const struct chooser *c, int gpu)
{
	int n = 0;

	for (int u = 0; u < c->usable->n; u++) {
		n += may_row(c, gpu)[u];
	}
	return n;
}

static bool same_choice(const struct chooser *c, int a, int b)
{
	return c->topo->gpu[a].dist == c->topo->gpu[b].dist &&
	       memcmp(may_row(c, a), may_row(c, b), (size_t)c->usable->n * sizeof(bool)) == 0;
}

/*
 * The order in which GPUs are served: nearest first, with the fewest alternatives, equal choices
 * side by side.
 */
struct turn {
	int dist, count, first, gpu;
};

static int turn_cmp(const void *a, const void *b)
{
	const struct turn *x = a, *y = b;

	return x->dist != y->dist     ? x->dist - y->dist
	       : x->count != y->count ? x->count - y->count
	       : x->first != y->first ? x->first - y->first
				      : x->gpu - y->gpu;
}

static void order_gpus(struct chooser *c)
{
	struct turn turn[EP_TOPO_MAX_GPUS];
	int n = c->topo->ngpus;

	for (int g = 0; g < n; g++) {
		int first = 0;

		while (!same_choice(c, first, g)) {
			first++;
		}
		turn[g] = (struct turn){ (int)c->topo->gpu[g].dist, count_may(c, g), first, g };
	}
	qsort(turn, (size_t)n, sizeof(*turn), turn_cmp);
	for (int i = 0; i < n; i++) {
		c->order[i] = turn[i].gpu;
	}
}

static void give(struct chooser *c, int gpu, int u)
{
	struct ep_topo_gpu *g = &c->topo->gpu[gpu];

	if (g->nrails < EP_TOPO_MAX_RAILS) {
		g->rail[g->nrails++] = (struct ep_topo_rail){ c->usable->port[u].nic,
							      c->usable->port[u].port, g->dist };
		*users(c, u) += 1;
	}
}

static bool is_free(const struct chooser *c, int gpu, int u)
{
	return may_row(c, gpu)[u] && *users(c, u) == 0;
}

static int count_free(const struct chooser *c, int gpu)
{
	int n = 0;

	for (int u = 0; u < c->usable->n; u++) {
		n += is_free(c, gpu, u);
	}
	return n;
}

static uint32_t fastest_free(const struct chooser *c, int gpu)
{
	uint32_t best = 0;

	for (int u = 0; u < c->usable->n; u++) {
		if (is_free(c, gpu, u) && speed(c, u) > best) {
			best = speed(c, u);
		}
	}
	return best;
}

/* The nth port without users and of this speed among those the GPU may use, from `from` on. */
static int nth_free(const struct chooser *c, int gpu, uint32_t mbps, int from, int nth)
{
	for (int u = from; u < c->usable->n; u++) {
		if (is_free(c, gpu, u) && speed(c, u) == mbps && nth-- == 0) {
			return u;
		}
	}
	return -1;
}

/* The one with the fewest users, of these the fastest. */
static int least_used(const struct chooser *c, int gpu)
{
	int best = -1;

	for (int u = 0; u < c->usable->n; u++) {
		if (!may_row(c, gpu)[u]) {
			continue;
		}
		if (best < 0 || *users(c, u) < *users(c, best) ||
		    (*users(c, u) == *users(c, best) && speed(c, u) > speed(c, best))) {
			best = u;
		}
	}
	return best;
}

/*
 * One port for each GPU of a group with the same choice. If there are enough of the fastest, they
 * are taken at even spaces, so that the second helping finds the neighbours, often ports of the
 * same card, still free.
 */
static void first_helping(struct chooser *c, const int *gpus, int n)
{
	uint32_t mbps = fastest_free(c, gpus[0]);
	int stride, from = 0, nfast = 0;

	while (nth_free(c, gpus[0], mbps, 0, nfast) >= 0) {
		nfast++;
	}
	stride = nfast / n;
	for (int i = 0; i < n; i++) {
		int u = stride ? nth_free(c, gpus[i], mbps, from, 0) : least_used(c, gpus[i]);

		if (u < 0) {
			continue;
		}
		give(c, gpus[i], u);
		if (stride) {
			int next = nth_free(c, gpus[i], mbps, u + 1, stride - 1);

			from = next < 0 ? u + 1 : next;
		}
	}
}

static void second_helping(struct chooser *c, const int *gpus, int n)
{
	int each = count_free(c, gpus[0]) / n;

	for (int i = 0; i < n; i++) {
		for (int k = 0; k < each; k++) {
			give(c, gpus[i], least_used(c, gpus[i]));
		}
	}
}

static void for_each_group(struct chooser *c, void (*serve)(struct chooser *, const int *, int))
{
	for (int i = 0, n; i < c->topo->ngpus; i += n) {
		for (n = 1;
		     i + n < c->topo->ngpus && same_choice(c, c->order[i], c->order[i + n]);) {
			n++;
		}
		if (count_may(c, c->order[i])) {
			serve(c, c->order + i, n);
		}
	}
}

static int rail_cmp(const void *a, const void *b)
{
	const struct ep_topo_rail *x = a, *y = b;

	return x->nic != y->nic ? x->nic - y->nic : x->port - y->port;
}

static void set_why(struct chooser *c)
{
	for (int u = 0; u < c->usable->n; u++) {
		struct ep_topo_port *port = usable_at(c->usable, u);

		if (port->users) {
			port->why = EP_TOPO_WHY_USED;
		} else if (c->topo->ngpus == 0) {
			port->why = EP_TOPO_WHY_NO_GPU;
		} else if (c->usable->port[u].candidate) {
			port->why = EP_TOPO_WHY_SPARE;
		} else {
			port->why = c->usable->port[u].no_speed ? EP_TOPO_WHY_NO_SPEED
				    : c->usable->port[u].slow   ? EP_TOPO_WHY_SLOW
								: EP_TOPO_WHY_FARTHER;
		}
	}
}

static void find_flat(struct ep_topo *topo)
{
	bool any = false, near = false;

	for (int g = 0; g < topo->ngpus; g++) {
		for (int n = 0; n < topo->nnics; n++) {
			if (topo->nic[n].rdma) {
				any = true;
				near |= ep_topo_dist_gpu_nic(topo, g, n) <= EP_TOPO_PXB;
			}
		}
	}
	topo->flat = !any ? EP_TOPO_UNKNOWN : near ? EP_TOPO_NO : EP_TOPO_YES;
}

/* Warns of items of NCCL_IB_HCA that match no port here. */
static void note_hca(struct ep_topo *topo, const struct ep_topo_hca *hca)
{
	char text[EP_TOPO_HCA_TEXT];
	bool unnamed = false;

	for (int n = 0; n < topo->nnics; n++) {
		unnamed |= !topo->nic[n].named;
	}
	if (unnamed && hca->n) {
		ep_topo_note(topo, "NICs without a device name here: NCCL_IB_HCA is not applied "
				   "to them");
	}
	for (int i = 0; i < hca->n && !unnamed; i++) {
		bool here = false;

		for (int n = 0; n < topo->nnics; n++) {
			const struct ep_topo_nic *nic = &topo->nic[n];

			for (int p = 0; p < nic->nports; p++) {
				here |= ep_topo_hca_names(hca, i, nic->name, nic->port[p].num);
			}
		}
		if (!here) {
			ep_topo_note(topo, "NCCL_IB_HCA: \"%s\" is no port of a NIC here",
				     ep_topo_hca_print(hca, i, text));
		}
	}
}

int ep_topo_choose(struct ep_topo *topo, const struct ep_topo_opts *opts, struct ep_topo_err *err)
{
	struct chooser c = { .topo = topo };
	struct ep_topo_hca hca;
	int rc = ep_topo_hca_parse(opts->hca, &hca, err);

	if (rc) {
		return rc;
	}
	topo->gdr_level = EP_TOPO_SYS;
	if (opts->gdr_level && *opts->gdr_level) {
		rc = ep_topo_level_parse(opts->gdr_level, &topo->gdr_level, err);
	}
	if (rc) {
		return rc;
	}
	c.usable = calloc(1, sizeof(*c.usable));
	c.order = calloc(EP_TOPO_MAX_GPUS, sizeof(*c.order));
	if (!c.usable || !c.order) {
		rc = ep_topo_fail(err, ENOMEM, "out of memory choosing NICs");
		goto out;
	}
	c.usable->topo = topo;
	list_usable(c.usable, opts, &hca);
	c.may = calloc((size_t)(topo->ngpus + 1) * (size_t)(c.usable->n + 1), sizeof(*c.may));
	if (!c.may) {
		rc = ep_topo_fail(err, ENOMEM, "out of memory choosing NICs");
		goto out;
	}
	for (int g = 0; g < topo->ngpus; g++) {
		find_candidates(&c, g);
	}
	order_gpus(&c);
	for_each_group(&c, first_helping);
	for_each_group(&c, second_helping);
	for (int g = 0; g < topo->ngpus; g++) {
		qsort(topo->gpu[g].rail, (size_t)topo->gpu[g].nrails, sizeof(topo->gpu[g].rail[0]),
		      rail_cmp);
	}
	set_why(&c);
	find_flat(topo);
	note_hca(topo, &hca);
out:
	free(c.may);
	free(c.order);
	free(c.usable);
	return rc;
}
