/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and signals. A rank has a queue pair to every rank, itself included, so that what goes to a
 * rank arrives in order. A put is posted piece by piece, as the queue has room, and is done when
 * the NIC has reported all of it. One thread of NCCL's at a time makes these calls for the ranks of
 * a handle; memory is registered by any.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "net/gin.h"

#define LINK_SQ 256u
#define LINK_CQ 65536u
#define OPS_CHUNK 256u
#define OPS_MAX (1u << EP_NET_REQUEST_BITS)
#define NO_OP UINT32_MAX
#define OP_WR 8u        /* work requests that are posted together: at most, with the signal */
#define OWN_SINCE 22900 /* the first release of NCCL with a GIN that needs no plugin */
#define MR_FORCE_SO 1u  /* flag of registrations: strictly ordered */
#define OP_ID(wrs, number) ((uint64_t)(wrs) << 32 | (number))
#define OP_ID_WRS(id) ((uint32_t)((id) >> 32))

/* A rank to which this one puts. */
struct link {
	struct ibv_qp *qp;
	uint32_t rank, remote_qpn, room;
	uint32_t first, last; /* puts that are not all posted */
	uint32_t pending;     /* puts under way */
	uint64_t gone_since;  /* when its rank was found gone; 0: not */
};

/* A put: bytes, a signal behind them, or both. */
struct op {
	uint32_t use;  /* how often; odd ones are under way */
	uint32_t next; /* of its link, or free one */
	uint32_t left; /* completions of what is posted */
	bool posted;   /* all of it; */
	bool signal;
	struct link *link;
	uint64_t local, remote, size, at; /* at: bytes that are posted */
	uint32_t lkey, rkey;
	uint64_t signal_at, add;
	uint32_t signal_rkey;
};

struct gin {
	struct ep_net_mesh *mesh;
	void *handle;
	struct ibv_cq *cq;
	uint32_t cq_lost; /* atomic: the NIC has lost completions */
	uint32_t cq_room;
	bool starved;      /* links wait for room in the completion queue */
	struct link *link; /* of each rank */
	uint64_t *scratch; /* what atomics read */
	struct ibv_mr *scratch_mr;

	struct op **chunk;
	uint32_t nops, free;

	struct ep_error failed; /* code: not ncclSuccess once something has failed */
	uint32_t idle;
	uint64_t checked;
};

/* Memory that all ranks have registered together. */
struct sym_end {
	uint64_t base, size;
	uint32_t rkey, pad;
};

struct sym {
	struct ep_net_mesh *mesh;
	struct ep_net_mr *mr;
	struct sym_end *end; /* of each rank */
};

/* ---- errors ---- */

static ncclResult_t failed_before(const struct gin *gin)
{
	return gin->failed.code == ncclSuccess ? ncclSuccess : ep_fail_again(&gin->failed);
}

/*
 * Ends the handle's work for good, with an error that has the queue pair's two ends. Returns
 * `code`.
 */
EP_PRINTF(4, 5)
static ncclResult_t gin_fail(struct gin *gin, const struct link *link, ncclResult_t code,
			     const char *fmt, ...)
{
	const struct ep_net_which to = {
		.end = &gin->mesh->end[gin->mesh->rank],
		.remote = &gin->mesh->end[link->rank],
		.qpn = link->qp->qp_num,
		.remote_qpn = link->remote_qpn,
		.toward = "to",
		.peer = gin->mesh->who[link->rank],
	};
	char what[280], which[EP_NET_WHICH];
	va_list args;

	EP_CHECK(failed_before(gin));
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	code = ep_fail(code, "%s: %s%s", ep_net_which_print(&to, which), what,
		       ep_net_dev_print(gin->mesh->dev));
	ep_error_get(NULL, &gin->failed);
	return code;
}

/*
 * The same for this rank's NIC or its path to a peer: ranks that wait for this one learn of it,
 * too.
 */
static ncclResult_t gin_lost(struct gin *gin, const struct link *link, ncclResult_t code,
			     const char *why)
{
	code = gin_fail(gin, link, code, "%s", why);
	ep_net_mesh_lose(gin->mesh, gin->failed.text);
	return code;
}

/* ---- puts ---- */

static struct op *op_at(const struct gin *gin, uint32_t number)
{
	return &gin->chunk[number / OPS_CHUNK][number % OPS_CHUNK];
}

