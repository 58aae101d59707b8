/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random machines: whatever the tree, the choice must keep its promises.
 *   - a GPU has a NIC if there is a usable one, and only such as are equally near, nearest of all;
 *   - never a port that is down, excluded, or less than half as fast as one equally near, nor one
 *     without a known speed where another has one;
 *   - all ports in use are of one link layer, and no port that a GPU could have had is faster than
 *     those that it has and left over;
 *   - no NIC is used twice by one GPU; GPUs with the same choice have equally many NICs, and the
 *     users of their NICs differ by one at most when nobody else uses them.
 */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "topo/tree.h"

static uint64_t seed;
static bool layers;

static unsigned pick(unsigned n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(seed >> 33) % n;
}

static int grow(struct ep_topo *topo, int parent, int levels, int *bus)
{
	struct ep_topo_err err;
	struct ep_topo_pci pci = { 0, 0, 0, 0, true };
	int n = (int)pick(4);

	for (int i = 0; i < n; i++) {
		bool bridge = levels > 0 && pick(3) == 0;
		enum ep_topo_kind kind = bridge ? ep_topo_bridge_kind(topo, parent)
						: EP_TOPO_KIND_DEVICE;

		pci.domain = (uint32_t)(*bus >> 8);
		pci.bus = (uint8_t)((*bus)++);
		int node =
			ep_topo_add_node(topo, parent, kind, &pci, topo->nodes[parent].numa, &err);

		if (bridge) {
			grow(topo, node, levels - 1, bus);
		} else if (pick(2)) {
			ep_topo_add_gpu(topo, node, &err);
		} else {
			char name[32];

			sprintf(name, "mlx5_%d", topo->nnics);
			topo->nodes[node].mbps = pick(3) ? 0 : 4000u << pick(8);
			struct ep_topo_nic *nic = ep_topo_add_nic(topo, node, name, &err);

			for (int p = 0; p <= (int)pick(2); p++) {
				struct ep_topo_port *port = ep_topo_add_port(nic, p + 1);

				port->state = (enum ep_topo_state)pick(3);
				port->mbps = pick(2) ? 0 : 25000u << pick(5);
				port->layer = layers ? (enum ep_topo_link_layer)pick(3)
						     : EP_TOPO_LINK_UNKNOWN;
			}
		}
	}
	return 0;
}

static bool usable(const struct ep_topo *topo, int nic, int port)
{
	return topo->nic[nic].port[port].state != EP_TOPO_STATE_DOWN &&
	       topo->nic[nic].port[port].why != EP_TOPO_WHY_LAYER &&
	       strcmp(topo->nic[nic].name, "mlx5_3") != 0;
}

static uint32_t speed_of(const struct ep_topo *topo, int nic, int port)
{
	uint32_t a = topo->nic[nic].pci_mbps, b = topo->nic[nic].port[port].mbps;

	return a && (!b || a < b) ? a : b;
}

/* A port without a speed does not stand against one with a speed. */
static bool any_speed(const struct ep_topo *topo)
{
	for (int n = 0; n < topo->nnics; n++) {
		for (int p = 0; p < topo->nic[n].nports; p++) {
			if (usable(topo, n, p) && topo->nic[n].port[p].mbps) {
				return true;
			}
		}
	}
	return false;
}

static enum ep_topo_dist nearest(const struct ep_topo *topo, int gpu, uint32_t *best)
{
	enum ep_topo_dist dist = EP_TOPO_DISTANT;
	bool known = any_speed(topo);

	*best = 0;
	for (int n = 0; n < topo->nnics; n++) {
		enum ep_topo_dist d = ep_topo_dist_gpu_nic(topo, gpu, n);

		for (int p = 0; p < topo->nic[n].nports; p++) {
			if (!usable(topo, n, p) || d > dist ||
			    (known && !topo->nic[n].port[p].mbps)) {
				continue;
			}
			*best = d < dist ? 0 : *best;
			dist = d;
			if (speed_of(topo, n, p) > *best) {
				*best = speed_of(topo, n, p);
			}
		}
	}
	return dist;
}

static bool same_rails(const struct ep_topo *topo, int a, int b)
{
	const struct ep_topo_gpu *x = &topo->gpu[a], *y = &topo->gpu[b];

	if (x->dist != y->dist) {
		return false;
	}
	for (int n = 0; n < topo->nnics; n++) {
		if ((ep_topo_dist_gpu_nic(topo, a, n) == x->dist) !=
		    (ep_topo_dist_gpu_nic(topo, b, n) == y->dist)) {
			return false;
		}
	}
	return true;
}

