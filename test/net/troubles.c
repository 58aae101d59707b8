/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's own part: what comes late, twice, in part or not at all.
 */
#include <endian.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "net/ends.h"
#include "net/net.h"
#include "net/p2p.h"

static struct vn_dv_calls *calls;
static int accept_error; /* what the next accept4() fails with; 0: nothing */

int accept4(int fd, struct sockaddr *addr, socklen_t *size, int flags)
{
	if (accept_error) {
		errno = accept_error;
		return -1;
	}
	return (int)syscall(SYS_accept4, fd, addr, size, flags);
}

/* ---- events ---- */

/* A completion queue is lost: its connection fails, and no other one of the device. */
static void test_overrun(void)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	struct ep_net_comm *pair[2], *other[2];
	uint64_t until = ep_now_ns() + 5000000000ull;
	ncclResult_t result = ncclSuccess;
	struct ep_error error;
	int fd[2];

	check_context("overrun");
	pair_make(from, to, 2, -1, pair);
	other[0] = pair[0];
	other[1] = pair[1];
	pair_make(from, to, 2, -1, pair);
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
	pair[0]->fd = fd[0];
	other[0]->fd = fd[1];
	vn_dv_event(from->dev[0]->nic.ctx, IBV_EVENT_CQ_ERR, pair[0]->local[0].cq);
	/* Whoever looks first takes it up. */
	while (calls->acked == 0 && ep_now_ns() < until) {
		CHECK_INT(ep_net_progress(other[0]), ncclSuccess);
	}
	CHECK_INT(calls->acked, 1);
	while (result == ncclSuccess && ep_now_ns() < until) {
		result = ep_net_progress(pair[0]);
		CHECK_INT(ep_net_progress(other[0]), ncclSuccess);
	}
	CHECK_INT(result, ncclSystemError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "has lost completions");
	pair_free(pair);
	pair_free(other);
	ends_nic_drop(from);
	ends_nic_drop(to);
}

/*
 * A device fails, and reports its completion queue as failed, too: that is no overrun. A connection
 * of two ports goes on over the other one; a connection of one port ends with the device as its
 * cause.
 */
static void test_overrun_and_fatal(uint32_t paths)
{
	struct ep_net_nic *from = paths == 1 ? ends_nic(0) : ends_nic_two(0, 3), *to = ends_nic(1);
	uint64_t until = ep_now_ns() + 5000000000ull;
	ncclResult_t result = ncclSuccess;
	struct ep_net_comm *pair[2];
	struct ep_error error;
	int fd[2];

	check_context("a queue and its device fail, %u paths", paths);
	pair_of_paths(from, to, paths, paths, -1, pair);
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
	pair[0]->fd = fd[0];
	vn_dv_event(from->dev[0]->nic.ctx, IBV_EVENT_CQ_ERR, pair[0]->local[0].cq);
	vn_dv_event(from->dev[0]->nic.ctx, IBV_EVENT_DEVICE_FATAL, NULL);
	while (result == ncclSuccess && ep_now_ns() < until &&
	       (paths == 1 || pair[0]->path[0].state == EP_NET_PATH_OPEN)) {
		result = ep_net_progress(pair[0]);
	}
	if (paths == 1) {
		CHECK_INT(result, ncclSystemError);
		ep_error_get(NULL, &error);
		CHECK_HAS(error.text, "the connection is lost; the device reports a fatal error");
	} else {
		CHECK_INT(result, ncclSuccess);
		CHECK_INT(pair[0]->path[0].state, EP_NET_PATH_CLOSING);
		CHECK_INT(pair[0]->open.paths, 1);
	}
	close(fd[1]);
	pair_end(pair, from, to);
}

/* ---- ends that are gone ---- */

