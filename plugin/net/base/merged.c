/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs as NCCL sees them. NCCL asks how many there are, has some merged, and asks again: those that are
 * more now are the merged ones. When its last communicator is gone it may begin anew, or remember.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "net/base/merged.h"

#define EP_NET_NICS 256

static pthread_mutex_t ep_net_nics_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_net_nic
	*ep_net_nics[EP_NET_NICS]; /* entries are atomic, and stay once they are set */
/* By NCCL, for each of its tables. 0: not yet asked for. */
static int ep_net_nics_counted[EP_NET_TABLES];

/* The first ones, one for each device. The lock is held. */
static int ep_net_nics_begin(void)
{
	struct ep_net_dev *dev;
	struct ep_reason why;
	int n;

	ep_net_devs(&dev, &n, &why);
	for (int i = 0; i < n && i < EP_NET_NICS && !ep_net_nics[i]; i++) {
		struct ep_net_nic *nic = calloc(1, sizeof(*nic));

		if (!nic) {
			return i;
		}
		nic->index = i;
		nic->nports = 1;
		nic->dev[0] = &dev[i];
		snprintf(nic->label, sizeof(nic->label), "%s", dev[i].label);
		__atomic_store_n(&ep_net_nics[i], nic, __ATOMIC_RELEASE);
	}
	return n < EP_NET_NICS ? n : EP_NET_NICS;
}

int ep_net_nic_count(enum ep_net_table table)
{
	int *counted = &ep_net_nics_counted[table], n;

	pthread_mutex_lock(&ep_net_nics_lock);
	n = ep_net_nics_begin();
	if (*counted < n) {
		*counted = n;
	}
	n = *counted;
	pthread_mutex_unlock(&ep_net_nics_lock);
	return n;
}

static const struct ep_net_nic *ep_net_nic_at(int index)
{
	return index >= 0 && index < EP_NET_NICS
		       ? __atomic_load_n(&ep_net_nics[index], __ATOMIC_ACQUIRE)
		       : NULL;
}

ncclResult_t ep_net_nic_get(int index, const struct ep_net_nic **nic)
{
	int n = ep_net_nic_count(EP_NET_TABLE_NET);

	*nic = ep_net_nic_at(index);
	return *nic ? ncclSuccess
		    : ep_fail(ncclInvalidArgument, "there is no device %d, devices are 0..%d",
			      index, n - 1);
}

void ep_net_nics_forget(void)
{
	pthread_mutex_lock(&ep_net_nics_lock);
	memset(ep_net_nics_counted, 0, sizeof(ep_net_nics_counted));
	pthread_mutex_unlock(&ep_net_nics_lock);
}

/* ---- merging ---- */

/* A NIC of these ports, for its caller to free or keep. */
static ncclResult_t ep_net_nic_new(const int *indices, int n, struct ep_net_nic *nic)
{
	size_t at = 0;

	memset(nic, 0, sizeof(*nic));
	for (int i = 0; i < n; i++) {
		const struct ep_net_nic *one;

		EP_CHECK(ep_net_nic_get(indices[i], &one));
		if (one->nports != 1) {
			return ep_fail(ncclInvalidArgument,
				       "%s is merged already, and cannot be merged again",
				       one->label);
		}
		for (int k = 0; k < i; k++) {
			if (nic->dev[k] == one->dev[0]) {
				return ep_fail(ncclInvalidArgument,
					       "%s cannot be merged with itself", one->label);
			}
		}
		nic->dev[i] = one->dev[0];
		if (one->dev[0]->port.ethernet != nic->dev[0]->port.ethernet) {
			return ep_fail(ncclInvalidUsage,
				       "%s and %s cannot be merged: one is Ethernet, the other "
				       "InfiniBand (see NCCL_NET_FORCE_MERGE)",
				       nic->dev[0]->label, one->label);
		}
		at += (size_t)snprintf(nic->label + at, sizeof(nic->label) - at, "%s%s",
				       i ? "+" : "", one->label);
	}
	nic->nports = n;
	return ncclSuccess;
}

/* One of the same ports in the same order, or a free place; EP_NET_NICS: there is none. */
static int ep_net_nic_place(const struct ep_net_nic *nic)
{
	int i = 0;

	while (i < EP_NET_NICS && ep_net_nics[i] &&
	       (ep_net_nics[i]->nports != nic->nports ||
		memcmp(ep_net_nics[i]->dev, nic->dev, sizeof(nic->dev)) != 0)) {
		i++;
	}
	return i;
}

ncclResult_t ep_net_nic_merge(enum ep_net_table table, const int *indices, int n, int most,
			      int *index)
{
	struct ep_net_nic made, *kept = NULL;
	bool there;
	int i;

	if (n < 1 || n > most) {
		return ep_fail(ncclInvalidArgument,
			       "%d devices cannot be merged, possible are 1..%d", n, most);
	}
	if (n > 1 && !ep_net_env()->merge) {
		EP_INFO(EP_LOG_NET, "devices are not merged: NCCL_IB_MERGE_NICS=0");
		return ncclInvalidUsage;
	}
	EP_CHECK(ep_net_nic_new(indices, n, &made));
	pthread_mutex_lock(&ep_net_nics_lock);
	i = ep_net_nic_place(&made);
	if (i < EP_NET_NICS && !ep_net_nics[i]) {
		kept = malloc(sizeof(*kept));
		if (kept) {
			made.index = i;
			*kept = made;
			__atomic_store_n(&ep_net_nics[i], kept, __ATOMIC_RELEASE);
		}
	}
	there = i < EP_NET_NICS && ep_net_nics[i];
	if (there && ep_net_nics_counted[table] <= i) {
		ep_net_nics_counted[table] = i + 1;
	}
	pthread_mutex_unlock(&ep_net_nics_lock);
	if (!there) {
		return ep_fail(ncclSystemError, "%s cannot be merged: %s", made.label,
			       i == EP_NET_NICS ? "there are too many NICs" : "out of host memory");
	}
	if (kept) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "device %d is %s", i, made.label);
	}
	*index = i;
	return ncclSuccess;
}

/* ---- opening ---- */

ncclResult_t ep_net_nic_hold(const struct ep_net_nic *nic)
{
	ncclResult_t result;
	int i = 0, down = 0;

	/* Where there are several, the others do without one that is down. */
	for (; i < nic->nports; i++) {
		EP_CHECK_GOTO(ep_net_dev_hold(nic->dev[i], nic->nports > 1), err_drop);
		down += ep_net_dev_down(nic->dev[i]);
	}
	if (nic->nports > 1 && down == nic->nports) {
		result = ep_fail(ncclSystemError, "%s: none of its ports is active", nic->label);
		goto err_drop;
	}
	return ncclSuccess;

err_drop:
	while (i-- > 0) {
		ep_net_dev_drop(nic->dev[i]);
	}
	return result;
}

void ep_net_nic_drop(const struct ep_net_nic *nic)
{
	for (int i = nic->nports; i-- > 0;) {
		ep_net_dev_drop(nic->dev[i]);
	}
}
