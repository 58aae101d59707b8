/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that link the library's objects. */
#ifndef TEST_SUPPORT_REASON_H
#define TEST_SUPPORT_REASON_H

#include "core/error.h"

/* Why this thread's last call outside any group failed. */
static inline const char *last_text(void)
{
	static __thread struct ep_error error;

	ep_error_get(NULL, &error);
	return error.text;
}

#endif
