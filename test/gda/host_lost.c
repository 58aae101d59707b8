/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host side makes of trouble: every failure ends a kernel's waits, takes the peer's
 * connection down, and is told in words that name the culprit; then ranks close and connect anew.
 *
 *     host_lost SCENE MODE          (the scenes are listed below)
 */
#include <stddef.h>
#include <unistd.h>
#include "gda/gda.h"
#include "gda/prm.h"
#include "gda/state.h"
#include "kernels.h"
#include "launch.h"
#include "support/reason.h"
#include "support/world.h"

#define HEAP_BYTES (2u << 20)
#define TIMEOUT_NS 20000000000ull
#define STUCK_NS 400000000ull
#define WITHIN 12.0 /* seconds; the NIC is told to give up after a third of one */

struct rank;

struct scene {
	const char *name;
	void (*run)(struct rank *r);
	const char *text;    /* of the failure, if a NIC of its own has it */
	bool flushed;        /* see run_port() */
	bool apart;          /* it makes its rank itself, and ends it */
	uint64_t timeout_ns; /* of kernels; 0: TIMEOUT_NS */
	bool last;           /* the ranks do not connect anew afterwards */
};

static const struct scene *scene;
static enum ep_gda_mode mode;

struct rank {
	struct world *w;
	struct ep_boot boot;
	struct ep_gda *gda;
	void *heap;
	struct gda_result *result;
};

static ncclResult_t open_gda(struct rank *r, struct world *w, enum ep_gda_mode m, uint32_t queues)
{
	static const char *const host[2] = { "host0", "host1" };
	const bool remote[2] = { w->rank == 1, w->rank == 0 };
	char bus_id[32];
	struct ep_gda_config config = { .device = w->device,
					.bus_id = bus_id,
					.place = (uint32_t)w->device,
					.remote = remote,
					.host = host,
					.queues = queues,
					.depth = 64,
					.mode = m,
					.timeout_ns = TIMEOUT_NS };
	ncclResult_t mine = ncclSuccess;

	memset(r, 0, sizeof(*r));
	r->w = w;
	NEED_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), w->device));
	NEED_OK(ep_boot_open(&r->boot, w->comm, TIMEOUT_NS, &mine));
	NEED_OK(mine);
	return ep_gda_open(&r->gda, &r->boot, &config, ncclSuccess);
}

static void make(struct rank *r, struct world *w)
{
	NEED_OK(open_gda(r, w, mode, 2));
	NEED_CUDA(cudaMalloc(&r->heap, HEAP_BYTES));
	NEED_CUDA(cudaMemset(r->heap, 0, HEAP_BYTES));
	NEED_CUDA(cudaHostAlloc((void **)&r->result, sizeof(*r->result), cudaHostAllocMapped));
	NEED_OK(ep_gda_bind(r->gda, &r->boot, r->heap, HEAP_BYTES, ncclSuccess));
}

static void end(struct rank *r)
{
	double start = world_now();

	ep_gda_close(r->gda);
	CHECK(world_now() - start < WITHIN);
	r->gda = NULL;
	ep_boot_close(&r->boot);
	if (r->heap) {
		NEED_CUDA(cudaFree(r->heap));
		NEED_CUDA(cudaFreeHost(r->result));
	}
}

/* One warp posts to a queue of the peer. */
static void launch(struct rank *r, uint32_t what, uint32_t queue, uint32_t lanes, bool quiet)
{
	struct gda_one_args args = { .qp = ep_gda_queues(r->gda) + 2 * (1 - r->w->rank) + queue,
				     .result = r->result,
				     .timeout_ns = scene->timeout_ns ? scene->timeout_ns
								     : TIMEOUT_NS,
				     .what = what,
				     .times = 1,
				     .lanes = lanes,
				     .quiet = quiet };

	gda_launch(gda_one, 1, 32, &args, 0, r->w->stream);
}

/* Returns how that went. */
static uint32_t post_lanes(struct rank *r, uint32_t what, uint32_t queue, uint32_t lanes,
			   bool quiet)
{
	launch(r, what, queue, lanes, quiet);
	NEED_CUDA(cudaStreamSynchronize(r->w->stream));
	return r->result->status;
}

static uint32_t post(struct rank *r, uint32_t what, uint32_t queue, bool quiet)
{
	return post_lanes(r, what, queue, 7, quiet);
}

