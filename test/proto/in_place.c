/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs read rows for other nodes from the caller's windows: which operations do that, inputs that
 * are overwritten right afterwards, more windows than a group takes, memory that comes again,
 * several NICs of a rank, and NICs that refuse.
 *
 *     in_place modes|overwrite|many|again|nics|half|lost|refused
 */
#include <cuda.h>
#include <dlfcn.h>
#include "support/bench.h"

#define TAKEN 16 /* allocations that a group takes */

static const struct oracle_problem problem = {
	.nranks = 4,
	.experts = 8,
	.topk = 3,
	.hidden = 712,    /* 1424 bytes: the last quad is not full */
	.tokens = 70,     /* several batches */
	.max_tokens = 70, /* the last row ends with the memory */
	.layout = ORACLE_RANK_MAJOR,
	.dtype = ORACLE_BF16,
	.seed = 3,
};

struct mode {
	const char *name;
	ncclEpZeroCopyMode_t zero_copy;
	enum oracle_layout layout;
	enum oracle_quant quant;
	uint32_t flags;
	const char *bytes; /* NCCL_EP_LL_DIRECT_BYTES */
	bool dispatch, combine;
};

#define EM ORACLE_EXPERT_MAJOR
#define RM ORACLE_RANK_MAJOR
#define AUTO ((ncclEpZeroCopyMode_t)NCCL_EP_AUTO)
#define NONE ORACLE_QUANT_NONE
#define S BENCH_SOURCES

static const struct mode modes[] = {
	{ "rank-major", AUTO, RM, NONE, S, "0", true, true },
	{ "expert-major", AUTO, EM, NONE, S, "0", true, true },
	{ "halves", AUTO, RM, NONE, S | BENCH_PENDING, "0", false, false },
	{ "enough", AUTO, EM, NONE, S, "99680", true, true },
	{ "little", AUTO, RM, NONE, S, "99681", false, false },
	{ "never", AUTO, RM, NONE, S, "-1", false, false },
	{ "off", NCCL_EP_ZERO_COPY_OFF, RM, NONE, S, "0", false, false },
	{ "no window", AUTO, RM, NONE, 0, "0", false, false },
	{ "quantised", AUTO, EM, ORACLE_QUANT_FP8, S, "0", false, true },
	{ "scales", AUTO, RM, ORACLE_QUANT_FORWARD, S, "0", false, true },
};

static struct oracle_problem problem_of(const struct world *w, const struct mode *m)
{
	struct oracle_problem p = problem;

	p.nranks = w->nranks;
	p.layout = m->layout;
	p.quant = m->quant;
	if (m->quant == ORACLE_QUANT_FP8) {
		p.hidden = 768;
	} else if (m->quant == ORACLE_QUANT_FORWARD) {
		p.hidden = 720;
	}
	return p;
}

static ncclEpGroup_t group_of(struct world *w, const struct mode *m)
{
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroupConfig_t config = bench_group_config(&p, m->flags);
	ncclEpGroup_t group = NULL;

	config.zero_copy = m->zero_copy;
	config.max_num_sms = 3;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	return group;
}

/* A call that the virtual NIC has for tests. */
static void *nic_call(const char *name)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *fn;

	NEED(lib);
	fn = dlsym(lib, name);
	NEED(fn);
	dlclose(lib);
	return fn;
}

/* So many NICs have sent from the tensor's memory. */
static uint32_t senders(const struct bench_tensor *t)
{
	uint32_t (*ask)(const void *);

	*(void **)&ask = nic_call("vn_dv_senders");
	return ask(t->t.data);
}

/* So many requests that are not over send from the tensor. */
static uint32_t reading(const struct bench_tensor *t)
{
	uint32_t (*ask)(const void *, uint64_t);

	*(void **)&ask = nic_call("vn_dv_reading");
	return ask(t->t.data, t->bytes);
}

