/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/topo.h"

#include <string.h>

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

static void json_string(const char *s, FILE *out)
{
	fputc('"', out);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\') {
			fprintf(out, "\\%c", c);
		} else if (c < ' ' || c > '~') {
			fprintf(out, "\\u%04x", c); /* paths may hold any byte */
		} else {
			fputc(c, out);
		}
	}
	fputc('"', out);
}

static void json_key(const char *key, FILE *out)
{
	fprintf(out, "\"%s\": ", key);
}

static void json_text(const char *key, const char *text, FILE *out)
{
	json_key(key, out);
	if (text && *text) {
		json_string(text, out);
	} else {
		fputs("null", out);
	}
	fputs(", ", out);
}

static void json_int(const char *key, long value, bool known, FILE *out)
{
	json_key(key, out);
	if (known) {
		fprintf(out, "%ld, ", value);
	} else {
		fputs("null, ", out);
	}
}

static void json_bool(const char *key, enum ep_topo_tristate t, FILE *out)
{
	json_key(key, out);
	fprintf(out, "%s, ", t == EP_TOPO_YES ? "true" : t == EP_TOPO_NO ? "false" : "null");
}

static enum ep_topo_tristate known(bool value)
{
	return value ? EP_TOPO_YES : EP_TOPO_NO;
}

static void json_gpu(const struct ep_topo *topo, int g, FILE *out)
{
	const struct ep_topo_gpu *gpu = &topo->gpu[g];
	char pci[EP_TOPO_PCI_LEN], fabric[64] = "";
	const char *sep = "";

	fprintf(out, "{\"gpu\": %d, ", g);
	json_text("pci", gpu->pci.known ? ep_topo_pci_print(&gpu->pci, pci) : NULL, out);
	json_int("host", gpu->host, topo->nhosts > 1, out);
	json_text("name", gpu->name, out);
	json_text("uuid", gpu->uuid, out);
	json_int("mig", gpu->instance, gpu->instance >= 0, out);
	json_int("sm", gpu->sm, gpu->sm > 0, out);
	json_int("numa", gpu->numa, gpu->numa >= 0, out);
	json_int("nvlinks", gpu->nvlinks, gpu->nvlinks >= 0, out);
	json_bool("nvswitch", gpu->nvlinks >= 0 ? known(gpu->nvswitch) : EP_TOPO_UNKNOWN, out);
	json_int("nvlink_domain", gpu->domain, gpu->domain >= 0, out);
	if (gpu->fabric) {
		for (int i = 0; i < 16; i++) {
			sprintf(fabric + 2 * i, "%02x", gpu->fabric_uuid[i]);
		}
	}
	json_text("fabric", fabric, out);
	json_int("fabric_clique", gpu->fabric_clique, gpu->fabric, out);
	json_text("dist", gpu->nrails ? ep_topo_dist_name(gpu->dist) : NULL, out);
	fputs("\"nics\": [", out);
	for (int i = 0; i < gpu->nrails; i++) {
		const struct ep_topo_nic *nic = &topo->nic[gpu->rail[i].nic];

		fprintf(out, "%s{", sep);
		json_text("device", nic->name, out);
		json_bool("gdr", known(ep_topo_gdr_allowed(topo, g, gpu->rail[i].nic)), out);
		fprintf(out, "\"port\": %d}", nic->port[gpu->rail[i].port].num);
		sep = ", ";
	}
	fputs("]}", out);
}

static void json_nic(const struct ep_topo *topo, int n, FILE *out)
{
	const struct ep_topo_nic *nic = &topo->nic[n];
	char pci[EP_TOPO_PCI_LEN];
	const char *sep = "";

	fputs("{", out);
	json_text("device", nic->name, out);
	json_text("pci", nic->pci.known ? ep_topo_pci_print(&nic->pci, pci) : NULL, out);
	json_int("host", nic->host, topo->nhosts > 1, out);
	json_int("numa", nic->numa, nic->numa >= 0, out);
	json_bool("rdma", known(nic->rdma), out);
	json_int("pcie_mbps", nic->pci_mbps, nic->pci_mbps > 0, out);
	fputs("\"ports\": [", out);
	for (int p = 0; p < nic->nports; p++) {
		const struct ep_topo_port *port = &nic->port[p];

		fprintf(out, "%s{\"port\": %d, ", sep, port->num);
		json_text("state", state_name(port->state), out);
		json_text("link_layer", layer_name(port->layer), out);
		json_int("mbps", port->mbps, port->mbps > 0, out);
		json_text("unused_because",
			  port->why == EP_TOPO_WHY_USED ? NULL : ep_topo_why_text(port->why), out);
		fprintf(out, "\"gpus\": %d}", port->users);
		sep = ", ";
	}
	fputs("], \"dist\": [", out);
	for (int g = 0; g < topo->ngpus; g++) {
		fprintf(out, "%s\"%s\"", g ? ", " : "",
			ep_topo_dist_name(ep_topo_dist_gpu_nic(topo, g, n)));
	}
	fputs("]}", out);
}

void ep_topo_print_json(const struct ep_topo *topo, FILE *out)
{
	fputs("{\"schema\": 1, ", out);
	json_text("source", ep_topo_source_name(topo->source), out);
	json_text("file", topo->path, out);
	json_bool("merged", known(topo->merged), out);
	json_text("driver", topo->driver, out);
	json_int("numa_nodes", topo->nnumas, topo->nnumas > 0, out);
	json_bool("flat_pcie", topo->flat, out);
	json_bool("virtualised", topo->virtualised, out);
	json_bool("nvswitch", topo->nvswitch, out);
	json_bool("nvls_supported", topo->nvls, out);
	json_bool("nvls_allowed", known(topo->nvls_allowed), out);
	json_text("gdr_level", ep_topo_level_name(topo->gdr_level), out);
	fputs("\n \"gpus\": [", out);
	for (int g = 0; g < topo->ngpus; g++) {
		fputs(g ? ",\n  " : "\n  ", out);
		json_gpu(topo, g, out);
	}
	fputs("],\n \"nics\": [", out);
	for (int n = 0; n < topo->nnics; n++) {
		fputs(n ? ",\n  " : "\n  ", out);
		json_nic(topo, n, out);
	}
	fputs("],\n \"notes\": [", out);
	for (int i = 0; i < topo->nnotes; i++) {
		fputs(i ? ",\n  " : "\n  ", out);
		json_string(topo->note[i], out);
	}
	fputs("]}\n", out);
}