/* Who posted sees the NIC's error, or that the host has seen it first and stopped the queue. */
static void check_failed(uint32_t status)
{
	CHECK(status == EP_MLX5_ERR_CQE || status == EP_MLX5_ERR_STOPPED, "%u", status);
}

static uint32_t down_word(const struct rank *r, int peer)
{
	uint32_t word;

	NEED_CUDA(cudaMemcpy(&word, ep_gda_down(r->gda) + peer, 4, cudaMemcpyDefault));
	return word;
}

/* The failure comes up by itself, names peer, port and queue, and says `part`. */
static void expect_failure(struct rank *r, const char *part)
{
	struct ep_gda_failure failure = { .peer = -2 }, again;
	double limit = world_now() + WITHIN;
	int peer = 1 - r->w->rank;
	char name[64];

	while (!ep_gda_poll(r->gda, &failure)) {
		if (world_now() > limit) {
			check_fail(__FILE__, __LINE__, "no failure was found");
			return;
		}
		usleep(2000);
	}
	if (r->w->rank == 0) {
		printf("%s\n", failure.text);
	}
	snprintf(name, sizeof(name), "rank %d (host%d)", peer, peer);
	CHECK_INT(failure.peer, peer);
	CHECK(strstr(failure.text, name) && strstr(failure.text, "_0:1, queue ") &&
	      strstr(failure.text, "QP 0x"));
	CHECK_HAS(failure.text, part);
	CHECK_INT(down_word(r, peer), 1);
	CHECK(!ep_gda_poll(r->gda, &again));
	CHECK(ep_gda_explain(r->gda, peer, &again) && strcmp(again.text, failure.text) == 0);
	/* What kernels do next ends at once; another queue of the peer may still work. */
	limit = world_now() + 5;
	CHECK(post(r, GDA_ONE_PUT, 0, true) != EP_MLX5_OK);
	post(r, GDA_ONE_PUT, 1, true);
	CHECK(world_now() < limit);
}

static void run_gone(struct rank *rank)
{
	struct world *w = rank->w;
	bool silent = !strcmp(scene->name, "silent");
	struct rank r;
	uint32_t status;

	make(&r, w);
	CHECK_INT(post(&r, GDA_ONE_PUT_SIGNAL, 0, true), EP_MLX5_OK);
	world_meet(w);
	if (w->rank == 1) {
		end(&r);
		world_raise(w, 0, 1);
		world_meet(w);
		return;
	}
	NEED(world_await(w, 0, 1, 1, 30));
	status = post(&r, GDA_ONE_PUT, 0, !silent);
	if (silent) {
		CHECK_INT(status, EP_MLX5_OK);
	} else {
		check_failed(status);
	}
	expect_failure(&r, "syndrome 0x15");
	world_meet(w);
	end(&r);
}

static void run_died(struct rank *rank)
{
	struct world *w = rank->w;
	struct rank r;

	make(&r, w);
	CHECK_INT(post(&r, GDA_ONE_PUT_SIGNAL, 0, true), EP_MLX5_OK);
	world_meet(w);
	if (w->rank == 1) {
		world_raise(w, 0, 1);
		_exit(0);
	}
	NEED(world_await(w, 0, 1, 1, 30));
	check_failed(post(&r, GDA_ONE_PUT, 0, true));
	expect_failure(&r, "syndrome 0x15");
	end(&r);
	/* Nobody is left to meet. */
	exit(check_end());
}

/*
 * The first work on the first NIC takes its port down, or the NIC: then somebody may see the work
 * that the NIC flushes before the NIC's event, and the failure is the peer's, and gets its cause
 * later.
 */
static void run_port(struct rank *r)
{
	struct ep_gda_failure failure = { .peer = -2 }, known = { .text = "" };
	double limit = world_now() + WITHIN;

	if (r->w->rank == 0) {
		CHECK(post(r, GDA_ONE_PUT, 0, true) != EP_MLX5_OK);
		while (!ep_gda_poll(r->gda, &failure) && world_now() < limit) {
			usleep(2000);
		}
		while (!(ep_gda_explain(r->gda, 1, &known) && strstr(known.text, scene->text)) &&
		       world_now() < limit) {
			usleep(2000);
		}
		printf("%s\n", known.text);
		CHECK_HAS(known.text, scene->text);
		CHECK(failure.peer == -1 || (scene->flushed && failure.peer == 1), "%d",
		      failure.peer);
		CHECK_INT(down_word(r, 1), 1);
	}
}

