/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include "net/gin_rig.h"

/* ---- tables ---- */

/* The order of members; those that a version lacks are left out. */
static bool gin_has(const struct gin *g, enum gin_part part)
{
	switch (part) {
	case GIN_FEATURES:
		return g->rma ? g->version >= 16 : g->version >= 14;
	case GIN_PUT:
	case GIN_PUT_SIGNAL:
	case GIN_TEST:
		return g->rma || g->version <= 13;
	case GIN_GET:
	case GIN_FLUSH:
		return g->rma || g->version == 13;
	default:
		return true;
	}
}

int gin_place(const struct gin *g, enum gin_part part)
{
	int place = 1; /* behind the name */

	if (!gin_has(g, part)) {
		return -1;
	}
	for (int p = 0; p < (int)part; p++) {
		place += gin_has(g, (enum gin_part)p);
	}
	return place;
}

#define CALL(g, part, ...) ((int (*)(__VA_ARGS__))(uintptr_t)(g)->table[gin_place(g, part)])

void gin_load(struct gin *g, const char *library, const char *name)
{
	g->rma = *name == 'r';
	g->version = atoi(name + 1);
	g->instance = NULL;
	g->table = net_table(library, g->rma ? "Rma" : "Gin", g->version);
}

int gin_init(struct gin *g)
{
	return CALL(g, GIN_INIT, void **, uint64_t, void *)(&g->instance, 4711, net_logger());
}

int gin_finalize(struct gin *g)
{
	return CALL(g, GIN_FINALIZE, void *)(g->instance);
}

int gin_properties(struct gin *g, int dev, struct net_props *p)
{
	struct net as = { .version = g->rma || g->version >= 13 ? 12 : 11, .table = g->table };

	return net_properties_at(&as, gin_place(g, GIN_PROPERTIES), dev, p);
}

int gin_listen(struct gin *g, int dev, void *handle, void **comm)
{
	return CALL(g, GIN_LISTEN, void *, int, void *, void **)(g->instance, dev, handle, comm);
}

int gin_connect(struct gin *g, void **handles, int n, int rank, int contexts, void *listener,
		void **coll)
{
	/* NCCL gives another context, or none, in place of the listener's. */
	if (!g->rma && g->version == 12) {
		return CALL(g, GIN_CONNECT, void *, void **, int, int, int, int, void *,
			    void **)(NULL, handles, n, rank, contexts, 256, listener, coll);
	}
	return CALL(g, GIN_CONNECT, void *, void **, int, int, void *,
		    void **)(NULL, handles, n, rank, listener, coll);
}

int gin_create(struct gin *g, void *coll, int contexts, int stride, void **ctx)
{
	int gin_config[7] = { 100, 100, contexts, 0, -1, 2, stride };
	int rma_config[3] = { contexts, -1, stride };
	void *device = gin_config;
	int rc;

	if (g->rma) {
		return CALL(g, GIN_CREATE, void *, void *, void **)(coll, rma_config, ctx);
	}
	if (g->version <= 12) {
		*ctx = coll;
		return NET_OK;
	}
	/* (2.30.4 gives no place for the device's handle) */
	rc = CALL(g, GIN_CREATE, void *, void *, void **, void **)(
		coll, gin_config, ctx, g->version == 13 && contexts % 2 ? NULL : &device);
	CHECK(device == gin_config || !device, "a device handle");
	return rc;
}

int gin_reg(struct gin *g, void *coll, void *data, size_t size, uint64_t flags, void **mr)
{
	void *second = NULL;
	int rc;

	if (g->rma) {
		return CALL(g, GIN_REG, void *, void *, size_t, int, uint64_t,
			    void **)(coll, data, size, NET_HOST, flags, mr);
	}
	rc = CALL(g, GIN_REG, void *, void *, size_t, int, uint64_t, void **,
		  void **)(coll, data, size, NET_HOST, flags, mr, &second);
	/* NCCL 2.28 names signals and windows by the second one. */
	CHECK(second == *mr, "%p and %p", *mr, second);
	return rc;
}