/* What the NIC may still bring is waited for, whoever finds out that the other end is gone. */
static void test_grace(uint32_t paths)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	uint64_t began = ep_now_ns(), took;
	ncclResult_t result = ncclSuccess;
	struct ep_net_comm *pair[2];
	struct ep_error error;
	int fd[2];

	check_context("grace, %u paths", paths);
	pair_of_paths(from, to, paths, paths, -1, pair);
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
	pair[0]->fd = fd[0];
	close(fd[1]);
	while (result == ncclSuccess && ep_now_ns() - began < 5000000000ull) {
		result = ep_net_progress(pair[0]);
	}
	took = (ep_now_ns() - began) / 1000000;
	CHECK_INT(result, ncclRemoteError);
	CHECK(took >= 950 && took < 4000, "%llu ms", (unsigned long long)took);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "has closed the connection");
	pair_end(pair, from, to);
}

/* A device that broke is as good as new when it is opened again. */
static void test_mended(void)
{
	struct ep_net_nic *nic = ends_nic(0);
	struct ep_net_dev *dev = nic->dev[0];

	check_context("a device that is opened again");
	CHECK_INT(dev->users, 1);
	dev->broken = true;
	ends_nic_drop(nic);
	nic = ends_nic(0);
	CHECK(nic->dev[0] == dev && !dev->broken, "it counts as broken still");
	ends_nic_drop(nic);
}

/* A registration of host memory does not serve a GPU's, nor the other way round. */
static void test_kinds_of_memory(void)
{
	struct ep_net_nic *nic = ends_nic(0);
	static uint8_t bytes[4096];
	struct ep_net_memory memory = { .data = bytes, .size = sizeof(bytes), .fd = -1 };
	struct ep_net_mr *mr[3];

	check_context("kinds of memory");
	for (int i = 0; i < 3; i++) {
		memory.type = i == 1 ? EP_NET_PTR_CUDA : EP_NET_PTR_HOST;
		NEED(ep_net_mr_new(nic, &memory, &mr[i]) == ncclSuccess);
	}
	CHECK(mr[0]->region[0] == mr[2]->region[0] && mr[0]->region[0] != mr[1]->region[0]);
	for (int i = 0; i < 3; i++) {
		ep_net_mr_free(mr[i]);
	}
	ends_nic_drop(nic);
}

/*
 * Memory is registered as a whole and in part, and only the part stays. The rest is unmapped, and
 * its place has other pages: the NIC does not know them by the old registration.
 */
static void test_mapped_anew(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), all = 16 * page;
	struct ep_net_nic *nic = ends_nic(0);
	struct ep_net_mr *mr[5];
	uint8_t *at = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check_context("memory that is mapped anew");
	NEED(at != MAP_FAILED);
	mr[0] = ends_register(nic, at, all);
	mr[1] = ends_register(nic, at, 100);
	mr[2] = ends_register(nic, at + 10, 200);
	CHECK(mr[1]->region[0] == mr[2]->region[0], "the same pages are registered twice");
	ep_net_mr_free(mr[0]);
	NEED(munmap(at + page, all - page) == 0);
	NEED(mmap(at + page, all - page, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + page);
	mr[3] = ends_register(nic, at + 4 * page, page);
	mr[4] = ends_register(nic, at, 8 * page);
	CHECK(mr[3]->region[0] != mr[1]->region[0], "the NIC has the old pages");
	CHECK(mr[4]->region[0] != mr[1]->region[0], "the NIC has old pages behind the first");
	for (int i = 1; i < 5; i++) {
		ep_net_mr_free(mr[i]);
	}
	CHECK_INT(nic->dev[0]->nregions, 0);
	munmap(at, all);
	ends_nic_drop(nic);
}

/*
 * What a device told of before it broke has come, and the sender is told so; also where nobody has
 * heard yet that it broke, and while another thread registers memory with it, which may take long.
 */