/* The first work on the first NIC takes its port's address away: what was connected goes on. */
static void run_address(struct rank *r)
{
	struct ep_gda_failure failure;

	for (uint32_t i = 0; i < 4; i++) {
		CHECK_INT(post(r, GDA_ONE_PUT_SIGNAL, i % 2, true), EP_MLX5_OK);
		usleep(100000);
	}
	world_meet(r->w);
	CHECK(!ep_gda_poll(r->gda, &failure));
	CHECK_INT(__atomic_load_n(&r->gda->nic[0].address_gone, __ATOMIC_RELAXED), 1);
}

/*
 * The first work on the first NIC gives its port another hardware address: whoever sends to it is
 * told so, by modes that know what they send to.
 */
static void run_neighbour(struct rank *r)
{
	struct ep_gda_failure known = { .text = "" };
	double limit = world_now() + WITHIN;

	if (r->w->rank == 0) {
		CHECK(post(r, GDA_ONE_PUT_SIGNAL, 0, true) != EP_MLX5_OK);
		while (!(ep_gda_explain(r->gda, 1, &known) &&
			 (mode == EP_GDA_CPU_PROXY || strstr(known.text, scene->text))) &&
		       world_now() < limit) {
			usleep(2000);
		}
		printf("%s\n", known.text);
		CHECK_HAS(known.text, "syndrome 0x15");
		if (mode != EP_GDA_CPU_PROXY) {
			CHECK_HAS(known.text, scene->text);
		}
	}
}

/* The NIC is done with a queue that kernels have given up: it reads their memory no more. */
static void check_halted(struct rank *r)
{
	double limit = world_now() + WITHIN;
	struct ep_gda_cause cause = { 0 };
	uint32_t state = 0;
	bool known;

	do {
		usleep(2000);
		pthread_mutex_lock(&r->gda->ask);
		known = ep_gda_queue_query(&r->gda->queue[0], &state, &cause);
		pthread_mutex_unlock(&r->gda->ask);
	} while (known && state != EP_PRM_QP_ERR && world_now() < limit);
	CHECK_INT(state, EP_PRM_QP_ERR);
}

static void run_stuck(struct rank *r)
{
	if (r->w->rank == 0) {
		CHECK_INT(post(r, GDA_ONE_PUT, 0, true), EP_MLX5_ERR_COMPLETION);
		expect_failure(r, "work did not complete within 400 ms");
		check_halted(r);
	}
}

static void run_remote(struct rank *r)
{
	if (r->w->rank == 1) {
		ep_gda_unbind(r->gda);
		world_raise(r->w, 1, 1);
	} else {
		NEED(world_await(r->w, 1, 1, 1, 30));
		check_failed(post_lanes(r, GDA_ONE_PUT, 0, 1, true));
		expect_failure(r, "syndrome 0x13");
	}
}

static void run_local(struct rank *r)
{
	if (r->w->rank == 0) {
		ep_gda_unbind(r->gda);
		check_failed(post(r, GDA_ONE_PUT, 0, true));
		expect_failure(r, "syndrome 0x04");
	}
}

#define POSTED 12 /* times: together they take longer than a close waits where nothing moves */

/* What was posted reaches the peer although this rank closes at once. */
static void run_posted(struct rank *rank)
{
	struct world *w = rank->w;
	struct gda_warp seen;
	struct rank r;

	make(&r, w);
	NEED_CUDA(cudaMemset(r.heap, 0x51 + w->rank, sizeof(seen)));
	NEED_CUDA(cudaDeviceSynchronize());
	world_meet(w);
	if (w->rank == 0) {
		for (uint32_t i = 0; i < POSTED; i++) {
			CHECK_INT(post_lanes(&r, GDA_ONE_PUT_SIGNAL, 0, i + 1 < POSTED ? 7 : 15,
					     false),
				  EP_MLX5_OK);
		}
		end(&r);
		world_raise(w, 0, 1);
	} else {
		NEED(world_await(w, 0, 0, 1, 30));
		NEED_CUDA(cudaMemcpy(&seen, r.heap, sizeof(seen), cudaMemcpyDeviceToHost));
		for (uint32_t i = 0; i < 5; i++) {
			CHECK_INT(seen.tags[i] & 0xff, i < 4 ? 0x51 : 0x52); /* 3: of the last */
		}
		end(&r);
	}
}

