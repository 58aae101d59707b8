/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts that people write and read: distance names, NCCL_IB_HCA, reasons. Stands alone: the
 * library, which has nothing else of topo/ in it, has this.
 */
#include "topo/tree.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int ep_topo_fail(struct ep_topo_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	return -code;
}

void ep_topo_copy_name(char dst[EP_TOPO_NAME_LEN], const char *src)
{
	size_t n = 0;

	for (; src[n] && n < EP_TOPO_NAME_LEN - 1; n++) {
		dst[n] = (char)(src[n] >= ' ' && src[n] <= '~' ? src[n] : '?');
	}
	dst[n] = '\0';
}

static const char *const dist_names[] = {
	[EP_TOPO_LOC] = "LOC",   [EP_TOPO_PIX] = "PIX",   [EP_TOPO_PXB] = "PXB",
	[EP_TOPO_PHB] = "PHB",   [EP_TOPO_NODE] = "NODE", [EP_TOPO_SYS] = "SYS",
	[EP_TOPO_DISTANT] = "-",
};

const char *ep_topo_dist_name(enum ep_topo_dist dist)
{
	return dist_names[dist];
}

/*
 * NCCL's order is LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS. Its PHB is anywhere below one <cpu>, a
 * NUMA node, so NODE is within it. Of those that no pair of GPU and NIC has here, each is as much
 * as the next nearer one that there is.
 */
static const struct {
	const char *name;
	enum ep_topo_dist dist;
} level_names[] = {
	{ "LOC", EP_TOPO_LOC },   { "NVL", EP_TOPO_LOC }, { "NVB", EP_TOPO_LOC },
	{ "C2C", EP_TOPO_LOC },   { "PIX", EP_TOPO_PIX }, { "PXB", EP_TOPO_PXB },
	{ "P2C", EP_TOPO_PXB },   { "PXN", EP_TOPO_PXB }, { "PHB", EP_TOPO_NODE },
	{ "NODE", EP_TOPO_NODE }, { "SYS", EP_TOPO_SYS },
};

/* Names, or NCCL's numbers from before it had names. */
int ep_topo_level_parse(const char *text, enum ep_topo_dist *dist, struct ep_topo_err *err)
{
	static const enum ep_topo_dist old[] = { EP_TOPO_LOC,  EP_TOPO_PIX, EP_TOPO_PXB,
						 EP_TOPO_NODE, EP_TOPO_SYS, EP_TOPO_SYS };
	char *end;
	long num = strtol(text, &end, 10);

	if (end != text && !*end && num >= 0) {
		*dist = num < 6 ? old[num] : EP_TOPO_SYS;
		return 0;
	}
	for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
		if (strcasecmp(text, level_names[i].name) == 0) {
			*dist = level_names[i].dist;
			return 0;
		}
	}
	char shown[EP_TOPO_NAME_LEN];

	ep_topo_copy_name(shown, text);
	return ep_topo_fail(err, EINVAL,
			    "NCCL_NET_GDR_LEVEL=%s is not a distance: use LOC, PIX, PXB, PHB or "
			    "SYS",
			    shown);
}

const char *ep_topo_level_name(enum ep_topo_dist dist)
{
	return dist == EP_TOPO_NODE ? "PHB" : dist_names[dist];
}

const char *ep_topo_source_name(enum ep_topo_source source)
{
	static const char *const names[] = {
		[EP_TOPO_SOURCE_LIVE] = "this machine",
		[EP_TOPO_SOURCE_HWLOC_XML] = "hwloc XML",
		[EP_TOPO_SOURCE_NCCL_XML] = "NCCL XML",
	};

	return names[source];
}

const char *ep_topo_why_text(enum ep_topo_why why)
{
	static const char *const texts[] = {
		[EP_TOPO_WHY_USED] = "used",
		[EP_TOPO_WHY_NOT_RDMA] = "no RDMA device",
		[EP_TOPO_WHY_DISABLED] = "NCCL_IB_DISABLE is set",
		[EP_TOPO_WHY_FILTERED] = "excluded by NCCL_IB_HCA",
		[EP_TOPO_WHY_DOWN] = "port not active",
		[EP_TOPO_WHY_CLOSED] = "not among the active ports that this process can open",
		[EP_TOPO_WHY_LAYER] = "of another link layer than the NICs in use",
		[EP_TOPO_WHY_SLOW] = "less than half as fast as another NIC equally near",
		[EP_TOPO_WHY_NO_SPEED] = "no known speed, as others have",
		[EP_TOPO_WHY_FARTHER] = "every GPU has a nearer NIC",
		[EP_TOPO_WHY_SPARE] = "too few for one more per GPU",
		[EP_TOPO_WHY_NO_GPU] = "no GPU",
	};

	return texts[why];
}

int ep_topo_number_parse(const char *text, long long *value)
{
	char *end;

	errno = 0;
	*value = strtoll(text, &end, 0);
	if (end == text || end[strspn(end, " ")]) {
		return -EINVAL;
	}
	return -errno;
}

