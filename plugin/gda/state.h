/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State behind plugin/gda/gda.h, for the files of this directory.
 *
 * What only this rank is concerned with reports trouble through struct ep_gda_why: in automatic
 * mode the next mode is tried with it, so that it is not an error yet. gda.c makes it one.
 */
#ifndef EP_GDA_STATE_H
#define EP_GDA_STATE_H

#include <pthread.h>
#include "rdma/choose.h"
#include "gda/gda.h"
#include "rdma/verbs.h"

#define EP_GDA_MAX_NICS 8
#define EP_GDA_PAGE 4096u /* of the NIC; every queue's lines and ring begin at one */
#define EP_GDA_WHY 320
#define EP_GDA_FAILURES(nranks) ((uint32_t)(nranks) + 4 * EP_GDA_MAX_NICS)

struct ep_gda_why {
	char text[EP_GDA_WHY];
};

/* Always false. */
bool ep_gda_no(struct ep_gda_why *why, const char *fmt, ...) EP_PRINTF(2, 3);

/* A port, as peers must know it. Travels between ranks of one build. */
struct ep_gda_end {
	char name[32];
	uint8_t gid[16];
	uint8_t port;
	uint8_t link_layer; /* IBV_LINK_LAYER_* */
	uint8_t roce;       /* version; 0: InfiniBand */
	uint8_t mtu;        /* enum ibv_mtu, active */
	uint8_t grh;        /* the port says that a GRH is required */
	uint8_t log_rra;    /* READs and atomics it answers at once, logarithm */
	uint16_t lid;
	uint16_t pkey;
	uint32_t psn; /* queue pairs begin at this plus their number */
};

struct ep_gda_caps {
	uint32_t log_max_qp_sz;
	uint32_t log_ra_req, log_ra_res; /* READs and atomics in flight: as requester, responder */
	uint32_t log_max_msg;
	bool atomics;
	bool error_syndrome; /* QUERY_QP tells why a queue pair failed */
	bool tells_tier;     /* QUERY_QP tells the order of placement, */
	bool tells_order;    /* or at least whether data is placed in order */
	uint32_t ts_format;  /* of timestamps, which nobody reads: firmware refuses others */
};

/* Memory of a NIC's queues: per queue a page with its lines, then its ring. */
struct ep_gda_slab {
	unsigned char *dev;  /* address for the GPU */
	unsigned char *host; /* NULL: in GPU memory */
	uint64_t bytes;
	struct mlx5dv_devx_umem *umem;
	struct ibv_mr *mr; /* CPU_PROXY: inline data is sent from the ring */
};
#define EP_GDA_AT_CQE 0u /* in a queue's page */
#define EP_GDA_AT_DBR 128u
#define EP_GDA_AT_CQ_DBR 256u

struct ep_gda_nic {
	char name[EP_GDA_NAME];
	int port;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	bool devx; /* else plain verbs, `no_devx` says why */
	struct ep_gda_why no_devx;
	struct ibv_device_attr attr;
	struct ep_gda_caps caps;
	uint32_t pdn, eqn;
	uint32_t gid_index, pkey_index;
	uint8_t tc; /* traffic class */
	struct ep_gda_end end;

	struct ep_gda_slab slab;
	uint32_t queues; /* in the slab */
	struct mlx5dv_devx_uar *uar;
	bool uar_mapped; /* cudaHostRegister()ed */
	bool keep;       /* and not to be unmapped: `ctx` stays open */
	uint64_t *db;    /* address for the GPU */

	struct ibv_cq *cq; /* CPU_PROXY */
	uint32_t cq_depth, cq_used;
	bool cq_lost;       /* the proxy's thread: it cannot be polled any more */
	uint32_t port_down; /* by its last event; atomic */

	struct ibv_mr *sink;
	struct ibv_mr *heap[EP_MLX5_REGIONS];
};

/* What is known of a queue's failure. */
struct ep_gda_cause {
	uint32_t status; /* enum ep_mlx5_status; 0: none known */
	uint8_t syndrome, vendor, hw;
	bool overwritten; /* syndrome is that of a flushed WQE and the NIC does not tell more */
	bool index_known;
	uint16_t index;
	uint64_t waited_ns;
	const char *note; /* static text instead of a syndrome; NULL: none */
};

