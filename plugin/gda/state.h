/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State behind plugin/gda/gda.h, for the files of this directory: NICs that GPUs post to, and
 * connections, each a queue pair by DevX or by verbs.
 *
 * Functions that concern this rank only return false with a struct ep_reason: in automatic mode the
 * next mode is tried, so that a refusal is not an error yet. open.c makes it one.
 */
#ifndef EP_GDA_STATE_H
#define EP_GDA_STATE_H

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "core/cuda.h"
#include "core/error.h"
#include "gda/gda.h"
#include "rdma/rdma.h"

#define EP_GDA_MAX_NICS EP_MLX5_MAX_NICS
#define EP_GDA_PAGE 4096u /* of the NIC; every queue's lines and buffer begin at one */

#define EP_GDA_FAILURES(nranks) ((uint32_t)(nranks) + 4 * EP_GDA_MAX_NICS)

/* Memory of a NIC's queues: per queue a page with its lines, then its buffer. */
struct ep_gda_queue_memory {
	unsigned char *dev;  /* address for the GPU */
	unsigned char *host; /* NULL: in GPU memory */
	struct ep_pinned pinned;
	uint64_t bytes;
	struct mlx5dv_devx_umem *umem;
	struct ibv_mr *mr; /* CPU_PROXY: inline data is sent from the buffer */
};
#define EP_GDA_AT_CQE 0u /* in a queue's page */
#define EP_GDA_AT_DBR 128u
#define EP_GDA_AT_CQ_DBR 256u

/* Capabilities of firmware for DevX queues. */
struct ep_gda_caps {
	uint32_t log_max_qp_sz;
	bool error_syndrome; /* QUERY_QP reports why a queue pair failed */
	bool ece;            /* queue pairs report what they can beyond the standard */
	bool reports_tier;   /* QUERY_QP reports the order of placement, */
	bool reports_order;  /* or at least whether data is placed in order */
	/* of timestamps: firmware refuses another one, though no reader uses them */
	uint32_t ts_format;
};

/* A port that is a bond of several (RoCE LAG). */
struct ep_gda_lag {
	uint32_t ports; /* members; 0: it is none */
	bool by_queue;  /* each queue pair has its member; else a hash of what it sends chooses */
	bool init2rtr, rts2rts; /* transitions that name the member */
};

struct ep_gda_nic {
	struct ep_nic base;
	struct ep_gda_caps caps;
	struct ep_gda_lag lag;
	struct ep_ece ece; /* of its queue pairs: they are all alike */
	uint32_t pdn, eqn;

	struct ep_gda_queue_memory queue_memory;
	/*
	 * Memory of modes that were refused. Freeing it waits for all that runs on the GPU, where a
	 * rank that is ahead may have a kernel of NCCL's that waits for this rank: it is kept until
	 * the group ends.
	 */
	struct ep_gda_queue_memory refused[EP_GDA_CPU_PROXY]; /* each mode is tried once at most */
	int nrefused;
	uint32_t first, queues; /* in g->queue, and in the queue_memory */
	struct mlx5dv_devx_uar *uar;
	bool uar_mapped; /* cudaHostRegister()ed */
	bool keep;       /* and not to be unmapped: the context stays open */
	uint64_t *db;    /* address for the GPU */

	struct ibv_cq *cq; /* CPU_PROXY */
	uint32_t cq_depth, cq_used;
	bool cq_lost;       /* the proxy's thread: it cannot be polled any more */
	uint32_t port_down; /* by its last event; atomic */

	struct ibv_ah *held;   /* refers to the port's own GID */
	uint32_t address_gone; /* and the port has another one by now; atomic */
	struct ibv_mr *sink;
	struct ibv_mr *heap[EP_MLX5_REGIONS];
};

/* The cause of a queue's failure, as far as it is known. */
struct ep_gda_cause {
	uint32_t status; /* enum ep_mlx5_status; 0: none known */
	uint8_t syndrome, vendor;
	bool overwritten; /* syndrome is that of a flushed WQE and the NIC does not report more */
	bool index_known;
	uint16_t index;
	uint64_t waited_ns;
	const char *note; /* static text instead of a syndrome; NULL: none */
};