static void test_broken(bool heard, bool registers)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, 0, 0, 0),
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM };
	struct ep_net_ctrl_msg word = { 0 };
	struct ep_net_comm *pair[2], *c;
	void *data = NULL, *mr = NULL, *request;
	size_t size = 0;
	int fd[2], tag = 0;

	check_context("broken, heard %d, registers %d", heard, registers);
	pair_of_paths(from, to, 2, 2, -1, pair);
	c = pair[1];
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
	c->fd = fd[0];
	for (uint32_t i = 0; i < 20; i++) {
		NEED(ep_net_irecv(c->handle, 1, &data, &size, &tag, &mr, &request) == ncclSuccess);
		NEED(request);
		wc.imm_data = htobe32(EP_NET_IMM(i, 0, 1, 0));
		wc.qp_num = c->qp[0].qp->qp_num;
		vn_dv_complete(c->local[0].cq, &wc);
	}
	to->dev[0]->broken = heard;
	if (!heard) {
		vn_dv_event(to->dev[0]->nic.ctx, IBV_EVENT_DEVICE_FATAL, NULL);
		calls->refusals = 1000;
		calls->refusal = EIO;
	}
	if (registers) {
		pthread_mutex_lock(&to->dev[0]->lock);
	}
	CHECK_INT(ep_net_path_close(c, 0, "it is given up"), ncclSuccess);
	if (registers) {
		pthread_mutex_unlock(&to->dev[0]->lock);
	}
	CHECK_INT(read(fd[1], &word, sizeof(word)), sizeof(word));
	CHECK_INT(word.path, 0);
	CHECK_INT(word.number[0], 20);
	CHECK_INT(to->dev[0]->broken, 1);
	calls->refusals = 0;
	close(fd[1]);
	pair_end(pair, from, to);
}

/* ---- paths over which nobody is found ---- */

static const struct ep_verbs *verbs;

static int not_found;

static int nobody(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (attr->qp_state == IBV_QPS_RTR && not_found == ENODATA) {
		vn_dv_event(qp->context, IBV_EVENT_PORT_ERR, NULL);
	}
	return attr->qp_state == IBV_QPS_RTR ? not_found : verbs->ibv_modify_qp(qp, attr, mask);
}

/*
 * All ports are up, and over one of two nobody is found: the connection is made over the other one,
 * and the other end learns of it. Over neither: it is not made. ENODATA: the port has just gone
 * down, and its address with it.
 */
static void test_not_found(int ports, int error_code)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic_two(1, 2);
	const struct ep_net_class class = { -1, -1 };
	struct ep_net_ctrl_msg word = { 0 };
	struct ep_net_comm *pair[2], *c;
	static struct ep_verbs deaf;
	struct ep_error error;
	int fd[2];

	check_context("nobody is found by %d ports, error %d", ports, error_code);
	not_found = error_code;
	verbs = to->dev[0]->nic.v;
	deaf = *verbs;
	deaf.ibv_modify_qp = nobody;
	for (int i = 0; i < ports; i++) {
		to->dev[i]->nic.v = &deaf;
	}
	if (ports == 1) {
		pair_of_paths(from, to, 2, 4, -1, pair);
		c = pair[1];
		NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
		c->fd = fd[0];
		CHECK_INT(ep_net_paths_begin(c), ncclSuccess);
		CHECK_INT(c->path[0].state, EP_NET_PATH_CLOSING);
		CHECK_INT(c->path[1].state, EP_NET_PATH_OPEN);
		CHECK_INT(read(fd[1], &word, sizeof(word)), sizeof(word));
		CHECK(word.kind == EP_NET_CLOSED && word.path == 0, "%u of path %u", word.kind,
		      word.path);
		close(fd[1]);
		pair_free(pair);
	} else {
		struct ep_net_remote remote = { .end = from->dev[0]->nic.end };
		const struct ep_net_peer peer = { .nremotes = 1,
						  .remote = &remote,
						  .nqps = 4,
						  .qpn = (uint32_t[]){ 1, 2, 3, 4 } };

		NEED(ep_net_comm_new(to, false, 2, 4, &class, &c) == ncclSuccess);
		CHECK_INT(ep_net_comm_connect(c, &peer), ncclSystemError);
		ep_error_get(NULL, &error);
		CHECK_HAS(error.text, "does not find the path");
		ep_net_comm_free(c);
	}
	to->dev[0]->nic.v = to->dev[1]->nic.v = verbs;
	ends_nic_drop(from);
	ends_nic_drop(to);
}

static int tries;

static int nobody_first(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return attr->qp_state == IBV_QPS_RTR && tries++ == 0 ? ETIMEDOUT
							     : verbs->ibv_modify_qp(qp, attr, mask);
}

/*
 * The receiver does not find the sender over the first path, and the sender at its first try does
 * not find the receiver over the second one. It knows that it has no other, and tries again. A peer
 * that names all paths is refused.
 */
