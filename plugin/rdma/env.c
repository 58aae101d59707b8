/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL_IB_*: the variables of NCCL's own transport mean the same here. NCCL copies its
 * configuration files into the environment, so they count here too. A value without meaning is an
 * error. Where a NIC has room for less than the value asks for, the largest value is used.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "core/log.h"
#include "rdma/env.h"
#include "topo/topo.h"

#define AT(member) offsetof(struct ep_ib_env, member)

const struct ep_ib_var_def ep_ib_var_table[EP_IB_VARS] = {
	[EP_IB_VAR_DISABLE] = { "NCCL_IB_DISABLE", AT(disable), 0, 0, 1, "1: no RDMA device",
				.most = false },
	[EP_IB_VAR_GID_INDEX] = { "NCCL_IB_GID_INDEX", AT(gid_index), -1, -1, 255,
				  "entry of a RoCE port's GID table; -1: the first that fits",
				  .most = false },
	[EP_IB_VAR_FLID_INDEX] = { "NCCL_IB_ROUTABLE_FLID_GID_INDEX", AT(flid_index), 1, -1, 255,
				   "entry of an InfiniBand port's GID table, if it has a FLID",
				   .most = false },
	[EP_IB_VAR_SL] = { "NCCL_IB_SL", AT(sl), -1, -1, 15,
			   "InfiniBand service level, Ethernet priority; -1: 0", .most = false },
	[EP_IB_VAR_TC] = { "NCCL_IB_TC", AT(tc), -1, -1, 255,
			   "traffic class, DSCP * 4 on RoCE; -1: the RoCE port's, or 0",
			   .most = false },
	[EP_IB_VAR_TIMEOUT] = { "NCCL_IB_TIMEOUT", AT(timeout), 20, 0, 31,
				"4.096 us * 2^n until a packet is sent again; 0: never",
				.most = true },
	[EP_IB_VAR_RETRY_CNT] = { "NCCL_IB_RETRY_CNT", AT(retry_cnt), 7, 0, 7,
				  "times that a packet is sent again", .most = true },
	[EP_IB_VAR_PKEY] = { "NCCL_IB_PKEY", AT(pkey), 0, 0, 65535,
			     "index in the partition key table; RoCE: 0", .most = false },
	[EP_IB_VAR_PKEY_VALUE] = { "NCCL_IB_PKEY_VALUE", AT(pkey_value), -1, -1, 65535,
				   "partition key, wherever it is in the table; -1: by NCCL_IB_PKEY",
				   .most = false },
	[EP_IB_VAR_ROCE_VERSION] = { "NCCL_IB_ROCE_VERSION_NUM", AT(roce_version), 2, 1, 2,
				     "version of RoCE", .most = false },
	[EP_IB_VAR_ADAPTIVE] = { "NCCL_IB_ADAPTIVE_ROUTING", AT(adaptive), -1, -2, 1,
				 "1: packets may pass each other; -1, -2: as the NIC has it, "
				 "InfiniBand whose NIC does not report it: 1",
				 .most = false },
	[EP_IB_VAR_RELAXED] = { "NCCL_IB_PCI_RELAXED_ORDERING", AT(relaxed), 2, 0, 2,
				"0: rows cross PCIe in order; 1, 2: in any order", .most = false },
	[EP_IB_VAR_QPS] = { "NCCL_IB_QPS_PER_CONNECTION", AT(qps), 1, 1, 128,
			    "network plugin: queue pairs of a connection", .most = true },
	[EP_IB_VAR_SPLIT] = { "NCCL_IB_SPLIT_DATA_ON_QPS", AT(split), 0, 0, 1,
			      "network plugin: 1: each message goes over all queue pairs of its "
			      "connection; 0: over one, in turn",
			      .most = false },
	[EP_IB_VAR_AR_THRESHOLD] = { "NCCL_IB_AR_THRESHOLD", AT(ar_threshold), 8192, 0, 1 << 30,
				     "network plugin: with adaptive routing, longer messages are "
				     "followed by one that announces them",
				     .most = true },
	[EP_IB_VAR_FIFO_TC] = { "NCCL_IB_FIFO_TC", AT(fifo_tc), -1, -1, 255,
				"network plugin: traffic class of what announces receives to senders; "
				"-1: that of the data",
				.most = false },
	[EP_IB_VAR_ECE] = { "NCCL_IB_ECE_ENABLE", AT(ece), 1, 0, 1,
			    "1: NICs of both ends agree on what they can beyond the standard (ECE)",
			    .most = false },
	[EP_IB_VAR_MERGE] = { "NCCL_IB_MERGE_NICS", AT(merge), 1, 0, 1,
			      "network plugin: 1: NCCL may merge ports into one NIC; 0: it may not",
			      .most = false },
	[EP_IB_VAR_MQP_ALL] = { "NCCL_IB_MQP_RETRY_ALL", AT(mqp_all), 0, 0, 1,
				"a queue pair whose set-up fails is tried again, 0: if something has "
				"timed out; 1: whatever the reason",
				.most = false },
	[EP_IB_VAR_MQP_CNT] = { "NCCL_IB_MQP_RETRY_CNT", AT(mqp_cnt), 34, 0, 1000,
				"times that it is tried again", .most = false },
	[EP_IB_VAR_MQP_MS] = { "NCCL_IB_MQP_RETRY_SLEEP_MSEC", AT(mqp_ms), 100, 0, 10000,
			       "ms before the first of these tries; 2, 3, ... times as long before "
			       "the second, third, ...",
			       .most = false },
	[EP_IB_VAR_RECOVERY_MS] = { "NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", AT(recovery_ms),
				    200, 1, 60000,
				    "network plugin: ms for which a port that failed has to be up "
				    "until its connections use it again; each time that it fails "
				    "soon after, twice as many",
				    .most = false },
	[EP_IB_VAR_DIAL_CNT] = { "NCCL_SOCKET_RETRY_CNT", AT(dial_cnt), 34, 0, 1000000000,
				 "network plugin: times that a peer is dialed again if it refuses, is not "
				 "found or does not answer",
				 .most = false },
	[EP_IB_VAR_DIAL_MS] = { "NCCL_SOCKET_RETRY_SLEEP_MSEC", AT(dial_ms), 100, 0, 1000000,
				"network plugin: ms before the first of these tries; 2, 3, ... times as "
				"long before the second, third, ...",
				.most = false },
	[EP_IB_VAR_ADDR_FAMILY] = { "NCCL_IB_ADDR_FAMILY", 0, 0, 0, 0,
				    "kind of address that a GID should hold", .most = false },
	[EP_IB_VAR_ADDR_RANGE] = { "NCCL_IB_ADDR_RANGE", 0, 0, 0, 0,
				   "address/bits that a GID must lie in", .most = false },
};

