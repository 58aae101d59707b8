/* SPDX-License-Identifier: Apache-2.0 */
/* For a program that defines a function of a library itself, and passes calls on. */
#ifndef TEST_SUPPORT_NEXT_H
#define TEST_SUPPORT_NEXT_H

#include <dlfcn.h>

/* The function of the same name that this one hides. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#endif