static void test_crossed(void)
{
	struct ep_net_nic *from = ends_nic_two(0, 3), *to = ends_nic_two(1, 2);
	const struct ep_net_class class = { -1, -1 };
	static struct ep_verbs deaf, deaf_first;
	struct ep_net_comm *pair[2], *c;
	struct ep_net_remote remote[2];
	const struct ep_net_peer peer = {
		.nremotes = 2, .remote = remote, .nqps = 2, .qpn = (uint32_t[]){ 1, 2 }, .lost = 3
	};
	struct ep_error error;

	check_context("each end finds the other one over another path");
	verbs = to->dev[0]->nic.v;
	not_found = ETIMEDOUT;
	tries = 0;
	deaf = deaf_first = *verbs;
	deaf.ibv_modify_qp = nobody;
	deaf_first.ibv_modify_qp = nobody_first;
	to->dev[0]->nic.v = &deaf;
	from->dev[1]->nic.v = &deaf_first;
	pair_of_paths(from, to, 2, 2, -1, pair);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(ep_net_paths_lost(pair[i]), 1);
		CHECK(pair[i]->qp[0].qp->state != IBV_QPS_RTS &&
			      pair[i]->qp[1].qp->state == IBV_QPS_RTS,
		      "end %d", i);
		remote[i] = (struct ep_net_remote){ .end = to->dev[i]->nic.end };
	}
	CHECK_INT(tries, 2);
	pair_free(pair);
	to->dev[0]->nic.v = from->dev[1]->nic.v = verbs;
	NEED(ep_net_comm_new(from, true, 2, 2, &class, &c) == ncclSuccess);
	CHECK_INT(ep_net_comm_connect(c, &peer), ncclRemoteError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "lost paths 0x3 of 2");
	ep_net_comm_free(c);
	ends_nic_drop(from);
	ends_nic_drop(to);
}

/* ---- calls that fail ---- */

/*
 * Whichever call fails while something is made: nothing is left, and the devices have no user more.
 */
static void test_unwinding(void)
{
	struct ep_net_nic *nic = ends_nic_two(0, 1);
	const struct ep_net_class class = { -1, -1 };
	static uint8_t bytes[10000];
	struct ep_net_memory memory = { .data = bytes, .size = sizeof(bytes), .fd = -1, .type = 1 };
	struct ep_net_comm *c = NULL;
	struct ep_net_mr *mr = NULL;
	int failed[2] = { 0 };
	uint32_t live[2];

	check_context("unwinding");
	for (int p = 0; p < 2; p++) {
		live[p] = vn_dv_live(nic->dev[p]->nic.ctx);
	}
	for (int i = 1; i < 30; i++) {
		ncclResult_t result[2] = { ncclSuccess, ncclSuccess };

		for (int what = 0; what < 2; what++) {
			calls->fails = i;
			if (what == 0) {
				result[0] = ep_net_comm_new(nic, true, 2, 4, &class, &c);
			} else {
				result[1] = ep_net_mr_new(nic, &memory, &mr);
			}
			failed[what] += result[what] != ncclSuccess;
			calls->fails = 0;
		}
		ep_net_comm_free(c);
		if (mr) {
			ep_net_mr_free(mr);
		}
		for (int p = 0; p < 2; p++) {
			CHECK_INT(vn_dv_live(nic->dev[p]->nic.ctx), live[p]);
			CHECK_INT(nic->dev[p]->users, 1);
		}
		CHECK_INT(nic->dev[0]->nregions + nic->dev[1]->nregions, 0);
		c = NULL;
		mr = NULL;
	}
	CHECK(failed[0] == 8 && failed[1] == 2, "%d, %d", failed[0], failed[1]);
	ends_nic_drop(nic);
}

/* ---- queue pairs whose peers are not found at once ---- */

