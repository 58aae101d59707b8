/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs for a GPU. The topology comes from a module, so that the library itself needs no hwloc. The
 * loader finds it, or it is beside this library. Without the module the rank's place chooses.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "rdma/rdma.h"
#include "topo/module.h"
#include "topo/topo.h"

#define EP_NIC_CHOOSE_LOG (EP_LOG_NET | EP_LOG_GRAPH)

/* Discovery walks /sys and asks NVML: ranks that are threads take turns. */
static pthread_mutex_t nic_topo_lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * Loads the topology module, which stays loaded, and returns its function, or NULL with `why`. It
 * looks beside the file that this code is in, and then where the loader does.
 */
static ep_topo_module_query_fn *nic_topo_module(char *why, size_t size)
{
	ep_topo_module_query_fn *query = NULL;
	char path[PATH_MAX];
	const char *slash;
	void *lib = NULL;
	Dl_info info;

	if (dladdr((void *)(uintptr_t)ep_nic_choose, &info) && info.dli_fname) {
		slash = strrchr(info.dli_fname, '/');
		if (slash && snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - info.dli_fname),
				      info.dli_fname, EP_TOPO_MODULE_FILE) < (int)sizeof(path)) {
			lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		}
	}
	if (!lib) {
		lib = dlopen(EP_TOPO_MODULE_FILE, RTLD_NOW | RTLD_LOCAL);
	}
	if (lib) {
		*(void **)&query = dlsym(lib, EP_TOPO_MODULE_SYMBOL);
	}
	if (!query) {
		const char *error = dlerror();

		snprintf(why, size, "%s", error ? error : EP_TOPO_MODULE_FILE " has no symbol");
	}
	return query;
}

/* Fills in the query's ports. Returns false, with `why`, if there are none. */
static bool nic_topo_ask(struct ep_topo_module_query *query, char *why, size_t size)
{
	ep_topo_module_query_fn *ask;
	int rc;

	pthread_mutex_lock(&nic_topo_lock);
	ask = nic_topo_module(why, size);
	rc = ask ? ask(EP_TOPO_MODULE_ABI, query) : 0;
	pthread_mutex_unlock(&nic_topo_lock);
	if (!ask) {
		return false;
	}
	if (rc == -EPROTO) {
		snprintf(why, size, "%s is of another version of this library",
			 EP_TOPO_MODULE_FILE);
	} else if (rc) {
		snprintf(why, size, "%s", query->text);
		EP_WARN("the machine's topology cannot be read, NICs are chosen without it: %s",
			query->text);
	} else if (!query->known) {
		snprintf(why, size, "GPU %s is not in it (%s)", query->bus_id, query->source);
	} else if (query->n == 0) {
		snprintf(why, size, "it has no usable NIC for GPU %s (%s)", query->bus_id,
			 query->source);
	} else {
		return true;
	}
	return false;
}

/* Returns the NCCL_NET_GDR_LEVEL for a distance, in a word that NCCL understands as well. */
static const char *nic_level_for(const char *dist)
{
	enum ep_topo_dist level = EP_TOPO_SYS;
	struct ep_topo_err err;

	(void)ep_topo_level_parse(dist, &level, &err);
	return ep_topo_level_name(level);
}

/*
 * Writes to `chosen` those ports of the query that the GPU may use, `room` at most. It is an error
 * if the GPU may use none.
 */
static ncclResult_t nic_choose_near(const struct ep_topo_module_query *query,
				    struct ep_port *chosen, int room, int *n)
{
	const struct ep_topo_module_port *refused = NULL;

	*n = 0;
	for (int i = 0; i < query->n; i++) {
		const struct ep_topo_module_port *near = &query->port[i];

		if (near->gdr <= 0) {
			refused = near;
		} else if (*n < room) {
			struct ep_port *port = &chosen[(*n)++];

			memset(port, 0, sizeof(*port));
			memcpy(port->name, near->name, sizeof(port->name));
			port->port = near->port;
		}
	}
	if (*n == 0 && refused && refused->gdr < 0) {
		return ep_fail(ncclInvalidUsage,
			       "%s has gdr=\"0\" for %s:%d, the nearest NIC of GPU %s: there is no "
			       "path to other nodes without access of the NIC to the GPU's memory; "
			       "correct the file",
			       query->source, refused->name, refused->port, query->bus_id);
	}
	if (*n == 0 && refused) {
		return ep_fail(
			ncclInvalidUsage,
			"NCCL_NET_GDR_LEVEL=%.16s forbids GPU %s its nearest NIC %s:%d, which "
			"is at distance %s: there is no path to other nodes without access of "
			"the NIC to the GPU's memory; unset it or set it to %s",
			getenv("NCCL_NET_GDR_LEVEL"), query->bus_id, refused->name, refused->port,
			refused->dist, nic_level_for(refused->dist));
	}
	return ncclSuccess;
}

