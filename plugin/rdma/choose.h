/* SPDX-License-Identifier: Apache-2.0 */
/* Which ports of which NICs a GPU uses, how packets are addressed, and what NCCL_IB_* says of it. */
#ifndef EP_RDMA_CHOOSE_H
#define EP_RDMA_CHOOSE_H

#include <stdbool.h>
#include "core/error.h"

/* ---- environment ---- */

enum ep_gda_var {
	EP_GDA_VAR_DISABLE,
	EP_GDA_VAR_GID_INDEX,
	EP_GDA_VAR_FLID_INDEX,
	EP_GDA_VAR_SL,
	EP_GDA_VAR_TC,
	EP_GDA_VAR_TIMEOUT,
	EP_GDA_VAR_RETRY_CNT,
	EP_GDA_VAR_PKEY,
	EP_GDA_VAR_ROCE_VERSION,
	EP_GDA_VAR_ADAPTIVE,
	EP_GDA_VAR_RELAXED,
	EP_GDA_VAR_NUMBERS, /* those before are numbers, those after are words */
	EP_GDA_VAR_ADDR_FAMILY = EP_GDA_VAR_NUMBERS,
	EP_GDA_VAR_ADDR_RANGE,
	EP_GDA_VARS
};

/* Names and defaults are NCCL's. */
struct ep_gda_var_def {
	const char *name;
	int initial, min, max; /* of numbers */
	const char *help;
	bool most; /* of more than max, max is used */
};

extern const struct ep_gda_var_def ep_gda_var_table[EP_GDA_VARS];

struct ep_gda_env {
	bool disable;
	int gid_index;  /* -1: automatic */
	int flid_index; /* -1: none */
	int sl;
	int tc;      /* -1: as the port is set up */
	int timeout; /* 4.096 us << timeout per try */
	int retry_cnt;
	int pkey; /* index in the port's table */
	int roce_version;
	int adaptive;   /* does the fabric route adaptively? -1: by what the device tells */
	bool relaxed;   /* data may cross PCIe in any order */
	bool ipv6;      /* family of the GID's address that is preferred, and of `range` */
	int range_bits; /* -1: no range */
	uint8_t range[16];
};

/*
 * From the environment, afresh each time. A value that cannot be understood or is out of range is
 * ncclInvalidUsage, which names the variable, the value and the range.
 */
ncclResult_t ep_gda_env_read(struct ep_gda_env *env);

/* One variable from its text; fields of other variables are left alone. */
ncclResult_t ep_gda_env_parse(struct ep_gda_env *env, enum ep_gda_var var, const char *text);

/* Of a text that can be parsed: whether the variable's maximum is used in its place. */
bool ep_gda_env_too_much(enum ep_gda_var var, const char *text);

/* ---- GIDs ---- */

struct ep_gda_gid {
	uint8_t raw[16];
	int index; /* in the port's table */
	int roce;  /* 1 or 2; 0: InfiniBand, or the driver does not tell */
};

/*
 * The entry of a port's GID table to use, as a position in `list`, which is in the table's order and
 * may lack empty entries. InfiniBand: env->flid_index if that has a FLID, else index 0. Ethernet:
 * env->gid_index, which must exist; if that is -1, of the entries of env->roce_version the first that
 * is not link-local and of the preferred family (an IPv4 address, unless the environment says
 * otherwise) and within the range; without a range also the other family, and last link-local ones.
 * `port` is for messages.
 */
ncclResult_t ep_gda_gid_pick(const char *port, bool ethernet, const struct ep_gda_gid *list, int n,
			     const struct ep_gda_env *env, int *chosen);

/*
 * InfiniBand. The last 16 bits of a prefix tell the subnet. The 16 before them are the FLID, a LID by
 * which routers know the way from other subnets; 0: there is none.
 */
bool ep_gda_gid_same_subnet(const uint8_t a[16], const uint8_t b[16]);
uint16_t ep_gda_gid_flid(const uint8_t raw[16]);

/* "10.1.2.3" or "fe80::1". Returns buf. */
#define EP_GDA_GID_TEXT 48
const char *ep_gda_gid_print(const uint8_t raw[16], char buf[EP_GDA_GID_TEXT]);

/* ---- ports ---- */

#define EP_GDA_NAME 64

struct ep_gda_port {
	char name[EP_GDA_NAME]; /* of the RDMA device */
	int port;
	bool ethernet;
	uint32_t speed; /* only to compare; 0: unknown */
};

struct ibv_port_attr;
void ep_gda_port_set(struct ep_gda_port *port, const char *name, int num,
		     const struct ibv_port_attr *attr);

/*
 * Without distances: the ports (n > 0) of one link layer in turn, one for each rank of a host. The
 * layer is that of the fastest port, of equally fast ones that of more, so that all ranks come to the
 * same.
 */
const struct ep_gda_port *ep_gda_port_blind(const struct ep_gda_port *port, int n, uint32_t place);

/* Who chooses. */
struct ep_gda_who {
	const char *bus_id; /* of its GPU */
	int device;         /* CUDA ordinal */
	uint32_t place;     /* of the rank among those of its host */
};

/*
 * Which of the `present` ports (active, found by verbs) this GPU uses: equally near and nearest of
 * all, shared fairly with the machine's other GPUs, several if there are enough, NCCL_IB_HCA and
 * NCCL_NET_GDR_LEVEL obeyed. Needs the topology module; where that is missing, or does not know this
 * GPU or these ports, it is one port, by the rank's place among those of one link layer that
 * NCCL_IB_HCA permits, and an INFO line says so. `nchosen` is room in `chosen` at first, at least 1; without room for all
 * the first ones count. No port at all is an error.
 */
ncclResult_t ep_gda_choose(const struct ep_gda_who *who, const struct ep_gda_port *present,
			   int npresent, struct ep_gda_port *chosen, int *nchosen);

#endif
