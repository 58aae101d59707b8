/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged topology files: cut short, bytes changed, pieces copied over each other, values replaced
 * by extreme or foreign ones. Every input must end in a topology that can be printed, or in an
 * error with a text. Usage: fuzz RUNS FILE...
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "support/check.h"
#include "topo/tree.h"
#include "topo/xml.h"

static uint64_t state = 88172645463325252u;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static FILE *sink;
static unsigned long good, bad;

static void try(const char *data, size_t len)
{
	static const struct ep_topo_opts opts = { .hca = "^mlx5_1:2", .gdr_level = "PXB" };
	struct ep_topo_err err = { .text = "" };
	struct ep_topo *topo = NULL;
	struct ep_xml *xml = NULL;
	int rc = ep_xml_parse(data, len, "input", &xml, &err);

	if (!rc) {
		rc = ep_topo_read_xml(xml, "input", &topo, &err);
	}
	if (!rc) {
		rc = ep_topo_finish(topo, &opts, &err);
	}
	if (rc) {
		CHECK(rc < 0 && err.text[0], "rc %d, text \"%s\"", rc, err.text);
		bad++;
	} else {
		rewind(sink);
		ep_topo_print_table(topo, sink);
		ep_topo_print_json(topo, sink);
		good++;
	}
	ep_topo_free(topo);
	ep_xml_free(xml);
}

static void mutate(char *data, size_t *len)
{
	static const char *const words[] = { "-1",         "99999999999999999999",
					     "0x80000000", "",
					     "pci",        "gpu",
					     "nic",        "object",
					     "PCIDev",     "Bridge",
					     "OSDev",      "\"",
					     "<",          "/>",
					     "&amp;",      "0604",
					     "\x1b[31m",   "ffffffff:ff:1f.7" };
	size_t at = rnd() % *len, n = rnd() % 64;
	const char *word = words[rnd() % (sizeof(words) / sizeof(words[0]))];

	switch (rnd() % 6) {
	case 0:
		data[at] = (char)rnd();
		break;
	case 1:
		data[at] ^= (char)(1 << rnd() % 8);
		break;
	case 2: /* a piece over another place */
		if (at + n < *len) {
			memmove(data + rnd() % (*len - n), data + at, n);
		}
		break;
	case 3: /* a piece removed */
		if (at + n < *len) {
			memmove(data + at, data + at + n, *len - at - n);
			*len -= n;
		}
		break;
	case 4: /* a word over what is there */
		if (at + strlen(word) < *len) {
			memcpy(data + at, word, strlen(word));
		}
		break;
	default: /* a value replaced by one of another attribute */
		for (size_t i = at; i + 16 < *len; i++) {
			if (data[i] == '"') {
				memmove(data + i + 1, data + rnd() % (*len - 8), 8);
				break;
			}
		}
	}
}

/* Inside one attribute's value, so that the file stays XML and the readers see it. */
static void mutate_value(char *data, size_t len)
{
	static const char letters[] = "0123456789abcdefx:.,-+ []PCIBridgeOSDev";
	size_t at = rnd() % len;
	char *start = memchr(data + at, '=', len - at);
	char *end = data + len;

	if (!start || start + 2 >= end || start[1] != '"') {
		return;
	}
	start += 2;
	end = memchr(start, '"', (size_t)(end - start));
	if (!end || end == start) {
		return;
	}
	size_t n = (size_t)(end - start);

	switch (rnd() % 3) {
	case 0:
		start[rnd() % n] = letters[rnd() % (sizeof(letters) - 1)];
		break;
	case 1:
		for (size_t i = 0; i < n; i++) {
			start[i] = letters[rnd() % 20];
		}
		break;
	default: /* another attribute's text */
		for (char *from = data + rnd() % len; from < data + len && n > 0; from++, n--) {
			if (strchr("<>&\"", *from)) {
				break;
			}
			*start++ = *from;
		}
	}
}

