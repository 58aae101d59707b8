/* SPDX-License-Identifier: Apache-2.0 */
/* An XML file becomes elements and attributes in memory; text between tags is left out. */
#include "topo/xml.h"

#include <errno.h>
#include <expat.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "topo/tree.h"

struct parser {
	struct ep_xml *xml;
	XML_Parser expat;
	const char *path;
	struct ep_topo_err *err;
	int rc;
	int depth;
	int open[EP_TOPO_MAX_DEPTH];
};

static unsigned long parser_line(const struct parser *parser)
{
#ifdef EP_EXPAT_64 /* an Expat that has it calls the other deprecated */
	return XML_GetCurrentLineNumber64(parser->expat);
#else
	return XML_GetCurrentLineNumber(parser->expat);
#endif
}

static void parser_stop(struct parser *parser, int code, const char *what)
{
	if (parser->rc == 0) {
		parser->rc = ep_topo_fail(parser->err, code, "%s line %lu: %s", parser->path,
					  parser_line(parser), what);
	}
	XML_StopParser(parser->expat, XML_FALSE);
}

static const char *xml_string(struct ep_xml *xml, const char *text)
{
	size_t len = strlen(text) + 1;
	char *copy = xml->text + xml->bytes;

	if (len > xml->bytes_room - xml->bytes) {
		return NULL;
	}
	memcpy(copy, text, len);
	xml->bytes += len;
	return copy;
}

/*
 * An element has a '<' in the data and an attribute a '=', and both are longer there than their
 * names and values, which in UTF-8 have at most twice the bytes of any encoding that Expat knows.
 */
static int xml_reserve(struct ep_xml *xml, const char *data, size_t len)
{
	size_t elems = 1, attrs = 1;

	for (size_t i = 0; i < len; i++) {
		elems += data[i] == '<';
		attrs += data[i] == '=';
	}
	xml->elems_room = (int)(elems < EP_XML_MAX_ELEMS ? elems : EP_XML_MAX_ELEMS);
	xml->attrs_room = (int)(2 * attrs < EP_XML_MAX_ATTRS ? 2 * attrs : EP_XML_MAX_ATTRS);
	xml->bytes_room = 2 * len + 1;
	xml->elem = calloc((size_t)xml->elems_room, sizeof(*xml->elem));
	xml->attr = calloc((size_t)xml->attrs_room, sizeof(*xml->attr));
	xml->text = malloc(xml->bytes_room);
	return xml->elem && xml->attr && xml->text ? 0 : -ENOMEM;
}

static void on_start(void *user, const XML_Char *name, const XML_Char **attrs)
{
	struct parser *p = user;
	struct ep_xml *xml = p->xml;
	struct ep_xml_elem *e = &xml->elem[xml->nelems];
	int nattrs = 0;
	bool ok;

	while (attrs[nattrs]) {
		nattrs++;
	}
	if (p->rc) {
		return;
	}
	if (p->depth == EP_TOPO_MAX_DEPTH) {
		parser_stop(p, E2BIG, "elements are nested more than 64 deep");
		return;
	}
	if (xml->nelems == xml->elems_room || nattrs > xml->attrs_room - xml->nattrs) {
		parser_stop(p, E2BIG, "too many elements or attributes");
		return;
	}
	e->name = xml_string(xml, name);
	e->attr = xml->nattrs;
	e->nattrs = nattrs / 2;
	ok = e->name != NULL;
	for (int i = 0; i < nattrs; i++) {
		xml->attr[xml->nattrs] = xml_string(xml, attrs[i]);
		ok &= xml->attr[xml->nattrs++] != NULL;
	}
	if (!ok) {
		parser_stop(p, E2BIG, "names and values are longer than the file");
		return;
	}
	p->open[p->depth++] = xml->nelems++;
}

static void on_end(void *user, const XML_Char *name)
{
	struct parser *p = user;

	if (p->rc == 0 && p->depth > 0) {
		p->xml->elem[p->open[--p->depth]].end = p->xml->nelems;
	}
}

/*
 * A DTD's internal subset can define entities that expand without end and default attributes.
 * Neither format has one.
 */
static void on_doctype(void *user, const XML_Char *name, const XML_Char *sysid,
		       const XML_Char *pubid, int has_internal_subset)
{
	if (has_internal_subset) {
		parser_stop(user, EINVAL, "an internal DTD is not accepted, remove it");
	}
}

int ep_xml_parse(const char *data, size_t len, const char *path, struct ep_xml **out,
		 struct ep_topo_err *err)
{
	struct parser p = { .path = path, .err = err };
	int rc = -ENOMEM;

