/* SPDX-License-Identifier: Apache-2.0 */
/* The table for GIN as NCCL 2.28 sees it: places, not names, written down from NCCL's side. */
#ifndef TEST_NET_GIN_RIG_H
#define TEST_NET_GIN_RIG_H

#include "net/rig.h"

#define GIN_INC 1
#define GIN_ADD 2
#define GIN_FORCE_SO 1

struct gin {
	void **table;
	void *instance;
};

/* Members of the table, behind its name. */
enum gin_part {
	GIN_INIT = 1,
	GIN_DEVICES,
	GIN_PROPERTIES,
	GIN_LISTEN,
	GIN_CONNECT,
	GIN_CREATE,
	GIN_REG,
	GIN_REG_DMABUF,
	GIN_DEREG,
	GIN_DESTROY,
	GIN_CLOSE_COLL,
	GIN_CLOSE_LISTEN,
	GIN_PUT,
	GIN_PUT_SIGNAL,
	GIN_TEST,
	GIN_PROGRESS,
	GIN_LAST_ERROR,
	GIN_FINALIZE,
	GIN_PARTS
};

void gin_load(struct gin *g, const char *library);
int gin_init(struct gin *g);
int gin_finalize(struct gin *g);
int gin_properties(struct gin *g, int dev, struct net_props *p);
int gin_listen(struct gin *g, int dev, void *handle, void **comm);
int gin_connect(struct gin *g, void **handles, int n, int rank, void *listener, void **coll);
int gin_reg(struct gin *g, void *coll, void *data, size_t size, uint64_t flags, void **mr);
int gin_reg_dmabuf(struct gin *g, void *coll, const struct net_dmabuf *d, size_t size,
		   uint64_t flags, void **mr);
int gin_dereg(struct gin *g, void *coll, void *mr);
/* Calls with one pointer: closing. */
int gin_close(struct gin *g, enum gin_part which, void *object);

struct gin_put {
	uint64_t from_at, to_at, signal_at, value;
	void *from, *to, *signal;
	size_t size;
	uint32_t rank, op; /* op 0: no signal */
};
int gin_put(struct gin *g, void *coll, const struct gin_put *p, void **request);
int gin_test(struct gin *g, void *coll, void *request, int *done);
/* Tests a request until it is done, for 30 s at most. Returns the code of the last test. */
int gin_wait(struct gin *g, void *coll, void *request);

/* Ranks as threads of this process: all listen, then all connect. Returns the code. */
#define GIN_RANKS 8
struct gin_world {
	struct gin *g;
	int n;
	int merged; /* number of the NIC that all use; 0: ranks take the first ones in turn */
	uint8_t handle[GIN_RANKS][NET_HANDLE];
	void *listener[GIN_RANKS];
};
/* (`merged` has been set) */
void gin_world_open(struct gin_world *w, struct gin *g, int n, int nics);
int gin_world_join(struct gin_world *w, int rank, void **coll);
void gin_world_close(struct gin_world *w);
/* Runs `each` for all ranks at once. */
void gin_world_run(struct gin_world *w, void (*each)(struct gin_world *w, int rank));

#endif
