/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong ends every wait in time, stays with the queue, and is on record for the host; and
 * what exactly a call hands to the NIC, and when.
 */
#include <endian.h>
#include <unistd.h>
#include "device/simt/wait_site.h"
#include "rig.h"

#define SHORT_NS 300000000ull
#define LONG_NS 30000000000ull

static struct rig rig;
static struct rig_nic *nic = &rig.nic[0];

static void launch(struct gda_one_args args)
{
	args.qp = rig.qp;
	args.result = rig.result;
	args.aborted = rig.aborted;
	if (!args.timeout_ns) {
		args.timeout_ns = SHORT_NS;
	}
	memset(rig.result, 0, sizeof(*rig.result));
	gda_launch(gda_one, 1, 32, &args, 0, NULL);
}

/* Returns the status; `seconds`: how long it took. */
static uint32_t run(struct gda_one_args args, double *seconds)
{
	double start = check_now();

	launch(args);
	NEED_CUDA(cudaDeviceSynchronize());
	if (seconds) {
		*seconds = check_now() - start;
	}
	return rig.result->status;
}

static void begin(uint32_t depth)
{
	rig_make(&rig, 1, depth, EP_MLX5_HANDOVER_MMIO);
}

static void check_record(uint32_t status, uint32_t site)
{
	const struct ep_mlx5_error *r = &rig.host->record;

	CHECK_INT(r->valid, 1);
	CHECK_INT(r->status, status);
	CHECK_INT(r->peer, RIG_PEER);
	CHECK_INT(r->nic, RIG_NIC);
	CHECK_INT(r->qpn, rig.shadow[0].qpn);
	CHECK_INT(r->site, site);
	CHECK_INT(rig_state(&rig, 0).error, status);
}

/* The queue is out of use: nothing is posted any more, the record stays. */
static void check_sticky(uint32_t status)
{
	struct ep_mlx5_error before = rig.host->record;
	uint64_t handed = nic->seen.handed;
	double seconds;

	CHECK_INT(run((struct gda_one_args){ .what = GDA_ONE_PUT,
					     .times = 3,
					     .lanes = ~0u,
					     .quiet = 1,
					     .timeout_ns = LONG_NS },
		      &seconds),
		  status);
	CHECK_INT(rig.result->posted, 0);
	CHECK(seconds < 2);
	CHECK(!memcmp(&before, &rig.host->record, sizeof(before)));
	rig_serve(&rig);
	CHECK_INT(nic->seen.handed, handed);
}

/* The NIC reports an error; the other WQEs are flushed and may hide it. */
static void error_cqe(uint32_t times)
{
	const struct ep_mlx5_error *r;

	begin(64);
	r = &rig.host->record;
	nic->script.fail_at = 10;
	nic->script.syndrome = EP_MLX5_SYND_REMOTE_ACCESS;
	nic->script.vendor = 0x88;
	rig_start(&rig);
	CHECK_INT(run((struct gda_one_args){ .what = GDA_ONE_PUT_0,
					     .times = times,
					     .lanes = 4,
					     .quiet = 1,
					     .timeout_ns = LONG_NS },
		      NULL),
		  EP_MLX5_ERR_CQE);
	rig_finish(&rig);
	check_record(EP_MLX5_ERR_CQE, r->site);
	CHECK(r->site == EP_WAIT_RDMA_SLOT || r->site == EP_WAIT_RDMA_COMPLETION);
	CHECK_INT(r->cqe_opcode, EP_MLX5_CQE_REQ_ERR);
	CHECK(r->done <= 10);
	if (times == 11) {
		CHECK_INT(r->syndrome, EP_MLX5_SYND_REMOTE_ACCESS);
		CHECK_INT(r->vendor_syndrome, 0x88);
		CHECK_INT(r->wqe_counter, 10);
		CHECK_INT(r->site, EP_WAIT_RDMA_COMPLETION);
	} else {
		/*
		 * The software NIC stores a completion in two pieces, and the device reads two
		 * words of it: those of a flushed WQE may take their places in between. A NIC
		 * stores it at once.
		 */
		CHECK(r->wqe_counter >= 10);
		CHECK(r->syndrome == EP_MLX5_SYND_FLUSHED ||
		      (r->wqe_counter == 10 && r->syndrome == EP_MLX5_SYND_REMOTE_ACCESS));
	}
	check_sticky(EP_MLX5_ERR_CQE);
	rig_free(&rig);
}