	if (len > EP_XML_MAX_BYTES) {
		return ep_topo_fail(err, EFBIG, "%s has %zu bytes, limit %u", path, len,
				    EP_XML_MAX_BYTES);
	}
	p.xml = calloc(1, sizeof(*p.xml));
	p.expat = XML_ParserCreate(NULL);
	if (!p.xml || !p.expat || xml_reserve(p.xml, data, len)) {
		ep_topo_fail(err, ENOMEM, "out of memory reading %s", path);
		goto err_free;
	}
	XML_SetUserData(p.expat, &p);
	XML_SetElementHandler(p.expat, on_start, on_end);
	XML_SetStartDoctypeDeclHandler(p.expat, on_doctype);

	enum XML_Status status = XML_Parse(p.expat, data, (int)len, XML_TRUE);

	rc = p.rc;
	if (!rc && status != XML_STATUS_OK) {
		rc = ep_topo_fail(err, EINVAL, "%s line %lu: %s; is it a whole XML file?", path,
				  parser_line(&p), XML_ErrorString(XML_GetErrorCode(p.expat)));
	}
	if (rc) {
		goto err_free;
	}
	XML_ParserFree(p.expat);
	*out = p.xml;
	return 0;

err_free:
	if (p.expat) {
		XML_ParserFree(p.expat);
	}
	ep_xml_free(p.xml);
	return rc;
}

/*
 * Reads a file to its end, and returns 0 or an errno value. The size that stat() reports is a hint:
 * in /proc, /sys and some file systems of FUSE it is 0.
 */
static int read_all(int fd, size_t hint, char **data, size_t *len)
{
	size_t room = hint + 4096, used = 0;
	ssize_t n = 1;

	*data = malloc(room);
	while (*data && n > 0) {
		if (used > EP_XML_MAX_BYTES) {
			return EFBIG;
		}
		if (used == room) {
			char *more = realloc(*data, room *= 2);

			if (!more) {
				return ENOMEM;
			}
			*data = more;
		}
		n = read(fd, *data + used, room - used);
		used += n > 0 ? (size_t)n : 0;
		n = n < 0 && errno == EINTR ? 1 : n;
	}
	*len = used;
	return !*data ? ENOMEM : n < 0 ? errno : 0;
}

int ep_xml_read_file(const char *path, struct ep_xml **xml, struct ep_topo_err *err)
{
	/* O_NONBLOCK: a FIFO must not hang the program that was pointed at it. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code, rc;
	struct stat st = { .st_size = 0 };
	char *data = NULL;
	size_t len;

	if (fd < 0) {
		code = errno;
		return ep_topo_fail(err, code, "cannot open %s: %s", path, strerror(code));
	}
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		rc = ep_topo_fail(err, EINVAL, "%s is not a regular file", path);
		goto out;
	}
	code = st.st_size > EP_XML_MAX_BYTES ? EFBIG
					     : read_all(fd, (size_t)st.st_size, &data, &len);
	if (code == EFBIG) {
		rc = ep_topo_fail(err, EFBIG, "%s is longer than the limit of %u bytes", path,
				  EP_XML_MAX_BYTES);
	} else {
		rc = code ? ep_topo_fail(err, code, "cannot read %s: %s", path, strerror(code))
			  : ep_xml_parse(data, len, path, xml, err);
	}
out:
	free(data);
	close(fd);
	return rc;
}

void ep_xml_free(struct ep_xml *xml)
{
	if (xml) {
		free(xml->text);
		free(xml->attr);
		free(xml->elem);
		free(xml);
	}
}

const char *ep_xml_attr(const struct ep_xml *xml, int elem, const char *name)
{
	const struct ep_xml_elem *e = &xml->elem[elem];

	for (int i = 0; i < e->nattrs; i++) {
		if (strcmp(xml->attr[e->attr + 2 * i], name) == 0) {
			return xml->attr[e->attr + 2 * i + 1];
		}
	}
	return NULL;
}

bool ep_xml_is(const struct ep_xml *xml, int elem, const char *name)
{
	return strcmp(xml->elem[elem].name, name) == 0;
}

long ep_xml_long(const struct ep_xml *xml, int elem, const char *name, long def)
{
	const char *text = ep_xml_attr(xml, elem, name);
	char *end;

	if (!text || !*text) {
		return def;
	}
	errno = 0;
	long value = strtol(text, &end, 0);

	return errno || *end ? def : value;
}
