/* SPDX-License-Identifier: Apache-2.0 */
/* A block: which of its fibers runs next, block barriers, bounded spinning. */
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "exec/exec.h"

int ep_simt_perturbed;

static long vc_seed;

__attribute__((constructor)) static void vc_seed_init(void)
{
	vc_seed = vc_env_long("VC_SEED", 0);
	ep_simt_perturbed = vc_seed != 0;
}

/* Of one block of one grid. */
static uint64_t vc_rng_make(const struct vc_grid *grid, uint32_t index)
{
	return ((uint64_t)vc_seed << 32 ^ grid->serial << 20 ^ (uint64_t)index << 8 ^
		(uint64_t)(vc_rank() + 1)) *
		       0x9e3779b97f4a7c15ull |
	       1;
}

static uint32_t vc_rng_next(uint64_t *rng)
{
	uint64_t x = *rng;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*rng = x;
	return (uint32_t)(x >> 32);
}

uint32_t vc_random(struct vc_block *block)
{
	return vc_rng_next(&block->rng);
}

void vc_wave_order(const struct vc_grid *grid, uint16_t *order, uint32_t n)
{
	uint64_t rng = vc_rng_make(grid, grid->nblocks);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = vc_seed ? vc_rng_next(&rng) % (i + 1) : i;

		order[i] = order[k];
		order[k] = (uint16_t)i;
	}
}

static uint32_t vc_random_bit(struct vc_block *block, uint32_t set)
{
	uint32_t skip = vc_random(block) % (uint32_t)__builtin_popcount(set);

	while (skip--) {
		set &= set - 1;
	}
	return (uint32_t)__builtin_ctz(set);
}

/* The next runnable fiber after `warp`, `lane` in round robin, or any; NULL when there is none. */
static struct vc_fiber *vc_block_pick(struct vc_block *block, uint32_t warp, uint32_t lane)
{
	uint32_t set;

	if (!block->run_warps) {
		return NULL;
	}
	if (vc_seed) {
		warp = vc_random_bit(block, block->run_warps);
		lane = vc_random_bit(block, block->warp[warp].runnable);
		return &block->worker->fiber[warp * EP_WARP_SIZE + lane];
	}
	set = block->warp[warp].runnable & ~((2u << lane) - 1);
	if (!set) {
		uint32_t warps = block->run_warps & ~((2u << warp) - 1);

		warp = (uint32_t)__builtin_ctz(warps ? warps : block->run_warps);
		set = block->warp[warp].runnable;
	}
	return &block->worker->fiber[warp * EP_WARP_SIZE + (uint32_t)__builtin_ctz(set)];
}

/* A kernel broke a rule: says which thread of which block, and ends the process. */
void vc_illegal(struct vc_block *block, struct vc_fiber *self, const char *fmt, ...)
{
	char text[512];
	va_list list;

	va_start(list, fmt);
	vsnprintf(text, sizeof(text), fmt, list);
	va_end(list);
	vc_block_dump(block);
	vc_die(VC_EXIT_ILLEGAL, "kernel %s, device %d, block %u, warp %u, lane %u: %s",
	       block->grid->kernel->name, block->grid->device, block->index, self->pub.warp,
	       self->pub.lane, text);
}

void vc_block_switch(struct vc_block *block, struct vc_fiber *self)
{
	struct vc_fiber *next = vc_block_pick(block, self->pub.warp, self->pub.lane);

	if (!next) {
		vc_illegal(block, self,
			   "deadlock: all %u threads that are left wait for each other",
			   block->live);
	}
	if (next != self) {
		vc_fiber_switch(self, next);
	}
}

static void vc_fiber_sleep(struct vc_block *block, struct vc_fiber *self, enum vc_fiber_state state,
			   uint32_t wait_a, uint32_t wait_b)
{
	struct vc_warp *warp = &block->warp[self->pub.warp];

	self->state = (uint8_t)state;
	self->wait_a = wait_a;
	self->wait_b = wait_b;
	warp->runnable &= ~(1u << self->pub.lane);
	if (!warp->runnable) {
		block->run_warps &= ~(1u << self->pub.warp);
	}
	vc_block_switch(block, self);
}