/* One connection, this rank's end. */
struct ep_gda_queue {
	struct ep_gda *gda;
	int peer;
	uint32_t index; /* among those with this peer */
	struct ep_gda_nic *nic;
	int remote_nic;
	uint32_t qpn, remote_qpn, cqn;
	uint32_t slot; /* in the slab */
	uint32_t mtu;
	uint32_t tier; /* enum ep_mlx5_tier: of this end as read back, then of both together */
	bool atomics;  /* the same */
	struct mlx5dv_devx_obj *cq_obj, *qp_obj;
	struct ibv_qp *verbs;
	struct ep_mlx5_qp *shadow; /* what the device has been given */
	struct ep_mlx5_error *record;
	/* Where queues lie in host memory. */
	struct ep_mlx5_wqe *sq;
	struct ep_mlx5_cqe *cqe;
	struct ep_mlx5_dbr *dbr;
	uint64_t *word; /* index behind the last WQE, written by kernels (EP_MLX5_RING_INDEX) */
	/* The proxy's thread only: WQEs below have been handed over, and have completed. */
	uint64_t posted, completed;
	uint32_t max_wr;  /* of them under way at once, in a verbs queue */
	const char *note; /* what the proxy's thread knows of the failure; atomic, static text */
	uint32_t failed;  /* a failure was made known; atomic */
	uint32_t vague;   /* but not its cause; atomic */
	uint32_t halted;  /* by ep_gda_queue_halt(); atomic */
	bool broken;      /* the proxy's thread: no completion follows any more */
	uint64_t suspect; /* when the NIC first said, with no reason, that it failed; under `ask` */
};

struct ep_gda {
	int rank, nranks, device;
	uint32_t queues, depth;
	uint64_t timeout_ns;
	enum ep_gda_mode mode;
	struct ep_gda_why instead; /* why no better mode */
	struct ep_gda_env env;
	const struct ep_verbs *v;
	const struct ep_mlx5dv *dv; /* NULL: no libmlx5 */
	bool *remote;
	char (*host)[64];

	struct ep_gda_nic nic[EP_GDA_MAX_NICS];
	int nnics;
	struct ep_gda_queue *queue;
	uint32_t nqueues;
	uint32_t psn;

	/* Pinned host memory: down words, sinks, a line to copy to, index words, error records. */
	unsigned char *pinned, *pinned_dev;
	uint32_t *down; /* [nranks] */
	struct ep_mlx5_cqe *scratch;

	/* GPU memory: queues [nranks][queues], then regions, of our NICs and of peers' NICs. */
	struct ep_mlx5_qp *qps;
	struct ep_mlx5_region *regions_dev;
	struct ep_mlx5_qp *shadow;
	struct ep_mlx5_region *regions;
	cudaStream_t stream;
	bool bound;
	bool keep_cuda; /* the device is stuck: leave CUDA's objects alone, freeing waits for it */

	pthread_mutex_t lock;           /* of these five; held for no longer than a copy takes */
	struct ep_gda_failure *failure; /* [EP_GDA_FAILURES(nranks)] */
	uint32_t nfailures, ntaken;
	uint32_t *known;     /* [nranks] 1 + which of them concerns that peer; 0: none */
	bool *vague;         /* [nranks] that one does not say why */
	pthread_mutex_t ask; /* of `scratch`, and of questions to NICs */
	uint32_t next_query;

	pthread_t watcher, poster;
	bool watching, posting;
	int stop_fd; /* wakes the watcher */
	uint32_t stop;
};

static inline bool ep_gda_index_ring(enum ep_gda_mode mode)
{
	return mode == EP_GDA_CPU_DB || mode == EP_GDA_CPU_PROXY;
}

/* Bytes of a queue in its slab. */
static inline uint64_t ep_gda_stride(const struct ep_gda *g)
{
	return EP_GDA_PAGE + (uint64_t)g->depth * EP_MLX5_WQEBB;
}

static inline int ep_gda_nic_index(const struct ep_gda *g, const struct ep_gda_nic *nic)
{
	return (int)(nic - g->nic);
}

/* Regions of our NIC `nic`, and of NIC `nic` of `peer`, in g->regions and g->regions_dev. */
static inline size_t ep_gda_local_regions(int nic)
{
	return (size_t)nic * EP_MLX5_REGIONS;
}

static inline size_t ep_gda_remote_regions(int peer, int nic)
{
	return ((size_t)(peer + 1) * EP_GDA_MAX_NICS + (size_t)nic) * EP_MLX5_REGIONS;
}

static inline size_t ep_gda_region_count(const struct ep_gda *g)
{
	return ep_gda_remote_regions(g->nranks, 0);
}

/* device.c: NICs and ports. False: *result is a failure that was recorded, else see why. */
bool ep_gda_nics_open(struct ep_gda *g, const struct ep_gda_config *c, struct ep_gda_why *why,
		      ncclResult_t *result);
void ep_gda_nics_close(struct ep_gda *g);

#define EP_GDA_SYSFS "/sys/class/infiniband" /* `root` below, except in tests */

