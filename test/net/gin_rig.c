/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include "net/gin_rig.h"

#define CALL(g, part, ...) ((int (*)(__VA_ARGS__))(uintptr_t)(g)->table[part])

void gin_load(struct gin *g, const char *library)
{
	g->instance = NULL;
	g->table = net_table(library, "Gin", 11);
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
	struct net as = { .version = 11, .table = g->table };

	return net_properties_at(&as, GIN_PROPERTIES, dev, p);
}

int gin_listen(struct gin *g, int dev, void *handle, void **comm)
{
	return CALL(g, GIN_LISTEN, void *, int, void *, void **)(g->instance, dev, handle, comm);
}

int gin_connect(struct gin *g, void **handles, int n, int rank, void *listener, void **coll)
{
	/* NCCL gives another context, or none, in place of the listener's. */
	return CALL(g, GIN_CONNECT, void *, void **, int, int, void *,
		    void **)(NULL, handles, n, rank, listener, coll);
}

int gin_reg(struct gin *g, void *coll, void *data, size_t size, uint64_t flags, void **mr)
{
	void *second = NULL;
	int rc = CALL(g, GIN_REG, void *, void *, size_t, int, uint64_t, void **,
		      void **)(coll, data, size, NET_HOST, flags, mr, &second);

	/* NCCL 2.28 names signals and windows by the second one. */
	CHECK(second == *mr, "%p and %p", *mr, second);
	return rc;
}

int gin_reg_dmabuf(struct gin *g, void *coll, const struct net_dmabuf *d, size_t size,
		   uint64_t flags, void **mr)
{
	void *second = NULL;
	int rc = CALL(g, GIN_REG_DMABUF, void *, void *, size_t, int, uint64_t, int, uint64_t,
		      void **,
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
	return CALL(g, which, void *)(object);
}

/* ---- data ---- */

int gin_put(struct gin *g, void *coll, const struct gin_put *p, void **request)
{
	if (!p->op) {
		return CALL(g, GIN_PUT, void *, uint64_t, void *, size_t, uint64_t, void *,
			    uint32_t, void **)(coll, p->from_at, p->from, p->size, p->to_at, p->to,
					       p->rank, request);
	}
	return CALL(g, GIN_PUT_SIGNAL, void *, uint64_t, void *, size_t, uint64_t, void *, uint32_t,
		    uint64_t, void *, uint64_t, uint32_t,
		    void **)(coll, p->from_at, p->from, p->size, p->to_at, p->to, p->rank,
			     p->signal_at, p->signal, p->value, p->op, request);
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

void gin_world_open(struct gin_world *w, struct gin *g, int n, int nics)
{
	w->g = g;
	w->n = n;
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
	return gin_connect(w->g, handles, w->n, rank, w->listener[rank], coll);
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

	check_context("rank %d", t->rank);
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