static void vc_lanes_wake(struct vc_block *block, uint32_t index, uint32_t lanes)
{
	struct vc_fiber *fiber = &block->worker->fiber[index * EP_WARP_SIZE];

	block->warp[index].runnable |= lanes;
	block->run_warps |= 1u << index;
	for (; lanes; lanes &= lanes - 1) {
		fiber[__builtin_ctz(lanes)].state = VC_FIBER_RUN;
	}
}

static void vc_barrier_check_warps(struct vc_block *block, struct vc_fiber *self,
				   struct vc_barrier *barrier, uint32_t id)
{
	for (uint32_t w = 0; w < block->nwarps; w++) {
		if (barrier->lanes[w] && barrier->lanes[w] != EP_FULL_MASK) {
			vc_illegal(block, self,
				   "barrier %u of %u threads is complete with only lanes 0x%08x "
				   "of warp %u: a barrier takes whole warps",
				   id, barrier->expected, barrier->lanes[w], w);
		}
	}
}

/* Threads of the block that have come to the barrier, or still can. */
static uint32_t vc_barrier_reach(const struct vc_block *block, const struct vc_barrier *barrier)
{
	uint32_t n = 0;

	for (uint32_t w = 0; w < block->nwarps; w++) {
		n += (uint32_t)__builtin_popcount(barrier->lanes[w] | block->warp[w].live);
	}
	return n;
}

static void vc_barrier_check_call(struct vc_block *block, struct vc_fiber *self, uint32_t id,
				  uint32_t nthreads)
{
	const struct vc_barrier *barrier = &block->barrier[id % VC_BARRIERS];

	if (id >= VC_BARRIERS || !nthreads || nthreads % EP_WARP_SIZE ||
	    nthreads > block->nthreads) {
		vc_illegal(block, self,
			   "barrier %u of %u threads: ids are 0 to 15, counts multiples of 32 up "
			   "to the block's %u",
			   id, nthreads, block->nthreads);
	}
	if (barrier->arrived && barrier->expected != nthreads) {
		vc_illegal(block, self,
			   "barrier %u: called for %u threads while %u wait in it for %u", id,
			   nthreads, barrier->arrived, barrier->expected);
	}
	if (barrier->lanes[self->pub.warp] >> self->pub.lane & 1) {
		vc_illegal(block, self,
			   "barrier %u: comes to it again while %u of %u threads are there, which "
			   "it is one of",
			   id, barrier->arrived, nthreads);
	}
	if (nthreads == block->nthreads && block->live != block->nthreads &&
	    vc_barrier_reach(block, barrier) < nthreads) {
		vc_illegal(block, self, "barrier %u of the whole block after %u threads ended", id,
			   block->nthreads - block->live);
	}
}

/* All are there: those that wait go on, and know what the others have acquired. */
static void vc_barrier_open(struct vc_block *block, struct vc_fiber *self,
			    struct vc_barrier *barrier)
{
	for (uint32_t w = 0; w < block->nwarps; w++) {
		uint32_t waiting = barrier->waiting[w];

		barrier->lanes[w] = barrier->waiting[w] = 0;
		if (waiting && barrier->acquired) {
			block->warp[w].acquired = EP_FULL_MASK;
		}
		if (w == self->pub.warp) {
			waiting &= ~(1u << self->pub.lane);
		}
		if (waiting) {
			vc_lanes_wake(block, w, waiting);
		}
	}
	barrier->arrived = 0;
	barrier->acquired = false;
	vc_block_progress(block);
}

void ep_simt_barrier(uint32_t id, uint32_t nthreads, bool waits)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	struct vc_barrier *barrier = &block->barrier[id % VC_BARRIERS];
	uint32_t bit = 1u << self->pub.lane;

	vc_barrier_check_call(block, self, id, nthreads);
	barrier->expected = nthreads;
	barrier->arrived++;
	barrier->lanes[self->pub.warp] |= bit;
	barrier->waiting[self->pub.warp] |= waits ? bit : 0;
	barrier->acquired |= block->warp[self->pub.warp].acquired != 0;
	VC_RELEASE(barrier);
	if (barrier->arrived == nthreads) {
		vc_barrier_check_warps(block, self, barrier, id);
		vc_barrier_open(block, self, barrier);
	} else if (waits) {
		vc_fiber_sleep(block, self, VC_FIBER_BARRIER, id, nthreads);
		VC_ACQUIRE(barrier);
		return;
	}
	if (waits) {
		VC_ACQUIRE(barrier);
	}
	if (vc_seed) {
		ep_simt_perturb();
	}
}

