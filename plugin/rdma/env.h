/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of RDMA: the variables NCCL_IB_* and NCCL_SOCKET_*. */
#ifndef EP_RDMA_ENV_H
#define EP_RDMA_ENV_H

#include <stdbool.h>
#include "core/error.h"

enum ep_ib_var {
	EP_IB_VAR_DISABLE,
	EP_IB_VAR_GID_INDEX,
	EP_IB_VAR_FLID_INDEX,
	EP_IB_VAR_SL,
	EP_IB_VAR_TC,
	EP_IB_VAR_TIMEOUT,
	EP_IB_VAR_RETRY_CNT,
	EP_IB_VAR_PKEY,
	EP_IB_VAR_PKEY_VALUE,
	EP_IB_VAR_ROCE_VERSION,
	EP_IB_VAR_ADAPTIVE,
	EP_IB_VAR_RELAXED,
	EP_IB_VAR_QPS,
	EP_IB_VAR_SPLIT,
	EP_IB_VAR_AR_THRESHOLD,
	EP_IB_VAR_FIFO_TC,
	EP_IB_VAR_ECE,
	EP_IB_VAR_MERGE,
	EP_IB_VAR_MQP_ALL,
	EP_IB_VAR_MQP_CNT,
	EP_IB_VAR_MQP_MS,
	EP_IB_VAR_RECOVERY_MS,
	EP_IB_VAR_DIAL_CNT,
	EP_IB_VAR_DIAL_MS,
	EP_IB_VAR_NUMBERS, /* those before are numbers, those after are words */
	EP_IB_VAR_ADDR_FAMILY = EP_IB_VAR_NUMBERS,
	EP_IB_VAR_ADDR_RANGE,
	EP_IB_VARS
};

/* A variable. Names and defaults are NCCL's. */
struct ep_ib_var_def {
	const char *name;
	size_t offset;         /* of a number: that of its int in struct ep_ib_env */
	int initial, min, max; /* of numbers */
	const char *help;
	bool most; /* a larger value counts as max */
};

extern const struct ep_ib_var_def ep_ib_var_table[EP_IB_VARS];

struct ep_ib_env {
	int disable;
	int gid_index;  /* -1: automatic */
	int flid_index; /* -1: none */
	int sl;
	bool sl_given; /* else `sl` is 0 */
	int tc;        /* -1: as the port is set up */
	int timeout;   /* 4.096 us << timeout per try */
	int retry_cnt;
	int pkey;       /* index in the port's table, */
	int pkey_value; /* or the key to look for there; -1: none */
	int roce_version;
	int adaptive; /* does the fabric route adaptively? -1: by what the device reports */
	int relaxed;  /* not 0: data may cross PCIe in any order */
	int ece;      /* not 0: NICs agree on what both can */
	/* what follows is the network plugin's alone */
	int qps;          /* queue pairs of a connection */
	int split;        /* not 0: a message goes over all of them */
	int ar_threshold; /* bytes; longer ones may be routed adaptively */
	int fifo_tc;      /* class of messages about receives; -1: tc */
	int merge;        /* not 0: ports may be merged */
	/*
	 * a queue pair that cannot be set up, because something has timed out (or for any reason)
	 */
	int mqp_all, mqp_cnt, mqp_ms; /* not 0: any reason; how often it is tried again; ms */
	int recovery_ms;              /* until a port that has failed is tried again */
	int dial_cnt, dial_ms; /* how often a peer is dialed again; ms before the first time */
	bool ipv6;             /* family of the GID's address that is preferred, and of `range` */
	int range_bits;        /* -1: no range */
	uint8_t range[16];
};

/*
 * Reads all variables from the environment, anew at each call. Returns ncclInvalidUsage for a value
 * that is not understood or out of range; its text names the variable, the value and the range.
 */
ncclResult_t ep_ib_env_read(struct ep_ib_env *env);

/* Reads one variable from its text, and changes no other field. Fails as ep_ib_env_read() does. */
ncclResult_t ep_ib_env_parse(struct ep_ib_env *env, enum ep_ib_var var, const char *text);

/*
 * Returns whether a text that can be parsed asks for more than the variable's maximum, which is
 * then used.
 */
bool ep_ib_env_too_much(enum ep_ib_var var, const char *text);

#endif