/* The same among all kinds of work. */
static void error_among_all(void)
{
	struct gda_post_args args = { .timeout_ns = LONG_NS, .rounds = 100000 };
	double start = check_now();

	begin(64);
	nic->script.fail_at = 3000;
	nic->script.syndrome = EP_MLX5_SYND_RETRY_EXCEEDED;
	nic->script.vendor = 0x81;
	rig_start(&rig);
	args.qp = rig.qp;
	args.result = rig.result;
	args.heap = rig.heap;
	args.aborted = rig.aborted;
	gda_launch(gda_post, 1, 32, &args, 0, NULL);
	NEED_CUDA(cudaDeviceSynchronize());
	rig_finish(&rig);
	CHECK(check_now() - start < 25);
	CHECK_INT(rig.result->status, EP_MLX5_ERR_CQE);
	CHECK_INT(rig.bad, 0);
	check_record(EP_MLX5_ERR_CQE, rig.host->record.site);
	CHECK(rig.host->record.wqe_counter >= 3000);
	rig_free(&rig);
}

/* A NIC that does not go on: `times` decides whether room or a completion is missing. */
static void stuck(uint32_t times, uint32_t status, uint32_t site)
{
	double seconds;

	begin(64);
	nic->script.stuck_at = 5;
	rig_start(&rig);
	CHECK_INT(run(
			  (struct gda_one_args){
				  .what = GDA_ONE_PUT_0, .times = times, .lanes = 1, .quiet = 1 },
			  &seconds),
		  status);
	rig_finish(&rig);
	CHECK(seconds > 1e-9 * SHORT_NS && seconds < 1e-9 * SHORT_NS + 1);
	check_record(status, site);
	CHECK_INT(rig.host->record.waited_ns, SHORT_NS);
	CHECK_INT(rig.host->record.done, 5);
	CHECK_INT(rig.host->record.rung, times > 69 ? 69 : times);
	check_sticky(status);
	CHECK_INT(rig.bad, 0);
	rig_free(&rig);
}

/* The host, or the rest of the group, ends a wait that would last long. */
static void ended(uint32_t status)
{
	double start = check_now();

	begin(64);
	nic->script.stuck_at = 5;
	rig_start(&rig);
	launch((struct gda_one_args){
		.what = GDA_ONE_PUT_0, .times = 100, .lanes = 1, .timeout_ns = LONG_NS });
	usleep(100000);
	__atomic_store_n(status == EP_MLX5_ERR_STOPPED ? &rig.host->stop : rig.aborted, 1,
			 __ATOMIC_RELAXED);
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK(check_now() - start < 3);
	rig_finish(&rig);
	CHECK_INT(rig.result->status, status);
	if (status == EP_MLX5_ERR_STOPPED) {
		check_record(status, EP_WAIT_RDMA_SLOT);
		CHECK_INT(rig.host->record.waited_ns, 0);
	} else {
		CHECK_INT(rig.host->record.valid, 0);
		CHECK_INT(rig_state(&rig, 0).error, status);
	}
	rig_free(&rig);
}

/*
 * A queue that was given up: the memory it sends from may be written when its work has completed
 * after all, or the NIC reports an error, as it does when the host ends the queue pair, and not
 * before.
 */