#define VC_IDLE_SHORT 16 /* rounds */
#define VC_NAP_LEAST_NS 100000
#define VC_NAP_MOST_NS 100000000
/*
 * What a GPU polls at least during a nap: waits count polls (device/group/wait.h), and the clock
 * stretches naps.
 */
#define VC_NAP_POLLS 64

/*
 * Only polling is going on: after a few rounds, other blocks and processes have the CPU. Who has
 * waited for long may look a little later. Where all wait, naps take no time (clock/page.h).
 */
static void vc_block_idle(struct vc_block *block)
{
	uint32_t round = block->idle_rounds++;
	uint64_t now, nap;

	block->idle_polls = 0;
	if (round < 3) {
		block->idle_since_ns = 0;
		return;
	}
	now = vc_now_ns();
	if (!block->idle_since_ns) {
		block->idle_since_ns = now;
	}
	nap = (now - block->idle_since_ns) / 32;
	nap = nap < VC_NAP_LEAST_NS ? VC_NAP_LEAST_NS : nap < VC_NAP_MOST_NS ? nap : VC_NAP_MOST_NS;
	if (!vc_loads_wait(block)) {
		vc_nap(VC_WAIT_WORD, nap);
	}
	block->idle_ns = vc_now_ns();
}

bool ep_simt_spin(struct ep_spin *s, uint64_t timeout_ns, uint32_t site, uint32_t peer)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	uint32_t rounds = block->idle_rounds;

	if (!s->polls) {
		vc_block_progress(block);
	}
	self->calls = 0;
	self->state = VC_FIBER_SPIN;
	self->wait_a = site;
	self->wait_b = peer;
	if (block->active) {
		block->active = false;
		block->idle_polls = 0;
		block->idle_rounds = rounds = 0;
	}
	if (++block->idle_polls > block->live) {
		vc_block_idle(block);
	}
	vc_block_switch(block, self);
	self->state = VC_FIBER_RUN;
	if (++s->polls & 15 && rounds < VC_IDLE_SHORT) {
		return false;
	}
	if (rounds >= VC_IDLE_SHORT) {
		s->polls = (s->polls + VC_NAP_POLLS - 1) & ~(VC_NAP_POLLS - 1u);
	}

	/* Threads that look again after a nap look at the clock once for all. */
	uint64_t now = rounds < VC_IDLE_SHORT ? vc_now_ns() : block->idle_ns;

	if (!s->start_ns) {
		s->start_ns = now;
		return false;
	}
	/* the nap may have been before the start */
	return (int64_t)(now - s->start_ns) > 0 && now - s->start_ns > timeout_ns;
}

/* Its collectives since the last poll were part of a look that found nothing. */
void ep_simt_polled(void)
{
	((struct vc_fiber *)ep_simt_self)->calls = 0;
}

/* A point where the order of things may be varied: one call in eight lets another thread run. */
void ep_simt_perturb(void)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block;
	uint32_t dice;

	if (!self) {
		return; /* a device function called by the host */
	}
	block = &vc_self->block;
	dice = vc_random(block);
	if (!(dice & 4095)) {
		usleep(dice >> 12 & 63);
	}
	if (!(dice >> 20 & 7)) {
		vc_block_switch(block, self);
	}
}

/* The NIC sets it when it is loaded: it sleeps until a doorbell is rung. */
void (*_Atomic ep_simt_doorbell_hook)(void);

void ep_simt_rung(void)
{
	void (*hook)(void) = atomic_load_explicit(&ep_simt_doorbell_hook, memory_order_relaxed);

	if (hook) {
		hook();
	}
}

uint64_t ep_simt_time_ns(void)
{
	return vc_now_ns();
}