static void check_gpu(const struct ep_topo *topo, int g, unsigned long run)
{
	const struct ep_topo_gpu *gpu = &topo->gpu[g];
	uint32_t best;
	enum ep_topo_dist dist = nearest(topo, g, &best);

	CHECK((gpu->nrails > 0) == (dist != EP_TOPO_DISTANT), "run %lu gpu %d: %d NICs", run, g,
	      gpu->nrails);
	CHECK(gpu->dist == dist, "run %lu gpu %d: at %s, nearest %s", run, g,
	      ep_topo_dist_name(gpu->dist), ep_topo_dist_name(dist));
	for (int i = 0; i < gpu->nrails; i++) {
		int n = gpu->rail[i].nic, p = gpu->rail[i].port;
		uint32_t mbps = speed_of(topo, n, p);

		CHECK(usable(topo, n, p), "run %lu gpu %d uses %s:%d", run, g, topo->nic[n].name,
		      topo->nic[n].port[p].num);
		CHECK(ep_topo_dist_gpu_nic(topo, g, n) == dist, "run %lu gpu %d: %s", run, g,
		      topo->nic[n].name);
		CHECK(mbps == 0 || mbps >= best / 2, "run %lu gpu %d: %s has %u, best %u", run, g,
		      topo->nic[n].name, mbps, best);
		for (int k = 0; k < i; k++) {
			CHECK(gpu->rail[k].nic != n || gpu->rail[k].port != p,
			      "run %lu gpu %d: %s twice", run, g, topo->nic[n].name);
		}
	}
	for (int other = 0; other < g; other++) {
		CHECK(!same_rails(topo, g, other) || topo->gpu[other].nrails == gpu->nrails,
		      "run %lu gpus %d and %d: %d and %d NICs", run, other, g,
		      topo->gpu[other].nrails, gpu->nrails);
	}
}

static void check_layers(const struct ep_topo *topo, unsigned long run)
{
	int used[3] = { 0 }, refused[3] = { 0 };

	for (int n = 0; n < topo->nnics; n++) {
		for (int p = 0; p < topo->nic[n].nports; p++) {
			const struct ep_topo_port *port = &topo->nic[n].port[p];

			used[port->layer] += port->users > 0;
			refused[port->layer] += port->why == EP_TOPO_WHY_LAYER;
		}
	}
	CHECK(!used[EP_TOPO_LINK_IB] || !used[EP_TOPO_LINK_ETHERNET], "run %lu: both layers", run);
	CHECK(!refused[EP_TOPO_LINK_UNKNOWN] && (!refused[1] || !refused[2]) &&
		      (!refused[1] || !used[1]) && (!refused[2] || !used[2]),
	      "run %lu: %d and %d refused", run, refused[1], refused[2]);
}

static void check_fastest(const struct ep_topo *topo, int g, unsigned long run)
{
	const struct ep_topo_gpu *gpu = &topo->gpu[g];
	uint32_t best, slowest = UINT32_MAX;

	nearest(topo, g, &best);
	for (int i = 0; i < gpu->nrails; i++) {
		uint32_t mbps = speed_of(topo, gpu->rail[i].nic, gpu->rail[i].port);

		slowest = mbps < slowest ? mbps : slowest;
	}
	for (int n = 0; n < topo->nnics; n++) {
		for (int p = 0; p < topo->nic[n].nports && gpu->nrails; p++) {
			uint32_t mbps = speed_of(topo, n, p);

			CHECK(topo->nic[n].port[p].why != EP_TOPO_WHY_SPARE ||
				      ep_topo_dist_gpu_nic(topo, g, n) != gpu->dist ||
				      mbps < best / 2 || mbps <= slowest,
			      "run %lu gpu %d: %u Mb/s, and %s:%d with %u is spare", run, g,
			      slowest, topo->nic[n].name, p + 1, mbps);
		}
	}
}

/*
 * One group of GPUs that all have the same choice: shared evenly, and nothing left that would have
 * made one more for each.
 */
static void check_even(const struct ep_topo *topo, unsigned long run)
{
	int least = 1 << 30, most = 0, spare = 0;

	for (int g = 1; g < topo->ngpus; g++) {
		if (!same_rails(topo, 0, g)) {
			return;
		}
	}
	for (int n = 0; n < topo->nnics; n++) {
		for (int p = 0; p < topo->nic[n].nports; p++) {
			const struct ep_topo_port *port = &topo->nic[n].port[p];

			if (port->why == EP_TOPO_WHY_SPARE || port->why == EP_TOPO_WHY_USED) {
				spare += port->why == EP_TOPO_WHY_SPARE;
				least = port->users < least ? port->users : least;
				most = port->users > most ? port->users : most;
			}
		}
	}
	if (topo->ngpus && most) {
		CHECK(most - least <= 1, "run %lu: %d to %d users", run, least, most);
		CHECK(spare < topo->ngpus, "run %lu: %d spare for %d GPUs", run, spare,
		      topo->ngpus);
		CHECK(spare == 0 || most == 1, "run %lu: %d spare, yet shared", run, spare);
	}
}

/*
 * Every device behind a host bridge of its own. NICs are their link layer, Gb/s and NUMA node, GPUs
 * only that; then which NICs each gets.
 */