/* `times` calls fail: so many are made, and it takes so long at least. */
static void test_tries(int error, int times, int want, uint64_t least_ms, ncclResult_t code)
{
	struct ep_net_nic *nic = ends_nic(0);
	struct ep_rc_room room = { .sq = 32, .rq = 32 };
	struct ep_net_dev *dev = nic->dev[0];
	struct ibv_cq *cq = dev->nic.v->ibv_create_cq(dev->nic.ctx, 64, NULL, NULL, 0);
	uint64_t began = ep_now_ns();
	struct ibv_qp *qp;

	check_context("error %d, %d times", error, times);
	calls->refusals = times;
	calls->refusal = error;
	calls->modified = 0;
	qp = ep_net_queue_new(dev, 0, cq, &room, 0);
	CHECK_INT(qp ? ncclSuccess : ncclSystemError, code);
	CHECK(qp || errno == error);
	CHECK_INT(calls->modified, want);
	CHECK(ep_now_ns() - began >= least_ms * 1000000, "%llu ns",
	      (unsigned long long)(ep_now_ns() - began));
	calls->refusals = 0;
	if (qp) {
		dev->nic.v->ibv_destroy_qp(qp);
	}
	dev->nic.v->ibv_destroy_cq(cq);
	ends_nic_drop(nic);
}

/* ---- flushes that cannot be made ---- */

static struct ep_net_mr *gpu_memory(struct ep_net_nic *nic, void *data, size_t size)
{
	struct ep_net_mr *mr = ends_register(nic, data, size);

	mr->gpu = true;
	return mr;
}

/* There is no queue pair for it: nothing is left of the request. */
static void test_no_flush(void)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	static uint8_t target[64];
	struct ep_net_mr *mr = gpu_memory(to, target, sizeof(target));
	struct ep_net_comm *pair[2];
	void *data = target, *handle, *request = mr;
	int size = sizeof(target), done = 0;

	check_context("no flush");
	pair_make(from, to, 1, -1, pair);
	CHECK(ep_net_handle_new(EP_NET_MR, mr, &handle) == ncclSuccess);
	for (int i = 0; i < 200; i++) {
		calls->fails = 1;
		CHECK_INT(ep_net_iflush(pair[1]->handle, 1, &data, &size, &handle, &request),
			  ncclSystemError);
		CHECK(!request);
		CHECK_INT(pair[1]->pool.pending, 0);
		calls->fails = 0;
	}
	CHECK_INT(ep_net_iflush(pair[1]->handle, 1, &data, &size, &handle, &request), ncclSuccess);
	CHECK_INT(ep_net_test(request, &done, NULL), ncclSuccess);
	CHECK_INT(done, 1);
	ep_net_handle_drop(EP_NET_MR, handle);
	ep_net_mr_free(mr);
	pair_end(pair, from, to);
}

/*
 * Far more than a queue pair has room for, ended in any order; then as many again; one too many is
 * an error.
 */
static void test_flushes(uint32_t paths)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	static uint8_t target[64];
	struct ep_net_mr *mr = gpu_memory(to, target, sizeof(target));
	void *data = target, *handle, *request[EP_NET_FLUSHES + 1];
	struct ep_net_comm *pair[2];
	int size = sizeof(target), done;

	check_context("flushes, %u paths", paths);
	pair_of_paths(from, to, paths, paths, -1, pair);
	CHECK(ep_net_handle_new(EP_NET_MR, mr, &handle) == ncclSuccess);
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i <= EP_NET_FLUSHES; i++) {
			CHECK_INT(ep_net_iflush(pair[1]->handle, 1, &data, &size, &handle,
						&request[i]),
				  i < EP_NET_FLUSHES ? ncclSuccess : ncclInternalError);
			CHECK(!request[i] == (i == EP_NET_FLUSHES));
		}
		CHECK(pair[1]->local[0].flush.room == 0, "%u", pair[1]->local[0].flush.room);
		for (uint32_t i = 0; i < EP_NET_FLUSHES; i++) {
			uint32_t k = (i * 77 + round) % EP_NET_FLUSHES;

			done = 0;
			for (int n = 0; !done && n < 1000; n++) {
				CHECK_INT(ep_net_test(request[k], &done, NULL), ncclSuccess);
			}
			CHECK(done, "flush %u", k);
		}
		CHECK_INT(pair[1]->pool.pending, 0);
		CHECK_INT(pair[1]->local[0].flush.room, EP_NET_FLUSH_DEPTH);
	}
	ep_net_handle_drop(EP_NET_MR, handle);
	ep_net_mr_free(mr);
	pair_end(pair, from, to);
}

