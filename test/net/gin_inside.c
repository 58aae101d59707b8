/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GIN's own part, over NICs in single steps: classes and levels of its queue pairs, completions
 * that are lost, peers that are gone, calls that fail, exchanges of much, and puts that are longer
 * than a NIC's messages.
 */
#include <pthread.h>
#include <sys/socket.h>
#include "net/ends.h"
#include "net/gin.c"

static struct vn_dv_calls *calls;

/* One rank, which reaches itself by this NIC, of a class. */
static ncclResult_t solo_make(const struct ep_net_nic *nic, int tc, struct gin **out)
{
	struct gin *gin = calloc(1, sizeof(*gin));
	ncclResult_t result;

	*out = NULL;
	NEED(gin);
	gin->free = NO_OP;
	EP_CHECK_GOTO(ep_net_mesh_new(nic, 1, 0, &gin->mesh), err_free);
	gin->mesh->tc = tc;
	EP_CHECK_GOTO(queues_agree(gin, queues_make(gin)), err_free);
	EP_CHECK_GOTO(queues_connect(gin), err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_GIN, gin, &gin->handle), err_free);
	*out = gin;
	return ncclSuccess;

err_free:
	gin_free(gin);
	return result;
}

static void solo_free(struct gin *gin)
{
	CHECK_INT(gin_close(gin->handle), ncclSuccess);
}

/* The communicator's class, else the port's. */
static void test_class(void)
{
	struct ep_net_nic *nic = ends_nic(0);

	for (int tc = -1; tc <= 3; tc += 4) {
		struct vn_dv_attributes told;
		struct gin *gin;

		check_context("class %d", tc);
		nic->dev[0]->nic.tc = 8;
		NEED(solo_make(nic, tc, &gin) == ncclSuccess);
		vn_dv_attributes(gin->link[0].qp, &told);
		CHECK_INT(told.rtr.ah_attr.grh.traffic_class, tc < 0 ? 8 : 3);
		solo_free(gin);
	}
	ends_nic_drop(nic);
}

static void test_overrun(void)
{
	struct ep_net_nic *nic = ends_nic(0);
	uint64_t until = ep_now_ns() + 5000000000ull;
	ncclResult_t result = ncclSuccess;
	struct ep_error error;
	struct gin *gin;

	check_context("overrun");
	NEED(solo_make(nic, -1, &gin) == ncclSuccess);
	vn_dv_event(nic->dev[0]->nic.ctx, IBV_EVENT_CQ_ERR, gin->cq);
	while (result == ncclSuccess && ep_now_ns() < until) {
		result = gin_progress(gin);
	}
	CHECK_INT(result, ncclSystemError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "has lost completions");
	solo_free(gin);
	ends_nic_drop(nic);
}

/* A device fails, and reports its completion queue as failed, too: the device is the cause. */
static void test_overrun_and_fatal(void)
{
	struct ep_net_nic *nic = ends_nic(0);
	uint64_t until = ep_now_ns() + 5000000000ull;
	ncclResult_t result = ncclSuccess;
	struct ep_error error;
	struct gin *gin;

	check_context("a queue and its device fail");
	NEED(solo_make(nic, -1, &gin) == ncclSuccess);
	gin->link[0].pending = 1;
	vn_dv_event(nic->dev[0]->nic.ctx, IBV_EVENT_CQ_ERR, gin->cq);
	vn_dv_event(nic->dev[0]->nic.ctx, IBV_EVENT_DEVICE_FATAL, NULL);
	while (result == ncclSuccess && ep_now_ns() < until) {
		result = gin_progress(gin);
	}
	CHECK_INT(result, ncclSystemError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "the connection is lost; the device reports a fatal error");
	gin->link[0].pending = 0;
	solo_free(gin);
	ends_nic_drop(nic);
}