static void run_mode(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroup_t group = group_of(w, m);
	struct bench b;

	check_context("%s", m->name);
	bench_open(&b, w, group, &p, m->flags);
	for (uint64_t i = 0; i < 3; i++) {
		bench_load_tokens(&b, 50 + i, i == 1 ? 1 : p.tokens);
		bench_pair(&b);
	}
	CHECK_INT(senders(&b.in_tokens), m->dispatch);
	CHECK_INT(senders(&b.combine_in), m->combine);
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

/* The stream goes on to write the input. */
static void overwrite(struct bench *b, struct bench_tensor *t)
{
	NEED_CUDA(cudaMemsetAsync(t->t.data, 0x5a, t->bytes, b->w->stream));
}

/*
 * That of a dispatch is free behind the send half; combine reads rows for its own rank till its
 * end.
 */
static void run_overwrite(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroup_t group = group_of(w, m);
	bool halves = m->flags & BENCH_PENDING;
	struct bench b;

	check_context("overwritten, %s", m->name);
	bench_open(&b, w, group, &p, m->flags);
	for (uint64_t i = 0; i < 2; i++) {
		bench_load(&b, 10 + i);
		bench_poison(&b);
		NEED_OK(bench_update(&b, w->stream));
		NEED_OK((halves ? bench_send_dispatch : bench_dispatch)(&b, w->stream));
		overwrite(&b, &b.in_tokens);
		if (halves) {
			NEED_OK(ncclEpComplete(b.handle, NULL, w->stream));
		}
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_check_dispatch(&b);
		bench_expert_work(&b);
		NEED_OK(bench_combine(&b, w->stream));
		overwrite(&b, &b.combine_in);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_check_combine(&b);
	}
	CHECK_INT(senders(&b.in_tokens), m->dispatch);
	CHECK_INT(senders(&b.combine_in), m->combine);
	bench_end(&b);
}

/*
 * More windows than a group takes, two with each bench. When they are freed, there is room for
 * others.
 */
static void run_many(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroup_t group = group_of(w, m);
	struct bench b[TAKEN / 2 + 1];

	for (uint64_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i <= TAKEN / 2; i++) {
			check_context("round %u, windows %u", (unsigned int)round, 2 * i);
			bench_open(&b[i], w, group, &p, m->flags);
			bench_pair_of(&b[i], 100 * round + i);
			CHECK_INT(senders(&b[i].in_tokens), i < TAKEN / 2);
			CHECK_INT(senders(&b[i].combine_in), i < TAKEN / 2);
		}
		bench_pair_of(&b[0], 1000 + round);
		world_meet(w);
		for (uint32_t i = 0; i <= TAKEN / 2; i++) {
			bench_close(&b[i]);
		}
	}
	OK(ncclEpGroupDestroy(group));
}

struct vmm {
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*unreserve)(CUdeviceptr, size_t);
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
			   unsigned long long);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
			unsigned long long);
	CUresult (*unmap)(CUdeviceptr, size_t);
	CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
};

static void *driver_call(const char *name)
{
	void *fn = NULL;

	NEED_CUDA(cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, NULL));
	NEED(fn);
	return fn;
}

static struct vmm vmm_of_driver(void)
{
	struct vmm v;

	*(void **)&v.reserve = driver_call("cuMemAddressReserve");
	*(void **)&v.unreserve = driver_call("cuMemAddressFree");
	*(void **)&v.create = driver_call("cuMemCreate");
	*(void **)&v.release = driver_call("cuMemRelease");
	*(void **)&v.map = driver_call("cuMemMap");
	*(void **)&v.unmap = driver_call("cuMemUnmap");
	*(void **)&v.access = driver_call("cuMemSetAccess");
	return v;
}

#define UNIT ((size_t)2 << 20)

/* New memory, mapped at `at`. */
static void map_new(const struct world *w, const struct vmm *v, CUdeviceptr at)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED };
	CUmemAccessDesc desc = { .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;

	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = w->device;
	desc.location = prop.location;
	NEED(!v->create(&handle, UNIT, &prop, 0));
	NEED(!v->map(at, UNIT, 0, handle, 0));
	NEED(!v->access(at, UNIT, &desc, 1));
	NEED(!v->release(handle));
}

