/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of the virtual cluster needs: identity, environment, time, the end of the process. */
#ifndef VC_UTIL_H
#define VC_UTIL_H

#include <stdint.h>
#include "clock/thread.h" /* time */

/* Exit codes that say who gave up. */
#define VC_EXIT_WATCHDOG 86
#define VC_EXIT_ILLEGAL 87

/* Rank of the process for messages, -1 when it is not one. */
int vc_rank(void);
long vc_env_long(const char *name, long fallback);
void vc_die(int code, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

#endif
