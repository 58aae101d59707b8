/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin as NCCL sees it: a shared library with tables whose members have places, not names.
 * What stands where is written down here once more, from NCCL's side, and shares nothing with the
 * plugin's own description.
 */
#ifndef TEST_NET_RIG_H
#define TEST_NET_RIG_H

#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include "support/check.h"

/* NEED with what else is to be said. */
#define NET_NEED(cond, ...)                                                                        \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			check_false(__FILE__, __LINE__, #cond, " " __VA_ARGS__);                   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/*
 * Until a request is done or fails, for 30 s at most: `call` tests it. Gives the last test's code.
 */
#define NET_UNTIL(done, call)                                                                      \
	({                                                                                         \
		uint64_t until_ = net_now_ms() + 30000;                                            \
		int rc_ = NET_OK;                                                                  \
		while (!(done) && !rc_) {                                                          \
			NET_NEED(net_now_ms() < until_, "a request does not end");                 \
			rc_ = (call);                                                              \
			if (!(done)) {                                                             \
				usleep(20);                                                        \
			}                                                                          \
		}                                                                                  \
		rc_;                                                                               \
	})

#define NET_HANDLE 128
#define NET_HOST 1
#define NET_CUDA 2

enum net_place {
	NET_NAME,
	NET_INIT,
	NET_DEVICES,
	NET_PROPERTIES,
	NET_LISTEN,
	NET_CONNECT,
	NET_ACCEPT,
	NET_REG_MR,
	NET_REG_DMABUF,
	NET_DEREG_MR,
	NET_ISEND,
	NET_IRECV,
	NET_IFLUSH,
	NET_TEST,
	NET_CLOSE_SEND,
	NET_CLOSE_RECV,
	NET_CLOSE_LISTEN,
	NET_DEVICE_MR,
	NET_CONSUMED,
	NET_MAKE_VDEVICE, /* from version 9 on */
	NET_FINALIZE,     /* from version 11 on, */
	NET_SET_ATTR
};

struct net {
	int version;
	void **table;
	void *ctx; /* from version 11 on */
	/*
	 * Devices that pairs are made of, 0 and 1 by themselves. TEST_NET_PORTS=2+1 merges the
	 * first two for the first, and the next one is the second.
	 */
	int place[2];
};

/* What getProperties says, of any version; -1 where a version does not say it. */
struct net_props {
	char *name, *path;
	uint64_t guid;
	int ptr_support, global, force_flush, speed, port;
	float latency;
	int max_comms, max_recvs, type, type_version, ndevs, devs[8];
	long long max_p2p, max_coll;
	int max_multi, rail, plane;
};

/* Codes of ncclResult_t. */
enum {
	NET_OK = 0,
	NET_SYSTEM = 2,
	NET_ARGUMENT = 4,
	NET_USAGE = 5,
	NET_REMOTE = 6
};

/* A table of the library: of kind Net, CollNet, Gin or Rma. */
void **net_table(const char *library, const char *kind, int version);
void net_load(struct net *n, const char *library, int version);
int net_init(struct net *n, int traffic_class);
int net_finalize(struct net *n);
void *net_logger(void); /* what tables are given */
/* What was logged since: lines of a level (2: WARN, 3: INFO), and the last one of all. */
int net_log_count(int level);
const char *net_log_last(void);
/* The last line of a level that has a text in it; "": none. */
const char *net_log_find(int level, const char *part);
void net_log_clear(void);

int net_devices(struct net *n, int *count);
int net_properties(struct net *n, int dev, struct net_props *p);
/* Merges devices, as NCCL does. */
int net_merge(struct net *n, const int *devs, int count, int *dev);
/* The same by a table that has the call at another place. */
int net_properties_at(struct net *n, int place, int dev, struct net_props *p);
int net_listen(struct net *n, int dev, void *handle, void **comm);
int net_connect(struct net *n, int dev, void *handle, void **comm);
int net_accept(struct net *n, void *listener, void **comm);
int net_reg(struct net *n, void *comm, void *data, size_t size, int type, void **mr);
int net_reg_dmabuf(struct net *n, void *comm, void *data, size_t size, uint64_t offset, int fd,
		   void **mr);
int net_dereg(struct net *n, void *comm, void *mr);
int net_isend(struct net *n, void *comm, void *data, size_t size, int tag, void *mr, void **req);
int net_irecv(struct net *n, void *comm, int count, void **data, const size_t *sizes, int *tags,
	      void **mr, void **req);
int net_iflush(struct net *n, void *comm, int count, void **data, int *sizes, void **mr,
	       void **req);
int net_test(struct net *n, void *req, int *done, int *sizes);
int net_close(struct net *n, enum net_place which, void *comm);

/* Two ends in this process; made by one thread that asks both in turn. */
struct net_pair {
	void *send, *recv;
	uint16_t port; /* at which the receiver listened, in network order */
};
void net_pair_make(struct net *n, int from, int to, struct net_pair *pair);
void net_pair_close(struct net *n, struct net_pair *pair);

/* Tests a request until it is done, for 30 s at most. Returns the code of the last test. */
int net_wait(struct net *n, void *req, int *sizes);
/* Tries again until there is a request or an error, for 30 s at most. */
int net_send_wait(struct net *n, void *comm, void *data, size_t size, int tag, void *mr,
		  void **req);

/* Between processes of a run, under a name. Who hears waits until it was said, for 20 s at most. */
void net_publish(const char *name, const void *bytes, size_t size);
void net_await(const char *name, void *bytes, size_t size);
/*
 * The rank that is to die by SIGKILL goes on in a child, so that its launcher does not end the
 * others.
 */
void net_live_in_child(void);

/*
 * Memory of this process that stands for a GPU's: part of a DMA-BUF, `offset` bytes behind its
 * beginning, in the middle of a page.
 */
struct net_dmabuf {
	uint8_t *data, *map;
	size_t map_size;
	uint64_t offset;
	int fd;
};
void net_dmabuf_make(struct net_dmabuf *d, size_t size);
void net_dmabuf_free(struct net_dmabuf *d);

/* The file of this process's counts, to read. */
int net_counts_open(void);

uint64_t net_now_ms(void);
/* A byte that depends on all three. */
static inline uint8_t net_byte(uint64_t seed, uint64_t i)
{
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + i * 0xbf58476d1ce4e5b9ull;

	x ^= x >> 29;
	return (uint8_t)(x * 0x94d049bb133111ebull >> 56);
}
void net_fill(uint8_t *at, size_t size, uint64_t seed);
/* How many bytes are wrong. */
size_t net_wrong(const uint8_t *at, size_t size, uint64_t seed);

/*
 * Faults of the software NIC that are said while the test runs; open before anything is
 * initialised.
 */
void net_faults_open(void);
void net_faults_set(const char *rules);   /* what NICs do from now on */
void net_faults_write(const char *rules); /* the same, some milliseconds later */
void net_faults_close(void);

#endif