bool ep_ib_env_too_much(enum ep_ib_var var, const char *text)
{
	const struct ep_ib_var_def *def = &ep_ib_var_table[var];

	return def->most && strtoll(text, NULL, 0) > def->max;
}

/* Writes the number that the text has for the variable to *value, or returns the error. */
static ncclResult_t ib_env_parse_number(enum ep_ib_var var, const char *text, int *value)
{
	const struct ep_ib_var_def *def = &ep_ib_var_table[var];
	long long v;
	int error = ep_topo_number_parse(text, &v);

	if (error || v < def->min || (v > def->max && !def->most)) {
		return ep_fail(ncclInvalidUsage,
			       "environment variable %s=%.64s is %s: set it to %d..%d or unset it",
			       def->name, text, error == -EINVAL ? "not a number" : "out of range",
			       def->min, def->max);
	}
	*value = v > def->max ? def->max : (int)v;
	return ncclSuccess;
}

static ncclResult_t ib_env_parse_family(struct ep_ib_env *env, const char *text)
{
	if (strcmp(text, "AF_INET") != 0 && strcmp(text, "AF_INET6") != 0) {
		return ep_fail(ncclInvalidUsage,
			       "environment variable NCCL_IB_ADDR_FAMILY=%.64s is neither AF_INET "
			       "nor AF_INET6: set it to one of them or unset it",
			       text);
	}
	env->ipv6 = strcmp(text, "AF_INET6") == 0;
	return ncclSuccess;
}

