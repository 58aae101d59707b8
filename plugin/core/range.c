/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of calls for profilers, by NVTX; nothing without it. */
#include "core/range.h"

#ifdef EP_NVTX

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <nvtx3/nvToolsExt.h>

static nvtxDomainHandle_t range_domain; /* NULL: no tool listens */
static pthread_once_t range_once = PTHREAD_ONCE_INIT;

static void range_init(void)
{
	range_domain = nvtxDomainCreateA("Switchyard");
}

/* With the bytes as its payload, which profilers sum up. */
void ep_range_begin(const char *name, uint64_t tokens, uint64_t bytes)
{
	nvtxEventAttributes_t event = {
		.version = NVTX_VERSION,
		.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
		.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
		.messageType = NVTX_MESSAGE_TYPE_ASCII,
	};
	char text[120];

	pthread_once(&range_once, range_init);
	if (!range_domain) {
		return;
	}
	snprintf(text, sizeof(text), "%s: %" PRIu64 " tokens", name, tokens);
	if (bytes) {
		size_t n = strlen(text);

		snprintf(text + n, sizeof(text) - n, ", %" PRIu64 " bytes", bytes);
	}
	event.payload.ullValue = bytes;
	event.message.ascii = text;
	(void)nvtxDomainRangePushEx(range_domain, &event);
}

void ep_range_end(void)
{
	if (range_domain) {
		(void)nvtxDomainRangePop(range_domain);
	}
}

#else

void ep_range_begin(const char *name, uint64_t tokens, uint64_t bytes)
{
}

void ep_range_end(void)
{
}

#endif
