/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of a problem hold experts, and which bring tokens. */
#ifndef TEST_SUPPORT_ROLES_H
#define TEST_SUPPORT_ROLES_H

#include "support/check_nccl.h"
#include "support/world.h"
#include "tools/perf/oracle/oracle.h"

/* Draws them: sometimes all; more often others than those. */
void roles_draw(struct oracle_problem *p, uint64_t seed);
/* Those of a problem, for calls that take some; NULL: it has none. */
const ncclEpExtRoles_t *roles_of(const struct oracle_problem *p, ncclEpExtRoles_t *roles);
/* A group of any algorithm, with the problem's roles. */
ncclEpGroup_t roles_group(ncclComm_t comm, const struct oracle_problem *p,
			  const ncclEpGroupConfig_t *config);

#endif