static void vc_fiber_end(struct vc_block *block, struct vc_fiber *self)
{
	struct vc_warp *warp = &block->warp[self->pub.warp];
	uint32_t bit = 1u << self->pub.lane;
	struct vc_fiber *next;

	for (uint32_t i = 0; i < warp->ngroups; i++) {
		if (warp->group[i].mask & bit) {
			vc_illegal(block, self,
				   "ends while lanes 0x%08x wait for it in %s with mask 0x%08x",
				   warp->group[i].arrived, vc_op_name(warp->group[i].op),
				   warp->group[i].mask);
		}
	}
	for (uint32_t i = 0; i < VC_BARRIERS; i++) {
		const struct vc_barrier *barrier = &block->barrier[i];

		if (barrier->arrived && barrier->expected == block->nthreads &&
		    !(barrier->lanes[self->pub.warp] & bit)) {
			vc_illegal(
				block, self,
				"ends while %u threads wait for it in barrier %u of the whole block",
				barrier->arrived, i);
		}
	}
	/*
	 * Canaries are seldom in a cache. Lanes use about as much stack: one of a warp is checked.
	 */
	if (self->pub.lane == block->grid->serial % EP_WARP_SIZE) {
		vc_fiber_check_stack(self);
	}
	self->state = VC_FIBER_DONE;
	warp->live &= ~bit;
	warp->runnable &= ~bit;
	if (!warp->runnable) {
		block->run_warps &= ~(1u << self->pub.warp);
	}
	block->live--;
	vc_block_progress(block);
	if (block->bulk && !warp->live) {
		vc_bulk_end(block, self);
	}
	VC_RELEASE(&block->grid->left);
	VC_RELEASE(&block->live);
	if (!block->live) {
		next = &block->worker->main;
	} else {
		next = vc_block_pick(block, self->pub.warp, self->pub.lane);
		if (!next) {
			vc_illegal(block, self,
				   "deadlock: its end leaves %u threads that wait for each other",
				   block->live);
		}
	}
	vc_fiber_switch(self, next);
}

/*
 * One kernel thread, from its start to its end; the fiber then sleeps until the next block. For the
 * race detector, starts and ends are different things to synchronise on: the end of one thread does
 * not order it before the start of another one.
 */
void vc_fiber_body(struct vc_worker *worker, struct vc_fiber *self)
{
	struct vc_block *block = &worker->block;

	VC_ACQUIRE(&block->grid->kernel);
	VC_ACQUIRE(&block->grid);
	self->state = VC_FIBER_RUN;
	block->grid->kernel->body(block->grid->args);
	vc_fiber_end(block, self);
}

/* Room for the dynamic shared memory; contents are poisoned by the block. */
static void vc_worker_reserve_shared(struct vc_worker *worker, size_t size)
{
	if (size <= worker->shared_size) {
		return;
	}
	free(worker->shared);
	worker->shared_size = (size + 127) & ~(size_t)127;
	worker->shared = aligned_alloc(128, worker->shared_size);
	if (!worker->shared) {
		vc_die(VC_EXIT_ILLEGAL, "no memory for %zu bytes of shared memory", size);
	}
}

/* What the last block left in EP_SHARED variables must not look like initialised data. */
static void vc_block_poison(struct vc_worker *worker)
{
	const struct vc_kernel *kernel = worker->block.grid->kernel;

	memset(worker->shared, 0xb5, worker->block.grid->dynamic_shared);
	if (kernel->tls_module) {
		struct {
			size_t module, offset;
		} index = { kernel->tls_module, 0 };
		extern void *__tls_get_addr(void *index);

		memset(__tls_get_addr(&index), 0xb5, kernel->tls_size);
	}
}

static void vc_block_init(struct vc_worker *worker)
{
	struct vc_block *block = &worker->block;
	struct vc_grid *grid = block->grid;

	block->worker = worker;
	block->nthreads = block->live = grid->nthreads;
	block->nwarps = grid->nthreads / EP_WARP_SIZE;
	block->run_warps = block->nwarps == 32 ? EP_FULL_MASK : (1u << block->nwarps) - 1;
	block->idle_polls = block->idle_rounds = 0;
	block->active = true;
	block->rng = vc_rng_make(grid, block->index);
	block->bulk = NULL;
	memset(block->barrier, 0, sizeof(block->barrier));
	for (uint32_t w = 0; w < block->nwarps; w++) {
		struct vc_warp *warp = &block->warp[w];

		warp->live = warp->runnable = EP_FULL_MASK;
		warp->ngroups = 0;
		warp->acquired = 0;
	}
	for (uint32_t t = 0; t < block->nthreads; t++) {
		struct vc_fiber *fiber = &worker->fiber[t];

		fiber->pub = (struct ep_simt_lane){
			.tid = t,
			.nthreads = grid->nthreads,
			.lane = t % EP_WARP_SIZE,
			.warp = t / EP_WARP_SIZE,
			.nwarps = block->nwarps,
			.block = block->index,
			.nblocks = grid->nblocks,
			.dynamic_shared = worker->shared,
			.acquired = &block->warp[t / EP_WARP_SIZE].acquired,
		};
		fiber->state = VC_FIBER_RUN;
		fiber->calls = 0;
	}
}

