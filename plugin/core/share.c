/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <string.h>
#include "core/share.h"

static ep_share_log_fn *ep_share_logger;

static bool ep_share_sink(enum ep_log_level level, unsigned int subsys, const char *text)
{
	return __atomic_load_n(&ep_share_logger, __ATOMIC_ACQUIRE)((int)level, subsys, text);
}

void ep_share_log(void)
{
	void *plugin, *address;
	ep_share_log_fn *logger;

	if (__atomic_load_n(&ep_share_logger, __ATOMIC_RELAXED)) {
		return;
	}
	plugin = dlopen(EP_SHARE_PLUGIN, RTLD_LAZY | RTLD_NOLOAD);
	address = plugin ? dlsym(plugin, EP_SHARE_LOG) : NULL;
	if (address) {
		/* ISO C does not convert object pointers to function pointers */
		memcpy(&logger, &address, sizeof(logger));
		__atomic_store_n(&ep_share_logger, logger, __ATOMIC_RELEASE);
		ep_log_to(ep_share_sink);
	}
	if (plugin) {
		dlclose(plugin); /* NCCL, who has loaded it, keeps it; and it is never unmapped */
	}
}
