/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "core/param.h"
#include "net/link/handshake.h"

uint64_t ep_net_setup_ns(void)
{
	return (uint64_t)ep_param_or_initial(EP_PARAM_BOOTSTRAP_TIMEOUT_MS) * 1000000;
}

bool ep_net_end_good(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps)
{
	bool good = nqps >= 1 && nqps <= EP_NET_MAX_QPS &&
		    memchr(end->name, '\0', sizeof(end->name)) && end->mtu >= IBV_MTU_256 &&
		    end->mtu <= IBV_MTU_4096 && end->roce <= 2;

	for (uint32_t i = 0; good && qpn && i < nqps; i++) {
		good = qpn[i] <= 0xffffff;
	}
	return good;
}

ncclResult_t ep_net_end_check(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps,
			      const char *who)
{
	return ep_net_end_good(end, qpn, nqps)
		       ? ncclSuccess
		       : ep_fail(ncclRemoteError,
				 "%s says of itself what cannot be (%u queue pairs, MTU code %u, "
				 "RoCE version %u): do all ranks use the same plugin?",
				 who, nqps, end->mtu, end->roce);
}