void vc_block_run(struct vc_worker *worker)
{
	struct vc_block *block = &worker->block;

	vc_fibers_reserve(worker, block->grid->nthreads);
	/*
	 * Orders the threads of the block before, which have ended. Done any earlier, it would
	 * order them before every thread that this one starts, and hide races between the two.
	 */
	VC_ACQUIRE(&block->live);
	vc_worker_reserve_shared(worker, block->grid->dynamic_shared);
	vc_block_poison(worker);
	vc_block_init(worker);
	vc_watchdog_add(block);
	VC_RELEASE(&block->grid);
	if (!sigsetjmp(worker->fault_exit, 1)) {
		vc_fiber_switch(&worker->main, vc_block_pick(block, block->nwarps - 1, 31));
	} else {
		vc_fibers_reset(worker);
		atomic_store(&block->grid->fault, 1);
	}
	ep_simt_self = NULL;
	vc_watchdog_remove(block);
}

/* ---- warp collectives: the lanes of a mask meet, the last one computes everybody's result ---- */

/* What a shuffle returns that reads a lane outside the mask: undefined on a GPU, never right. */
#define VC_UNDEFINED 0xbadc0de5badc0de5ull

const char *vc_op_name(uint32_t op)
{
	static const char *const name[EP_SIMT_OPS] = {
		[EP_SIMT_SYNC] = "warp_sync", [EP_SIMT_BALLOT] = "ballot",
		[EP_SIMT_ANY] = "any",        [EP_SIMT_ALL] = "all",
		[EP_SIMT_SHFL] = "shfl",      [EP_SIMT_SHFL_XOR] = "shfl_xor",
		[EP_SIMT_MATCH] = "match",    [EP_SIMT_BULK] = "a function of bulk.h",
	};

	return op < EP_SIMT_OPS && name[op] ? name[op] : "?";
}

static uint64_t vc_shuffle(const struct vc_warp *warp, uint32_t mask, uint32_t lane)
{
	return mask >> lane & 1 ? warp->value[lane] : VC_UNDEFINED;
}

static uint64_t vc_match(const struct vc_warp *warp, uint32_t mask, uint32_t lane)
{
	uint32_t same = 0;

	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		if (warp->value[i] == warp->value[lane]) {
			same |= 1u << i;
		}
	}
	return same;
}

static uint64_t vc_result(const struct vc_warp *warp, uint32_t op, uint32_t mask, uint32_t lane)
{
	uint32_t arg = warp->arg[lane];

	switch (op) {
	case EP_SIMT_SHFL:
		return vc_shuffle(warp, mask, arg % EP_WARP_SIZE);
	case EP_SIMT_SHFL_XOR:
		return (lane ^ arg) < EP_WARP_SIZE ? vc_shuffle(warp, mask, lane ^ arg)
						   : warp->value[lane];
	case EP_SIMT_MATCH:
		return vc_match(warp, mask, lane);
	default:
		return 0;
	}
}

/* The vote: a result that is the same for all lanes. */
static uint64_t vc_vote(const struct vc_warp *warp, uint32_t op, uint32_t mask)
{
	uint32_t ballot = 0;

	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		ballot |= (uint32_t)(warp->value[i] != 0) << i;
	}
	return op == EP_SIMT_BALLOT ? ballot : op == EP_SIMT_ANY ? ballot != 0 : ballot == mask;
}

