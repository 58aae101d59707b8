/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults by script: VC_NIC_FAULTS has rules separated by ';' or line ends, or @FILE, which is read
 * again whenever it changes. vcrun(1) has the grammar.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "nic/nic.h"

#define VN_RULES 64
#define VN_LATE 4096
#define VN_LOOK_NS 5000000u /* how often VC_NIC_FAULTS=@FILE is looked at */
#define VN_ALWAYS UINT64_MAX

enum vn_fault {
	VN_F_DROP,
	VN_F_DELAY,
	VN_F_REORDER,
	VN_F_DUPLICATE,
	VN_F_STRAY,
	VN_F_UNHEARD,
	VN_F_RETRY,
	VN_F_RNR,
	VN_F_REMOTE_ACCESS,
	VN_F_LOCAL_PROT,
	VN_F_SLOW,
	VN_F_STUCK,
	VN_F_PORT_DOWN,
	VN_F_DEVICE_FATAL,
	VN_F_PORT_UP,
	VN_F_GID_GONE,
	VN_F_MAC_MOVED,
	VN_FAULTS
};

static const char *const vn_fault_names[VN_FAULTS] = {
	"drop",           "delay",        "reorder",       "duplicate",  "stray",    "unheard",
	"retry_exceeded", "rnr",          "remote_access", "local_prot", "slow",     "stuck",
	"port_down",      "device_fatal", "port_up",       "gid_gone",   "mac_moved"
};

struct vn_rule {
	enum vn_fault what;
	long node, rank, nic, qp, peer, opcode; /* -1: any */
	uint32_t bytes;                         /* of a message, at least */
	double prob;
	uint64_t skip, count, us, ms;
	bool has_skip;
	uint64_t ends; /* port_down */
	uint64_t met, hit;
	bool pending, down;
	int down_nic;
};

struct vn_late { /* packet to be sent later */
	uint64_t due, idx;
	uint32_t qpn, pkt;
	bool again; /* a second copy: the first was sent at once */
};

struct vn_stray { /* packet that the network has */
	struct vn_stray *next;
	uint64_t due;
	struct vn_link *link;
	struct vn_packet packet;
	uint8_t payload[];
};

static struct {
	struct vn_rule rule[VN_RULES];
	uint32_t n;
	struct vn_stray *strays;
	struct vn_late late[VN_LATE];
	uint32_t nlate;
	char path[256];
	struct timespec changed;
	uint64_t look;
	bool loaded;
} vn_faults;

/* ----------------------------------------------------------------------------------- reading */

static void vn_fault_die(const char *rule)
{
	fprintf(stderr, "nic: VC_NIC_FAULTS: cannot make sense of '%s'\n", rule);
	_exit(87);
}

static long vn_opcode_of(const char *name)
{
	return !strcmp(name, "write")    ? EP_MLX5_OP_WRITE
	       : !strcmp(name, "imm")    ? VN_OP_WRITE_IMM
	       : !strcmp(name, "read")   ? VN_OP_READ
	       : !strcmp(name, "atomic") ? EP_MLX5_OP_FETCH_ADD
					 : -2;
}

static bool vn_rule_key(struct vn_rule *r, const char *key, const char *value)
{
	char *end;
	long n = strtol(value, &end, 0);
	bool number = *value && !*end;

	if (!strcmp(key, "op")) {
		r->opcode = vn_opcode_of(value);
		return r->opcode != -2;
	}
	if (!strcmp(key, "prob")) {
		r->prob = strtod(value, &end);
		return *value && !*end && r->prob >= 0 && r->prob <= 1;
	}
	if (!number || n < 0) {
		return false;
	}
	if (!strcmp(key, "node")) {
		r->node = n;
	} else if (!strcmp(key, "rank")) {
		r->rank = n;
	} else if (!strcmp(key, "nic")) {
		r->nic = n;
	} else if (!strcmp(key, "qp")) {
		r->qp = n;
	} else if (!strcmp(key, "peer")) {
		r->peer = n;
	} else if (!strcmp(key, "bytes")) {
		r->bytes = (uint32_t)n;
	} else if (!strcmp(key, "skip")) {
		r->skip = (uint64_t)n;
		r->has_skip = true;
	} else if (!strcmp(key, "count")) {
		r->count = (uint64_t)n;
	} else if (!strcmp(key, "us")) {
		r->us = (uint64_t)n;
	} else if (!strcmp(key, "ms")) {
		r->ms = (uint64_t)n;
	} else {
		return false;
	}
	return true;
}