static bool op_done(const struct op *op)
{
	return op->posted && op->left == 0;
}

static ncclResult_t ops_grow(struct gin *gin)
{
	uint32_t n = gin->nops / OPS_CHUNK;
	uint32_t use = ep_net_use_first();
	struct op **chunks, *chunk;

	if (gin->nops == OPS_MAX) {
		return ep_fail(ncclInternalError, "more than %u requests are under way", OPS_MAX);
	}
	chunks = realloc(gin->chunk, (n + 1) * sizeof(*chunks));
	if (chunks) {
		gin->chunk = chunks;
	}
	chunk = chunks ? calloc(OPS_CHUNK, sizeof(*chunk)) : NULL;
	if (!chunk) {
		return ep_fail(ncclSystemError, "out of host memory for %u requests", gin->nops);
	}
	for (uint32_t i = 0; i < OPS_CHUNK; i++) {
		chunk[i].next = i + 1 < OPS_CHUNK ? gin->nops + i + 1 : NO_OP;
		chunk[i].use = use;
	}
	gin->chunk[n] = chunk;
	gin->free = gin->nops;
	gin->nops += OPS_CHUNK;
	return ncclSuccess;
}

/* Posts what it can of a put. *waits: it is not all posted. */
static ncclResult_t op_push(struct gin *gin, struct op *op, uint32_t number, bool *waits)
{
	uint64_t most = 1ull << gin->mesh->dev->nic.log_max_msg, at = op->at;
	struct ibv_send_wr wr[OP_WR], *bad;
	struct link *link = op->link;
	struct ibv_sge sge[OP_WR];
	uint32_t n = 0;
	int error;

	*waits = true;
	memset(wr, 0, sizeof(wr));
	for (; at < op->size && n < OP_WR - 1; n++) {
		uint32_t bytes = (uint32_t)ep_min_u64(op->size - at, most);

		sge[n] = (struct ibv_sge){ op->local + at, bytes, op->lkey };
		wr[n].opcode = IBV_WR_RDMA_WRITE;
		wr[n].wr.rdma.remote_addr = op->remote + at;
		wr[n].wr.rdma.rkey = op->rkey;
		at += bytes;
	}
	if (at == op->size && op->signal) {
		sge[n] = (struct ibv_sge){ (uintptr_t)gin->scratch, 8, gin->scratch_mr->lkey };
		wr[n].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		/*
		 * A NIC may place data out of order without reporting it: the fence keeps the
		 * signal behind the data.
		 */
		wr[n].send_flags = gin->mesh->dev->nic.fences ? IBV_SEND_FENCE : 0;
		wr[n].wr.atomic.remote_addr = op->signal_at;
		wr[n].wr.atomic.compare_add = op->add;
		wr[n].wr.atomic.rkey = op->signal_rkey;
		n++;
	}
	if (n > link->room || (n && gin->cq_room == 0)) {
		/* Completions of its own link alone may not bring it. */
		gin->starved |= gin->cq_room == 0;
		return ncclSuccess;
	}
	for (uint32_t i = 0; i < n; i++) {
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
		wr[i].wr_id = OP_ID(n, number);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].send_flags |= i + 1 < n ? 0 : IBV_SEND_SIGNALED;
	}
	error = n ? ibv_post_send(link->qp, wr, &bad) : 0;
	if (error) {
		return gin_fail(gin, link, ncclSystemError, "%llu bytes cannot be posted: %s",
				(unsigned long long)(at - op->at), strerror(error));
	}
	link->room -= n;
	gin->cq_room -= n ? 1 : 0;
	op->left += n ? 1 : 0;
	op->at = at;
	op->posted = at == op->size;
	*waits = !op->posted;
	return ncclSuccess;
}

/* Posts puts of a link in the order in which they were made, as far as there is room. */
static ncclResult_t link_push(struct gin *gin, struct link *link)
{
	while (link->first != NO_OP) {
		uint32_t number = link->first, before;
		struct op *op = op_at(gin, number);
		bool waits;

		before = op->left;
		EP_CHECK(op_push(gin, op, number, &waits));
		if (waits && op->left == before) {
			return ncclSuccess;
		}
		if (!waits) {
			link->first = op->next;
			link->pending -= op_done(op); /* there was nothing to post */
		}
	}
	link->last = NO_OP;
	return ncclSuccess;
}