static void vc_results(struct vc_block *block, uint32_t index, uint32_t op, uint32_t mask)
{
	struct vc_warp *warp = &block->warp[index];
	struct vc_fiber *fiber = &block->worker->fiber[index * EP_WARP_SIZE];
	uint64_t vote = 0;

	if (op == EP_SIMT_SYNC || op == EP_SIMT_BULK) {
		return;
	}
	if (op <= EP_SIMT_ALL) {
		vote = vc_vote(warp, op, mask);
		for (uint32_t m = mask; m; m &= m - 1) {
			fiber[__builtin_ctz(m)].result = vote;
		}
		return;
	}
	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		fiber[i].result = vc_result(warp, op, mask, i);
	}
}

static struct vc_group *vc_group_join(struct vc_block *block, struct vc_fiber *self, uint32_t op,
				      uint32_t mask)
{
	struct vc_warp *warp = &block->warp[self->pub.warp];
	struct vc_group *group = NULL;

	for (uint32_t i = 0; i < warp->ngroups && !group; i++) {
		group = warp->group[i].mask == mask ? &warp->group[i] : NULL;
	}
	if (!group) {
		group = &warp->group[warp->ngroups++];
		*group = (struct vc_group){ .mask = mask, .op = op, .calls = self->calls };
	}
	if (group->op != op) {
		vc_illegal(block, self, "calls %s with mask 0x%08x while lanes 0x%08x wait in %s",
			   vc_op_name(op), mask, group->arrived, vc_op_name(group->op));
	}
	/*
	 * Lanes of the mask may still be in other collectives, but not in one that needs this lane.
	 */
	for (uint32_t i = 0; i < warp->ngroups; i++) {
		const struct vc_group *other = &warp->group[i];

		if (other != group && other->arrived & mask && other->mask >> self->pub.lane & 1) {
			vc_illegal(block, self,
				   "calls %s with mask 0x%08x while lanes 0x%08x of it wait for it "
				   "in %s with mask 0x%08x",
				   vc_op_name(op), mask, other->arrived & mask,
				   vc_op_name(other->op), other->mask);
		}
	}
	group->arrived |= 1u << self->pub.lane;
	group->calls = self->calls < group->calls ? self->calls : group->calls;
	return group;
}

/* Lanes that meet one that has polled have polled. */
static void vc_group_calls(struct vc_block *block, uint32_t index, const struct vc_group *group)
{
	struct vc_fiber *fiber = &block->worker->fiber[index * EP_WARP_SIZE];

	block->idle_polls += (uint32_t)__builtin_popcount(group->mask) - 1;

	for (uint32_t m = group->mask; m; m &= m - 1) {
		fiber[__builtin_ctz(m)].calls = group->calls;
	}
}

uint64_t ep_simt_collective(uint32_t op, uint32_t mask, uint64_t value, uint32_t arg)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	struct vc_warp *warp = &block->warp[self->pub.warp];
	uint32_t bit = 1u << self->pub.lane;
	bool orders = op == EP_SIMT_SYNC || op == EP_SIMT_BULK;
	struct vc_group *group;

	if (!(mask & bit)) {
		vc_illegal(block, self, "calls %s with mask 0x%08x, which does not name it",
			   vc_op_name(op), mask);
	}
	if (mask & ~warp->live) {
		vc_illegal(block, self, "calls %s with mask 0x%08x, but lanes 0x%08x have ended",
			   vc_op_name(op), mask, mask & ~warp->live);
	}
	/*
	 * A warp that polls may vote on what it saw. More than 8 collectives since a poll are
	 * progress, by this lane or by one that it meets in them: one lane may poll on behalf of a
	 * warp.
	 */
	if (++self->calls > 8) {
		self->calls = 8;
		vc_block_progress(block);
	}
	warp->value[self->pub.lane] = value;
	warp->arg[self->pub.lane] = arg;
	group = vc_group_join(block, self, op, mask);
	if (orders) {
		VC_RELEASE(&warp->group[0].mask);
	}
	if (group->arrived != mask) {
		vc_fiber_sleep(block, self, VC_FIBER_COLLECTIVE, op, mask);
	} else {
		vc_group_calls(block, self->pub.warp, group);
		*group = warp->group[--warp->ngroups];
		vc_results(block, self->pub.warp, op, mask);
		if (op == EP_SIMT_BULK) {
			VC_ACQUIRE(&warp->group[0].mask);
			vc_bulk_act(block, self);
			VC_RELEASE(&warp->group[0].mask);
		}
		if (mask != bit) {
			vc_lanes_wake(block, self->pub.warp, mask & ~bit);
		}
		if (ep_simt_perturbed) {
			ep_simt_perturb();
		}
	}
	if (orders) {
		VC_ACQUIRE(&warp->group[0].mask);
	}
	return self->result;
}