static bool vn_by_itself(const struct vn_rule *r)
{
	return r->what >= VN_F_PORT_DOWN && !r->has_skip;
}

static void vn_rule_parse(char *text)
{
	struct vn_rule *r = &vn_faults.rule[vn_faults.n];
	char *save, *colon = strchr(text, ':'), whole[256];
	uint32_t what;

	snprintf(whole, sizeof(whole), "%s", text);
	if (vn_faults.n == VN_RULES) {
		vn_fault_die(whole);
	}
	*r = (struct vn_rule){ .node = -1,
			       .rank = -1,
			       .nic = -1,
			       .qp = -1,
			       .peer = -1,
			       .opcode = -1,
			       .prob = -1,
			       .us = 1000 };
	if (colon) {
		*colon = 0;
	}
	for (what = 0; what < VN_FAULTS && strcmp(text, vn_fault_names[what]); what++) {
	}
	if (what == VN_FAULTS) {
		vn_fault_die(whole);
	}
	r->what = (enum vn_fault)what;
	for (char *k = colon ? strtok_r(colon + 1, ",", &save) : NULL; k;
	     k = strtok_r(NULL, ",", &save)) {
		char *eq = strchr(k, '=');

		if (eq) {
			*eq = 0;
		}
		if (!eq || !vn_rule_key(r, k, eq + 1)) {
			vn_fault_die(whole);
		}
	}
	if (!r->count) {
		r->count = r->prob >= 0 || r->what == VN_F_SLOW || r->what == VN_F_REORDER ||
					   r->what == VN_F_STRAY || r->what == VN_F_UNHEARD
				   ? VN_ALWAYS
				   : 1;
	}
	r->pending = vn_by_itself(r);
	vn_faults.n++;
}

static void vn_rules_parse(char *text)
{
	char *save;

	vn_faults.n = 0;
	for (char *line = strtok_r(text, ";\n", &save); line; line = strtok_r(NULL, ";\n", &save)) {
		while (*line == ' ') {
			line++;
		}
		if (*line && *line != '#') {
			vn_rule_parse(line);
		}
	}
}

static void vn_file_read(void)
{
	char text[8192];
	struct stat st;
	FILE *f;
	size_t n;

	if (stat(vn_faults.path, &st) || (st.st_mtim.tv_sec == vn_faults.changed.tv_sec &&
					  st.st_mtim.tv_nsec == vn_faults.changed.tv_nsec)) {
		return;
	}
	f = fopen(vn_faults.path, "r");
	if (f) {
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
		text[n] = 0;
		vn_faults.changed = st.st_mtim;
		vn_rules_parse(text);
	}
}

static void vn_faults_load(void)
{
	const char *text = vn_env("VC_NIC_FAULTS", "");
	char copy[8192];

	if (vn_faults.loaded) {
		return;
	}
	vn_faults.loaded = true;
	if (*text == '@') {
		snprintf(vn_faults.path, sizeof(vn_faults.path), "%s", text + 1);
		vn_file_read();
		return;
	}
	snprintf(copy, sizeof(copy), "%s", text);
	vn_rules_parse(copy);
}

/* ----------------------------------------------------------------------------------- matching */

static bool vn_here(const struct vn_rule *r)
{
	return (r->node < 0 || r->node == vn_config.node) &&
	       (r->rank < 0 || r->rank == vn_env_long("RANK", -1));
}

static bool vn_matches(struct vn_rule *r, const struct vn_qp *qp, const struct vn_op *op)
{
	if (!vn_here(r) || (r->nic >= 0 && r->nic != qp->nic->index) ||
	    (r->qp >= 0 && r->qp != (long)qp->made) ||
	    (r->peer >= 0 && r->peer != (long)(qp->remote_ip >> 8 & 0xff)) ||
	    (r->opcode >= 0 && r->opcode != op->opcode) || op->len < r->bytes) {
		return false;
	}
	if (r->met++ < r->skip || r->hit >= r->count ||
	    (r->prob >= 0 && (double)(vn_random() % 1000000) >= r->prob * 1e6)) {
		return false;
	}
	r->hit++;
	if (vn_config.verbose) {
		vn_log("fault %s: qp 0x%x index %llu", vn_fault_names[r->what], qp->number,
		       (unsigned long long)op->idx);
	}
	return true;
}

