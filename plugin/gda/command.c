/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what firmware has answered to a command. */
#include <string.h>
#include "gda/command.h"
#include "gda/prm.h"

bool ep_gda_command(const char *what, int error, const void *out, struct ep_reason *why)
{
	uint32_t status = ep_prm_get(out, EP_PRM_STATUS);

	if (!error && !status) {
		return true;
	}
	if (status) {
		return ep_reason_set(why, "%s was refused: status 0x%x, syndrome 0x%x%s%s", what,
				     status, ep_prm_get(out, EP_PRM_SYNDROME), error ? ": " : "",
				     error ? strerror(error) : "");
	}
	return ep_reason_set(why, "%s failed: %s", what, strerror(error));
}
