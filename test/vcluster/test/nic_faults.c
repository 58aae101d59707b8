/* SPDX-License-Identifier: Apache-2.0 */
/* Faults by script: each has the effect that its name says, within the time it should take. */
#include <poll.h>
#include <time.h>
#include "child.h"
#include "nic_client.h"
#include "test.h"

#define RETRY_MS 200

static struct cl_dev dev;
static struct cl_queue q, peer;
static uint8_t buffer[65536];
static struct ibv_mr *mr;

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void set_up(int tier)
{
	struct cl_options o = { .tier = tier, .force = true };

	cl_open(&dev, 0);
	mr = cl_reg(&dev, buffer, sizeof(buffer), CL_FULL);
	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
}

/* Whatever the fault did, everything can be destroyed. */
static void tear_down(void)
{
	cl_destroy(&q);
	cl_destroy(&peer);
	NEED(ibv_dereg_mr(mr));
	cl_close(&dev);
}

static void one(uint8_t value, uint8_t flags)
{
	buffer[0] = value;
	cl_write(&q, buffer, mr->lkey, (uintptr_t)buffer + 32768, mr->rkey, 1, flags);
	cl_ring(&q);
}

/* The fourth request fails with the syndrome; from `low` to `high` ms later. */
static void fourth(uint32_t syndrome, double low, double high)
{
	double start;

	set_up(0);
	for (uint8_t i = 1; i <= 3; i++) {
		one(i, CL_SIGNALED);
		CHECK_INT(cl_wait(&q), 0);
		CHECK_INT(buffer[32768], i);
	}
	start = now_ms();
	one(4, 0);
	CHECK_INT(cl_wait(&q), syndrome);
	CHECK(now_ms() - start >= low && now_ms() - start < high);
	CHECK_INT(be16toh(q.cqe->wqe_counter), 3);
	CHECK_INT(buffer[32768], 3);
	tear_down();
}

static void case_retry(void)
{
	fourth(EP_MLX5_SYND_RETRY_EXCEEDED, RETRY_MS * 0.8, RETRY_MS + 300);
}

static void case_rnr(void)
{
	fourth(EP_MLX5_SYND_RNR_EXCEEDED, 0, 100);
}

static void case_access(void)
{
	fourth(EP_MLX5_SYND_REMOTE_ACCESS, 0, 100);
}

static void case_protection(void)
{
	fourth(EP_MLX5_SYND_LOCAL_PROT, 0, 100);
}

/* Two packets are lost: later, but right, and in order. */
static void case_drop(void)
{
	double start = now_ms();

	set_up(0);
	for (uint8_t i = 1; i <= 8; i++) {
		one(i, i == 8 ? CL_SIGNALED : 0);
		CHECK(i != 8 || !cl_wait(&q));
	}
	CHECK_INT(buffer[32768], 8);
	CHECK(now_ms() - start >= 2 * RETRY_MS / 8 * 0.9);
	tear_down();
}

/* The second write comes when its queue pair has failed long ago: the other end still takes it. */
static void case_stray(void)
{
	double start;

	set_up(0);
	one(1, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), 0);
	start = now_ms();
	one(2, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_RETRY_EXCEEDED);
	CHECK(now_ms() - start < 600);
	CHECK_INT(__atomic_load_n(&buffer[32768], __ATOMIC_RELAXED), 1);
	while (now_ms() - start < 1000) {
		usleep(1000);
	}
	CHECK_INT(__atomic_load_n(&buffer[32768], __ATOMIC_RELAXED), 2);
	tear_down();
}

/* The second write has come, and its sender does not know. */
static void case_unheard(void)
{
	set_up(0);
	one(1, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), 0);
	one(2, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_RETRY_EXCEEDED);
	CHECK_INT(__atomic_load_n(&buffer[32768], __ATOMIC_RELAXED), 2);
	tear_down();
}

static void case_slow(void)
{
	double start;

	set_up(1);
	start = now_ms();
	for (uint8_t i = 1; i <= 20; i++) {
		one(i, CL_SIGNALED);
		CHECK_INT(cl_wait(&q), 0);
	}
	CHECK(now_ms() - start >= 20 * 5);
	tear_down();
}

