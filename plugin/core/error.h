/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error records: a code and one line of text.
 *
 * The first function that decides that something is an error calls ep_fail, which records the
 * line for the calling thread and for the group that the thread is working for, logs it and
 * returns the code. Everybody above passes the code on and logs nothing.
 */
#ifndef EP_CORE_ERROR_H
#define EP_CORE_ERROR_H

#include <pthread.h>
#include <stdbool.h>
#include <nccl.h>
#include "core/util.h"

#define EP_ERROR_TEXT 512

struct ep_error {
	ncclResult_t code;
	char text[EP_ERROR_TEXT];
};

/* Last error of something that outlives a call, a group for instance. */
struct ep_error_slot {
	pthread_mutex_t lock;
	struct ep_error last;
};

void ep_error_slot_init(struct ep_error_slot *slot);
void ep_error_slot_destroy(struct ep_error_slot *slot);

/*
 * Errors of this thread also go to `slot` from now on; NULL: no longer. Returns the previous one.
 */
struct ep_error_slot *ep_error_scope(struct ep_error_slot *slot);

/* Text: what failed, the offending value, the limit or the peer, what to do next. */
ncclResult_t ep_fail(ncclResult_t code, const char *fmt, ...) EP_PRINTF(2, 3);

/* Records without a log line, for failures that were logged when they were found. */
ncclResult_t ep_fail_again(const struct ep_error *error);

/* The thread's or the slot's last error. `slot` NULL: the thread's. */
void ep_error_get(struct ep_error_slot *slot, struct ep_error *out);

/* Why something is not possible, where that is no error yet because another way may be tried. */
#define EP_REASON_TEXT 320
struct ep_reason {
	char text[EP_REASON_TEXT];
};

/* Returns false, for functions that return whether something is possible. */
bool ep_reason_set(struct ep_reason *why, const char *fmt, ...) EP_PRINTF(2, 3);

#define EP_CHECK(call)                                                                             \
	do {                                                                                       \
		ncclResult_t ep_check_ = (call);                                                   \
		if (ep_check_ != ncclSuccess) {                                                    \
			return ep_check_;                                                          \
		}                                                                                  \
	} while (0)

/* With `result` in scope. */
#define EP_CHECK_GOTO(call, label)                                                                 \
	do {                                                                                       \
		result = (call);                                                                   \
		if (result != ncclSuccess) {                                                       \
			goto label;                                                                \
		}                                                                                  \
	} while (0)

#endif