struct ep_gda_queue {
	struct ep_gda *gda;
	int peer;
	uint32_t index; /* among those with this peer */
	struct ep_gda_nic *nic;
	int remote_nic;
	uint32_t qpn, remote_qpn, cqn;
	uint32_t slot; /* in the queue_memory */
	uint32_t mtu;
	uint8_t mac[6]; /* RoCE: hardware address that its packets go to, in DevX queue pairs */
	uint8_t peer_gid[16];
	uint32_t tier; /* enum ep_mlx5_tier: of this end as read back, then of both together */
	bool atomics;  /* of this end, then of both together */
	uint32_t ece;  /* what the peer, then what both ends can beyond the standard; 0: nothing */
	bool ece_agreed; /* `ece` is of both ends: the peer has it already */
	uint32_t lag;    /* member of the bond that it sends by, as read back; 0: not known */
	struct mlx5dv_devx_obj *cq_obj, *qp_obj;
	struct ibv_qp *verbs;
	struct ep_mlx5_qp *shadow; /* what the device has been given */
	struct ep_mlx5_error *record;
	/* Where queues lie in host memory. */
	struct ep_mlx5_wqe *sq;
	struct ep_mlx5_cqe *cqe;
	struct ep_mlx5_dbr *dbr;
	uint64_t *word; /* index behind the last WQE, written by kernels (EP_MLX5_HANDOVER_INDEX) */
	/* The proxy's thread only: WQEs below have been handed over, and have completed. */
	uint64_t posted, completed;
	uint32_t max_wr;  /* of them under way at once, in a verbs queue */
	const char *note; /* what the proxy's thread knows of the failure; atomic, static text */
	uint32_t failed;  /* a failure was made known; atomic */
	uint32_t vague;   /* but not its cause; atomic */
	uint8_t syndrome; /* of the failure; 0: none known; under `lock` */
	bool address_checked; /* whether the peer has another address; under `lock` */
	uint32_t halted;      /* by ep_gda_queue_halt(); atomic */
	bool broken;          /* the proxy's thread: no completion follows any more */
	/* watch.c, under `ask`: */
	uint16_t handed;  /* where kernels were in the last round */
	uint8_t patience; /* of the next question, if nothing moves; 0: nothing is late */
	bool due;
	uint64_t ask_at;
	/* when the NIC first reported, with no reason, that it failed; under `ask` */
	uint64_t suspect;
};

struct ep_gda {
	int rank, nranks, device;
	uint32_t queues, depth;
	uint32_t node; /* ranks of this node */
	uint64_t timeout_ns;
	enum ep_gda_mode mode;
	struct ep_reason instead; /* why no better mode */
	struct ep_reason trial;   /* why a NIC did not connect with itself; "": it did */
	struct ep_ib_env env;
	bool *remote;
	char (*host)[64];

	struct ep_gda_nic nic[EP_GDA_MAX_NICS];
	int nnics;
	struct ep_gda_queue *queue;
	uint32_t nqueues;
	uint32_t psn;

	/* Pinned host memory: down words, sinks, a line to copy to, index words, error records. */
	struct ep_pinned pinned;
	uint32_t *down; /* [nranks] */
	struct ep_mlx5_cqe *scratch;

	/* GPU memory: queues [nranks][queues], then regions, of our NICs and of peers' NICs. */
	struct ep_mlx5_qp *qps;
	struct ep_mlx5_region *regions_dev;
	struct ep_mlx5_qp *shadow;
	struct ep_mlx5_region *regions;
	cudaStream_t stream;
	bool bound;
	struct ep_gda_user_mr *sources; /* memory.c; NULL: none so far */
	bool keep_cuda; /* the device is stuck: leave CUDA's objects alone, freeing waits for it */
	struct ep_context context;
	bool ended; /* the device was reset: there are no objects of CUDA's any more */

	pthread_mutex_t lock;           /* of these five; held for no longer than a copy takes */
	struct ep_gda_failure *failure; /* [EP_GDA_FAILURES(nranks)] */
	uint32_t nfailures, ntaken;
	uint32_t *known;     /* [nranks] 1 + which of them concerns that peer; 0: none */
	bool *vague;         /* [nranks] that one has no cause */
	pthread_mutex_t ask; /* of `scratch`, and of questions to NICs */
	uint32_t next_query;

	pthread_t watcher, proxy;
	bool watching, posting;
	int stop_fd; /* wakes the watcher */
	uint32_t stop;
};

/* Do kernels hand WQEs over by storing an index? */
static inline bool ep_gda_handover_index(enum ep_gda_mode mode)
{
	return mode == EP_GDA_CPU_DB || mode == EP_GDA_CPU_PROXY;
}