static const struct {
	const char *gpus, *nics, *want;
} mixed[] = {
	{ "00", "E200@0 I400@0 I400@0", "1 2" },
	{ "00", "E400@0 E400@0 I400@0 I400@0 I400@0", "2 3" },
	{ "0", "E200@0 E200@0 I400@0", "2" },
	{ "0011", "I400@0 I400@0 I400@1 E400@1", "0 1 2 2" },
	{ "0001", "I400@0 E400@1", "0 0 0 0" },
	{ "01", "I200@0 E400@1", "1 1" },
	{ "01", "I400@0 E400@1 E400@1", "2 1" },
	{ "00", "U100@0 I100@0", "0 1" },
	{ "00", "E400@0 I400@0", "1 1" },
	{ "01", "E400@0 I400@1", "1 1" },
	{ "0", "I0@0 I200@1", "1" },
	{ "0", "E0@0 I200@1", "1" },
	{ "00", "I0@0 I0@1 I0@1", "0 0" },
	{ "00", "E200@0 E400@0 E400@0", "1 2" },
	{ "00", "E200@0 E200@0 E400@0 E400@0", "0+2 1+3" },
	{ "000", "E200@0 E400@0", "1 0 1" },
	{ "00", "I400@0 I400@0 I400@0 I400@0", "0+1 2+3" },
};

static void add_device(struct ep_topo *topo, char layer, int gbps, int numa)
{
	struct ep_topo_pci pci = { 0, (uint8_t)topo->nnodes, 0, 0, true };
	struct ep_topo_err err;
	int host = ep_topo_add_node(topo, 0, EP_TOPO_KIND_HOST, NULL, numa, &err);
	int node = ep_topo_add_node(topo, host, EP_TOPO_KIND_DEVICE, &pci, numa, &err);
	char name[32];

	if (layer == 'G') {
		ep_topo_add_gpu(topo, node, &err);
		return;
	}
	sprintf(name, "mlx5_%d", topo->nnics);
	struct ep_topo_port *port = ep_topo_add_port(ep_topo_add_nic(topo, node, name, &err), 1);

	port->mbps = (uint32_t)gbps * 1000;
	port->layer = layer == 'I'   ? EP_TOPO_LINK_IB
		      : layer == 'E' ? EP_TOPO_LINK_ETHERNET
				     : EP_TOPO_LINK_UNKNOWN;
}

static void test_mixed(void)
{
	for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++) {
		struct ep_topo *topo = ep_topo_new(EP_TOPO_SOURCE_LIVE);
		struct ep_topo_opts opts = { .hca = NULL };
		struct ep_topo_err err;
		char layer, got[256] = "";
		int gbps, numa, at = 0;

		for (const char *s = mixed[i].gpus; *s; s++) {
			add_device(topo, 'G', 0, *s - '0');
		}
		for (const char *s = mixed[i].nics;
		     sscanf(s, " %c%d@%d%n", &layer, &gbps, &numa, &at) == 3; s += at) {
			add_device(topo, layer, gbps, numa);
		}
		CHECK(ep_topo_finish(topo, &opts, &err) == 0, "%s", err.text);
		for (int g = 0; g < topo->ngpus; g++) {
			for (int r = 0; r < topo->gpu[g].nrails; r++) {
				sprintf(got + strlen(got), "%s%d",
					r   ? "+"
					: g ? " "
					    : "",
					topo->gpu[g].rail[r].nic);
			}
		}
		CHECK(strcmp(got, mixed[i].want) == 0, "GPUs %s, NICs %s: \"%s\" instead of \"%s\"",
		      mixed[i].gpus, mixed[i].nics, got, mixed[i].want);
		check_layers(topo, i);
		ep_topo_free(topo);
	}
}

int main(int argc, char **argv)
{
	unsigned long runs = argc > 1 ? strtoul(argv[1], NULL, 0) : 20000;
	struct ep_topo_opts opts = { .hca = "^=mlx5_3" };
	unsigned long with_gpus = 0;

	test_mixed();
	for (unsigned long run = 0; run < runs && check_failures() < 10; run++) {
		struct ep_topo *topo = ep_topo_new(EP_TOPO_SOURCE_LIVE);
		struct ep_topo_err err;
		int bus = 0;

		seed = run;
		layers = run % 2;
		for (int numa = 0; numa <= (int)pick(3); numa++) {
			int host =
				ep_topo_add_node(topo, 0, EP_TOPO_KIND_HOST, NULL, numa - 1, &err);

			grow(topo, host, 5, &bus);
		}
		CHECK(ep_topo_finish(topo, &opts, &err) == 0, "run %lu: %s", run, err.text);
		for (int g = 0; g < topo->ngpus; g++) {
			check_gpu(topo, g, run);
			check_fastest(topo, g, run);
		}
		check_layers(topo, run);
		check_even(topo, run);
		with_gpus += topo->ngpus > 1 && topo->nnics > 1;
		ep_topo_free(topo);
	}
	printf("%lu machines, %lu of them with several GPUs and NICs\n", runs, with_gpus);
	CHECK(with_gpus > runs / 10, "too few machines of interest");
	return check_end();
}
