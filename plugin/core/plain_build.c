/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a program that is made of the library's objects and has no name and version of its
 * own.
 */
#include "core/build.h"

__attribute__((weak)) const char ep_build_text[] = EP_BUILD_NAME EP_VERSION
	", part of another program, " EP_BUILD_TYPE;
