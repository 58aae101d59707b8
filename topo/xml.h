/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded reader for small XML files that anybody may have written. Text content is ignored. */
#ifndef EP_TOPO_XML_H
#define EP_TOPO_XML_H

#include "topo/topo.h"

#define EP_XML_MAX_BYTES (16u << 20)
#define EP_XML_MAX_ELEMS (1u << 18)
#define EP_XML_MAX_ATTRS (1u << 20)

struct ep_xml_elem {
	const char *name;
	int end; /* the element behind this one and all below it */
	int attr, nattrs;
};

struct ep_xml {
	struct ep_xml_elem *elem; /* 0 is the root, parents come before their children */
	const char **attr;        /* name, value, name, value, ... */
	char *text;               /* of names and values */
	int nelems, elems_room, nattrs, attrs_room;
	size_t bytes, bytes_room;
};

int ep_xml_read_file(const char *path, struct ep_xml **xml, struct ep_topo_err *err);
int ep_xml_parse(const char *data, size_t len, const char *path, struct ep_xml **xml,
		 struct ep_topo_err *err);
void ep_xml_free(struct ep_xml *xml);

/* The attribute's value or NULL. */
const char *ep_xml_attr(const struct ep_xml *xml, int elem, const char *name);
bool ep_xml_is(const struct ep_xml *xml, int elem, const char *name);
/* The whole value as a number (0x prefix allowed), else def. */
long ep_xml_long(const struct ep_xml *xml, int elem, const char *name, long def);

#define ep_xml_for_each_child(xml, parent_, it)                                                    \
	for (int it = (parent_) + 1; it < (xml)->elem[parent_].end; it = (xml)->elem[it].end)

#endif
