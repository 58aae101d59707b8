/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host side makes of trouble: every failure ends a kernel's waits, takes the peer's
 * connection down, and is told in words that name the culprit; then ranks close and connect anew.
 *
 *     host_lost SCENARIO MODE
 *
 *   gone      the peer closes while this rank posts: nobody answers
 *   silent    the same, and no kernel of this rank waits for it
 *   died      the peer's process ends (ranks are processes)
 *   port      this rank's port goes down (VC_NIC_FAULTS says so)
 *   stuck     the NIC does nothing about this rank's work (VC_NIC_FAULTS)
 *   remote    the peer takes its memory back
 *   local     this rank takes its own memory back
 *   absent    an exchange of this rank never ends, since the peer does not come to it
 *   posted    nobody waits for what was posted, and the NIC is slow (VC_NIC_FAULTS)
 *   waiting   this rank closes while its kernel waits for a NIC that is stuck (VC_NIC_FAULTS)
 *   busy      work of somebody else on this GPU does not end
 *   masked    a masked atomic where verbs have none
 *   refused   MODE cannot be had here; the reason contains HOST_LOST_REASON
 *   falls     auto becomes MODE
 *   disagree  the ranks ask for different numbers of queues
 */
#include <stddef.h>
#include <unistd.h>
#include "gda/gda.h"
#include "gda/state.h"
#include "kernels.h"
#include "launch.h"
#include "support/world.h"

#define HEAP_BYTES (2u << 20)
#define TIMEOUT_NS 20000000000ull
#define STUCK_NS 400000000ull
#define WITHIN 12.0 /* seconds; the NIC is told to give up after a third of one */

static const char *scenario;
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

	memset(r, 0, sizeof(*r));
	r->w = w;
	NEED_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), w->device));
	NEED(ep_boot_open(&r->boot, w->comm, TIMEOUT_NS) == ncclSuccess);
	return ep_gda_open(&r->gda, &r->boot, &config, ncclSuccess);
}

static void make(struct rank *r, struct world *w)
{
	NEED(open_gda(r, w, mode, 2) == ncclSuccess);
	NEED_CUDA(cudaMalloc(&r->heap, HEAP_BYTES));
	NEED_CUDA(cudaMemset(r->heap, 0, HEAP_BYTES));
	NEED_CUDA(cudaHostAlloc((void **)&r->result, sizeof(*r->result), cudaHostAllocMapped));
	NEED(ep_gda_bind(r->gda, &r->boot, r->heap, HEAP_BYTES, ncclSuccess) == ncclSuccess);
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
				     .timeout_ns = scenario[1] == 't' ? STUCK_NS : TIMEOUT_NS,
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
	if (!strstr(failure.text, part)) {
		check_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", failure.text, part);
	}
	CHECK_INT(down_word(r, peer), 1);
	CHECK(!ep_gda_poll(r->gda, &again));
	CHECK(ep_gda_explain(r->gda, peer, &again) && strcmp(again.text, failure.text) == 0);
	/* What kernels do next ends at once; another queue of the peer may still work. */
	limit = world_now() + 5;
	CHECK(post(r, GDA_ONE_PUT, 0, true) != EP_MLX5_OK);
	post(r, GDA_ONE_PUT, 1, true);
	CHECK(world_now() < limit);
}

static void run_gone(struct world *w, bool silent)
{
	struct rank r;

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
	CHECK_INT(post(&r, GDA_ONE_PUT, 0, !silent), silent ? EP_MLX5_OK : EP_MLX5_ERR_CQE);
	expect_failure(&r, "syndrome 0x15");
	world_meet(w);
	end(&r);
}