/* Makes a request like `want` and posts it. */
static ncclResult_t op_start(struct gin *gin, const struct op *want, void **request)
{
	struct link *link = want->link;
	uint32_t use, number;
	struct op *op;

	EP_CHECK(failed_before(gin));
	if (gin->free == NO_OP) {
		EP_CHECK(ops_grow(gin));
	}
	number = gin->free;
	op = op_at(gin, number);
	gin->free = op->next;
	use = ep_net_use_next(op->use);
	*op = *want;
	op->use = use;
	op->next = NO_OP;
	link->pending++;
	if (link->first == NO_OP) {
		link->first = number;
	} else {
		op_at(gin, link->last)->next = number;
	}
	link->last = number;
	EP_CHECK(link_push(gin, link));
	*request = ep_net_request_handle(EP_NET_OP, gin->handle, number, use);
	return ncclSuccess;
}

/* Finds memory of a rank: its address there, and its registration. */
static ncclResult_t sym_find(const struct gin *gin, void *handle, uint64_t offset, uint32_t rank,
			     uint64_t size, const struct sym **out, uint64_t *at)
{
	const struct sym *sym = ep_net_handle_find(EP_NET_SYM, handle);

	if (!sym) {
		return ncclInvalidArgument;
	}
	if (sym->mesh != gin->mesh) {
		return ep_fail(ncclInvalidArgument,
			       "memory that is registered with other ranks is used with %s",
			       gin->mesh->who[rank]);
	}
	if (offset > sym->end[rank].size || size > sym->end[rank].size - offset) {
		return ep_fail(
			ncclInvalidArgument,
			"%llu bytes at offset %llu are not all in the %llu bytes that %s has "
			"registered",
			(unsigned long long)size, (unsigned long long)offset,
			(unsigned long long)sym->end[rank].size, gin->mesh->who[rank]);
	}
	*out = sym;
	*at = sym->end[rank].base + offset;
	return ncclSuccess;
}

static ncclResult_t gin_get(const void *coll, struct gin **gin)
{
	*gin = ep_net_handle_find(EP_NET_GIN, coll);
	return *gin ? ncclSuccess : ncclInvalidArgument;
}

/* Finds the ranks' memory that a put moves, if it moves any. */
static ncclResult_t put_data(void *coll, EP_GIN_PUT_ARGS, struct op *want, struct gin **gin)
{
	const struct sym *sym;

	EP_CHECK(gin_get(coll, gin));
	if (rank >= (*gin)->mesh->nranks) {
		return ep_fail(ncclInvalidArgument, "there is no rank %u, there are %u ranks", rank,
			       (*gin)->mesh->nranks);
	}
	want->link = &(*gin)->link[rank];
	if (size == 0) {
		return ncclSuccess;
	}
	EP_CHECK(sym_find(*gin, from, from_at, (*gin)->mesh->rank, size, &sym, &want->local));
	want->lkey = sym->mr->lkey[(*gin)->mesh->of_nic];
	EP_CHECK(sym_find(*gin, to, to_at, rank, size, &sym, &want->remote));
	want->rkey = sym->end[rank].rkey;
	want->size = size;
	return ncclSuccess;
}

static ncclResult_t gin_put(void *coll, EP_GIN_PUT_ARGS, void **request)
{
	struct op want = { .signal = false };
	struct gin *gin;

	*request = NULL;
	EP_CHECK(put_data(coll, from_at, from, size, to_at, to, rank, &want, &gin));
	return op_start(gin, &want, request);
}

static ncclResult_t gin_put_signal(void *coll, EP_GIN_SIGNAL_ARGS, void **request)
{
	struct op want = { .signal = true, .add = op == EP_NET_SIGNAL_INC ? 1 : value };
	const struct sym *sym;
	struct gin *gin;

	*request = NULL;
	EP_CHECK(put_data(coll, from_at, from, size, to_at, to, rank, &want, &gin));
	if (op != EP_NET_SIGNAL_INC && op != EP_NET_SIGNAL_ADD) {
		return ep_fail(ncclInvalidArgument,
			       "a signal of kind %u, possible are %u (add one) and %u (add)", op,
			       EP_NET_SIGNAL_INC, EP_NET_SIGNAL_ADD);
	}
	EP_CHECK(sym_find(gin, signal, signal_at, rank, 8, &sym, &want.signal_at));
	if (want.signal_at % 8) {
		return ep_fail(ncclInvalidArgument,
			       "a signal at offset %llu, which is no multiple of 8",
			       (unsigned long long)signal_at);
	}
	want.signal_rkey = sym->end[rank].rkey;
	return op_start(gin, &want, request);
}