static void let_go(uint64_t stuck_at, uint64_t fail_at, bool later, bool aborted, bool want)
{
	double start = check_now();

	begin(64);
	nic->script.stuck_at = stuck_at;
	nic->script.fail_at = later ? ~0ull : fail_at;
	nic->script.syndrome = EP_MLX5_SYND_FLUSHED;
	rig_start(&rig);
	launch((struct gda_one_args){ .what = GDA_ONE_PUT_0,
				      .times = 8,
				      .lanes = 1,
				      .quiet = 1,
				      .end_ns = 2 * SHORT_NS });
	if (later) { /* than the wait for completions */
		usleep(SHORT_NS / 1000 * 3 / 2);
		rig_finish(&rig);
		nic->script.stuck_at = ~0ull;
		nic->script.fail_at = fail_at;
		rig_start(&rig);
	}
	if (aborted) {
		usleep(SHORT_NS / 1000 * 3 / 2);
		__atomic_store_n(rig.aborted, 1, __ATOMIC_RELAXED);
	}
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK(aborted || want || check_now() - start > 3e-9 * SHORT_NS);
	CHECK(check_now() - start < 3e-9 * SHORT_NS + (aborted ? -0.5e-9 * SHORT_NS + 0.2 : 1));
	rig_finish(&rig);
	CHECK_INT(rig.result->ended, want);
	CHECK_INT(rig.result->status, stuck_at != ~0ull  ? EP_MLX5_ERR_COMPLETION
				      : fail_at != ~0ull ? EP_MLX5_ERR_CQE
							 : EP_MLX5_OK);
	rig_free(&rig);
}

/* The queue made anew by the host works like a new one. */
static void recovery(void)
{
	begin(64);
	nic->script.fail_at = 2;
	nic->script.syndrome = EP_MLX5_SYND_RNR_EXCEEDED;
	rig_start(&rig);
	CHECK_INT(run(
			  (struct gda_one_args){
				  .what = GDA_ONE_PUT_0, .times = 3, .lanes = 1, .quiet = 1 },
			  NULL),
		  EP_MLX5_ERR_CQE);
	rig_finish(&rig);
	nic->script.fail_at = ~0ull;
	rig_reset(&rig);
	rig_start(&rig);
	CHECK_INT(run((struct gda_one_args){ .what = GDA_ONE_INLINE,
					     .times = 300,
					     .lanes = ~0u,
					     .quiet = 1,
					     .timeout_ns = LONG_NS },
		      NULL),
		  EP_MLX5_OK);
	rig_finish(&rig);
	CHECK_INT(nic->seen.served, 9600);
	CHECK_INT(rig.bad, 0);
	rig_free(&rig);
}

/* A NIC that takes its time, but not all the time there is. */
static void patient(void)
{
	double limit = check_now() + 20;

	begin(64);
	launch((struct gda_one_args){ .what = GDA_ONE_PUT_0,
				      .times = 3,
				      .lanes = 1,
				      .quiet = GDA_QUIET_ALL,
				      .timeout_ns = LONG_NS });
	while (!rig_doorbell(&rig) && check_now() < limit) {
		usleep(1000);
	}
	usleep(100000);
	rig_start(&rig);
	NEED_CUDA(cudaDeviceSynchronize());
	rig_finish(&rig);
	CHECK_INT(rig.result->status, EP_MLX5_OK);
	CHECK_INT(nic->seen.served, 3);
	CHECK_INT(rig.bad, 0);
	rig_free(&rig);
}

/* What the NIC is told after `times` calls. */
static uint64_t handed_over(uint32_t times, uint32_t lanes, uint32_t more)
{
	struct gda_one_args args = {
		.what = GDA_ONE_PUT_0, .times = times, .lanes = lanes, .more = more
	};

	CHECK_INT(run(args, NULL), EP_MLX5_OK);
	rig_serve(&rig);
	CHECK_INT(rig.bad, 0);
	return nic->seen.handed;
}

static void doorbells(void)
{
	begin(64);
	CHECK_INT(handed_over(1, 1, 0), 1);
	CHECK_INT(handed_over(1, ~0u, 0), 33); /* one doorbell for all lanes */
	CHECK_INT(nic->seen.doorbells, 2);
	CHECK_INT(nic->signaled, 1 + 3); /* the last, and the quarters' ends */
	CHECK_INT(handed_over(5, 1, 1), 33);
	CHECK_INT(handed_over(1, 1, 0), 39);
	CHECK_INT(rig_state(&rig, 0).rung, 39);
	CHECK_INT(nic->signaled, 5);
	CHECK_INT(handed_over(10, 1, 1), 48); /* crosses a quarter, so it rings */
	CHECK_INT(handed_over(1, 1, 0), 50);
	CHECK_INT(handed_over(2, 0, 0), 50); /* no lane wants to */
	CHECK_INT(handed_over(3, 1, 0), 53);
	CHECK_INT(nic->nops, 0);
	/*
	 * A wait for unsignaled WQEs makes them known, and one that has nothing to wait for ends.
	 */
	CHECK_INT(handed_over(2, 1, 1), 53);
	rig_start(&rig);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(run((struct gda_one_args){ .what = GDA_ONE_NOTHING,
						     .times = 1,
						     .quiet = 1 },
			      NULL),
			  EP_MLX5_OK);
	}
	rig_finish(&rig);
	CHECK_INT(nic->seen.handed, 56);
	CHECK_INT(nic->nops, 1);
	rig_free(&rig);
}