/* ------------------------------------------------------------------------------------ effects */

static void vn_device_fatal(struct vn_nic *nic)
{
	for (struct vn_context *c = nic->contexts; c; c = c->next) {
		__atomic_store_n(&c->failed, true, __ATOMIC_RELAXED);
		vn_event(c, IBV_EVENT_DEVICE_FATAL, NULL, 0);
	}
	for (struct vn_qp *qp = vn.all; qp; qp = qp->next) {
		if (qp->nic == nic && qp->state != VN_RST) {
			vn_qp_to_error(qp);
		}
	}
}

static void vn_big_fault(struct vn_rule *r, struct vn_nic *nic)
{
	switch (r->what) {
	case VN_F_PORT_DOWN:
		vn_log("fault: port of %s down", nic->device.name);
		vn_port_set(nic, true);
		r->down = r->ms != 0;
		r->down_nic = nic->index;
		r->ends = vn_now() + r->ms * 1000000u;
		break;
	case VN_F_PORT_UP:
		vn_log("fault: port of %s up", nic->device.name);
		vn_port_set(nic, false);
		break;
	case VN_F_GID_GONE:
		vn_log("fault: %s loses its address", nic->device.name);
		vn_gid_lose(nic);
		break;
	case VN_F_MAC_MOVED:
		vn_log("fault: %s has another hardware address", nic->device.name);
		vn_mac_move(nic);
		break;
	default:
		vn_log("fault: %s has a fatal error", nic->device.name);
		vn_device_fatal(nic);
	}
}

static void vn_fail_op(struct vn_op *op, uint8_t syndrome, uint8_t vendor)
{
	op->syndrome = syndrome;
	op->vendor = vendor;
}

void vn_fault_op(struct vn_qp *qp, struct vn_op *op)
{
	vn_faults_load();
	for (uint32_t i = 0; i < vn_faults.n; i++) {
		struct vn_rule *r = &vn_faults.rule[i];

		if (r->what < VN_F_RETRY || r->pending || vn_by_itself(r) ||
		    !vn_matches(r, qp, op)) {
			continue;
		}
		switch (r->what) {
		case VN_F_RETRY: /* from here on nothing arrives */
			qp->black_hole = true;
			break;
		case VN_F_RNR:
			vn_fail_op(op, EP_MLX5_SYND_RNR_EXCEEDED, 0x82);
			break;
		case VN_F_REMOTE_ACCESS:
			vn_fail_op(op, EP_MLX5_SYND_REMOTE_ACCESS, 0x88);
			break;
		case VN_F_LOCAL_PROT:
			vn_fail_op(op, EP_MLX5_SYND_LOCAL_PROT, 0x51);
			break;
		case VN_F_SLOW:
			qp->hold_until = vn_now() + r->us * 1000u;
			break;
		case VN_F_STUCK:
			qp->stuck = true;
			break;
		default:
			vn_big_fault(r, qp->nic);
		}
	}
}

static bool vn_send_late(struct vn_qp *qp, struct vn_op *op, uint32_t pkt, uint64_t us, bool again)
{
	if (vn_faults.nlate == VN_LATE) {
		return false;
	}
	vn_faults.late[vn_faults.nlate++] =
		(struct vn_late){ vn_now() + us * 1000u, op->idx, qp->number, pkt, again };
	qp->nlate += !again;
	return true;
}

bool vn_fault_packet(struct vn_qp *qp, struct vn_op *op, uint32_t pkt)
{
	if (qp->black_hole) {
		vn_req_lost(qp, op->idx, pkt);
		return true;
	}
	for (uint32_t i = 0; i < vn_faults.n; i++) {
		struct vn_rule *r = &vn_faults.rule[i];

		if (r->what > VN_F_DUPLICATE || !vn_matches(r, qp, op)) {
			continue;
		}
		switch (r->what) {
		case VN_F_DROP:
			vn_req_lost(qp, op->idx, pkt);
			return true;
		case VN_F_DELAY:
			return vn_send_late(qp, op, pkt, r->us, false);
		case VN_F_REORDER:
			return vn_send_late(qp, op, pkt, vn_random() % (r->us + 1), false);
		default: /* duplicate: the second copy may go long after the first was answered */
			vn_send_late(qp, op, pkt, r->us, true);
			return false;
		}
	}
	return false;
}