/* Bytes of a queue in its queue_memory. */
static inline uint64_t ep_gda_stride(const struct ep_gda *g)
{
	return EP_GDA_PAGE + (uint64_t)g->depth * EP_MLX5_WQEBB;
}

/* Of the table of queues. */
static inline size_t ep_gda_table_bytes(const struct ep_gda *g)
{
	return (size_t)g->nranks * g->queues * sizeof(*g->qps);
}

static inline int ep_gda_nic_index(const struct ep_gda *g, const struct ep_gda_nic *nic)
{
	return (int)(nic - g->nic);
}

/*
 * Regions of our NIC `nic`, and of NIC `nic` of `peer`, in the tables regions and regions_dev of
 * struct ep_gda.
 */
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

/* ---- devx.c: commands of the device ---- */

/* Returns whether a DevX command was carried out; if not, *why has firmware's answer. */
bool ep_gda_command(const char *what, int error, const void *out, struct ep_reason *why);

/* Reads a set of the device's capabilities to `out`, which has EP_PRM_CAP_OUT_BYTES. */
bool ep_gda_query_caps(const struct ep_gda_nic *nic, uint32_t set, unsigned char *out,
		       struct ep_reason *why);

/* Opens what DevX queues need of an open device. After false only plain verbs are possible. */
bool ep_gda_devx_open(struct ep_gda_nic *nic, struct ep_reason *why);

/* Asks firmware whether the port is a bond. `caps`: the device's general capabilities. */
void ep_gda_lag_query(struct ep_gda_nic *nic, const unsigned char *caps);
/*
 * Returns the member of the bond that a queue pair is to send by, from 1; 0: it does not choose
 * one.
 */
uint32_t ep_gda_lag_port(const struct ep_gda_queue *queue);
/*
 * Writes how many queue pairs each member has: " bond of 2 ports (36, 36 queue pairs)"; "": no
 * bond.
 */
void ep_gda_lag_describe(const struct ep_gda *g, const struct ep_gda_nic *nic, char *text,
			 size_t size);

/*
 * Writes a failure in words: peer, local device and port, queue, syndrome and meaning, what to do.
 */
void ep_gda_cause_text(const struct ep_gda_queue *queue, const struct ep_gda_cause *cause,
		       char *text, size_t size);

/* ---- queue.c: one connection, this rank's end ---- */

/* Creates the queue pair that the mode needs, by DevX or by verbs. */
bool ep_gda_queue_create(struct ep_gda_queue *queue, struct ep_reason *why);
/* Connects it with its peer, whose port is `end`, and reads back what both ends agreed on. */
bool ep_gda_queue_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why);
/* Stops the queue: posted work is flushed, arriving packets are refused. */
void ep_gda_queue_halt(struct ep_gda_queue *queue);
void ep_gda_queue_destroy(struct ep_gda_queue *queue);
/* Reads the state of the queue pair and, if the NIC reports it, why it failed. False: no answer. */
bool ep_gda_queue_query(struct ep_gda_queue *queue, uint32_t *state, struct ep_gda_cause *cause);

/* The queue pair of verbs behind the calls above, in mode CPU_PROXY. */
bool ep_gda_verbs_cq(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why);
bool ep_gda_verbs_create(struct ep_gda_queue *queue, struct ep_reason *why);
bool ep_gda_verbs_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why);
void ep_gda_verbs_halt(struct ep_gda_queue *queue);

/*
 * RoCE: keeps the port's own GID in use until ep_gda_address_release(), even if the port loses it.
 */
bool ep_gda_address_hold(struct ep_gda_nic *nic, struct ep_reason *why);
void ep_gda_address_release(struct ep_gda_nic *nic);
/* After an event: warns if the port's GID is no longer the one that its queue pairs have. */
void ep_gda_address_check(struct ep_gda_nic *nic);
/*
 * For a queue whose packets are not answered: returns whether the peer has another hardware address
 * by now, and writes from which to which.
 */
bool ep_gda_address_moved(const struct ep_gda_queue *queue, char *text, size_t size);

/* ---- memory.c: memory that kernels, NIC and host share ---- */