/* ---- progress, at each test ---- */

/* Takes up completions. *n: how many. */
static ncclResult_t gin_poll(struct gin *gin, int *n)
{
	const struct ibv_wc *bad = NULL;
	struct ibv_wc wc[EP_NET_POLL];
	char why[EP_NET_WC_TEXT];

	*n = ibv_poll_cq(gin->cq, EP_NET_POLL, wc);
	if (*n < 0) {
		return gin_fail(gin, &gin->link[gin->mesh->rank], ncclSystemError,
				"the completion queue has failed");
	}
	for (int i = 0; i < *n; i++) {
		struct op *op = op_at(gin, (uint32_t)wc[i].wr_id);

		if (wc[i].status != IBV_WC_SUCCESS) {
			if (!bad || (bad->status == IBV_WC_WR_FLUSH_ERR &&
				     wc[i].status != IBV_WC_WR_FLUSH_ERR)) {
				bad = &wc[i];
			}
			continue;
		}
		gin->cq_room++;
		op->link->room += OP_ID_WRS(wc[i].wr_id);
		op->left--;
		op->link->pending -= op_done(op);
		EP_CHECK(link_push(gin, op->link));
	}
	if (!bad) {
		return ncclSuccess;
	}
	ep_net_dev_events(gin->mesh->dev);
	return gin_lost(gin, op_at(gin, (uint32_t)bad->wr_id)->link, ncclRemoteError,
			ep_net_wc_print(bad, why));
}

/* See poll_slow() in p2p_calls.c: the NIC alone reports late, or never. */
static ncclResult_t gin_poll_slow(struct gin *gin)
{
	struct ep_net_dev *dev = gin->mesh->dev;
	uint64_t now = ep_now_ns();
	ncclResult_t result;

	if (now - gin->checked < EP_NET_CHECK_NS) {
		return ncclSuccess;
	}
	gin->checked = now;
	ep_net_dev_events(dev);
	if (__atomic_load_n(&gin->cq_lost, __ATOMIC_RELAXED) && !ep_net_dev_broken(dev)) {
		return gin_lost(gin, &gin->link[gin->mesh->rank], ncclSystemError,
				"the NIC has lost completions: its queue has overrun or failed");
	}
	result = ep_net_mesh_check(gin->mesh);
	if (result != ncclSuccess) {
		ep_error_get(NULL, &gin->failed);
		return result;
	}
	for (uint32_t i = 0; i < gin->mesh->nranks; i++) {
		struct link *link = &gin->link[i];
		int fd = gin->mesh->fd[i];

		if (!link->pending) {
			continue;
		}
		if (ep_net_dev_broken(dev)) {
			return gin_lost(gin, link, ncclSystemError, "the connection is lost");
		}
		if (!link->gone_since && fd >= 0 && ep_net_gone(fd)) {
			link->gone_since = now;
		}
		if (link->gone_since && now - link->gone_since >= EP_NET_GRACE_NS) {
			return gin_fail(gin, link, ncclRemoteError,
					"the peer has closed the connection or has ended, %u "
					"requests are under way here: see its log",
					link->pending);
		}
	}
	return ncclSuccess;
}

static ncclResult_t gin_progress(struct gin *gin)
{
	int n;

	EP_CHECK(failed_before(gin));
	EP_CHECK(gin_poll(gin, &n));
	if (n == 0) {
		return ++gin->idle % EP_NET_IDLE ? ncclSuccess : gin_poll_slow(gin);
	}
	if (gin->starved) {
		gin->starved = false;
		for (uint32_t r = 0; r < gin->mesh->nranks; r++) {
			EP_CHECK(link_push(gin, &gin->link[r]));
		}
	}
	return ncclSuccess;
}