/* Reads a range of addresses of the family in *env, and stores it as GIDs hold addresses. */
static ncclResult_t ib_env_parse_range(struct ep_ib_env *env, const char *text)
{
	int whole = env->ipv6 ? 128 : 32;
	size_t n = strcspn(text, "/");
	char address[64], *end = NULL;
	long bits = -1;

	if (n < sizeof(address)) {
		memcpy(address, text, n);
		address[n] = '\0';
		memset(env->range, 0, sizeof(env->range));
		if (!env->ipv6) {
			env->range[10] = env->range[11] = 0xff;
		}
		if (inet_pton(env->ipv6 ? AF_INET6 : AF_INET, address,
			      env->range + (env->ipv6 ? 0 : 12)) == 1) {
			bits = whole;
			if (text[n] == '/') {
				bits = text[n + 1] >= '0' && text[n + 1] <= '9'
					       ? strtol(text + n + 1, &end, 10)
					       : -1;
			}
		}
	}
	if (bits < 0 || bits > whole || (end && *end)) {
		return ep_fail(ncclInvalidUsage,
			       "environment variable NCCL_IB_ADDR_RANGE=%.64s is not an IPv%d "
			       "address/bits with 0..%d bits%s: correct or unset it",
			       text, env->ipv6 ? 6 : 4, whole,
			       env->ipv6 ? "" : " (IPv6 needs NCCL_IB_ADDR_FAMILY=AF_INET6)");
	}
	env->range_bits = (int)(env->ipv6 ? bits : 96 + bits);
	return ncclSuccess;
}

/* Stores the number of a variable in its field. */
static void ib_env_store(struct ep_ib_env *env, enum ep_ib_var var, int value)
{
	int *at = (int *)((char *)env + ep_ib_var_table[var].offset);

	*at = var == EP_IB_VAR_SL && value < 0 ? 0 : value;
	if (var == EP_IB_VAR_SL) {
		env->sl_given = value >= 0;
	} else if (var == EP_IB_VAR_ADAPTIVE && value < 0) {
		*at = -1; /* (-2 is NCCL's default) */
	}
}

ncclResult_t ep_ib_env_parse(struct ep_ib_env *env, enum ep_ib_var var, const char *text)
{
	struct ep_ib_env parsed = *env;
	int value = 0;

	if (var == EP_IB_VAR_ADDR_FAMILY) {
		return ib_env_parse_family(env, text);
	}
	if (var == EP_IB_VAR_ADDR_RANGE) {
		EP_CHECK(ib_env_parse_range(&parsed, text));
		*env = parsed;
		return ncclSuccess;
	}
	EP_CHECK(ib_env_parse_number(var, text, &value));
	ib_env_store(env, var, value);
	return ncclSuccess;
}

/*
 * Logs the variable's value. The warning comes once a process, as all its ranks and groups have one
 * environment.
 */
static void ib_env_announce(enum ep_ib_var var, const char *text)
{
	static atomic_flag logged[EP_IB_VARS];
	const struct ep_ib_var_def *def = &ep_ib_var_table[var];

	EP_INFO(EP_LOG_ENV, "%s set by environment to %.64s", def->name, text);
	if (ep_ib_env_too_much(var, text) && !atomic_flag_test_and_set(&logged[var])) {
		EP_WARN("%s=%.64s is more than NICs have room for: %d, the largest value, is used",
			def->name, text, def->max);
	}
}

ncclResult_t ep_ib_env_read(struct ep_ib_env *env)
{
	struct ep_ib_env read = { .range_bits = -1 };

	for (int i = 0; i < EP_IB_VAR_NUMBERS; i++) {
		ib_env_store(&read, (enum ep_ib_var)i, ep_ib_var_table[i].initial);
	}
	/* In the table's order, because the range depends on the family. */
	for (int i = 0; i < EP_IB_VARS; i++) {
		const char *text = getenv(ep_ib_var_table[i].name);

		if (text && *text) {
			EP_CHECK(ep_ib_env_parse(&read, (enum ep_ib_var)i, text));
			ib_env_announce((enum ep_ib_var)i, text);
		}
	}
	*env = read;
	return ncclSuccess;
}