/* Closing ends the queue pairs, and so the kernels that wait for them. */
static void run_waiting(struct rank *rank)
{
	struct world *w = rank->w;
	double start;
	struct rank r;

	make(&r, w);
	world_meet(w);
	if (w->rank == 0) {
		launch(&r, GDA_ONE_PUT, 0, 7, true);
		start = world_now();
		while (!__atomic_load_n(&r.gda->queue[0].dbr->send, __ATOMIC_ACQUIRE) &&
		       world_now() - start < WITHIN) {
			usleep(1000);
		}
		start = world_now();
		ep_gda_close(r.gda);
		CHECK(world_now() - start < WITHIN);
		r.gda = NULL;
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		CHECK_INT(r.result->status, EP_MLX5_ERR_CQE);
	}
	end(&r);
	world_meet(w);
}

static void hold(void *arg)
{
	while (!__atomic_load_n((uint32_t *)arg, __ATOMIC_ACQUIRE)) {
		usleep(1000);
	}
}

/* Closing does not wait for it longer than it was told to, and touches nobody's memory later. */
static void run_busy(struct rank *rank)
{
	struct world *w = rank->w;
	uint32_t let_go = 0;
	cudaStream_t other;
	struct rank r;
	double start;

	make(&r, w);
	NEED_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	NEED_CUDA(cudaLaunchHostFunc(other, hold, &let_go));
	CHECK_INT(post(&r, GDA_ONE_PUT_SIGNAL, 0, true), EP_MLX5_OK);
	world_meet(w);
	r.gda->timeout_ns = 1000000000;
	start = world_now();
	ep_gda_close(r.gda);
	CHECK(world_now() - start >= 0.9);
	CHECK(world_now() - start < WITHIN);
	__atomic_store_n(&let_go, 1, __ATOMIC_RELEASE);
	r.gda = NULL;
	NEED_CUDA(cudaStreamSynchronize(other));
	NEED_CUDA(cudaStreamDestroy(other));
	end(&r);
}

/* The device is stuck in the exchange: what can still be ended is. */
static void run_absent(struct rank *rank)
{
	struct world *w = rank->w;
	struct rank r;
	double start;

	NEED_OK(open_gda(&r, w, mode, 2));
	NEED_CUDA(cudaMalloc(&r.heap, HEAP_BYTES));
	r.boot.timeout_ns = STUCK_NS;
	world_meet(w);
	if (w->rank == 1) {
		world_meet(w);
	}
	/* Rank 1 meets what rank 0 has left on its stream, and lacks the next. */
	CHECK(ep_gda_bind(r.gda, &r.boot, r.heap, HEAP_BYTES, ncclSuccess) != ncclSuccess);
	CHECK(r.boot.stuck);
	r.gda->timeout_ns = 1000000000;
	start = world_now();
	ep_gda_close(r.gda);
	CHECK(world_now() - start < WITHIN);
	if (w->rank == 0) {
		world_meet(w);
	}
	world_meet(w);
	if (w->rank == 0) {
		exit(check_end()); /* the communicator is of no use any more */
	}
	sleep(60);
}

static void run_unknown(struct rank *r)
{
	check_failed(post(r, GDA_ONE_UNKNOWN, 0, true));
	expect_failure(r, "a kernel posted a work request of an unknown kind");
}

static void run_refused(struct rank *rank)
{
	struct world *w = rank->w;
	const char *part = getenv("HOST_LOST_REASON");
	struct rank r;

	CHECK(open_gda(&r, w, mode, 2) != ncclSuccess);
	CHECK(!r.gda);
	if (w->rank == 0) {
		printf("%s\n", last_text());
	}
	NEED(part);
	CHECK_HAS(last_text(), part);
	end(&r);
}

static void run_falls(struct rank *rank)
{
	struct world *w = rank->w;
	char text[600], name[32];
	struct rank r;

	NEED_OK(open_gda(&r, w, EP_GDA_AUTO, 2));
	ep_gda_describe(r.gda, text, sizeof(text));
	if (w->rank == 0) {
		printf("%s\n", text);
	}
	snprintf(name, sizeof(name), "(%s)", ep_gda_mode_name(mode));
	CHECK(strstr(text, name) && strstr(text, "; not gpu because "));
	end(&r);
}