int gin_reg_dmabuf(struct gin *g, void *coll, const struct net_dmabuf *d, size_t size,
		   uint64_t flags, void **mr)
{
	void *second = NULL;
	int rc;

	if (g->rma) {
		return CALL(g, GIN_REG_DMABUF, void *, void *, size_t, int, uint64_t, int, uint64_t,
			    void **)(coll, d->data, size, NET_CUDA, d->offset, d->fd, flags, mr);
	}
	rc = CALL(g, GIN_REG_DMABUF, void *, void *, size_t, int, uint64_t, int, uint64_t, void **,
		  void **)(coll, d->data, size, NET_CUDA, d->offset, d->fd, flags, mr, &second);
	CHECK(second == *mr, "%p and %p", *mr, second);
	return rc;
}

int gin_dereg(struct gin *g, void *coll, void *mr)
{
	return CALL(g, GIN_DEREG, void *, void *)(coll, mr);
}

int gin_close(struct gin *g, enum gin_part which, void *object)
{
	if (which == GIN_DESTROY && !g->rma && g->version <= 12) {
		return NET_OK; /* ranks have their contexts until they are closed */
	}
	return CALL(g, which, void *)(object);
}

/* ---- data ---- */

static int gin_put_plain(struct gin *g, void *ctx, const struct gin_put *p, void **request)
{
	if (g->rma && g->version >= 15) {
		return CALL(g, GIN_PUT, void *, int, uint64_t, void *, size_t, uint64_t, void *,
			    uint32_t, uint32_t, void **)(ctx, p->context, p->from_at, p->from,
							 p->size, p->to_at, p->to, p->rank, 1,
							 request);
	}
	if (g->rma || g->version == 13) {
		return CALL(g, GIN_PUT, void *, int, uint64_t, void *, size_t, uint64_t, void *,
			    uint32_t, void **)(ctx, p->context, p->from_at, p->from, p->size,
					       p->to_at, p->to, p->rank, request);
	}
	if (g->version == 12) {
		return CALL(g, GIN_PUT, void *, uint64_t, void *, size_t, uint64_t, void *,
			    uint32_t, int, void **)(ctx, p->from_at, p->from, p->size, p->to_at,
						    p->to, p->rank, p->context, request);
	}
	return CALL(g, GIN_PUT, void *, uint64_t, void *, size_t, uint64_t, void *, uint32_t,
		    void **)(ctx, p->from_at, p->from, p->size, p->to_at, p->to, p->rank, request);
}

int gin_put(struct gin *g, void *ctx, const struct gin_put *p, void **request)
{
	if (!p->op) {
		return gin_put_plain(g, ctx, p, request);
	}
	if (g->rma && g->version >= 15) {
		return CALL(g, GIN_PUT_SIGNAL, void *, int, uint64_t, void *, size_t, uint64_t,
			    void *, uint32_t, uint64_t, void *, uint64_t, uint32_t, bool, uint32_t,
			    void **)(ctx, p->context, p->from_at, p->from, p->size, p->to_at, p->to,
				     p->rank, p->signal_at, p->signal, p->value, p->op, true, 0,
				     request);
	}
	if (g->rma) {
		return CALL(g, GIN_PUT_SIGNAL, void *, int, uint64_t, void *, size_t, uint64_t,
			    void *, uint32_t, uint64_t, void *, uint64_t, uint32_t, bool,
			    void **)(ctx, p->context, p->from_at, p->from, p->size, p->to_at, p->to,
				     p->rank, p->signal_at, p->signal, p->value, p->op, false,
				     request);
	}
	if (g->version == 13) {
		return CALL(g, GIN_PUT_SIGNAL, void *, int, uint64_t, void *, size_t, uint64_t,
			    void *, uint32_t, uint64_t, void *, uint64_t, uint32_t,
			    void **)(ctx, p->context, p->from_at, p->from, p->size, p->to_at, p->to,
				     p->rank, p->signal_at, p->signal, p->value, p->op, request);
	}
	if (g->version == 12) {
		return CALL(g, GIN_PUT_SIGNAL, void *, uint64_t, void *, size_t, uint64_t, void *,
			    uint32_t, uint64_t, void *, uint64_t, uint32_t, int,
			    void **)(ctx, p->from_at, p->from, p->size, p->to_at, p->to, p->rank,
				     p->signal_at, p->signal, p->value, p->op, p->context, request);
	}
	return CALL(g, GIN_PUT_SIGNAL, void *, uint64_t, void *, size_t, uint64_t, void *, uint32_t,
		    uint64_t, void *, uint64_t, uint32_t,
		    void **)(ctx, p->from_at, p->from, p->size, p->to_at, p->to, p->rank,
			     p->signal_at, p->signal, p->value, p->op, request);
}