static ncclResult_t gin_test(void *coll, void *request, int *done)
{
	enum ep_net_kind kind;
	struct gin *gin = ep_net_request_owner(EP_NET_OP, request, &kind);
	uint32_t number = ep_net_request_number(request);
	struct op *op;

	*done = 0;
	if (!gin || kind != EP_NET_GIN || number >= gin->nops) {
		return ep_net_request_fail(request);
	}
	op = op_at(gin, number);
	if (!ep_net_request_is(request, op->use)) {
		return ep_net_request_fail(request);
	}
	if (!op_done(op)) {
		EP_CHECK(gin_progress(gin));
	}
	if (op_done(op)) {
		*done = 1;
		op->use = ep_net_use_next(op->use);
		op->next = gin->free;
		gin->free = number;
	}
	return ncclSuccess;
}

/* ---- queue pairs ---- */

/* Makes this rank's queues: memory of atomics, the completion queue, a queue pair to each rank. */
static ncclResult_t queues_make(struct gin *gin)
{
	struct ep_net_mesh *mesh = gin->mesh;
	struct ep_net_dev *dev = mesh->dev;
	const struct ibv_device_attr *attr = &dev->nic.attr;
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct ep_rc_room room = { .sq = (uint32_t)ep_min_u64(LINK_SQ, (uint64_t)attr->max_qp_wr),
				   .rq = 1 };
	uint64_t cqes = ep_min_u64((uint64_t)mesh->nranks * (room.sq + room.rq), LINK_CQ);
	char text[EP_NIC_ERROR_TEXT];

	gin->scratch = aligned_alloc(bytes, bytes);
	gin->link = calloc(mesh->nranks, sizeof(*gin->link));
	if (!gin->scratch || !gin->link) {
		return ep_fail(ncclSystemError, "out of host memory for %u ranks", mesh->nranks);
	}
	memset(gin->scratch, 0, bytes);
	EP_CHECK(ep_net_pin(dev, gin->scratch, bytes, IBV_ACCESS_LOCAL_WRITE, &gin->scratch_mr));
	gin->cq_room = (uint32_t)ep_min_u64(cqes, (uint64_t)attr->max_cqe);
	EP_CHECK(ep_net_cq_new(dev, cqes, &gin->cq_lost, &gin->cq));
	for (uint32_t r = 0; r < mesh->nranks; r++) {
		struct link *link = &gin->link[r];
		struct ep_reason why = { "" };

		link->rank = r;
		link->first = link->last = NO_OP;
		/* Rails may be subnets of their own: others need not reach each other. */
		if (r != mesh->rank &&
		    !ep_nic_path_check(&mesh->end[mesh->rank], &mesh->end[r], &why)) {
			return ep_fail(ncclInvalidUsage, "%s with %s:%u of %s: %.200s", dev->label,
				       mesh->end[r].name, mesh->end[r].port, mesh->who[r],
				       why.text);
		}
		link->qp = ep_net_queue_new(dev, mesh->index.pkey, gin->cq, &room,
					    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		if (!link->qp) {
			return ep_fail(ncclSystemError,
				       "%s: no queue pair for %s, one of %u ranks: %s", dev->label,
				       mesh->who[r], mesh->nranks, ep_nic_error_print(errno, text));
		}
		link->room = room.sq;
	}
	return ncclSuccess;
}

/*
 * Every rank sends every other one the numbers of its queue pairs, by rank. `code`: of making them.
 */
static ncclResult_t queues_agree(struct gin *gin, ncclResult_t code)
{
	struct ep_net_mesh *mesh = gin->mesh;
	uint32_t n = mesh->nranks;
	size_t bytes = (size_t)n * sizeof(uint32_t);
	uint32_t *own = calloc(1, bytes), *all = calloc(n, bytes);

	if (!own || !all) {
		code = ep_fail(ncclSystemError, "out of host memory for %u ranks", n);
		goto free; /* (the others wait for a while, and then name who is late) */
	}
	for (uint32_t r = 0; code == ncclSuccess && r < n; r++) {
		own[r] = gin->link[r].qp->qp_num;
	}
	code = ep_net_mesh_exchange(mesh, EP_NET_ROUND_QUEUES, code, own, bytes, all);
	for (uint32_t r = 0; code == ncclSuccess && r < n; r++) {
		gin->link[r].remote_qpn = all[(size_t)r * n + mesh->rank];
	}
free:
	free(own);
	free(all);
	return code;
}

static ncclResult_t queues_connect(struct gin *gin)
{
	struct ep_net_mesh *mesh = gin->mesh;
	const struct ep_nic_end *own = &mesh->end[mesh->rank];

	for (uint32_t r = 0; r < mesh->nranks; r++) {
		struct ep_rc_path path = { .from = own,
					   .to = &mesh->end[r],
					   .tc = ep_net_traffic_class(mesh->dev, mesh->tc),
					   .sl = ep_net_service_level(own, mesh->tc),
					   .log_reads = EP_RC_LOG_READS,
					   .gid_index = mesh->index.gid };

		EP_CHECK(ep_net_queue_connect(mesh->dev, gin->link[r].qp, &path,
					      gin->link[r].remote_qpn));
	}
	return ncclSuccess;
}

static void gin_free(void *object)
{
	struct gin *gin = object;
	const struct ep_verbs *v = gin->mesh ? gin->mesh->dev->nic.v : NULL;

	for (uint32_t r = 0; gin->link && r < gin->mesh->nranks; r++) {
		if (gin->link[r].qp) {
			v->ibv_destroy_qp(gin->link[r].qp);
		}
	}
	if (gin->cq) {
		v->ibv_destroy_cq(gin->cq);
	}
	if (gin->scratch_mr) {
		v->ibv_dereg_mr(gin->scratch_mr);
	}
	ep_net_mesh_put(gin->mesh);
	for (uint32_t i = 0; i < gin->nops / OPS_CHUNK; i++) {
		free(gin->chunk[i]);
	}
	free(gin->chunk);
	free(gin->link);
	free(gin->scratch);
	free(gin);
}

/* ---- ranks ---- */

/*
 * Declines in an NCCL that has its own GIN, which it would not look at then. Fails where there is
 * no device for it: NICs that do not reach GPUs, or have no atomics.
 */
static ncclResult_t gin_init(void **instance, uint64_t comm_id, ep_net_log_fn *log)
{
	int version = 0, n = 0, fit = 0;
	struct ep_net_dev *dev;
	struct ep_reason why;

	*instance = NULL;
	if (ep_nccl_version(&version) && version >= OWN_SINCE) {
		log(EP_LOG_INFO, EP_LOG_INIT | EP_LOG_NET, __func__, 0,
		    "NET/" EP_NET_NAME " : GIN is left to NCCL's own");
		return ncclInvalidUsage;
	}
	EP_CHECK(ep_net_context_new(log, -1, instance));
	ep_net_devs(&dev, &n, &why);
	for (int i = 0; i < n; i++) {
		const char *lacks = ep_net_dev_lacks(&dev[i]);

		fit += !lacks;
		if (lacks) {
			EP_INFO(EP_LOG_INIT | EP_LOG_NET, "not used for GIN: %s %s", dev[i].label,
				lacks);
		}
	}
	if (!fit) {
		ep_net_context_free(*instance);
		*instance = NULL;
		return ncclSystemError;
	}
	return ncclSuccess;
}

/* As of the network table, whose numbers of devices NCCL uses; of type PROXY. */
static ncclResult_t gin_properties(int dev, struct ep_net_props_v11 *props)
{
	EP_CHECK(ep_net_props_v11(dev, props));
	props->v9.device_type = EP_NET_DEVICE_GIN_PROXY;
	return ncclSuccess;
}

static ncclResult_t gin_listen(void *instance, int dev, void *handle, void **listen_comm)
{
	const struct ep_net_nic *nic;
	const char *lacks = NULL;
	int tc;

	*listen_comm = NULL;
	EP_CHECK(ep_net_context_get(instance, &tc));
	EP_CHECK(ep_net_nic_get(dev, &nic));
	for (int i = 0; i < nic->nports && (i == 0 || lacks); i++) {
		lacks = ep_net_dev_lacks(nic->dev[i]);
	}
	if (lacks) {
		return ep_fail(ncclInvalidUsage,
			       "GIN over %s: it %s; NCCL_IB_HCA=^%s leaves it out", nic->label,
			       lacks, nic->dev[0]->port.name);
	}
	return ep_net_mesh_listen(dev, tc, handle, listen_comm);
}

/* All ranks call it. NCCL gives what context it has at hand, or none: the listener's counts. */
static ncclResult_t gin_connect(void *instance, void *handles[], int nranks, int rank,
				void *listen_comm, void **coll)
{
	struct gin *gin = calloc(1, sizeof(*gin));
	ncclResult_t result;

	*coll = NULL;
	if (!gin) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	gin->free = NO_OP;
	EP_CHECK_GOTO(ep_net_mesh_connect(handles, nranks, rank, listen_comm, &gin->mesh),
		      err_free);
	EP_CHECK_GOTO(queues_agree(gin, queues_make(gin)), err_free);
	result = queues_connect(gin);
	/* Nobody writes to a rank that is not ready to answer. */
	EP_CHECK_GOTO(ep_net_mesh_exchange(gin->mesh, EP_NET_ROUND_READY, result, NULL, 0, NULL),
		      err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_GIN, gin, &gin->handle), err_free);
	*coll = gin->handle;
	EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s: GIN between %d ranks, this is rank %d",
		gin->mesh->nic->label, nranks, rank);
	return ncclSuccess;