/* ---- slots, and room ---- */

/* Two ends and their memory. */
struct line {
	struct ep_net_nic *nic[2];
	struct ep_net_comm *pair[2];
	struct ep_net_mr *mr[2];
	void *mrs[2];
	uint8_t bytes[2][4096];
};

static void line_open(struct line *l, int wrs)
{
	memset(l, 0, sizeof(*l));
	for (int i = 0; i < 2; i++) {
		l->nic[i] = ends_nic(i);
		l->nic[i]->dev[0]->nic.attr.max_qp_wr = wrs;
	}
	pair_make(l->nic[0], l->nic[1], 1, -1, l->pair);
	for (int i = 0; i < 2; i++) {
		l->mr[i] = ends_register(l->nic[i], l->bytes[i], sizeof(l->bytes[0]));
		CHECK(ep_net_handle_new(EP_NET_MR, l->mr[i], &l->mrs[i]) == ncclSuccess);
	}
}

static void line_close(struct line *l)
{
	pair_free(l->pair);
	for (int i = 0; i < 2; i++) {
		ep_net_handle_drop(EP_NET_MR, l->mrs[i]);
		ep_net_mr_free(l->mr[i]);
		ends_nic_drop(l->nic[i]);
	}
}

/* The slot has arrived then. */
static ncclResult_t line_recv(struct line *l, int n, void **request)
{
	ncclResult_t result;
	void *data[8], *mrs[8];
	size_t sizes[8];
	int tags[8];

	for (int i = 0; i < n; i++) {
		data[i] = l->bytes[1];
		mrs[i] = l->mrs[1];
		sizes[i] = sizeof(l->bytes[1]);
		tags[i] = i;
	}
	result = ep_net_irecv(l->pair[1]->handle, n, data, sizes, tags, mrs, request);
	ends_settle();
	return result;
}

static ncclResult_t line_send(struct line *l, size_t size, int tag, void **request)
{
	return ep_net_isend(l->pair[0]->handle, l->bytes[0], size, tag, l->mrs[0], request);
}

/* Of a group's slot one half is there: it is not used before the other half is. */
static void test_half_slot(void)
{
	static struct line l;
	struct ep_net_slot_entry *slot;
	void *request;
	uint64_t seq;

	check_context("half a slot");
	line_open(&l, 1024);
	CHECK_INT(line_recv(&l, 2, &request), ncclSuccess);
	slot = l.pair[0]->shared->slot[0];
	seq = slot[1].seq;
	slot[1].seq = 0;
	CHECK_INT(line_send(&l, 8, 1, &request), ncclSuccess);
	CHECK(!request);
	CHECK_INT(line_send(&l, 8, 0, &request), ncclSuccess);
	CHECK(!request);
	slot[1].seq = seq;
	CHECK_INT(line_send(&l, 8, 1, &request), ncclSuccess);
	CHECK(request);
	line_close(&l);
}

/* Receives are posted no further than slots are known to have arrived. */
static void test_late_slots(void)
{
	static struct line l;
	void *recv = &l, *send;
	int done, sizes[8], n = 0;

	check_context("late slots");
	line_open(&l, 1024);
	ends_no_slots = true;
	for (; recv && n < 100; n += recv != NULL) {
		CHECK_INT(line_recv(&l, 1, &recv), ncclSuccess);
		if (recv) {
			CHECK_INT(line_send(&l, 8, 0, &send), ncclSuccess);
			NEED(send);
			CHECK_INT(ep_net_test(send, &done, sizes), ncclSuccess);
			CHECK(done);
			CHECK_INT(ep_net_test(recv, &done, sizes), ncclSuccess);
			CHECK(done);
		}
	}
	CHECK(n >= (int)EP_NET_GROUPS && n <= (int)EP_NET_SLOTS, "%d", n);
	ends_no_slots = false;
	line_close(&l);
}

