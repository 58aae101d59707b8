/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked with one library of the name, run with another preloaded: says which one its calls reach.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <nccl_ep.h>

int main(int argc, char **argv)
{
	ncclResult_t (*ask)(const char **) = NULL;
	ncclResult_t (*why)(ncclEpGroup_t, ncclResult_t *, const char **) = NULL;
	const char *text = "another library";
	ncclEpGroup_t group = NULL;
	int version = 0;

	if (ncclEpGetVersion(&version) != ncclSuccess) {
		return 2;
	}
	*(void **)&ask = dlsym(RTLD_DEFAULT, "ncclEpExtVersion");
	if (ask && ask(&text) != ncclSuccess) {
		return 2;
	}
	printf("%d: %s\n", version, text);
	if (argc > 1 && strcmp(argv[1], "group") == 0) { /* of a communicator that cannot be one */
		ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
		ncclResult_t code = ncclEpCreateGroup(&group, (ncclComm_t)argv, &config);

		*(void **)&why = dlsym(RTLD_DEFAULT, "ncclEpExtGetLastError");
		if (!why || why(NULL, NULL, &text) != ncclSuccess) {
			return 2;
		}
		printf("%d: %s\n", code, text);
	}
	return 0;
}