/* A field of an item: empty is -1, any. */
static bool hca_number(const char *field, const char *end, long *num)
{
	char *stop;

	*num = -1;
	if (field == end) {
		return true;
	}
	if (!isdigit((unsigned char)*field) && *field != '-') {
		return false;
	}
	*num = strtol(field, &stop, 10);
	return stop == end && *num >= -1;
}

/* name[:port[:rail[:plane]]], the last two since NCCL 2.30. Without a name it is passed over. */
static int hca_item(const char *item, size_t len, struct ep_topo_hca *hca, struct ep_topo_err *err)
{
	const char *colon = memchr(item, ':', len), *end = item + len;
	size_t name_len = colon ? (size_t)(colon - item) : len;
	long value[3] = { -1, -1, -1 }, num; /* port, rail, plane */
	int field_of = 0;

	if (name_len == 0) {
		return 0;
	}
	if (hca->n == EP_TOPO_HCA_MAX) {
		return ep_topo_fail(err, E2BIG, "NCCL_IB_HCA lists more than %d devices",
				    EP_TOPO_HCA_MAX);
	}
	if (name_len >= EP_TOPO_NAME_LEN) {
		return ep_topo_fail(err, ENAMETOOLONG,
				    "NCCL_IB_HCA has a device name of %zu characters, limit %d",
				    name_len, EP_TOPO_NAME_LEN - 1);
	}
	for (; colon; field_of++) {
		const char *field = colon + 1;

		colon = memchr(field, ':', (size_t)(end - field));
		if (!hca_number(field, colon ? colon : end, &num) ||
		    num > (field_of ? EP_TOPO_HCA_RAIL_MAX : 255)) {
			return ep_topo_fail(err, EINVAL,
					    "NCCL_IB_HCA: no %s number after ':' in \"%.*s\", "
					    "write device:port, or device:port:rail:plane",
					    field_of ? "rail or plane" : "port",
					    (int)(len < 64 ? len : 64), item);
		}
		if (field_of < 3) {
			value[field_of] = num;
		}
	}
	memcpy(hca->item[hca->n].name, item, name_len);
	hca->item[hca->n].name[name_len] = '\0';
	hca->item[hca->n].port = (int)value[0];
	hca->item[hca->n].rail = (int)value[1];
	hca->item[hca->n].plane = (int)value[2];
	hca->n++;
	return 0;
}

static const char *skip_blanks(const char *s)
{
	return s + strspn(s, " \t");
}

/* [^][=]item[,...]: names are prefixes, with '=' whole names, '^' inverts the list. */
int ep_topo_hca_parse(const char *text, struct ep_topo_hca *hca, struct ep_topo_err *err)
{
	struct ep_topo_hca out = { .n = 0 };
	const char *s = skip_blanks(text ? text : "");

	out.exclude = *s == '^';
	s = skip_blanks(s + out.exclude);
	out.exact = *s == '=';
	s = skip_blanks(s + out.exact);
	while (*s) {
		size_t all = strcspn(s, ","), len = all;
		int rc = 0;

		while (len && (s[len - 1] == ' ' || s[len - 1] == '\t')) {
			len--;
		}
		if (len) {
			rc = hca_item(s, len, &out, err);
		}
		if (rc) {
			return rc;
		}
		s += all;
		s = skip_blanks(s + (*s == ','));
	}
	*hca = out;
	return 0;
}

bool ep_topo_hca_names(const struct ep_topo_hca *hca, int i, const char *name, int port)
{
	const char *want = hca->item[i].name;
	bool same = hca->exact ? strcmp(name, want) == 0 : strncmp(name, want, strlen(want)) == 0;

	return same && (port < 0 || hca->item[i].port < 0 || hca->item[i].port == port);
}

void ep_topo_hca_rail(const struct ep_topo_hca *hca, const char *name, int port, int *rail,
		      int *plane)
{
	int i = 0;

	while (i < hca->n && !ep_topo_hca_names(hca, i, name, port)) {
		i++;
	}
	*rail = i < hca->n && !hca->exclude ? hca->item[i].rail : -1;
	*plane = i < hca->n && !hca->exclude ? hca->item[i].plane : -1;
}

const char *ep_topo_hca_print(const struct ep_topo_hca *hca, int i, char text[EP_TOPO_HCA_TEXT])
{
	char shown[EP_TOPO_NAME_LEN];

	ep_topo_copy_name(shown, hca->item[i].name);
	if (hca->item[i].port < 0) {
		return strcpy(text, shown);
	}
	snprintf(text, EP_TOPO_HCA_TEXT, "%s:%d", shown, hca->item[i].port);
	return text;
}

/* An empty list matches all, and so "^" alone excludes all: NCCL does that too. */
bool ep_topo_hca_match(const struct ep_topo_hca *hca, const char *name, int port)
{
	bool match = hca->n == 0;

	for (int i = 0; i < hca->n && !match; i++) {
		match = ep_topo_hca_names(hca, i, name, port);
	}
	return match != hca->exclude;
}
