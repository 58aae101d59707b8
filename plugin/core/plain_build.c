/* SPDX-License-Identifier: Apache-2.0 */
#include "core/build.h"

__attribute__((weak)) const char ep_build_text[] = EP_BUILD_NAME EP_VERSION
	", part of another program, " EP_BUILD_TYPE;