void ep_simt_unfenced(const void *p, uint32_t scope)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;

	if (!p) {
		vc_illegal(block, self,
			   "stores to a device's register without ep_release_fence_sys() behind "
			   "all that it has stored");
	}
	if (!(scope & EP_SIMT_FENCED_GPU)) {
		vc_illegal(block, self, "ep_st_fenced_sys_u32() without a fence before it");
	}
#ifndef VC_TSAN
	/* Not there: it takes a lock, which would order threads that nothing else orders. */
	if (!vc_device_address || !vc_device_address((uintptr_t)p, block->grid->device)) {
		vc_illegal(block, self,
			   "ep_st_fenced_sys_u32() to memory that is not this device's, behind "
			   "ep_release_fence_gpu()");
	}
#endif
}

/*
 * What a kernel reads as memory that nobody writes while it runs. A GPU may then serve old data; a
 * CPU does not, so the promise is checked: what was read is remembered in a hashed form until the
 * kernel's end, or until the place in the table is needed for another address, and compared with
 * the memory then.
 */

#define VC_READS 8192u /* a power of two */

/* An entry: address / 8, one bit for 16 bytes instead of 8, 19 bits of hash. 0: empty. */
struct vc_reads {
	_Atomic uint64_t entry[VC_READS];
};

static uint64_t vc_mix(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

/* Read word by word, as memcpy() would be a plain access to a race detector. */
typedef uint64_t vc_word __attribute__((may_alias));

static uint64_t vc_entry_make(const void *p, const void *value, size_t size)
{
	const volatile vc_word *word = value;
	uint64_t first = word[0], second = size == 16 ? word[1] : 0;

	return (uint64_t)(uintptr_t)p >> 3 << 20 | (uint64_t)(size == 16) << 19 |
	       vc_mix(vc_mix(first) + second) >> 45;
}

static void vc_entry_check(const struct vc_grid *grid, uint64_t entry)
{
	const void *p = (const void *)(uintptr_t)(entry >> 20 << 3);
	size_t size = entry >> 19 & 1 ? 16 : 8;
	char where[160] = "";

	if (!entry || vc_entry_make(p, p, size) == entry) {
		return;
	}
	if (vc_describe_address) {
		vc_describe_address((uintptr_t)p, where, sizeof(where));
	}
	vc_die(VC_EXIT_ILLEGAL,
	       "kernel %s, device %d: address %p%s%s was written while the kernel ran, which has "
	       "read it with ep_ld%zu_nc()",
	       grid->kernel->name, grid->device, p, *where ? ", " : "", where, size);
}

/* By the thread that submits: a race detector would order kernel threads by their allocations. */
void vc_reads_start(struct vc_grid *grid)
{
	grid->reads = calloc(1, sizeof(*grid->reads));
	if (!grid->reads) {
		vc_die(VC_EXIT_ILLEGAL, "no memory to remember what a kernel reads");
	}
}

void ep_simt_read_only(const void *p, const void *value, size_t size)
{
	struct vc_grid *grid;
	uint64_t entry, old;
	_Atomic uint64_t *at;

	if (!ep_simt_self) {
		return; /* a device function called by the host */
	}
	grid = vc_self->block.grid;
	entry = vc_entry_make(p, value, size);
	at = &grid->reads->entry[vc_mix(entry >> 20) >> 20 & (VC_READS - 1)];
	old = atomic_load_explicit(at, memory_order_relaxed);
	if (old != entry) {
		old = atomic_exchange_explicit(at, entry, memory_order_relaxed);
		vc_entry_check(grid, old);
	}
}

void vc_reads_end(struct vc_grid *grid)
{
	for (uint32_t i = 0; !grid->fault && i < VC_READS; i++) {
		vc_entry_check(grid,
			       atomic_load_explicit(&grid->reads->entry[i], memory_order_relaxed));
	}
	free(grid->reads);
}
