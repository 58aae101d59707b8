/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TOOLS_EP_INFO_LIBRARY_H
#define EP_TOOLS_EP_INFO_LIBRARY_H

/* Calls int f(int *) from a library; NULL, or why not. */
const char *ep_info_call_version(void *lib, const char *symbol, int *version);
/* The libraries that programs get from the loader, and those that were installed here, if they differ. */
void ep_info_libraries(void);
/* The first of these that loads. NULL, and why. */
#define EP_INFO_WHY 512
void *ep_info_library(char why[EP_INFO_WHY]);

#endif
