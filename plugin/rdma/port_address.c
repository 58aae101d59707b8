/* SPDX-License-Identifier: Apache-2.0 */
/* A port's address and traffic class. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "rdma/nic.h"

int ep_gid_roce(const char *root, const char *device, int port, int index)
{
	char path[512], text[32] = "";
	int version = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s/ports/%d/gid_attrs/types/%d", root, device, port,
		 index);
	file = fopen(path, "re");
	if (!file) {
		return 0;
	}
	if (fgets(text, sizeof(text), file)) {
		text[strcspn(text, "\n")] = '\0';
		version = !strcmp(text, "RoCE v2") ? 2 : !strcmp(text, "IB/RoCE v1") ? 1 : 0;
	}
	fclose(file);
	return version;
}

static bool ep_gid_read(struct ep_nic *nic, int index, struct ep_gid *out)
{
	static const uint8_t none[16];
	struct ibv_gid_entry entry;
	union ibv_gid gid;

	out->index = index;
	out->roce = 0;
	if (nic->v->_ibv_query_gid_ex) {
		if (nic->v->_ibv_query_gid_ex(nic->ctx, (uint32_t)nic->port, (uint32_t)index,
					      &entry, 0, sizeof(entry)) != 0) {
			return false;
		}
		out->roce = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? 2
			    : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? 1
								     : 0;
		memcpy(out->raw, entry.gid.raw, sizeof(out->raw));
	} else {
		/* An old library does not report the type, the kernel does. */
		if (nic->v->ibv_query_gid(nic->ctx, (uint8_t)nic->port, index, &gid) != 0) {
			return false;
		}
		memcpy(out->raw, gid.raw, sizeof(out->raw));
		if (nic->end.link_layer == IBV_LINK_LAYER_ETHERNET) {
			out->roce = ep_gid_roce(EP_NIC_SYSFS, nic->name, nic->port, index);
		}
	}
	return memcmp(out->raw, none, sizeof(none)) != 0;
}

ncclResult_t ep_nic_address_choose(struct ep_nic *nic, const struct ep_ib_env *env, int entries)
{
	struct ep_gid *list = calloc((size_t)entries + 1, sizeof(*list));
	bool ethernet = nic->end.link_layer == IBV_LINK_LAYER_ETHERNET;
	ncclResult_t result;
	int n = 0, chosen = -1;
	char name[80];

	if (!list) {
		return ep_fail(ncclSystemError, "out of host memory for %d addresses", entries);
	}
	for (int i = 0; i < entries; i++) {
		n += ep_gid_read(nic, i, &list[n]);
	}
	snprintf(name, sizeof(name), "%s:%d", nic->name, nic->port);
	result = ep_gid_pick(name, ethernet, list, n, env, &chosen);
	if (result == ncclSuccess) {
		nic->gid_index = (uint32_t)list[chosen].index;
		memcpy(nic->end.gid, list[chosen].raw, sizeof(nic->end.gid));
		nic->end.roce = (uint8_t)list[chosen].roce;
		if (ethernet && !nic->end.roce) {
			nic->end.roce = 2;
		}
	}
	free(list);
	return result;
}

/* -1: the file has none for all addresses; *rules: but lines of some other form. */
static int ep_nic_class_read(const char *path, bool *rules)
{
	FILE *file = fopen(path, "re");
	char line[128], rest;
	int value = -1, n;

	*rules = false;
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Global tclass=%d%c", &n, &rest) == 2 && rest == '\n' && n >= 0 &&
		    n <= 255) {
			value = n;
		} else {
			*rules = true;
		}
	}
	if (file) {
		fclose(file);
	}
	return value;
}

/*
 * With NVIDIA's kernel modules an administrator gives a RoCE port a class. The kernel puts it into
 * the queue pairs that it sets up itself, which DevX queues are not.
 */
void ep_nic_class_choose(struct ep_nic *nic, const struct ep_ib_env *env, const char *root)
{
	char path[512];
	int set = -1;
	bool rules = false;

	snprintf(path, sizeof(path), "%s/%s/tc/%d/traffic_class", root, nic->name, nic->port);
	if (nic->end.link_layer == IBV_LINK_LAYER_ETHERNET) {
		set = ep_nic_class_read(path, &rules);
	}
	nic->tc = (uint8_t)(env->tc >= 0 ? env->tc : set >= 0 ? set : 0);
	if (set >= 0) {
		EP_INFO(EP_LOG_NET, "%s:%d: traffic class %u%s, %s has %d", nic->name, nic->port,
			nic->tc, env->tc >= 0 ? " of NCCL_IB_TC" : "", path, set);
	} else if (rules && env->tc < 0) {
		EP_WARN("%s:%d: classes of single addresses in %s are not followed, 0 is used: set "
			"NCCL_IB_TC",
			nic->name, nic->port, path);
	}
}
