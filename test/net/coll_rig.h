/* SPDX-License-Identifier: Apache-2.0 */
/* The tables for collectives as NCCL sees them: places, not names. */
#ifndef TEST_NET_COLL_RIG_H
#define TEST_NET_COLL_RIG_H

#include "net/rig.h"

enum place {
	C_NAME,
	C_INIT,
	C_DEVICES,
	C_PROPERTIES,
	C_LISTEN,
	C_CONNECT,
	C_SUPPORT,
	C_REG,
	C_REG_DMABUF,
	C_DEREG,
	C_ALLREDUCE,
	C_ALLGATHER,
	C_REDUCESCATTER,
	C_FLUSH,
	C_TEST,
	C_CLOSE,
	C_CLOSE_LISTEN,
	C_MAKE_VDEVICE, /* from version 9 on */
	C_FINALIZE      /* from version 11 on */
};

struct part {
	void *mr, *at;
	size_t size; /* (version 8 has 32 bits of it, in the same 24 bytes) */
};

struct window {
	size_t each, offset, bytes;
};

static void **table;
static int version;
static void *instance;

#define CALL(place, ...) ((int (*)(__VA_ARGS__))(uintptr_t)table[place])

static inline void load(const char *library)
{
	table = net_table(library, "CollNet", version);
	for (int i = C_INIT; i < (version >= 11 ? 19 : version >= 9 ? 18 : 17); i++) {
		CHECK(table[i], "member %d", i);
	}
}

static inline int init(void)
{
	return version >= 11 ? CALL(C_INIT, void **, uint64_t, void *)(&instance, 1, net_logger())
			     : CALL(C_INIT, void *)(net_logger());
}

static inline void finalize(void)
{
	if (version >= 11) {
		CHECK_INT(CALL(C_FINALIZE, void *)(instance), NET_OK);
	}
}

static inline int devices(void)
{
	int count = -1;

	CHECK_INT(CALL(C_DEVICES, int *)(&count), NET_OK);
	return count;
}

static inline int merge(const int *devs, int n)
{
	int props[9] = { n }, dev = -1;

	memcpy(props + 1, devs, (size_t)n * sizeof(*devs));
	CHECK_INT(CALL(C_MAKE_VDEVICE, int *, void *)(&dev, props), NET_OK);
	return dev;
}

static inline int listen_at(int dev, void *handle, void **listener)
{
	return version >= 11 ? CALL(C_LISTEN, void *, int, void *, void **)(instance, dev, handle,
									    listener)
			     : CALL(C_LISTEN, int, void *, void **)(dev, handle, listener);
}

static inline int join(void **handles, int n, int rank, void *listener, void **coll)
{
	return CALL(C_CONNECT, void **, int, int, void *, void **)(handles, n, rank, listener,
								   coll);
}

static inline int reg(void *coll, void *data, size_t size, void **mr)
{
	return CALL(C_REG, void *, void *, size_t, int, void **)(coll, data, size, NET_HOST, mr);
}

static inline int all_gather(void *coll, void *from, void *from_mr, int n, struct part *parts,
			     const struct window *w, void **request)
{
	return CALL(C_ALLGATHER, void *, void *, int, void *, size_t, size_t, size_t, void *,
		    void **)(coll, from, n, parts, w->each, w->offset, w->bytes, from_mr, request);
}

static inline int test_request(void *request, int *done, int *size)
{
	return CALL(C_TEST, void *, int *, int *)(request, done, size);
}

static inline int wait_request(void *request, int *size)
{
	int done = 0;

	return NET_UNTIL(done, test_request(request, &done, size));
}

#endif