bool vn_fault_unheard(struct vn_qp *qp, struct vn_op *op)
{
	bool lost = false;

	for (uint32_t i = 0; i < vn_faults.n; i++) {
		struct vn_rule *r = &vn_faults.rule[i];

		lost |= r->what == VN_F_UNHEARD && vn_matches(r, qp, op);
	}
	return lost;
}

bool vn_fault_stray(struct vn_qp *qp, struct vn_op *op, const struct vn_packet *p,
		    const uint8_t *payload)
{
	for (uint32_t i = 0; i < vn_faults.n; i++) {
		struct vn_rule *r = &vn_faults.rule[i];
		struct vn_stray *s;

		if (r->what != VN_F_STRAY || !vn_matches(r, qp, op)) {
			continue;
		}
		s = malloc(sizeof(*s) + p->bytes);
		if (!s) {
			abort();
		}
		*s = (struct vn_stray){ vn_faults.strays, vn_now() + r->us * 1000u, qp->link, *p };
		if (payload) {
			memcpy(s->payload, payload, p->bytes);
		}
		vn_faults.strays = s;
		return true;
	}
	return false;
}

/* --------------------------------------------------------------------------------------- time */

/* What the network has kept for so long comes, whatever has become of its queue pair. */
static bool vn_strays_run(uint64_t now)
{
	struct vn_stray **at = &vn_faults.strays, *s;
	bool any = false;

	while ((s = *at)) {
		if (now < s->due) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		vn_link_send(s->link, &s->packet, s->payload);
		free(s);
		any = true;
	}
	return any;
}

static bool vn_late_run(uint64_t now)
{
	bool any = false;

	for (uint32_t i = 0; i < vn_faults.nlate;) {
		struct vn_late l = vn_faults.late[i];
		struct vn_qp *qp = vn_qp_find(l.qpn);
		struct vn_op *op;

		if (now < l.due) {
			i++;
			continue;
		}
		vn_faults.late[i] = vn_faults.late[--vn_faults.nlate];
		op = qp && qp->state == VN_RTS ? vn_op_of(qp, l.idx) : NULL;
		if (qp && !l.again && qp->nlate) {
			qp->nlate--;
			vn_qp_stir(qp);
		}
		if (op && !op->syndrome && l.pkt < op->npkts) {
			vn_req_transmit(qp, op, l.pkt);
		}
		any = true;
	}
	return any;
}

bool vn_fault_run(void)
{
	uint64_t now;
	bool any;

	vn_faults_load();
	if (!vn_faults.n && !vn_faults.path[0]) {
		return false;
	}
	now = vn_now();
	if (vn_faults.path[0] && now >= vn_faults.look) {
		vn_faults.look = now + VN_LOOK_NS;
		vn_file_read();
	}
	any = vn_late_run(now);
	any |= vn_strays_run(now);
	for (uint32_t i = 0; i < vn_faults.n; i++) {
		struct vn_rule *r = &vn_faults.rule[i];

		if (r->pending) {
			r->pending = false;
			for (int n = 0; n < vn_config.nics && vn_here(r); n++) {
				if (r->nic < 0 || r->nic == n) {
					vn_big_fault(r, &vn.nic[n]);
				}
			}
		}
		if (r->down && now >= r->ends) {
			r->down = false;
			for (int n = 0; n < vn_config.nics; n++) {
				if (vn_by_itself(r) ? r->nic < 0 || r->nic == n
						    : r->down_nic == n) {
					vn_port_set(&vn.nic[n], false);
				}
			}
		}
	}
	return any;
}

uint64_t vn_fault_due(void)
{
	uint64_t due = vn_faults.path[0] ? vn_faults.look : UINT64_MAX;

	for (const struct vn_stray *s = vn_faults.strays; s; s = s->next) {
		due = s->due < due ? s->due : due;
	}
	for (uint32_t i = 0; i < vn_faults.nlate; i++) {
		due = vn_faults.late[i].due < due ? vn_faults.late[i].due : due;
	}
	for (uint32_t i = 0; i < vn_faults.n; i++) {
		const struct vn_rule *r = &vn_faults.rule[i];

		due = r->down && r->ends < due ? r->ends : due;
	}
	return due;
}
