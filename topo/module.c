/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one function of the module: which ports are nearest to a GPU, in a form that changes only
 * with its number.
 */
#include "topo/module.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "topo/topo.h"

static void fill_port(const struct ep_topo *topo, int gpu, const struct ep_topo_rail *rail,
		      struct ep_topo_module_port *port)
{
	const struct ep_topo_nic *nic = &topo->nic[rail->nic];

	memset(port, 0, sizeof(*port));
	snprintf(port->name, sizeof(port->name), "%s", nic->name);
	snprintf(port->dist, sizeof(port->dist), "%s", ep_topo_dist_name(rail->dist));
	port->port = nic->port[rail->port].num;
	port->gdr = nic->no_gdr ? -1 : ep_topo_gdr_allowed(topo, gpu, rail->nic);
}

static bool is_open(const void *arg, const char *name, int port)
{
	const struct ep_topo_module_query *query = arg;

	for (int i = 0; i < query->nopen; i++) {
		if (query->open[i].port == port && strcmp(query->open[i].name, name) == 0) {
			return true;
		}
	}
	return false;
}

__attribute__((visibility("default"))) int ep_topo_module_query(int abi,
								struct ep_topo_module_query *query)
{
	struct ep_topo_opts opts;
	struct ep_topo_err err;
	struct ep_topo *topo;
	int gpu, rc;

	if (abi != EP_TOPO_MODULE_ABI) {
		return -EPROTO;
	}
	query->n = 0;
	query->known = false;
	query->source[0] = '\0';
	query->text[0] = '\0';
	ep_topo_opts_env(&opts);
	opts.is_open = is_open;
	opts.is_open_arg = query;
	rc = ep_topo_load(&opts, &topo, &err);
	if (rc) {
		snprintf(query->text, sizeof(query->text), "%s", err.text);
		return rc;
	}
	snprintf(query->source, sizeof(query->source), "%s%s%s", ep_topo_source_name(topo->source),
		 *topo->path ? " " : "", topo->path);
	gpu = ep_topo_find_gpu(topo, query->bus_id, query->uuid);
	query->known = gpu >= 0;
	for (int i = 0; gpu >= 0 && i < topo->gpu[gpu].nrails && i < query->room; i++) {
		fill_port(topo, gpu, &topo->gpu[gpu].rail[i], &query->port[query->n++]);
	}
	ep_topo_free(topo);
	return 0;
}