static char *slurp(const char *path, size_t *len)
{
	FILE *f = fopen(path, "re");
	char *data = malloc(1 << 20);

	if (!f || !data) {
		fprintf(stderr, "cannot read %s\n", path);
		exit(1);
	}
	*len = fread(data, 1, 1 << 20, f);
	fclose(f);
	return data;
}

static void fuzz_file(const char *path, unsigned long runs)
{
	size_t len;
	char *data = slurp(path, &len);
	char *work = malloc(len + 1);

	if (!work) {
		exit(1);
	}
	size_t step = len / 400 + 1;

	for (size_t cut = 0; cut <= len; cut += step) {
		/* A buffer of exactly this size, so that a read past it is seen. */
		char *part = malloc(cut ? cut : 1);

		if (part) {
			memcpy(part, data, cut);
			try(part, cut);
		}
		free(part);
	}
	for (unsigned long i = 0; i < runs; i++) {
		size_t n = len;

		memcpy(work, data, len);
		for (unsigned k = 0; k <= rnd() % 8; k++) {
			if (i % 4 == 0) {
				mutate(work, &n);
			} else {
				mutate_value(work, n);
			}
		}
		try(work, n);
	}
	free(work);
	free(data);
}

/* Shapes no mutation finds: very deep, very wide, too large. */
static void extremes(void)
{
	enum {
		BIG = 1 << 21
	};
	char *data = malloc(BIG + 1);
	size_t n;

	if (!data) {
		exit(1);
	}
	n = (size_t)sprintf(data, "<system version=\"1\"><cpu numaid=\"0\">");
	for (int i = 0; i < 20000; i++) {
		n += (size_t)sprintf(data + n, "<pci busid=\"0:1:2.3\">");
	}
	try(data, n);
	n = (size_t)sprintf(data, "<system version=\"1\"><cpu numaid=\"0\">");
	for (int i = 0; i < 30000; i++) {
		n += (size_t)sprintf(data + n, "<pci busid=\"%x:1:2.3\" class=\"0x030200\"/>", i);
	}
	n += (size_t)sprintf(data + n, "</cpu></system>");
	try(data, n);
	CHECK(bad >= 2, "20000 levels and 30000 GPUs must be refused");
	n = (size_t)sprintf(data, "<topology version=\"2.0\"><object type=\"Machine\" nodeset=\"");
	memset(data + n, ',', 1 << 20);
	n += 1 << 20;
	n += (size_t)sprintf(data + n, "0x1\"/></topology>");
	try(data, n);
	free(data);
	data = calloc(1, EP_XML_MAX_BYTES + 1);
	if (data) {
		unsigned long before = bad;

		try(data, EP_XML_MAX_BYTES + 1);
		CHECK(bad == before + 1, "a file over the limit must be refused");
	}
	free(data);
}

/* Files that report no size are read to their end, or up to the limit. */
static void no_size(void)
{
	const char *endless = "/proc/self/pagemap";
	struct ep_topo_err err = { .text = "" };
	struct ep_xml *xml = NULL;
	int rc;

	prctl(PR_SET_NAME, "<system a='1'/>");
	rc = ep_xml_read_file("/proc/self/comm", &xml, &err);
	CHECK(rc == 0 && xml && ep_xml_long(xml, 0, "a", 0) == 1, "%s", err.text);
	ep_xml_free(xml);
	if (access(endless, R_OK) == 0) {
		rc = ep_xml_read_file(endless, &xml, &err);
		CHECK(rc == -EFBIG && strstr(err.text, "longer than the limit"), "%s", err.text);
	}
}

int main(int argc, char **argv)
{
	unsigned long runs = argc > 1 ? strtoul(argv[1], NULL, 0) : 1000;

	sink = tmpfile();
	if (!sink || argc < 3) {
		fputs("Usage: fuzz RUNS FILE...\n", stderr);
		return 2;
	}
	extremes();
	no_size();
	for (int i = 2; i < argc; i++) {
		fuzz_file(argv[i], runs);
	}
	printf("%lu inputs read, %lu refused\n", good, bad);
	CHECK(good > 100 && bad > 100, "the inputs are of one kind only");
	fclose(sink);
	return check_end();
}
