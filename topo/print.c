/* SPDX-License-Identifier: Apache-2.0 */
/* The topology as a table for people, and as JSON. */
#include "topo/topo.h"

#include <string.h>

#include "topo/json.h"
#include "topo/tree.h"

static const char *tristate(enum ep_topo_tristate t, const char *yes, const char *no)
{
	return t == EP_TOPO_YES ? yes : t == EP_TOPO_NO ? no : "unknown";
}

static const char *layer_name(enum ep_topo_link_layer layer)
{
	return layer == EP_TOPO_LINK_IB ? "IB" : layer == EP_TOPO_LINK_ETHERNET ? "Ethernet" : NULL;
}

static const char *state_name(enum ep_topo_state state)
{
	return state == EP_TOPO_STATE_ACTIVE ? "active"
	       : state == EP_TOPO_STATE_DOWN ? "down"
					     : NULL;
}

static const char *num_or_dash(int num, char buf[16])
{
	if (num < 0) {
		return "-";
	}
	snprintf(buf, 16, "%d", num);
	return buf;
}

/* device:port@NUMA, then speed and link layer where known */
static void print_port(const struct ep_topo_nic *nic, const struct ep_topo_port *port, FILE *out)
{
	char num[16];

	fprintf(out, "%s:%d@%s", nic->name, port->num, num_or_dash(nic->numa, num));
	if (port->mbps) {
		fprintf(out, ",%gG", port->mbps / 1000.0);
	}
	if (layer_name(port->layer)) {
		fprintf(out, ",%s", layer_name(port->layer));
	}
}

static int share_of(const struct ep_topo *topo, const struct ep_topo_gpu *gpu)
{
	int most = 0;

	for (int i = 0; i < gpu->nrails; i++) {
		int users = topo->nic[gpu->rail[i].nic].port[gpu->rail[i].port].users;

		most = users > most ? users : most;
	}
	return most;
}

static void print_gpu(const struct ep_topo *topo, int g, FILE *out)
{
	const struct ep_topo_gpu *gpu = &topo->gpu[g];
	char pci[EP_TOPO_PCI_LEN], numa[16], mig[16], domain[16], links[16] = "-";
	const char *gdr = "-";

	if (gpu->nvlinks >= 0) {
		snprintf(links, sizeof(links), "%d%s", gpu->nvlinks, gpu->nvswitch ? "sw" : "");
	}
	for (int i = 0; i < gpu->nrails; i++) {
		const char *this = ep_topo_gdr_allowed(topo, g, gpu->rail[i].nic) ? "yes" : "no";

		gdr = i && strcmp(gdr, this) != 0 ? "some" : this;
	}
	fprintf(out, "%-5d %-13s %-4s %-4s %-6s %-6s %-4s %-5d %-4s", g,
		ep_topo_pci_print(&gpu->pci, pci), num_or_dash(gpu->instance, mig),
		num_or_dash(gpu->numa, numa), links, num_or_dash(gpu->domain, domain),
		ep_topo_dist_name(gpu->dist), share_of(topo, gpu), gdr);
	for (int i = 0; i < gpu->nrails; i++) {
		const struct ep_topo_nic *nic = &topo->nic[gpu->rail[i].nic];

		fputc(' ', out);
		print_port(nic, &nic->port[gpu->rail[i].port], out);
	}
	fputs(gpu->nrails ? "\n" : " none\n", out);
}

static void print_head(const struct ep_topo *topo, FILE *out)
{
	fprintf(out, "# %s%s%s%s; GPUs %d, NICs %d, NUMA nodes %d; ",
		ep_topo_source_name(topo->source), *topo->path ? " " : "", topo->path,
		topo->merged ? " and this machine" : "", topo->ngpus, topo->nnics, topo->nnumas);
	if (topo->virtualised != EP_TOPO_UNKNOWN) {
		fprintf(out, "%s; ", tristate(topo->virtualised, "virtual machine", "bare metal"));
	}
	if (topo->flat != EP_TOPO_UNKNOWN) {
		fprintf(out, "PCIe %s; ", topo->flat == EP_TOPO_YES ? "flat" : "tree");
	}
	fprintf(out, "NVSwitch %s; NVLS %s%s\n", tristate(topo->nvswitch, "present", "absent"),
		tristate(topo->nvls, "supported", "not supported"),
		topo->nvls_allowed ? "" : ", not allowed (NCCL_NVLS_ENABLE=0)");
}