static void run_died(struct world *w)
{
	struct rank r;

	make(&r, w);
	CHECK_INT(post(&r, GDA_ONE_PUT_SIGNAL, 0, true), EP_MLX5_OK);
	world_meet(w);
	if (w->rank == 1) {
		world_raise(w, 0, 1);
		_exit(0);
	}
	NEED(world_await(w, 0, 1, 1, 30));
	CHECK_INT(post(&r, GDA_ONE_PUT, 0, true), EP_MLX5_ERR_CQE);
	expect_failure(&r, "syndrome 0x15");
	end(&r);
	/* Nobody is left to meet. */
	exit(check_end());
}

/* The first work on the first NIC takes its port down. */
static void run_port(struct world *w)
{
	struct ep_gda_failure failure, again;
	double limit = world_now() + WITHIN;
	struct rank r;

	make(&r, w);
	world_meet(w);
	if (w->rank == 0) {
		CHECK(post(&r, GDA_ONE_PUT, 0, true) != EP_MLX5_OK);
		while (!ep_gda_poll(r.gda, &failure) && world_now() < limit) {
			usleep(2000);
		}
		printf("%s\n", failure.text);
		CHECK_INT(failure.peer, -1);
		CHECK(strstr(failure.text, "mlx5_0:1 failed: the port went down"));
		CHECK_INT(down_word(&r, 1), 1);
		CHECK(ep_gda_explain(r.gda, 1, &again) && strcmp(again.text, failure.text) == 0);
	}
	world_meet(w);
	end(&r);
}

static void run_stuck(struct world *w)
{
	struct rank r;

	make(&r, w);
	world_meet(w);
	if (w->rank == 0) {
		CHECK_INT(post(&r, GDA_ONE_PUT, 0, true), EP_MLX5_ERR_COMPLETION);
		expect_failure(&r, "work did not complete within 400 ms");
	}
	world_meet(w);
	end(&r);
}

static void run_remote(struct world *w)
{
	struct rank r;

	make(&r, w);
	world_meet(w);
	if (w->rank == 1) {
		ep_gda_unbind(r.gda);
		world_raise(w, 1, 1);
	} else {
		NEED(world_await(w, 1, 1, 1, 30));
		CHECK_INT(post_lanes(&r, GDA_ONE_PUT, 0, 1, true), EP_MLX5_ERR_CQE);
		expect_failure(&r, "syndrome 0x13");
	}
	world_meet(w);
	end(&r);
}

static void run_local(struct world *w)
{
	struct rank r;

	make(&r, w);
	world_meet(w);
	if (w->rank == 0) {
		ep_gda_unbind(r.gda);
		CHECK_INT(post(&r, GDA_ONE_PUT, 0, true), EP_MLX5_ERR_CQE);
		expect_failure(&r, "syndrome 0x04");
	}
	world_meet(w);
	end(&r);
}

/* What was posted reaches the peer although this rank closes at once. */
static void run_posted(struct world *w)
{
	struct gda_warp seen;
	struct rank r;

	make(&r, w);
	NEED_CUDA(cudaMemset(r.heap, 0x51 + w->rank, sizeof(seen)));
	NEED_CUDA(cudaDeviceSynchronize());
	world_meet(w);
	if (w->rank == 0) {
		CHECK_INT(post(&r, GDA_ONE_PUT_SIGNAL, 0, false), EP_MLX5_OK);
		end(&r);
		world_raise(w, 0, 1);
	} else {
		NEED(world_await(w, 0, 0, 1, 30));
		NEED_CUDA(cudaMemcpy(&seen, r.heap, sizeof(seen), cudaMemcpyDeviceToHost));
		for (uint32_t i = 0; i < 4; i++) {
			CHECK_INT(seen.tags[i] & 0xff, i < 3 ? 0x51 : 0x52);
		}
		end(&r);
	}
}