/* A message that comes twice is an error, and none of what follows it. */
static void test_twice(void)
{
	static struct line l;
	void *request;
	struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, 0, 0, 0),
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
			     .imm_data = htobe32(EP_NET_IMM(0, 1, 1, 0)),
			     .byte_len = 0 };

	check_context("twice");
	line_open(&l, 1024);
	CHECK_INT(line_recv(&l, 2, &request), ncclSuccess);
	vn_dv_complete(l.pair[1]->local[0].cq, &wc);
	CHECK_INT(ep_net_progress(l.pair[1]), ncclSuccess);
	vn_dv_complete(l.pair[1]->local[0].cq, &wc);
	CHECK_INT(ep_net_progress(l.pair[1]), ncclRemoteError);
	line_close(&l);
}

/* A message and what tells of it take two places, of an odd number that is left. */
static void test_room(void)
{
	static struct line l;
	void *recv, *send[64], *more = &l;
	int done, sizes[8], n = 0;

	check_context("room");
	line_open(&l, 32);
	CHECK_INT(l.pair[0]->sq_depth, 32);
	while (more && n < 64) {
		CHECK_INT(line_recv(&l, 1, &recv), ncclSuccess);
		CHECK_INT(line_send(&l, n ? 2000 : 8, 0, &more), ncclSuccess);
		CHECK(l.pair[0]->qp[0].room <= 32, "%u", l.pair[0]->qp[0].room);
		if (more) {
			send[n++] = more;
			CHECK_INT(ep_net_test(recv, &done, sizes), ncclSuccess);
			CHECK(done);
		}
	}
	CHECK(n > 10 && n <= 16, "%d", n);
	for (int i = 0; i < n; i++) {
		CHECK_INT(ep_net_test(send[i], &done, sizes), ncclSuccess);
		CHECK(done);
	}
	line_close(&l);
}

/* ---- a machine that has no room for connections ---- */

static void test_accept(int error, const char *text)
{
	struct ep_error said;
	int fd = 0;

	check_context("accept, %s", strerror(error));
	accept_error = error;
	CHECK_INT(ep_net_accept_one(-1, "10.1.2.3:4", &fd), text ? ncclSystemError : ncclSuccess);
	CHECK_INT(fd, -1);
	accept_error = 0;
	if (text) {
		ep_error_get(NULL, &said);
		CHECK_HAS(said.text,
			  "this process cannot take the connection of a peer at 10.1.2.3:4: ");
		CHECK_HAS(said.text, strerror(error));
		CHECK_HAS(said.text, text);
	}
}

int main(void)
{
	ends_begin(NULL);
	calls = vn_dv_calls();
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "10000", 1);
	setenv("NCCL_IB_ADAPTIVE_ROUTING", "1", 1);
	setenv("NCCL_IB_AR_THRESHOLD", "1000", 1);
	setenv("NCCL_IB_MQP_RETRY_CNT", "4", 1);
	setenv("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "3", 1);
	test_tries(ETIMEDOUT, 2, 3, 3 + 6, ncclSuccess);
	test_tries(ETIMEDOUT, 4, 5, 3 + 6 + 9 + 12, ncclSuccess);
	test_tries(ETIMEDOUT, 5, 5, 3 + 6 + 9 + 12, ncclSystemError);
	test_tries(EINVAL, 1, 1, 0, ncclSystemError);
	test_overrun();
	test_overrun_and_fatal(1);
	test_overrun_and_fatal(2);
	test_grace(1);
	test_grace(2);
	test_mended();
	test_kinds_of_memory();
	test_mapped_anew();
	test_broken(true, false);
	test_broken(false, false);
	test_broken(false, true);
	test_not_found(1, ETIMEDOUT);
	test_not_found(1, ENODATA);
	test_not_found(2, ETIMEDOUT);
	test_crossed();
	test_unwinding();
	test_no_flush();
	test_flushes(1);
	test_flushes(2);
	test_half_slot();
	test_late_slots();
	test_twice();
	test_room();
	test_accept(EMFILE, "ulimit -n");
	test_accept(ENFILE, "fs.file-max");
	test_accept(ENOBUFS, "memory");
	test_accept(ENOMEM, "memory");
	test_accept(EAGAIN, NULL);
	test_accept(ECONNABORTED, NULL);
	return check_end();
}