/* Makes a NIC's queues and doorbell register, as the mode needs them. Close them in any case. */
bool ep_gda_queue_memory_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why);
void ep_gda_queue_memory_close(struct ep_gda *g, struct ep_gda_nic *nic);
/*
 * Puts the queues of a refused mode aside, so that another mode may be opened. Memory and a mapped
 * doorbell stay, because freeing them would wait for the GPU.
 */
void ep_gda_queue_memory_refuse(struct ep_gda_nic *nic);
/* Makes what is there once, whatever the mode: pinned memory, the table of queues, a stream. */
bool ep_gda_pinned_open(struct ep_gda *g, struct ep_reason *why);
void ep_gda_pinned_close(struct ep_gda *g);
/* Writes the table of queues to the GPU. */
bool ep_gda_publish(struct ep_gda *g, struct ep_reason *why);
/* Waits for g->stream. Returns false after timeout_ns, or if CUDA fails. */
bool ep_gda_synchronize(struct ep_gda *g, uint64_t timeout_ns);

/* Returns whether the GPU shows the NIC's writes in the order in which they arrived. */
bool ep_gda_ordering_check(const struct ep_gda *g, struct ep_reason *why);

/*
 * Callers' memory that NICs read from: registers the allocation that holds [p, p + bytes) with all
 * NICs, unless it is registered, and writes the name that kernels use to *out. Returns NULL, or why
 * that is not possible; the text is good until the next call. The call waits for no work and uses
 * no stream. One thread at a time.
 */
const char *ep_gda_user_mr_find(struct ep_gda *gda, void *p, uint64_t bytes,
				struct ep_mlx5_source *out);

/* Takes these registrations back. No kernel of this rank may run. `gda` may be NULL. */
void ep_gda_user_mrs_free(struct ep_gda *gda);

/* ---- connect.c: the queues of all ranks ---- */

/*
 * Connects all queues. Returns a result that all ranks share; this rank's own errors go to *mine.
 */
ncclResult_t ep_gda_connect(struct ep_gda *g, struct ep_boot *boot, uint32_t queues,
			    ncclResult_t *mine);
/* Calls fn for all queues, from several threads if there are many. Returns false if a call did. */
bool ep_gda_each(struct ep_gda *g,
		 bool (*fn)(struct ep_gda_queue *queue, void *arg, struct ep_reason *why),
		 void *arg, struct ep_reason *why);

/* ---- proxy.c: the thread that rings or posts for kernels, in modes that have one ---- */

bool ep_gda_proxy_start(struct ep_gda *g, struct ep_reason *why);
void ep_gda_proxy_stop(struct ep_gda *g);

/* ---- watch.c: failures of connections, their causes, and the thread that looks for them ---- */

bool ep_gda_watch_start(struct ep_gda *g, struct ep_reason *why);
void ep_gda_watch_stop(struct ep_gda *g);

/* Make a failure known, to kernels and to ep_gda_poll(). Both take `lock`. */
void ep_gda_fail_queue(struct ep_gda_queue *queue, const struct ep_gda_cause *cause);
void ep_gda_fail_port(struct ep_gda_nic *nic, struct ep_gda *g, const char *what);

enum ep_gda_inspect_flags {
	EP_GDA_INSPECT_MEMORY = 0, /* host memory only */
	EP_GDA_INSPECT_NIC = 1,    /* asks the NIC for the queue's state */
	EP_GDA_INSPECT_GPU = 2     /* reads GPU memory; the device must be current */
};
/* Looks for a failure of the queue and makes it known. Returns whether it failed. `ask` is held. */
bool ep_gda_inspect(struct ep_gda_queue *queue, int flags);
/* Reads the queue's completion, in host or GPU memory. `ask` is held. */
bool ep_gda_cqe_read(struct ep_gda_queue *queue, struct ep_mlx5_cqe *cqe);
/* Returns the index of the WQE that a completion is of. */
static inline uint16_t ep_gda_cqe_index(const struct ep_mlx5_cqe *cqe)
{
	return be16toh(cqe->wqe_counter);
}

#define EP_GDA_ROUND_NS 1000000000ull /* work that takes longer is late */
#define EP_GDA_ASK_NS 5000000ull      /* for questions in a tick */

/* Once in a round: marks queues whose work was handed over a round ago. `ask` is held. */
void ep_gda_late_mark(struct ep_gda *g, uint64_t now);
/* In each tick: asks NICs about queues that are due. `ask` is held. */
void ep_gda_late_ask(struct ep_gda *g);

#endif