/*
 * Each time other memory lies at the addresses of the input, and none behind it, though more are
 * reserved.
 */
static void run_again(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroup_t group = group_of(w, m);
	struct vmm v = vmm_of_driver();
	struct bench_tensor own;
	CUdeviceptr at = 0;
	struct bench b;

	bench_open(&b, w, group, &p, 0);
	own = b.in_tokens;
	NEED(!v.reserve(&at, 2 * UNIT, 0, 0, 0));
	for (uint64_t i = 0; i < 3; i++) {
		check_context("memory %u", (unsigned int)i);
		map_new(w, &v, at);
		NEED_OK(ncclCommWindowRegister(w->comm, (void *)at, UNIT, &b.in_tokens.window, 0));
		b.in_tokens.t.win_hdl = b.in_tokens.window;
		b.in_tokens.data = b.in_tokens.t.data = (void *)at;
		bench_pair_of(&b, 30 + i);
		CHECK_INT(senders(&b.in_tokens), 1);
		world_meet(w);
		NEED_OK(ncclCommWindowDeregister(w->comm, b.in_tokens.window));
		NEED(!v.unmap(at, UNIT));
	}
	NEED(!v.unreserve(at, 2 * UNIT));
	b.in_tokens = own;
	bench_end(&b);
}

/* Each rank has two NICs, and queues of both send rows; of neither, if one of them refuses. */
static void run_nics(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroup_t group = group_of(w, m);
	struct bench b;

	bench_open(&b, w, group, &p, m->flags);
	bench_pair(&b);
	CHECK_INT(senders(&b.in_tokens), m->dispatch ? 2 : 0);
	CHECK_INT(senders(&b.combine_in), m->combine ? 2 : 0);
	CHECK_LAST(group, ncclSuccess, "");
	bench_end(&b);
}

/*
 * The first packets of one rank are lost, and would be sent again later than it waits. When its
 * kernel is over, its group has failed, and the NIC does not send the rows any more. The other rank
 * misses them.
 */
static void run_lost(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(w, m);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, m->flags, 2000);
	struct bench b;

	bench_open(&b, w, group, &p, m->flags);
	NEED_OK(bench_update(&b, w->stream));
	NEED_SYNC(bench_dispatch(&b, w->stream), w->stream);
	CHECK_INT(reading(&b.in_tokens), 0);
	CHECK_INT(senders(&b.in_tokens), 1);
	CHECK_RESULT(bench_combine(&b, w->stream), ncclRemoteError);
	world_meet(w);
	bench_end(&b);
}

static void run(int ranks, world_fn fn, const struct mode *m)
{
	setenv("NCCL_EP_LL_DIRECT_BYTES", m->bytes, 1);
	world_run(ranks, fn, (void *)m);
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";
	struct mode refused = modes[0];

	refused.dispatch = refused.combine = false;
	if (!strcmp(what, "modes")) {
		for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
			run(4, run_mode, &modes[i]);
		}
	} else if (!strcmp(what, "overwrite")) {
		for (size_t i = 0; i < 3; i++) {
			run(4, run_overwrite, &modes[i]);
		}
	} else if (!strcmp(what, "many")) {
		run(2, run_many, &modes[0]);
	} else if (!strcmp(what, "again")) {
		run(2, run_again, &modes[0]);
	} else if (!strcmp(what, "nics")) {
		run(2, run_nics, &modes[0]);
	} else if (!strcmp(what, "half")) {
		run(2, run_nics, &refused);
	} else if (!strcmp(what, "lost")) {
		run(2, run_lost, &modes[0]);
	} else if (!strcmp(what, "refused")) {
		run(2, run_mode, &refused);
	} else {
		fprintf(stderr,
			"usage: in_place modes|overwrite|many|again|nics|half|lost|refused\n");
		return 2;
	}
	return check_end();
}