/* What the NIC may still bring is waited for when a peer is gone. */
static void test_grace(void)
{
	struct ep_net_nic *nic = ends_nic(0);
	uint64_t began = ep_now_ns(), took;
	ncclResult_t result = ncclSuccess;
	struct gin *gin;
	int fd[2];

	check_context("grace");
	NEED(solo_make(nic, -1, &gin) == ncclSuccess);
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
	gin->mesh->fd[0] = fd[0];
	close(fd[1]);
	gin->link[0].pending = 1;
	while (result == ncclSuccess && ep_now_ns() - began < 5000000000ull) {
		result = gin_progress(gin);
	}
	took = (ep_now_ns() - began) / 1000000;
	CHECK_INT(result, ncclRemoteError);
	CHECK(took >= 950 && took < 4000, "%llu ms", (unsigned long long)took);
	gin->link[0].pending = 0;
	solo_free(gin);
	ends_nic_drop(nic);
}

/* Whichever call fails while ranks are made: nothing is left, and the device has no user more. */
static void test_unwinding(void)
{
	struct ep_net_nic *nic = ends_nic(0);
	uint32_t live = vn_dv_live(nic->dev[0]->nic.ctx);
	int failed = 0;

	check_context("unwinding");
	for (int i = 1; i < 30; i++) {
		struct gin *gin;

		calls->fails = i;
		failed += solo_make(nic, -1, &gin) != ncclSuccess;
		calls->fails = 0;
		if (gin) {
			solo_free(gin);
		}
		CHECK_INT(vn_dv_live(nic->dev[0]->nic.ctx), live);
		CHECK_INT(nic->dev[0]->users, 1);
	}
	CHECK_INT(failed, 3); /* memory, the completion queue, the queue pair */
	ends_nic_drop(nic);
}

/* ---- ranks that tell each other a lot ---- */

#define LONG_WORDS (1u << 20)

static void *exchange_main(void *arg)
{
	struct ep_net_mesh *mesh = arg;
	uint32_t *own = calloc(LONG_WORDS, 4), *all = calloc(2 * LONG_WORDS, 4), wrong = 0;

	NEED(own && all);
	for (uint32_t i = 0; i < LONG_WORDS; i++) {
		own[i] = i * 7 + mesh->rank;
	}
	CHECK_INT(ep_net_mesh_exchange(mesh, EP_NET_ROUND_QUEUES, ncclSuccess, own,
				       (size_t)LONG_WORDS * 4, all),
		  ncclSuccess);
	for (uint32_t i = 0; i < 2 * LONG_WORDS; i++) {
		wrong += all[i] != i % LONG_WORDS * 7 + i / LONG_WORDS;
	}
	CHECK_INT(wrong, 0);
	free(own);
	free(all);
	return NULL;
}

/* Runs two ranks of a mesh, each as a thread. Rank 1 has done so many rounds more. */
static void two_ranks(void *(*rank_main)(void *), uint32_t rounds)
{
	struct ep_net_nic *nic = ends_nic(0);
	struct ep_net_mesh *mesh[2];
	pthread_t thread[2];
	int fd[2];

	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
	for (uint32_t r = 0; r < 2; r++) {
		NEED(ep_net_mesh_new(nic, 2, r, &mesh[r]) == ncclSuccess);
		mesh[r]->fd[!r] = fd[r];
		mesh[r]->rounds += r * rounds;
		NEED(pthread_create(&thread[r], NULL, rank_main, mesh[r]) == 0);
	}
	for (int r = 0; r < 2; r++) {
		pthread_join(thread[r], NULL);
	}
	ep_net_mesh_put(mesh[0]);
	ep_net_mesh_put(mesh[1]);
	ends_nic_drop(nic);
}

/* More than sockets have room for. */
static void test_exchange(void)
{
	check_context("exchange");
	two_ranks(exchange_main, 0);
}

static void *other_round_main(void *arg)
{
	struct ep_net_mesh *mesh = arg;
	uint32_t own = 0, all[2];
	struct ep_error error;

	CHECK_INT(ep_net_mesh_exchange(mesh, EP_NET_ROUND_QUEUES, ncclSuccess, &own, sizeof(own),
				       all),
		  ncclRemoteError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "all ranks must make the same calls");
	return NULL;
}

/* One rank has made an exchange of this kind that the other one has not. */
static void test_other_round(void)
{
	check_context("another round");
	two_ranks(other_round_main, 1);
}

int main(void)
{
	ends_begin(NULL);
	calls = vn_dv_calls();
	test_class();
	test_overrun();
	test_overrun_and_fatal();
	test_grace();
	test_unwinding();
	test_exchange();
	test_other_round();
	return check_end();
}
