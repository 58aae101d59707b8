/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/xml.h"

#include <errno.h>
#include <expat.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "topo/tree.h"

#define CHUNK_BYTES 65536

/* Strings live in chunks that never move, so that elements can point at them. */
struct ep_xml_chunk {
	struct ep_xml_chunk *next;
	size_t used, room;
	char data[];
};

struct parser {
	struct ep_xml *xml;
	XML_Parser expat;
	const char *path;
	struct ep_topo_err *err;
	int rc;
	int depth;
	int open[EP_TOPO_MAX_DEPTH];
	int last_child[EP_TOPO_MAX_DEPTH];
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
	struct ep_xml_chunk *chunk = xml->chunks;

	if (xml->bytes + len > EP_XML_MAX_BYTES) {
		return NULL;
	}
	if (!chunk || chunk->room - chunk->used < len) {
		size_t room = len > CHUNK_BYTES ? len : CHUNK_BYTES;

		chunk = malloc(sizeof(*chunk) + room);
		if (!chunk) {
			return NULL;
		}
		chunk->next = xml->chunks;
		chunk->used = 0;
		chunk->room = room;
		xml->chunks = chunk;
	}
	char *copy = chunk->data + chunk->used;

	memcpy(copy, text, len);
	chunk->used += len;
	xml->bytes += len;
	return copy;
}

/* Makes room for one more element and nattrs more attribute strings. */
static bool xml_reserve(struct ep_xml *xml, int nattrs)
{
	if (xml->nelems == xml->elems_room) {
		int room = xml->elems_room ? 2 * xml->elems_room : 256;

		if ((unsigned)room > EP_XML_MAX_ELEMS) {
			return false;
		}
		void *more = realloc(xml->elem, (size_t)room * sizeof(*xml->elem));

		if (!more) {
			return false;
		}
		xml->elem = more;
		xml->elems_room = room;
	}
	while (xml->attrs_room - xml->nattrs < nattrs) {
		int room = xml->attrs_room ? 2 * xml->attrs_room : 1024;

		if ((unsigned)room > EP_XML_MAX_ATTRS) {
			return false;
		}
		void *more = realloc(xml->attr, (size_t)room * sizeof(*xml->attr));

		if (!more) {
			return false;
		}
		xml->attr = more;
		xml->attrs_room = room;
	}
	return true;
}

static void on_start(void *user, const XML_Char *name, const XML_Char **attrs)
{
	struct parser *p = user;
	struct ep_xml *xml = p->xml;
	int nattrs = 0;

	if (p->rc) {
		return;
	}
	while (attrs[nattrs]) {
		nattrs++;
	}
	if (p->depth == EP_TOPO_MAX_DEPTH) {
		parser_stop(p, E2BIG, "elements are nested more than 64 deep");
		return;
	}
	if (!xml_reserve(xml, nattrs)) {
		parser_stop(p, E2BIG, "too many elements or attributes, or out of memory");
		return;
	}

	int id = xml->nelems;
	struct ep_xml_elem *e = &xml->elem[id];

	e->name = xml_string(xml, name);
	e->parent = p->depth ? p->open[p->depth - 1] : -1;
	e->child = -1;
	e->next = -1;
	e->attr = xml->nattrs;
	e->nattrs = nattrs / 2;
	bool ok = e->name != NULL;

	for (int i = 0; i < nattrs && ok; i++) {
		xml->attr[xml->nattrs + i] = xml_string(xml, attrs[i]);
		ok = xml->attr[xml->nattrs + i] != NULL;
	}
	if (!ok) {
		parser_stop(p, E2BIG, "more than 16 MiB of names and values, or out of memory");
		return;
	}
	xml->nelems++;
	xml->nattrs += nattrs;
	if (p->depth) {
		int *last = &p->last_child[p->depth - 1];

		if (*last < 0) {
			xml->elem[e->parent].child = id;
		} else {
			xml->elem[*last].next = id;
		}
		*last = id;
	}
	p->open[p->depth] = id;
	p->last_child[p->depth] = -1;
	p->depth++;
}

static void on_end(void *user, const XML_Char *name)
{
	struct parser *p = user;

	if (p->rc == 0 && p->depth > 0) {
		p->depth--;
	}
}

/* A DTD's internal subset can define entities that expand without end and default attributes.
 * Neither format has one. */
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
	if (!p.xml || !p.expat) {
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

static int read_all(int fd, const char *path, char **data, size_t *len, struct ep_topo_err *err)
{
	size_t used = 0, room = 1u << 16;
	char *buf = malloc(room);

	while (buf) {
		ssize_t n = read(fd, buf + used, room - used);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0) {
			int code = errno;

			free(buf);
			return ep_topo_fail(err, code, "cannot read %s: %s", path, strerror(code));
		}
		if (n == 0) {
			*data = buf;
			*len = used;
			return 0;
		}
		used += (size_t)n;
		if (used > EP_XML_MAX_BYTES) {
			free(buf);
			return ep_topo_fail(err, EFBIG, "%s is longer than the limit of %u bytes",
					    path, EP_XML_MAX_BYTES);
		}
		if (used == room) {
			char *more = realloc(buf, 2 * room);

			if (!more) {
				free(buf);
			}
			buf = more;
			room *= 2;
		}
	}
	return ep_topo_fail(err, ENOMEM, "out of memory reading %s", path);
}

int ep_xml_read_file(const char *path, struct ep_xml **xml, struct ep_topo_err *err)
{
	char *data = NULL;
	size_t len = 0;
	struct stat st;
	/* O_NONBLOCK: a FIFO must not hang the program that was pointed at it. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		int code = errno;

		return ep_topo_fail(err, code, "cannot open %s: %s", path, strerror(code));
	}
	int rc = 0;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		rc = ep_topo_fail(err, EINVAL, "%s is not a regular file", path);
	}
	if (!rc) {
		rc = read_all(fd, path, &data, &len, err);
	}
	close(fd);
	if (!rc) {
		rc = ep_xml_parse(data, len, path, xml, err);
	}
	free(data);
	return rc;
}

void ep_xml_free(struct ep_xml *xml)
{
	if (!xml) {
		return;
	}
	while (xml->chunks) {
		struct ep_xml_chunk *next = xml->chunks->next;

		free(xml->chunks);
		xml->chunks = next;
	}
	free(xml->attr);
	free(xml->elem);
	free(xml);
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