static void case_stuck(void)
{
	uint8_t in[16] = { 0 };

	set_up(1);
	one(1, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), 0);
	one(2, CL_SIGNALED);
	CHECK_INT(cl_wait_ms(&q, q.pi, 300), CL_BAD_WAIT);
	cl_set(in, 0, 16, 0x507); /* 2ERR */
	cl_set(in, 0x48, 24, q.qpn);
	CHECK_INT(cl_modify(&q, in, 16), 0);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_FLUSHED);
	tear_down();
}

static int event(int ms)
{
	struct pollfd fd = { dev.ctx->async_fd, POLLIN, 0 };
	struct ibv_async_event e;

	if (poll(&fd, 1, ms) != 1 || ibv_get_async_event(dev.ctx, &e)) {
		return -1;
	}
	ibv_ack_async_event(&e);
	return (int)e.event_type;
}

static enum ibv_port_state port(void)
{
	struct ibv_port_attr attr;

	NEED(ibv_query_port(dev.ctx, 1, &attr));
	return attr.state;
}

/* Down for 100 ms, which the retries outlast. */
static void case_port(void)
{
	set_up(1);
	CHECK_INT(event(0), -1);
	CHECK_INT(port(), IBV_PORT_ACTIVE);
	one(1, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), 0);
	one(2, CL_SIGNALED);
	CHECK_INT(event(1000), IBV_EVENT_PORT_ERR);
	CHECK_INT(port(), IBV_PORT_DOWN);
	CHECK_INT(event(1000), IBV_EVENT_PORT_ACTIVE);
	CHECK_INT(port(), IBV_PORT_ACTIVE);
	CHECK_INT(cl_wait(&q), 0);
	CHECK_INT(buffer[32768], 2);
	tear_down();
}

static void case_port_for_ever(void)
{
	set_up(1);
	CHECK_INT(event(1000), IBV_EVENT_PORT_ERR);
	one(1, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_RETRY_EXCEEDED);
	tear_down();
}

static void case_fatal(void)
{
	set_up(1);
	one(1, CL_SIGNALED);
	CHECK_INT(cl_wait(&q), 0);
	one(2, CL_SIGNALED);
	CHECK_INT(event(1000), IBV_EVENT_DEVICE_FATAL);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_FLUSHED);
	tear_down();
}

static const struct {
	const char *name, *faults;
	void (*run)(void);
} cases[] = {
	{ "retry", "VC_NIC_FAULTS=retry_exceeded:qp=0,skip=3", case_retry },
	{ "rnr", "VC_NIC_FAULTS=rnr:op=write,skip=3", case_rnr },
	{ "access", "VC_NIC_FAULTS=remote_access:skip=3,nic=0,node=0", case_access },
	{ "protection", "VC_NIC_FAULTS=rnr:nic=7;local_prot:skip=3", case_protection },
	{ "drop", "VC_NIC_FAULTS=drop:skip=2;drop:skip=5", case_drop },
	{ "stray", "VC_NIC_FAULTS=stray:skip=1,us=700000", case_stray },
	{ "unheard", "VC_NIC_FAULTS=unheard:skip=1", case_unheard },
	{ "slow", "VC_NIC_FAULTS=slow:us=5000", case_slow },
	{ "stuck", "VC_NIC_FAULTS=stuck:skip=1", case_stuck },
	{ "port", "VC_NIC_FAULTS=port_down:skip=1,ms=100", case_port },
	{ "portgone", "VC_NIC_FAULTS=port_down", case_port_for_ever },
	{ "fatal", "VC_NIC_FAULTS=device_fatal:skip=1", case_fatal },
};
#define CASES (sizeof(cases) / sizeof(*cases))

int main(int argc, char **argv)
{
	static char text[CHILD_TEXT];

	for (uint32_t i = 0; i < CASES; i++) {
		const char *env[] = { cases[i].faults, "VC_NIC_RETRY_MS=200", NULL };
		char *args[] = { argv[0], (char *)cases[i].name, NULL };
		int status;

		if (argc > 1) {
			if (!strcmp(argv[1], cases[i].name)) {
				cases[i].run();
			}
			continue;
		}
		status = child_run(args, env, text);
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "case %s, status 0x%x:\n%s", cases[i].name, status, text);
			test_failures++;
		}
	}
	return test_result();
}