err_free:
	gin_free(gin);
	return result;
}

static ncclResult_t gin_close(void *coll)
{
	return ep_net_handle_close(EP_NET_GIN, coll, gin_free);
}

/* ---- memory ---- */

static void sym_drop(void *object)
{
	struct sym *sym = object;

	if (sym->mr) {
		ep_net_mr_free(sym->mr);
	}
	ep_net_mesh_put(sym->mesh);
	free(sym->end);
	free(sym);
}

/* All ranks call it. NCCL's descriptors for GPUs name memory by *gin_mr, which is *mr. */
static ncclResult_t sym_reg(void *coll, struct ep_net_memory *memory, uint64_t flags, void **mr,
			    void **gin_mr)
{
	struct sym_end own = { .base = (uintptr_t)memory->data, .size = memory->size };
	struct sym *sym;
	struct gin *gin;
	ncclResult_t result;

	*mr = *gin_mr = NULL;
	EP_CHECK(gin_get(coll, &gin));
	EP_CHECK(ep_net_memory_check(memory));
	memory->strict = (flags & MR_FORCE_SO) != 0;
	memory->atomics = true;
	sym = calloc(1, sizeof(*sym));
	if (!sym) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	ep_net_mesh_get(gin->mesh);
	sym->mesh = gin->mesh;
	sym->end = calloc(gin->mesh->nranks, sizeof(*sym->end));
	result = sym->end ? ep_net_mr_new(gin->mesh->nic, memory, &sym->mr)
			  : ep_fail(ncclSystemError, "out of host memory");
	if (result == ncclSuccess) {
		own.rkey = sym->mr->rkey[gin->mesh->of_nic];
	}
	EP_CHECK_GOTO(ep_net_mesh_exchange(gin->mesh, EP_NET_ROUND_MEMORY, result, &own,
					   sizeof(own), sym->end),
		      err_drop);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_SYM, sym, mr), err_drop);
	*gin_mr = *mr;
	return ncclSuccess;

