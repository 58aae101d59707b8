/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <string.h>
#include "core/nccl_logger.h"

static ep_nccl_logger_fn *ep_nccl_logger;

static bool nccl_logger_sink(enum ep_log_level level, unsigned int subsys, const char *text)
{
	return __atomic_load_n(&ep_nccl_logger, __ATOMIC_ACQUIRE)((int)level, subsys, text);
}

void ep_nccl_logger_use(void)
{
	void *plugin, *address;
	ep_nccl_logger_fn *logger;

	if (__atomic_load_n(&ep_nccl_logger, __ATOMIC_RELAXED)) {
		return;
	}
	plugin = dlopen(EP_NCCL_LOGGER_PLUGIN, RTLD_LAZY | RTLD_NOLOAD);
	address = plugin ? dlsym(plugin, EP_NCCL_LOGGER_NAME) : NULL;
	if (address) {
		/* ISO C does not convert object pointers to function pointers */
		memcpy(&logger, &address, sizeof(logger));
		__atomic_store_n(&ep_nccl_logger, logger, __ATOMIC_RELEASE);
		ep_log_to(nccl_logger_sink);
	}
	if (plugin) {
		dlclose(plugin); /* NCCL, who has loaded it, keeps it; and it is never unmapped */
	}
}
