/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/param.h"
#include "nccl_ep.h"

#define EP_STRING_(x) #x
#define EP_STRING(x) EP_STRING_(x)
#define EP_VERSION_TEXT                                                                            \
	EP_STRING(NCCL_EP_MAJOR) "." EP_STRING(NCCL_EP_MINOR) "." EP_STRING(NCCL_EP_PATCH)

/*
 * Programs look for this line in the library's file, to compare the CUDA version with NCCL's.
 * CUDA's headers have it as a number only: meson.build makes EP_CUDA_TEXT of that.
 */
static const char ep_banner[] = "NCCL EP version " EP_VERSION_TEXT "+cuda" EP_CUDA_TEXT "\n";

__attribute__((constructor)) static void ep_banner_print(void)
{
	const char *text = getenv(ep_param_table[EP_PARAM_DEBUG].name);
	int64_t on = 0;

	if (text && ep_param_parse(EP_PARAM_DEBUG, text, &on) == ncclSuccess && on &&
	    write(STDERR_FILENO, ep_banner, sizeof(ep_banner) - 1) < 0) {
		return; /* no standard error, no banner */
	}
}