/* The first words of what a call posts, for each tier and policy. */
static void posts(uint8_t tier, uint8_t policy, uint32_t what, uint32_t lanes, uint32_t n,
		  uint32_t opcode, uint32_t ds, uint32_t flags)
{
	const struct ep_mlx5_wqe *q;

	begin(64);
	rig.shadow[0].tier = tier;
	rig.shadow[0].signal = policy;
	rig_reset(&rig);
	rig.heap->signal = 40;
	rig.heap->source[3] = 1;
	CHECK_INT(run((struct gda_one_args){ .what = what, .times = 1, .lanes = lanes }, NULL),
		  EP_MLX5_OK);
	rig_serve(&rig);
	CHECK_INT(rig.bad, 0);
	CHECK_INT(nic->seen.served, n);
	q = &nic->kept[n - 1];
	CHECK_INT(be32toh(q->w[0]), opcode | (n - 1) << 8);
	CHECK_INT(be32toh(q->w[1]), rig.shadow[0].qpn << 8 | ds);
	CHECK_INT(be32toh(q->w[2]), flags | EP_MLX5_CE_ALWAYS);
	if (what == GDA_ONE_PUT_SIGNAL || what == GDA_ONE_SIGNAL) {
		CHECK_INT(rig.heap->signal, 47);
	}
	rig_free(&rig);
}

static void operations(void)
{
	const uint8_t write = EP_MLX5_SIGNAL_WRITE, strong = EP_MLX5_SIGNAL_WRITE_STRONG;
	const uint8_t atomic = EP_MLX5_SIGNAL_ATOMIC;

	posts(0, write, GDA_ONE_PUT, 8, 1, EP_MLX5_OP_WRITE, 3, 0);
	posts(0, write, GDA_ONE_PUT_0, 8, 1, EP_MLX5_OP_WRITE, 2, 0);
	posts(0, write, GDA_ONE_INLINE, 8, 1, EP_MLX5_OP_WRITE, 4, 0);
	posts(0, write, GDA_ONE_PUT_SIGNAL, 8, 2, EP_MLX5_OP_WRITE, 3, 0);
	posts(0, write, GDA_ONE_SIGNAL, 0, 1, EP_MLX5_OP_WRITE, 3, 0);
	posts(1, strong, GDA_ONE_PUT_SIGNAL, 8, 2, EP_MLX5_OP_WRITE, 3, EP_MLX5_FM_STRONG);
	posts(1, atomic, GDA_ONE_PUT_SIGNAL, 8, 2, EP_MLX5_OP_FETCH_ADD, 4, 0);
	posts(2, atomic, GDA_ONE_PUT_SIGNAL, 8, 2, EP_MLX5_OP_FETCH_ADD, 4, EP_MLX5_FM_FENCE);
	posts(2, atomic, GDA_ONE_SIGNAL, 0, 1, EP_MLX5_OP_FETCH_ADD, 4, EP_MLX5_FM_FENCE);
}

int main(void)
{
	int devices = 0;

	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no GPU\n");
		return 77;
	}
	doorbells();
	operations();
	error_cqe(11);
	error_cqe(400);
	error_among_all();
	stuck(20, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION);
	stuck(100, EP_MLX5_ERR_SLOT, EP_WAIT_RDMA_SLOT);
	ended(EP_MLX5_ERR_STOPPED);
	ended(EP_MLX5_ERR_ABORTED);
	let_go(~0ull, ~0ull, false, false, true);
	let_go(~0ull, 5, false, false, true);
	let_go(5, ~0ull, false, false, false);
	let_go(5, ~0ull, false, true, false);
	let_go(5, 5, true, false, true);
	let_go(5, ~0ull, true, false, true);
	patient();
	recovery();
	return check_end();
}