int gin_get(struct gin *g, void *ctx, const struct gin_put *p, void **request)
{
	if (g->rma && g->version >= 15) {
		return CALL(g, GIN_GET, void *, int, uint64_t, void *, size_t, uint64_t, void *,
			    uint32_t, uint32_t, void **)(ctx, p->context, p->from_at, p->from,
							 p->size, p->to_at, p->to, p->rank, 0,
							 request);
	}
	return CALL(g, GIN_GET, void *, int, uint64_t, void *, size_t, uint64_t, void *, uint32_t,
		    void **)(ctx, p->context, p->from_at, p->from, p->size, p->to_at, p->to,
			     p->rank, request);
}

int gin_flush(struct gin *g, void *ctx, int context, void *mr, uint32_t rank, void **request)
{
	return CALL(g, GIN_FLUSH, void *, int, void *, uint32_t, void **)(ctx, context, mr, rank,
									  request);
}

int gin_test(struct gin *g, void *coll, void *request, int *done)
{
	return CALL(g, GIN_TEST, void *, void *, int *)(coll, request, done);
}

int gin_wait(struct gin *g, void *coll, void *request)
{
	int done = 0;

	return NET_UNTIL(done, gin_test(g, coll, request, &done));
}

/* ---- ranks ---- */

void gin_world_open(struct gin_world *w, struct gin *g, int n, int nics, int contexts)
{
	w->g = g;
	w->n = n;
	w->contexts = contexts;
	for (int r = 0; r < n; r++) {
		memset(w->handle[r], 0x5a, NET_HANDLE);
		NET_NEED(gin_listen(g, w->merged ? w->merged : r % nics, w->handle[r],
				    &w->listener[r]) == NET_OK,
			 "%s", net_log_last());
	}
}

int gin_world_join(struct gin_world *w, int rank, void **coll)
{
	uint8_t all[GIN_RANKS][NET_HANDLE] __attribute__((aligned(8)));
	void *handles[GIN_RANKS];

	memcpy(all, w->handle, sizeof(all));
	for (int r = 0; r < w->n; r++) {
		handles[r] = all[r];
	}
	return gin_connect(w->g, handles, w->n, rank, w->contexts, w->listener[rank], coll);
}

void gin_world_close(struct gin_world *w)
{
	for (int r = 0; r < w->n; r++) {
		CHECK_INT(gin_close(w->g, GIN_CLOSE_LISTEN, w->listener[r]), NET_OK);
	}
}

struct gin_thread {
	struct gin_world *w;
	int rank;
	void (*each)(struct gin_world *w, int rank);
};

static void *gin_thread_run(void *arg)
{
	struct gin_thread *t = arg;

	check_context("%s%d, rank %d", t->w->g->rma ? "r" : "g", t->w->g->version, t->rank);
	t->each(t->w, t->rank);
	return NULL;
}

void gin_world_run(struct gin_world *w, void (*each)(struct gin_world *w, int rank))
{
	struct gin_thread t[GIN_RANKS];
	pthread_t thread[GIN_RANKS];

	for (int r = 0; r < w->n; r++) {
		t[r] = (struct gin_thread){ w, r, each };
		NEED(pthread_create(&thread[r], NULL, gin_thread_run, &t[r]) == 0);
	}
	for (int r = 0; r < w->n; r++) {
		pthread_join(thread[r], NULL);
	}
}