static void run_disagree(struct rank *rank)
{
	struct world *w = rank->w;
	struct rank r;

	CHECK_INT(open_gda(&r, w, mode, 1 + (uint32_t)w->rank), ncclInvalidUsage);
	CHECK_HAS(last_text(), "rank 1 asks for 2 queues per peer, rank 0 for 1");
	end(&r);
}

#define SCENE(name_, ...)                                                                          \
	{                                                                                          \
		.name = #name_, __VA_ARGS__                                                        \
	}

static const struct scene scenes[] = {
	/* the peer closes while this rank posts: nobody answers */
	SCENE(gone, .run = run_gone, .apart = true),
	/* the same, and no kernel of this rank waits for it */
	SCENE(silent, .apart = true, .run = run_gone),
	/* the peer's process ends (ranks are processes) */
	SCENE(died, .run = run_died, .apart = true),
	/* this rank's port goes down (VC_NIC_FAULTS says so) */
	SCENE(port, .run = run_port, .text = "mlx5_0:1 failed: the port went down", .last = true),
	/* this rank's NIC tells of a fatal error (VC_NIC_FAULTS) */
	SCENE(device, .run = run_port, .flushed = true,
	      .text = "mlx5_0:1 failed: the device reports a fatal error", .last = true),
	/* this rank's port has another GID from its first work on (VC_NIC_FAULTS says so) */
	SCENE(address, .run = run_address, .last = true),
	/* the peer's port has another hardware address (VC_NIC_FAULTS) */
	SCENE(neighbour, .run = run_neighbour,
	      .text = "127.1.0.1 has moved from 02:5a:7f:01:00:01 to "
		      "06:5a:7f:01:00:01: make the group anew"),
	/* the NIC does nothing about this rank's work (VC_NIC_FAULTS) */
	SCENE(stuck, .run = run_stuck, .timeout_ns = STUCK_NS),
	/* the peer takes its memory back */
	SCENE(remote, .run = run_remote),
	/* this rank takes its own memory back */
	SCENE(local, .run = run_local),
	/* an exchange of this rank never ends, since the peer does not come to it */
	SCENE(absent, .run = run_absent, .apart = true),
	/* nobody waits for what was posted, and the NIC is slow (VC_NIC_FAULTS) */
	SCENE(posted, .run = run_posted, .apart = true),
	/* this rank closes while its kernel waits for a NIC that is stuck (VC_NIC_FAULTS) */
	SCENE(waiting, .run = run_waiting, .apart = true, .last = true),
	/* work of somebody else on this GPU does not end */
	SCENE(busy, .run = run_busy, .apart = true),
	/* a work request of a kind that the proxy does not know */
	SCENE(unknown, .run = run_unknown),
	/* MODE cannot be had here; the reason contains HOST_LOST_REASON */
	SCENE(refused, .run = run_refused, .apart = true, .last = true),
	/* auto becomes MODE */
	SCENE(falls, .run = run_falls, .apart = true),
	/* the ranks ask for different numbers of queues */
	SCENE(disagree, .run = run_disagree, .apart = true),
};

static void run(struct world *w, void *arg)
{
	struct rank r = { .w = w };

	if (!scene->apart) {
		make(&r, w);
		world_meet(w);
	}
	scene->run(&r);
	if (!scene->apart) {
		world_meet(w);
		end(&r);
	}
	if (scene->last) {
		return;
	}
	/* Nothing is left that keeps them from starting again. */
	world_meet(w);
	make(&r, w);
	CHECK_INT(post(&r, GDA_ONE_PUT_SIGNAL, 0, true), EP_MLX5_OK);
	world_meet(w);
	end(&r);
}

int main(int argc, char **argv)
{
	for (mode = EP_GDA_AUTO; mode < EP_GDA_MODES; mode++) {
		if (argc > 2 && strcmp(argv[2], ep_gda_mode_name(mode)) == 0) {
			break;
		}
	}
	for (size_t i = 0; argc > 1 && i < EP_ARRAY_SIZE(scenes); i++) {
		if (strcmp(argv[1], scenes[i].name) == 0) {
			scene = scenes + i;
		}
	}
	if (mode == EP_GDA_MODES || !scene) {
		fprintf(stderr, "usage: host_lost SCENE MODE\n");
		return 2;
	}
	world_run(2, run, NULL);
	return check_end();
}