void ep_topo_print_table(const struct ep_topo *topo, FILE *out)
{
	print_head(topo, out);
	fprintf(out, "%-5s %-13s %-4s %-4s %-6s %-6s %-4s %-5s %-4s %s\n", "# GPU", "PCI", "MIG",
		"NUMA", "NVLINK", "DOMAIN", "DIST", "SHARE", "GDR", "NICS device:port@NUMA");
	for (int g = 0; g < topo->ngpus; g++) {
		print_gpu(topo, g, out);
	}
	ep_topo_print_peers(topo, out);
	for (int n = 0; n < topo->nnics; n++) {
		const struct ep_topo_nic *nic = &topo->nic[n];

		for (int p = 0; p < nic->nports; p++) {
			if (nic->port[p].why != EP_TOPO_WHY_USED) {
				fputs("# unused ", out);
				print_port(nic, &nic->port[p], out);
				fprintf(out, ": %s\n", ep_topo_why_text(nic->port[p].why));
			}
		}
		if (!nic->nports) {
			fprintf(out, "# unused %s: it shows no port\n", nic->name);
		}
	}
	for (int i = 0; i < topo->nnotes; i++) {
		fprintf(out, "# note: %s\n", topo->note[i]);
	}
	if (topo->notes_lost) {
		fprintf(out, "# note: and %d more\n", topo->notes_lost);
	}
}

static const char *known(enum ep_topo_tristate t)
{
	return t == EP_TOPO_YES ? "true" : t == EP_TOPO_NO ? "false" : "null";
}

static void json_int(struct ep_json *json, const char *key, long value, bool is_known)
{
	if (is_known) {
		ep_json_print(json, key, "%ld", value);
	} else {
		ep_json_print(json, key, "null");
	}
}

static const char *text_or_null(const char *text)
{
	return text && *text ? text : NULL;
}

/* By the number of each GPU. */
static void json_peers(const struct ep_topo *topo, int g, struct ep_json *json)
{
	static const char *const names[] = {
		[EP_TOPO_REACH_NONE] = "none",
		[EP_TOPO_REACH_PCIE] = "pcie",
		[EP_TOPO_REACH_NVLINK] = "nvlink",
	};

	ep_json_open(json, "peers", '[');
	for (int peer = 0; peer < topo->ngpus; peer++) {
		ep_json_text(json, NULL, names[ep_topo_reach(topo, g, peer)]);
	}
	ep_json_close(json, ']');
}

static void json_gpu(const struct ep_topo *topo, int g, struct ep_json *json)
{
	const struct ep_topo_gpu *gpu = &topo->gpu[g];
	char pci[EP_TOPO_PCI_LEN], fabric[64] = "";

	ep_json_open(json, NULL, '{');
	ep_json_print(json, "gpu", "%d", g);
	ep_json_text(json, "pci", gpu->pci.known ? ep_topo_pci_print(&gpu->pci, pci) : NULL);
	json_int(json, "host", gpu->host, topo->nhosts > 1);
	ep_json_text(json, "name", text_or_null(gpu->name));
	ep_json_text(json, "uuid", text_or_null(gpu->uuid));
	json_int(json, "mig", gpu->instance, gpu->instance >= 0);
	json_int(json, "sm", gpu->sm, gpu->sm > 0);
	json_int(json, "numa", gpu->numa, gpu->numa >= 0);
	json_int(json, "nvlinks", gpu->nvlinks, gpu->nvlinks >= 0);
	ep_json_print(json, "nvswitch", "%s",
		      gpu->nvlinks < 0 ? "null"
		      : gpu->nvswitch  ? "true"
				       : "false");
	json_int(json, "nvlink_domain", gpu->domain, gpu->domain >= 0);
	if (gpu->fabric) {
		for (int i = 0; i < 16; i++) {
			sprintf(fabric + 2 * i, "%02x", gpu->fabric_uuid[i]);
		}
	}
	json_peers(topo, g, json);
	ep_json_text(json, "fabric", text_or_null(fabric));
	json_int(json, "fabric_clique", gpu->fabric_clique, gpu->fabric);
	ep_json_text(json, "dist", gpu->nrails ? ep_topo_dist_name(gpu->dist) : NULL);
	ep_json_open(json, "nics", '[');
	for (int i = 0; i < gpu->nrails; i++) {
		const struct ep_topo_nic *nic = &topo->nic[gpu->rail[i].nic];

		ep_json_open(json, NULL, '{');
		ep_json_text(json, "device", nic->name);
		ep_json_bool(json, "gdr", ep_topo_gdr_allowed(topo, g, gpu->rail[i].nic));
		ep_json_print(json, "port", "%d", nic->port[gpu->rail[i].port].num);
		ep_json_close(json, '}');
	}
	ep_json_close(json, ']');
	ep_json_close(json, '}');
}

