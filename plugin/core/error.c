/* SPDX-License-Identifier: Apache-2.0 */
/* The last error, of the thread and of the group that it works for. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/error.h"
#include "core/log.h"

static __thread struct ep_error thread_last;
static __thread struct ep_error_slot *thread_slot;

void ep_error_slot_init(struct ep_error_slot *slot)
{
	pthread_mutex_init(&slot->lock, NULL);
	memset(&slot->last, 0, sizeof(slot->last));
}

void ep_error_slot_destroy(struct ep_error_slot *slot)
{
	if (thread_slot == slot) {
		thread_slot = NULL;
	}
	pthread_mutex_destroy(&slot->lock);
}

struct ep_error_slot *ep_error_scope(struct ep_error_slot *slot)
{
	struct ep_error_slot *previous = thread_slot;

	thread_slot = slot;
	return previous;
}

ncclResult_t ep_fail_again(const struct ep_error *error)
{
	if (error != &thread_last) {
		thread_last = *error;
	}
	if (thread_slot) {
		pthread_mutex_lock(&thread_slot->lock);
		thread_slot->last = thread_last;
		pthread_mutex_unlock(&thread_slot->lock);
	}
	return thread_last.code;
}

ncclResult_t ep_fail(ncclResult_t code, const char *fmt, ...)
{
	va_list args;

	thread_last.code = code;
	va_start(args, fmt);
	vsnprintf(thread_last.text, sizeof(thread_last.text), fmt, args);
	va_end(args);
	ep_log_flatten(thread_last.text);
	ep_log(EP_LOG_WARN, EP_LOG_ALL, "%s", thread_last.text);
	return ep_fail_again(&thread_last);
}

void ep_error_get(struct ep_error_slot *slot, struct ep_error *out)
{
	if (!slot) {
		*out = thread_last;
		return;
	}
	pthread_mutex_lock(&slot->lock);
	*out = slot->last;
	pthread_mutex_unlock(&slot->lock);
}

bool ep_reason_set(struct ep_reason *why, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why->text, sizeof(why->text), fmt, args);
	va_end(args);
	return false;
}
