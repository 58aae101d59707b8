/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a machine's active ports, where NICs have so many virtual functions that it gets
 * long: stand-ins for verbs, whose devices have one port each.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdma/rdma.h"
#include "support/check.h"
#include "support/reason.h"

#define MOST 400

static struct ibv_device device[MOST], *devices[MOST + 1];
static int ndevices;

static struct ibv_device **get_list(int *n)
{
	*n = ndevices;
	return devices;
}

static void free_list(struct ibv_device **list)
{
}

static const char *name_of(struct ibv_device *dev)
{
	return dev->name;
}

static struct ibv_context *open_device(struct ibv_device *dev)
{
	static struct ibv_context context;

	return &context;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	attr->phys_port_cnt = 1;
	return 0;
}

static int close_device(struct ibv_context *ctx)
{
	return 0;
}

const struct ep_verbs *ep_verbs(const char **why)
{
	static const struct ep_verbs verbs = {
		.ibv_get_device_list = get_list,
		.ibv_free_device_list = free_list,
		.ibv_get_device_name = name_of,
		.ibv_open_device = open_device,
		.ibv_query_device = query_device,
		.ibv_close_device = close_device,
	};

	return &verbs;
}

int ep_verbs_query_port(const struct ep_verbs *verbs, struct ibv_context *ctx, uint8_t port,
			struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->state = IBV_PORT_ACTIVE;
	return 0;
}

/* Returns how many ports are listed of so many devices, with the last one's name in `last`. */
static int count_ports(int n, char last[EP_NIC_NAME])
{
	static struct ep_port_list list;
	struct ep_reason why = { "" };

	ndevices = n;
	CHECK(ep_port_list_open(&list, &why), "%s", why.text);
	CHECK(list.ndevs == n && list.nports == n, "%d devices, %d ports", list.ndevs, list.nports);
	memcpy(last, list.port[list.n - 1].name, EP_NIC_NAME);
	ep_port_list_close(&list);
	return list.n;
}

int main(void)
{
	char log[] = "/tmp/ep_ports_log_XXXXXX", last[EP_NIC_NAME], text[4096];
	int fd = mkstemp(log), n;
	ssize_t bytes;

	NEED(fd >= 0);
	setenv("NCCL_DEBUG", "WARN", 1);
	setenv("NCCL_DEBUG_FILE", log, 1);
	for (int i = 0; i < MOST; i++) {
		snprintf(device[i].name, sizeof(device[i].name), "mlx5_%d", i);
		devices[i] = &device[i];
	}
	/* 7 NICs with 32 functions each */
	n = count_ports(7 * 33, last);
	CHECK(n == 7 * 33 && !strcmp(last, "mlx5_230"), "%d ports, the last one %s", n, last);
	CHECK(lseek(fd, 0, SEEK_END) == 0, "a warning without need");
	/* More than there is room for: a line says so, once. */
	n = count_ports(MOST, last);
	CHECK(n == EP_PORT_MAX, "%d ports", n);
	bytes = pread(fd, text, sizeof(text) - 1, 0);
	text[bytes > 0 ? bytes : 0] = '\0';
	CHECK(strstr(text, "mlx5_256:1 and later ports are left out") && !strstr(text, "mlx5_257"),
	      "logged: %s", text);
	close(fd);
	unlink(log);
	return check_end();
}