/* gid.c: the address that a port is reached by, of `entries` in its table. */
ncclResult_t ep_gda_port_address(struct ep_gda *g, struct ep_gda_nic *nic, int entries);
/* RoCE version of an entry as the kernel tells it in files under `root`; 0: it does not. */
int ep_gda_gid_roce(const char *root, const char *device, int port, int index);
/* Whether packets to another port have a global route header, and the LID that they go to. */
bool ep_gda_path_global(const struct ep_gda_end *from, const struct ep_gda_end *to);
uint16_t ep_gda_path_lid(const struct ep_gda_end *from, const struct ep_gda_end *to);
/* The traffic class of what the port sends: sets nic->tc. */
void ep_gda_port_class(struct ep_gda_nic *nic, const struct ep_gda_env *env, const char *root);

/* slab.c: queues' memory, doorbells. */
bool ep_gda_slab_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_gda_why *why);
void ep_gda_slab_close(struct ep_gda *g, struct ep_gda_nic *nic);
bool ep_gda_pinned_open(struct ep_gda *g, struct ep_gda_why *why);
void ep_gda_pinned_close(struct ep_gda *g);
bool ep_gda_publish(struct ep_gda *g, struct ep_gda_why *why);
bool ep_gda_synchronize(struct ep_gda *g, uint64_t timeout_ns);

/* queue.c: mlx5 queues by DevX. */
bool ep_gda_command(const struct ep_gda *g, const char *what, int error, const void *out,
		    struct ep_gda_why *why);
bool ep_gda_queue_create(struct ep_gda_queue *q, struct ep_gda_why *why);
bool ep_gda_queue_connect(struct ep_gda_queue *q, const struct ep_gda_end *end,
			  struct ep_gda_why *why);
void ep_gda_queue_halt(struct ep_gda_queue *q);
void ep_gda_queue_destroy(struct ep_gda_queue *q);
/* State of the queue pair; if it says so, why it failed. False: no answer. */
bool ep_gda_queue_query(struct ep_gda_queue *q, uint32_t *state, struct ep_gda_cause *cause);

/* verbs_queue.c: the same for plain verbs. */
bool ep_gda_verbs_cq(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_gda_why *why);
bool ep_gda_verbs_create(struct ep_gda_queue *q, struct ep_gda_why *why);
bool ep_gda_verbs_connect(struct ep_gda_queue *q, const struct ep_gda_end *end,
			  struct ep_gda_why *why);
void ep_gda_verbs_halt(struct ep_gda_queue *q);
bool ep_gda_verbs_query(struct ep_gda_queue *q, uint32_t *state);

/* connect.c: what ranks tell each other. */
ncclResult_t ep_gda_connect(struct ep_gda *g, struct ep_boot *boot, uint32_t queues,
			    ncclResult_t *mine);
/* Calls fn for all queues, from several threads if there are many. */
bool ep_gda_each(struct ep_gda *g,
		 bool (*fn)(struct ep_gda_queue *q, void *arg, struct ep_gda_why *why), void *arg,
		 struct ep_gda_why *why);

/* memory.c */
struct ibv_mr *ep_gda_register(struct ep_gda *g, struct ep_gda_nic *nic, void *p, uint64_t bytes,
			       unsigned int access, bool gpu, struct ep_gda_why *why);
struct mlx5dv_devx_umem *ep_gda_umem(struct ep_gda *g, struct ep_gda_nic *nic, void *p,
				     uint64_t bytes, bool gpu, struct ep_gda_why *why);
void ep_gda_sync_memops(void *p);
bool ep_gda_ordering_check(const struct ep_gda *g, struct ep_gda_why *why);

/* proxy.c: the thread that rings or posts for kernels. */
bool ep_gda_proxy_start(struct ep_gda *g, struct ep_gda_why *why);
void ep_gda_proxy_stop(struct ep_gda *g);

/* failure.c: what is known to be wrong. Both take `lock`. */
void ep_gda_fail_queue(struct ep_gda_queue *q, const struct ep_gda_cause *cause);
void ep_gda_fail_port(struct ep_gda_nic *nic, struct ep_gda *g, const char *what);
/* Looks for a failure of the queue and makes it known. `ask` is held. */
enum ep_gda_look {
	EP_GDA_LOOK_MEMORY = 0, /* host memory only */
	EP_GDA_LOOK_NIC = 1,    /* asks the NIC for the queue's state */
	EP_GDA_LOOK_GPU = 2     /* reads GPU memory; the device must be current */
};
bool ep_gda_inspect(struct ep_gda_queue *q, int look);
/* The queue's completion, wherever it lies; `ask` is held. */
bool ep_gda_cqe_read(struct ep_gda_queue *q, struct ep_mlx5_cqe *cqe);

/* watch.c */
bool ep_gda_watch_start(struct ep_gda *g, struct ep_gda_why *why);
void ep_gda_watch_stop(struct ep_gda *g);

/* text.c */
void ep_gda_cause_text(const struct ep_gda_queue *q, const struct ep_gda_cause *cause, char *text,
		       size_t size);
uint8_t ep_gda_syndrome_of(enum ibv_wc_status status);

#endif
