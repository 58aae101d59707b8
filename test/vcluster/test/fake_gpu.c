/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 with one GPU, for the NIC's copies: its memory cannot be touched at its addresses,
 * and what is queued on a stream is done when somebody waits for the stream, not before.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fake_gpu.h"

#define ALLOCATIONS 64
#define QUEUE 65536

struct work {
	uint8_t *to;
	const uint8_t *from;
	size_t bytes;
	uint64_t value;
	int kind; /* 0: copy; 4, 8: store the value */
};

struct stream {
	struct work work[QUEUE];
	uint32_t n;
};

static struct {
	uint8_t *at, *shadow;
	size_t size;
} memory[ALLOCATIONS];
static int count;
struct fake_gpu_calls fake_gpu_calls;
static int current, context;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint8_t *fake_gpu_shadow(uint64_t p, size_t bytes)
{
	for (int i = 0; i < count; i++) {
		if (p - (uintptr_t)memory[i].at < memory[i].size) {
			if (p - (uintptr_t)memory[i].at + bytes > memory[i].size) {
				abort();
			}
			return memory[i].shadow + (p - (uintptr_t)memory[i].at);
		}
	}
	return NULL;
}

int cuInit(unsigned int flags)
{
	return flags ? 1 : 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal ? 101 : 0;
}

int cuDevicePrimaryCtxRetain(void **ctx, int device)
{
	*ctx = &context;
	return device ? 101 : 0;
}

int cuCtxPushCurrent_v2(void *ctx)
{
	pthread_mutex_lock(&lock);
	current += ctx == &context;
	pthread_mutex_unlock(&lock);
	return ctx == &context ? 0 : 201;
}

int cuCtxPopCurrent_v2(void **ctx)
{
	pthread_mutex_lock(&lock);
	current--;
	pthread_mutex_unlock(&lock);
	*ctx = &context;
	return 0;
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t p)
{
	if (!fake_gpu_shadow(p, 1)) {
		return 1;
	}
	*(int *)data = attribute == 2 ? 2 : 0;
	return 0;
}

int cuStreamCreate(void **stream, unsigned int flags)
{
	*stream = calloc(1, sizeof(struct stream));
	return !*stream || flags != 1 || current <= 0;
}

int cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
	(void)flags;
	*p = malloc(bytes);
	return !*p;
}

int cuMemAlloc_v2(uint64_t *p, size_t bytes)
{
	int fd = memfd_create("gpu", MFD_CLOEXEC);
	uint8_t *shadow, *at;

	if (count == ALLOCATIONS || fd < 0 || ftruncate(fd, (off_t)bytes)) {
		return 2;
	}
	shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	close(fd);
	if (shadow == MAP_FAILED || at == MAP_FAILED) {
		return 2;
	}
	memory[count].at = at;
	memory[count].shadow = shadow;
	memory[count].size = bytes;
	count++;
	*p = (uintptr_t)at;
	return 0;
}

static int queue(void *stream, struct work work)
{
	struct stream *s = stream;

	if (!work.to || !work.from || s->n == QUEUE || current <= 0) {
		return 1;
	}
	s->work[s->n++] = work;
	return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
	fake_gpu_calls.in++;
	return queue(stream, (struct work){ fake_gpu_shadow(to, bytes), from, bytes, 0, 0 });
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream)
{
	fake_gpu_calls.out++;
	return queue(stream, (struct work){ to, fake_gpu_shadow(from, bytes), bytes, 0, 0 });
}

int cuStreamWriteValue64_v2(void *stream, uint64_t to, uint64_t value, unsigned int flags)
{
	uint8_t *p = fake_gpu_shadow(to, 8);

	return flags ? 1 : queue(stream, (struct work){ p, p, 8, value, 8 });
}

int cuStreamWriteValue32_v2(void *stream, uint64_t to, uint32_t value, unsigned int flags)
{
	uint8_t *p = fake_gpu_shadow(to, 4);

	return flags ? 1 : queue(stream, (struct work){ p, p, 4, value, 4 });
}

int cuStreamSynchronize(void *stream)
{
	struct stream *s = stream;

	fake_gpu_calls.waits++;
	for (uint32_t i = 0; i < s->n; i++) {
		struct work *w = &s->work[i];

		memcpy(w->to, w->kind ? (const uint8_t *)&w->value : w->from, w->bytes);
	}
	s->n = 0;
	return current <= 0;
}