/* Closing ends the queue pairs, and so the kernels that wait for them. */
static void run_waiting(struct world *w)
{
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
static void run_busy(struct world *w)
{
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
static void run_absent(struct world *w)
{
	struct rank r;
	double start;

	NEED(open_gda(&r, w, mode, 2) == ncclSuccess);
	NEED_CUDA(cudaMalloc(&r.heap, HEAP_BYTES));
	r.boot.timeout_ns = STUCK_NS;
	world_meet(w);
	if (w->rank == 1) {
		world_meet(w);
	}
	/* Rank 1 meets what rank 0 has left on its stream, and lacks the next. */
	CHECK(ep_gda_bind(r.gda, &r.boot, r.heap, HEAP_BYTES, ncclSuccess) != ncclSuccess);
	CHECK(r.boot.stuck);
	start = world_now();
	ep_gda_close_stuck(r.gda);
	CHECK(world_now() - start < 2);
	if (w->rank == 0) {
		world_meet(w);
	}
	world_meet(w);
	if (w->rank == 0) {
		exit(check_end()); /* the communicator is of no use any more */
	}
	sleep(60);
}

static void run_masked(struct world *w)
{
	struct rank r;

	make(&r, w);
	CHECK_INT(post(&r, GDA_ONE_FETCH_ADD32, 0, true), EP_MLX5_ERR_CQE);
	expect_failure(&r, "masked atomics");
	world_meet(w);
	end(&r);
}

static void run_refused(struct world *w)
{
	const char *part = getenv("HOST_LOST_REASON");
	struct ep_error error;
	struct rank r;

	CHECK(open_gda(&r, w, mode, 2) != ncclSuccess);
	CHECK(!r.gda);
	ep_error_get(NULL, &error);
	if (w->rank == 0) {
		printf("%s\n", error.text);
	}
	if (!part || !strstr(error.text, part)) {
		check_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", error.text, part);
	}
	end(&r);
}

static void run_falls(struct world *w)
{
	char text[600], name[32];
	struct rank r;

	NEED(open_gda(&r, w, EP_GDA_AUTO, 2) == ncclSuccess);
	ep_gda_describe(r.gda, text, sizeof(text));
	if (w->rank == 0) {
		printf("%s\n", text);
	}
	snprintf(name, sizeof(name), "(%s)", ep_gda_mode_name(mode));
	CHECK(strstr(text, name) && strstr(text, "; not gpu because "));
	end(&r);
}

static void run_disagree(struct world *w)
{
	struct ep_error error;
	struct rank r;

	CHECK_INT(open_gda(&r, w, mode, 1 + (uint32_t)w->rank), ncclInvalidUsage);
	ep_error_get(NULL, &error);
	CHECK(strstr(error.text, "rank 1 asks for 2 queues per peer, rank 0 for 1"));
	end(&r);
}

static void run(struct world *w, void *arg)
{
	struct rank r;

	if (!strcmp(scenario, "refused")) {
		run_refused(w);
		return;
	}
	if (!strcmp(scenario, "absent")) {
		run_absent(w);
	} else if (!strcmp(scenario, "gone") || !strcmp(scenario, "silent")) {
		run_gone(w, scenario[0] == 's');
	} else if (!strcmp(scenario, "died")) {
		run_died(w);
	} else if (!strcmp(scenario, "port")) {
		run_port(w);
		return;
	} else if (!strcmp(scenario, "stuck")) {
		run_stuck(w);
	} else if (!strcmp(scenario, "remote")) {
		run_remote(w);
	} else if (!strcmp(scenario, "local")) {
		run_local(w);
	} else if (!strcmp(scenario, "posted")) {
		run_posted(w);
	} else if (!strcmp(scenario, "waiting")) {
		run_waiting(w);
		return;
	} else if (!strcmp(scenario, "busy")) {
		run_busy(w);
	} else if (!strcmp(scenario, "masked")) {
		run_masked(w);
	} else if (!strcmp(scenario, "falls")) {
		run_falls(w);
	} else {
		NEED(!strcmp(scenario, "disagree"));
		run_disagree(w);
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
	if (mode == EP_GDA_MODES) {
		fprintf(stderr, "usage: host_lost SCENARIO MODE\n");
		return 2;
	}
	scenario = argv[1];
	world_run(2, run, NULL);
	return check_end();
}