/* Returns whether item `i` of NCCL_IB_HCA matches no port and excludes no device. */
static bool nic_hca_idle(const struct ep_port_list *list, const struct ep_topo_hca *hca, int i)
{
	bool active = false, there = false;

	for (int p = 0; p < list->n; p++) {
		active |= ep_topo_hca_names(hca, i, list->port[p].name, list->port[p].port);
	}
	for (int d = 0; d < list->ndevs && hca->exclude; d++) {
		there |= ep_topo_hca_names(hca, i, list->v->ibv_get_device_name(list->dev[d]), -1);
	}
	return !active && !there;
}

void ep_nic_hca_warn(const struct ep_port_list *list, const char *value,
		     const struct ep_topo_hca *hca)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char logged[1024]; /* the value that was warned of last */
	char text[EP_TOPO_HCA_TEXT];
	bool again;

	pthread_mutex_lock(&lock);
	again = strncmp(logged, value ? value : "", sizeof(logged) - 1) == 0;
	snprintf(logged, sizeof(logged), "%s", value ? value : "");
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < hca->n && !again; i++) {
		if (nic_hca_idle(list, hca, i)) {
			EP_WARN("NCCL_IB_HCA: \"%s\" is none of the %d active RDMA ports (the first "
				"is %s:%d): correct or remove it",
				ep_topo_hca_print(hca, i, text), list->n, list->port[0].name,
				list->port[0].port);
		}
	}
}

/*
 * Writes the ports that NCCL_IB_HCA permits to `permitted`. It is an error if that or
 * NCCL_NET_GDR_LEVEL is not understood, with a topology or without, or if no port is permitted.
 */
static ncclResult_t nic_choose_permitted(const struct ep_port_list *present,
					 struct ep_port *permitted, int *npermitted)
{
	const char *hca = getenv("NCCL_IB_HCA");
	const char *level = getenv("NCCL_NET_GDR_LEVEL");
	enum ep_topo_dist dist;
	struct ep_topo_hca list;
	struct ep_topo_err err;

	if (ep_topo_hca_parse(hca, &list, &err) ||
	    (level && *level && ep_topo_level_parse(level, &dist, &err))) {
		return ep_fail(ncclInvalidUsage, "environment variable %s", err.text);
	}
	ep_nic_hca_warn(present, hca, &list);
	*npermitted = 0;
	for (int i = 0; i < present->n; i++) {
		if (ep_topo_hca_match(&list, present->port[i].name, present->port[i].port)) {
			permitted[(*npermitted)++] = present->port[i];
		}
	}
	if (*npermitted == 0) {
		return ep_fail(
			ncclInvalidUsage,
			"NCCL_IB_HCA=%.64s excludes all of the %d active RDMA ports (the first "
			"is %s:%d): correct or unset it",
			hca ? hca : "", present->n, present->port[0].name, present->port[0].port);
	}
	return ncclSuccess;
}

ncclResult_t ep_nic_choose(const struct ep_nic_user *who, const struct ep_port_list *present,
			   struct ep_port *chosen, int *nchosen)
{
	struct ep_topo_module_open open[EP_PORT_MAX];
	struct ep_topo_module_port near[EP_TOPO_MAX_RAILS];
	struct ep_port permitted[EP_PORT_MAX];
	struct ep_topo_module_query query = { .bus_id = who->bus_id,
					      .uuid = who->uuid,
					      .open = open,
					      .port = near,
					      .room = EP_TOPO_MAX_RAILS };
	char why[600];
	int n = 0;

	EP_CHECK(nic_choose_permitted(present, permitted, &query.nopen));
	memset(open, 0, sizeof(open));
	for (int i = 0; i < query.nopen; i++) {
		memcpy(open[i].name, permitted[i].name, sizeof(open[i].name));
		open[i].port = permitted[i].port;
	}
	if (nic_topo_ask(&query, why, sizeof(why))) {
		EP_CHECK(nic_choose_near(&query, chosen, *nchosen, &n));
	}
	for (int i = 0; i < n; i++) {
		EP_INFO(EP_NIC_CHOOSE_LOG, "GPU %d (%s) uses %s:%d at distance %s (%s)",
			who->device, who->bus_id, chosen[i].name, chosen[i].port, near[0].dist,
			query.source);
	}
	if (n == 0) {
		chosen[n++] = *ep_port_by_place(permitted, query.nopen, who->place);
		EP_INFO(EP_NIC_CHOOSE_LOG,
			"GPU %d uses %s:%d, by its rank's place on this host (%u) among %d active "
			"ports, not by distance: no help from the topology: %s",
			who->device, chosen[0].name, chosen[0].port, who->place, query.nopen, why);
	}
	*nchosen = n;
	return ncclSuccess;
}
