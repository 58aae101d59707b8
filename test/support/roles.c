/* SPDX-License-Identifier: Apache-2.0 */
#include "support/roles.h"

void roles_draw(struct oracle_problem *p, uint64_t seed)
{
	uint64_t s = seed * 1471 + 3;
	uint32_t n = p->nranks;

	p->holders = 1 + (uint32_t)world_draw(&s, n);
	p->first_holder = (uint32_t)world_draw(&s, n - p->holders + 1);
	p->senders = 1 + (uint32_t)world_draw(&s, n);
	p->first_sender = (uint32_t)world_draw(&s, n - p->senders + 1);
	if (n > 1 && world_draw(&s, 2)) { /* the first ones bring tokens, the others hold experts */
		p->senders = p->first_holder = 1 + (uint32_t)world_draw(&s, n - 1);
		p->first_sender = 0;
		p->holders = n - p->senders;
	}
}

const ncclEpExtRoles_t *roles_of(const struct oracle_problem *p, ncclEpExtRoles_t *roles)
{
	*roles = (ncclEpExtRoles_t)NCCL_EP_EXT_ROLES_INIT;
	roles->first_holder = p->first_holder;
	roles->num_holders = p->holders;
	roles->first_sender = p->first_sender;
	roles->num_senders = p->senders;
	return p->holders || p->senders ? roles : NULL;
}

ncclEpGroup_t roles_group(ncclComm_t comm, const struct oracle_problem *p,
			  const ncclEpGroupConfig_t *config)
{
	ncclEpGroup_t group = NULL;
	ncclEpExtRoles_t roles;

	NEED_OK(roles_of(p, &roles) ? ncclEpExtCreateGroup(&group, comm, config, &roles)
				    : ncclEpCreateGroup(&group, comm, config));
	return group;
}
