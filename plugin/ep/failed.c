/* SPDX-License-Identifier: Apache-2.0 */
/* Marks a group as failed. */
#include "core/log.h"
#include "ep/failed.h"
#include "ep/show.h"

void ep_group_fail(struct ncclEpGroup *group)
{
	group->failed = true;
	ep_error_get(NULL, &group->failure);
	ep_show_failure(&group->show, group->failure.text);
	__atomic_store_n(group->async_error, 1, __ATOMIC_RELEASE);
}
