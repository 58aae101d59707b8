/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of the plugin's objects in this process, over the virtual cluster's software NIC in
 * single steps (nic/step.h): it does all there is to do when somebody polls.
 */
#ifndef TEST_NET_ENDS_H
#define TEST_NET_ENDS_H

#include "net/p2p.h"
#include "nic/step.h"
#include "support/check.h"

/* Completions that the NIC is not to tell of: of slots, READs or WRITEs. */
extern bool ends_no_slots, ends_no_reads, ends_no_writes;

/* Before anything else; `profile`: of the NIC, NULL: as it is. */
void ends_begin(const char *profile);
/* The NIC does all there is to do. */
void ends_settle(void);
/* Memory for the NIC's use; to be freed by ep_net_mr_free(). */
struct ep_net_mr *ends_register(const struct ep_net_nic *nic, void *data, size_t size);

/* A device, open and held, as a NIC of one port. */
struct ep_net_nic *ends_nic(int device);
/* The same with another device's port as its second one. */
struct ep_net_nic *ends_nic_two(int device, int other);
void ends_nic_drop(struct ep_net_nic *nic);

/* A sender and a receiver. */
void pair_of_paths(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t paths, uint32_t nqps,
		   int tc, struct ep_net_comm *pair[2]);
void pair_make(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t nqps, int tc,
	       struct ep_net_comm *pair[2]);
void pair_free(struct ep_net_comm *pair[2]);
/* And their NICs. */
void pair_end(struct ep_net_comm *pair[2], struct ep_net_nic *from, struct ep_net_nic *to);

#endif