err_drop:
	sym_drop(sym);
	return result;
}

static ncclResult_t gin_reg(void *coll, void *data, size_t size, int type, uint64_t flags,
			    void **mr, void **gin_mr)
{
	struct ep_net_memory memory = { .data = data, .size = size, .type = type, .fd = -1 };

	return sym_reg(coll, &memory, flags, mr, gin_mr);
}

static ncclResult_t gin_reg_dmabuf(void *coll, void *data, size_t size, int type, uint64_t offset,
				   int fd, uint64_t flags, void **mr, void **gin_mr)
{
	struct ep_net_memory memory = EP_NET_DMABUF(data, size, type, offset, fd);

	return sym_reg(coll, &memory, flags, mr, gin_mr);
}

/* Memory belongs to its ranks, whose handle may be closed already. */
static ncclResult_t gin_dereg(void *coll, void *mr)
{
	return ep_net_handle_close(EP_NET_SYM, mr, sym_drop);
}

EP_NET_EXPORT const struct ep_gin_v11 ncclGinPlugin_v11 = {
	.name = EP_NET_NAME,
	.init = gin_init,
	.devices = ep_net_count_ports,
	.get_properties = gin_properties,
	.listen = gin_listen,
	.connect = gin_connect,
	.reg_mr_sym = gin_reg,
	.reg_mr_sym_dmabuf = gin_reg_dmabuf,
	.dereg_mr_sym = gin_dereg,
	.close_coll = gin_close,
	.close_listen = ep_net_mesh_close_listen,
	.iput = gin_put,
	.iput_signal = gin_put_signal,
	.test = gin_test,
	.finalize = ep_net_context_free,
};