static void json_nic(const struct ep_topo *topo, int n, struct ep_json *json)
{
	const struct ep_topo_nic *nic = &topo->nic[n];
	char pci[EP_TOPO_PCI_LEN];

	ep_json_open(json, NULL, '{');
	ep_json_text(json, "device", text_or_null(nic->name));
	ep_json_text(json, "pci", nic->pci.known ? ep_topo_pci_print(&nic->pci, pci) : NULL);
	json_int(json, "host", nic->host, topo->nhosts > 1);
	json_int(json, "numa", nic->numa, nic->numa >= 0);
	ep_json_bool(json, "rdma", nic->rdma);
	json_int(json, "pcie_mbps", nic->pci_mbps, nic->pci_mbps > 0);
	ep_json_open(json, "ports", '[');
	for (int p = 0; p < nic->nports; p++) {
		const struct ep_topo_port *port = &nic->port[p];

		ep_json_open(json, NULL, '{');
		ep_json_print(json, "port", "%d", port->num);
		ep_json_text(json, "state", state_name(port->state));
		ep_json_text(json, "link_layer", layer_name(port->layer));
		json_int(json, "mbps", port->mbps, port->mbps > 0);
		ep_json_text(json, "unused_because",
			     port->why == EP_TOPO_WHY_USED ? NULL : ep_topo_why_text(port->why));
		ep_json_print(json, "gpus", "%d", port->users);
		ep_json_close(json, '}');
	}
	ep_json_close(json, ']');
	ep_json_open(json, "dist", '[');
	for (int g = 0; g < topo->ngpus; g++) {
		ep_json_text(json, NULL, ep_topo_dist_name(ep_topo_dist_gpu_nic(topo, g, n)));
	}
	ep_json_close(json, ']');
	ep_json_close(json, '}');
}

void ep_topo_print_json(const struct ep_topo *topo, FILE *out)
{
	struct ep_json json = { .out = out };

	ep_json_open(&json, NULL, '{');
	ep_json_print(&json, "schema", "1");
	ep_json_text(&json, "source", ep_topo_source_name(topo->source));
	ep_json_text(&json, "file", text_or_null(topo->path));
	ep_json_bool(&json, "merged", topo->merged);
	ep_json_text(&json, "driver", text_or_null(topo->driver));
	json_int(&json, "numa_nodes", topo->nnumas, topo->nnumas > 0);
	ep_json_print(&json, "flat_pcie", "%s", known(topo->flat));
	ep_json_print(&json, "virtualised", "%s", known(topo->virtualised));
	ep_json_print(&json, "nvswitch", "%s", known(topo->nvswitch));
	ep_json_print(&json, "nvls_supported", "%s", known(topo->nvls));
	ep_json_bool(&json, "nvls_allowed", topo->nvls_allowed);
	ep_json_text(&json, "gdr_level", ep_topo_level_name(topo->gdr_level));
	json.line = true;
	ep_json_open(&json, "gpus", '[');
	for (int g = 0; g < topo->ngpus; g++) {
		json.line = true;
		json_gpu(topo, g, &json);
	}
	ep_json_close(&json, ']');
	json.line = true;
	ep_json_open(&json, "nics", '[');
	for (int n = 0; n < topo->nnics; n++) {
		json.line = true;
		json_nic(topo, n, &json);
	}
	ep_json_close(&json, ']');
	json.line = true;
	ep_json_open(&json, "notes", '[');
	for (int i = 0; i < topo->nnotes; i++) {
		json.line = true;
		ep_json_text(&json, NULL, topo->note[i]);
	}
	ep_json_close(&json, ']');
	ep_json_close(&json, '}');
	fputc('\n', out);
}
