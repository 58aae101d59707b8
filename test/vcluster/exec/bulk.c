/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk copies. The engine copies as late as the kernel lets it: loads while their barrier is
 * polled, stores when their group is waited for, or at the warp's end. With a seed some copies are
 * done earlier, and with VC_LOADS_LATE some loads later than what others do meanwhile. Whatever a
 * kernel does to the memory of a copy in between is so found in the data, if it is not found here:
 * the engine's view of shared memory is kept beside the memory itself.
 */
#include <sys/mman.h>
#include "exec/exec.h"

#define VC_GARBAGE 0xdbdbdbdbdbdbdbdbull /* where a copy is going to */

#define VC_TURN_NS 100000 /* in which others that can run do */

/* The loads of one phase in so many are late; 0: of none. */
static long vc_late_one_in;

__attribute__((constructor)) static void vc_late_init(void)
{
	vc_late_one_in = vc_env_long("VC_LOADS_LATE", 0);
	if (vc_late_one_in < 0 || vc_late_one_in > UINT32_MAX) {
		vc_die(VC_EXIT_ILLEGAL, "VC_LOADS_LATE=%ld is no number of phases", vc_late_one_in);
	}
}

/*
 * Word by word: memcpy() and its like would be accesses of the running thread to the race detector,
 * which is told what the engine accesses and must not hear of the rest.
 */
static void vc_words_copy(void *to, const void *from, size_t bytes)
{
	volatile vc_word *t = to;
	const volatile vc_word *f = from;

	for (size_t i = 0; i < bytes / 8; i++) {
		t[i] = f[i];
	}
}

static void vc_words_fill(void *to, uint64_t value, size_t bytes)
{
	volatile vc_word *t = to;

	for (size_t i = 0; i < bytes / 8; i++) {
		t[i] = value;
	}
}

static bool vc_words_differ(const void *a, const void *b, size_t bytes)
{
	const volatile vc_word *x = a, *y = b;
	uint64_t differ = 0;

	for (size_t i = 0; i < bytes / 8; i++) {
		differ |= x[i] ^ y[i];
	}
	return differ != 0;
}

/* ---- the engine as a thread, which knows what was before the copies were issued ---- */

#ifdef VC_TSAN
static void *vc_engine_enter(struct vc_engine *engine)
{
	void *self = __tsan_get_current_fiber();

	if (!engine->tsan) {
		engine->tsan = vc_tsan_fiber();
	}
	__tsan_switch_to_fiber(engine->tsan, __tsan_switch_to_fiber_no_sync);
	return self;
}

static void vc_engine_leave(void *self)
{
	__tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
}
#else
static void *vc_engine_enter(struct vc_engine *engine)
{
	(void)engine;
	return NULL;
}

static void vc_engine_leave(void *self)
{
	(void)self;
}
#endif

static uint8_t *vc_shadow(struct vc_block *block, const void *p)
{
	return block->bulk->shadow + ((const uint8_t *)p - block->worker->shared);
}

static bool vc_overlap(const void *a, const void *b, uint32_t na, uint32_t nb)
{
	return (uintptr_t)a < (uintptr_t)b + nb && (uintptr_t)b < (uintptr_t)a + na;
}

/* ---- moving data ---- */

/* Loops that remove go from the last copy to the first one: the last takes the place. */
static void vc_copy_remove(struct vc_bulk *bulk, struct vc_copy *copy)
{
	if (copy->held) {
		bulk->held &= ~(1u << (uint32_t)(copy->held - bulk->room[0]) / VC_BLOCK_SHARED_MAX);
	}
	*copy = bulk->copy[--bulk->ncopies];
}

static void vc_load_land(struct vc_block *block, struct vc_copy *copy)
{
	struct vc_mbar *m = copy->bar;
	void *self = vc_engine_enter(&block->bulk->engine[copy->warp]);

	VC_HAS_READ(copy->from, copy->bytes);
	VC_HAS_WRITTEN(copy->to, copy->bytes);
	vc_words_copy(copy->to, copy->from, copy->bytes);
	vc_words_copy(vc_shadow(block, copy->to), copy->to, copy->bytes);
	VC_RELEASE(&m->key[m->phase & 1]);
	vc_engine_leave(self);
	vc_copy_remove(block->bulk, copy);
	m->loads--;
	vc_mbar_settle(m);
	vc_block_progress(block);
}

/* The store reads what is there now, and should be what was there when it was issued. */
static void vc_store_check(struct vc_block *block, struct vc_fiber *self,
			   const struct vc_copy *copy)
{
	if (vc_words_differ(copy->from, vc_shadow(block, copy->from), copy->bytes)) {
		vc_illegal(block, self,
			   "wrote shared memory at %p that a bulk store of %u bytes reads, before "
			   "ep_bulk_wait_read()",
			   (const void *)copy->from, copy->bytes);
	}
}

static void vc_store_land(struct vc_block *block, struct vc_copy *copy)
{
	struct vc_engine *engine = &block->bulk->engine[copy->warp];
	void *self = vc_engine_enter(engine);

	if (!copy->held) {
		VC_HAS_READ(copy->from, copy->bytes);
	}
	VC_HAS_WRITTEN(copy->to, copy->bytes);
	vc_words_copy(copy->to, copy->held ? copy->held : copy->from, copy->bytes);
	VC_RELEASE(&engine->done);
	vc_engine_leave(self);
	copy->state = VC_COPY_LANDED;
	vc_block_progress(block);
}

/* Reads, and keeps what was read for later. */
static void vc_store_hold(struct vc_block *block, struct vc_copy *copy)
{
	struct vc_bulk *bulk = block->bulk;
	uint32_t room = (uint32_t)__builtin_ctz(~bulk->held);
	struct vc_engine *engine = &bulk->engine[copy->warp];
	void *self = vc_engine_enter(engine);

	bulk->held |= 1u << room;
	copy->held = bulk->room[room];
	VC_HAS_READ(copy->from, copy->bytes);
	vc_words_copy(copy->held, copy->from, copy->bytes);
	VC_RELEASE(&engine->done);
	vc_engine_leave(self);
	copy->state = VC_COPY_READ;
}

static void vc_copy_land(struct vc_block *block, struct vc_fiber *self, struct vc_copy *copy)
{
	if (copy->bar) {
		vc_load_land(block, copy);
		return;
	}
	if (copy->state == VC_COPY_READ) {
		vc_store_land(block, copy);
		vc_copy_remove(block->bulk, copy);
		return;
	}
	vc_store_check(block, self, copy);
	vc_store_land(block, copy);
}

/* With a seed: copies of the warp may be done at any time. */
static void vc_bulk_stir(struct vc_block *block, struct vc_fiber *self)
{
	struct vc_bulk *bulk = block->bulk;

	for (uint32_t i = bulk->ncopies; ep_simt_perturbed && i-- > 0;) {
		struct vc_copy *copy = &bulk->copy[i];

		if (copy->warp == self->pub.warp && copy->state != VC_COPY_LANDED &&
		    !(copy->bar && copy->bar->late) && !(vc_random(block) & 7)) {
			vc_copy_land(block, self, copy);
		}
	}
}

/* The stores of all groups but the last n: until they are done, or have read at least. */
static void vc_stores_wait(struct vc_block *block, struct vc_fiber *self, uint32_t n, bool done)
{
	struct vc_bulk *bulk = block->bulk;
	struct vc_engine *engine = &bulk->engine[self->pub.warp];

	for (uint32_t i = bulk->ncopies; i-- > 0;) {
		struct vc_copy *copy = &bulk->copy[i];

		if (copy->bar || copy->warp != self->pub.warp || engine->group - copy->group <= n) {
			continue;
		}
		if (copy->state == VC_COPY_ISSUED) {
			vc_store_check(block, self, copy);
			if (!done && ~bulk->held && !(ep_simt_perturbed && vc_random(block) & 1)) {
				vc_store_hold(block, copy);
			}
		}
		if (copy->state == VC_COPY_READ && !done) {
			continue;
		}
		if (copy->state != VC_COPY_LANDED) {
			vc_store_land(block, copy);
		}
		vc_copy_remove(bulk, copy);
	}
	VC_ACQUIRE(&engine->done);
}

/*
 * Loads that are late land when others have had many turns since somebody began to wait for them.
 * So what the kernel has told them too early, that it has read what it is only about to read, they
 * have acted upon.
 */
bool vc_loads_wait(struct vc_block *block)
{
	bool late = false;

	for (uint32_t i = 0; vc_late_one_in && block->bulk && i < block->bulk->nmbars; i++) {
		struct vc_mbar *m = &block->bulk->mbar[i];

		if (m->bar && m->late && m->polls) {
			m->late--;
			late = true;
		}
	}
	if (late) {
		vc_nap(VC_WAIT_WORD, VC_TURN_NS);
	}
	return late;
}

/* ---- what is asked for ---- */

static void vc_bulk_check_sizes(struct vc_block *block, struct vc_fiber *self,
				const struct ep_simt_bulk *call)
{
	bool load = call->op == EP_SIMT_BULK_LOAD;
	uintptr_t shared = (uintptr_t)(load ? call->to : call->from);
	uintptr_t global = (uintptr_t)(load ? call->from : call->to);
	uintptr_t base = (uintptr_t)block->worker->shared;
	size_t size = block->grid->dynamic_shared;

	if (call->op == EP_SIMT_BULK_FENCE_SHARED) {
		global = 0;
	}
	if (!call->n || (call->n | shared | global) % EP_BULK_ALIGN) {
		vc_illegal(block, self,
			   "a bulk copy from %p to %p of %u bytes: all three must be multiples of "
			   "16, and there must be something to copy",
			   call->from, call->to, call->n);
	}
	if (shared < base || call->n > size || shared - base > size - call->n) {
		vc_illegal(block, self,
			   "a bulk copy from %p to %p of %u bytes: its shared side is not in the "
			   "%zu bytes of dynamic shared memory at %p",
			   call->from, call->to, call->n, size, (void *)base);
	}
}

static void vc_bulk_check_acquired(struct vc_block *block, struct vc_fiber *self)
{
	uint32_t lanes = block->warp[self->pub.warp].acquired;

	if (lanes) {
		vc_illegal(block, self,
			   "a bulk copy after an acquire (lanes 0x%08x), and no "
			   "ep_bulk_fence_global() between them",
			   lanes);
	}
}

/* Stores that nobody has waited for are done now, of all warps, and are forgotten. */
static void vc_stores_drain(struct vc_block *block, struct vc_fiber *self)
{
	struct vc_bulk *bulk = block->bulk;

	for (uint32_t i = bulk->ncopies; i-- > 0;) {
		struct vc_copy *copy = &bulk->copy[i];

		if (copy->bar) {
			continue;
		}
		if (copy->state == VC_COPY_ISSUED) {
			vc_store_check(block, self, copy);
		}
		if (copy->state != VC_COPY_LANDED) {
			vc_store_land(block, copy);
		}
		vc_copy_remove(bulk, copy);
	}
}

static struct vc_copy *vc_copy_new(struct vc_block *block, struct vc_fiber *self,
				   const struct ep_simt_bulk *call, struct vc_mbar *m)
{
	struct vc_bulk *bulk = block->bulk;
	struct vc_engine *engine = &bulk->engine[self->pub.warp];
	struct vc_copy *copy;
	void *tsan;

	if (bulk->ncopies == VC_COPIES) {
		vc_stores_drain(block, self);
	}
	if (bulk->ncopies == VC_COPIES) {
		vc_illegal(block, self, "more than %u bulk loads of a block are under way",
			   VC_COPIES);
	}
	copy = &bulk->copy[bulk->ncopies++];
	*copy = (struct vc_copy){ .to = call->to,
				  .from = call->from,
				  .bytes = call->n,
				  .warp = self->pub.warp,
				  .group = engine->group,
				  .bar = m };
	VC_RELEASE(&engine->issued);
	tsan = vc_engine_enter(engine);
	VC_ACQUIRE(&engine->issued);
	VC_HAS_WRITTEN(copy->to, copy->bytes);
	vc_words_fill(copy->to, VC_GARBAGE, copy->bytes);
	if (m) {
		vc_words_fill(vc_shadow(block, copy->to), VC_GARBAGE, copy->bytes);
	}
	vc_engine_leave(tsan);
	return copy;
}

static void vc_load(struct vc_block *block, struct vc_fiber *self, const struct ep_simt_bulk *call,
		    struct vc_mbar *m)
{
	struct vc_bulk *bulk = block->bulk;

	vc_bulk_check_sizes(block, self, call);
	vc_bulk_check_acquired(block, self);
	for (uint32_t i = 0; i < bulk->ncopies; i++) {
		const struct vc_copy *other = &bulk->copy[i];

		if (other->bar && vc_overlap(call->to, other->to, call->n, other->bytes)) {
			vc_illegal(block, self, "a bulk load to %p, where another one is under way",
				   call->to);
		}
		if (!other->bar && other->state != VC_COPY_READ &&
		    vc_overlap(call->to, other->from, call->n, other->bytes)) {
			vc_illegal(block, self,
				   "a bulk load to %p, which a bulk store of warp %u may still be "
				   "reading: no ep_bulk_wait_read()",
				   call->to, other->warp);
		}
	}
	if (!m->pending || m->arrived >> self->pub.warp & 1) {
		vc_illegal(block, self,
			   "a bulk load for a phase of the barrier at %p in which its warp has "
			   "arrived already: first the loads, then ep_mbar_arrive_tx()",
			   (void *)m->bar);
	}
	if (!m->issued && vc_late_one_in && vc_random(block) % (uint32_t)vc_late_one_in == 0) {
		m->late = VC_LATE_TURNS;
	}
	m->issued += call->n;
	if (call->n >= EP_MBAR_BYTES || m->issued >= EP_MBAR_BYTES) {
		vc_illegal(block, self, "1 MiB or more of bulk loads in a phase of a barrier");
	}
	m->loads++;
	vc_copy_new(block, self, call, m);
}

static void vc_store(struct vc_block *block, struct vc_fiber *self, const struct ep_simt_bulk *call)
{
	struct vc_bulk *bulk = block->bulk;

	vc_bulk_check_sizes(block, self, call);
	vc_bulk_check_acquired(block, self);
	for (uint32_t i = 0; i < bulk->ncopies; i++) {
		const struct vc_copy *other = &bulk->copy[i];

		if (other->bar && vc_overlap(call->from, other->to, call->n, other->bytes)) {
			vc_illegal(block, self,
				   "a bulk store from %p, where a bulk load is under way that "
				   "nobody has waited for",
				   call->from);
		}
	}
	if (vc_words_differ(call->from, vc_shadow(block, call->from), call->n)) {
		vc_illegal(block, self,
			   "a bulk store of %u bytes at %p that threads have written, and no "
			   "ep_bulk_fence_shared() since then",
			   call->n, call->from);
	}
	vc_copy_new(block, self, call, NULL);
}

static void vc_fence_shared(struct vc_block *block, struct vc_fiber *self,
			    const struct ep_simt_bulk *call)
{
	struct vc_bulk *bulk = block->bulk;

	vc_bulk_check_sizes(block, self, call);
	for (uint32_t i = 0; i < bulk->ncopies; i++) {
		const struct vc_copy *copy = &bulk->copy[i];

		if (!copy->bar && copy->state != VC_COPY_READ &&
		    vc_overlap(call->from, copy->from, call->n, copy->bytes)) {
			vc_store_check(block, self, copy);
		}
	}
	vc_words_copy(vc_shadow(block, call->from), call->from, call->n);
}

/* ---- calls ---- */

/* Made once, by a plain mapping: the race detector would order threads by their allocations. */
static void vc_bulk_use(struct vc_block *block)
{
	struct vc_bulk *bulk = block->worker->bulk;

	if (!bulk) {
		bulk = mmap(NULL, sizeof(*bulk), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (bulk == MAP_FAILED) {
			vc_die(VC_EXIT_ILLEGAL, "no memory for a block's bulk copies");
		}
		block->worker->bulk = bulk;
	}
	block->bulk = bulk;
	bulk->used = true;
	bulk->nmbars = bulk->ncopies = bulk->held = 0;
	for (uint32_t w = 0; w < VC_WARPS_MAX; w++) {
		bulk->engine[w].callers = bulk->engine[w].group = 0;
	}
	vc_words_fill(bulk->shadow, VC_POISON, (block->grid->dynamic_shared + 7) & ~(size_t)7);
}

void vc_bulk_act(struct vc_block *block, struct vc_fiber *self)
{
	struct vc_engine *engine = &block->bulk->engine[self->pub.warp];
	const struct ep_simt_bulk call = engine->call;
	struct vc_mbar *m = NULL;

	engine->callers = 0;
	vc_bulk_stir(block, self);
	if (call.bar && call.op != EP_SIMT_MBAR_INIT) {
		m = vc_mbar_find(block, self, call.bar, "use");
	}
	switch (call.op) {
	case EP_SIMT_MBAR_INIT:
		vc_mbar_init(block, self, &call);
		break;
	case EP_SIMT_MBAR_FENCE_INIT:
		vc_mbar_fence_init(block, self);
		break;
	case EP_SIMT_MBAR_ARRIVE:
	case EP_SIMT_MBAR_ARRIVE_TX:
		vc_mbar_arrive(block, self, m, call.n);
		break;
	case EP_SIMT_MBAR_INVAL:
		vc_mbar_inval(block, self, m);
		break;
	case EP_SIMT_BULK_LOAD:
		vc_load(block, self, &call, m);
		break;
	case EP_SIMT_BULK_STORE:
		vc_store(block, self, &call);
		break;
	case EP_SIMT_BULK_COMMIT:
		engine->group++;
		break;
	case EP_SIMT_BULK_WAIT:
	case EP_SIMT_BULK_WAIT_READ:
		vc_stores_wait(block, self, call.n < EP_BULK_PENDING ? call.n : EP_BULK_PENDING,
			       call.op == EP_SIMT_BULK_WAIT);
		break;
	case EP_SIMT_BULK_FENCE_SHARED:
		vc_fence_shared(block, self, &call);
		break;
	default:
		break;
	}
	vc_bulk_stir(block, self);
}

void ep_simt_bulk_call(const struct ep_simt_bulk *call)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	struct vc_engine *engine;

	if (!block->bulk) {
		vc_bulk_use(block);
	}
	engine = &block->bulk->engine[self->pub.warp];
	if (!engine->callers++) {
		engine->call = *call;
	} else if (engine->call.op != call->op || engine->call.n != call->n ||
		   engine->call.to != call->to || engine->call.from != call->from ||
		   engine->call.bar != call->bar) {
		vc_illegal(block, self,
			   "calls a function of bulk.h with other arguments than %u lanes of its "
			   "warp, or another function",
			   engine->callers - 1);
	}
	ep_simt_collective(EP_SIMT_BULK, EP_FULL_MASK, 0, 0);
}

void vc_bulk_end(struct vc_block *block, struct vc_fiber *self)
{
	struct vc_bulk *bulk = block->bulk;

	for (uint32_t i = bulk->ncopies; i-- > 0;) {
		struct vc_copy *copy = &bulk->copy[i];

		if (copy->bar && !block->live) {
			vc_illegal(block, self,
				   "the block ends, and nobody has waited for a bulk load of %u "
				   "bytes",
				   copy->bytes);
		}
		if (copy->bar || copy->warp != self->pub.warp) {
			continue;
		}
		if (copy->state == VC_COPY_ISSUED) {
			vc_illegal(
				block, self,
				"the warp ends, and has not waited for a bulk store of %u bytes: "
				"ep_bulk_commit(), ep_bulk_wait_read(0)",
				copy->bytes);
		}
		if (copy->state == VC_COPY_READ) {
			vc_store_land(block, copy);
		}
		vc_copy_remove(bulk, copy);
	}
	VC_ACQUIRE(&bulk->engine[self->pub.warp].done);
}

/* ---- barriers in shared memory, which count arrivals of warps and bytes of bulk loads ---- */

#define VC_MBAR_MAGIC 0x6d626172u /* upper half of a live barrier; the lower one is its index */

void vc_mbar_settle(struct vc_mbar *m)
{
	if (m->pending || m->loads) {
		return;
	}
	m->phase++;
	m->pending = m->nwarps;
	m->issued = m->announced = m->polls = m->arrived = m->late = 0;
	m->acquired[m->phase & 1] = false;
}

struct vc_mbar *vc_mbar_find(struct vc_block *block, struct vc_fiber *self, struct ep_mbar *bar,
			     const char *what)
{
	struct vc_bulk *bulk = block->bulk;
	uint64_t state = *(volatile vc_word *)bar;
	uint32_t index = (uint32_t)state;

	VC_HAS_READ(bar, sizeof(*bar));
	if (!bulk || !bulk->used || state >> 32 != VC_MBAR_MAGIC || index >= bulk->nmbars ||
	    bulk->mbar[index].bar != bar) {
		vc_illegal(block, self, "%s of %p, which is no barrier: ep_mbar_init() makes one",
			   what, (void *)bar);
	}
	if (bulk->mbar[index].unfenced) {
		vc_illegal(block, self,
			   "%s of the barrier at %p, which warp %u has made without "
			   "ep_mbar_fence_init() behind it",
			   what, (void *)bar, bulk->mbar[index].unfenced - 1);
	}
	return &bulk->mbar[index];
}

void vc_mbar_init(struct vc_block *block, struct vc_fiber *self, const struct ep_simt_bulk *call)
{
	struct vc_bulk *bulk = block->bulk;
	uint32_t index = 0;

	if (!call->n || call->n > block->nwarps || (uintptr_t)call->bar % sizeof(*call->bar)) {
		vc_illegal(block, self,
			   "a barrier at %p for %u arrivals: it lies at a multiple of 8, and takes "
			   "1 to %u, as the block has warps",
			   (void *)call->bar, call->n, block->nwarps);
	}
	for (uint32_t i = 0; i < bulk->nmbars; i++) {
		if (bulk->mbar[i].bar == call->bar) {
			vc_illegal(
				block, self,
				"ep_mbar_init() of %p, which is a barrier: ep_mbar_inval() first",
				(void *)call->bar);
		}
	}
	while (index < bulk->nmbars && bulk->mbar[index].bar) {
		index++;
	}
	if (index == VC_MBARS) {
		vc_illegal(block, self, "more than %u barriers in a block", VC_MBARS);
	}
	bulk->nmbars += index == bulk->nmbars;
	bulk->mbar[index] = (struct vc_mbar){ .bar = call->bar,
					      .nwarps = call->n,
					      .pending = call->n,
					      .unfenced = self->pub.warp + 1 };
	VC_HAS_WRITTEN(call->bar, sizeof(*call->bar));
	*(volatile vc_word *)call->bar = (uint64_t)VC_MBAR_MAGIC << 32 | index;
}

void vc_mbar_inval(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m)
{
	if (m->loads) {
		vc_illegal(block, self, "ep_mbar_inval() of %p, for which %u loads are under way",
			   (void *)m->bar, m->loads);
	}
	VC_HAS_WRITTEN(m->bar, sizeof(*m->bar));
	*(volatile vc_word *)m->bar = VC_POISON;
	m->bar = NULL;
}

void vc_mbar_fence_init(struct vc_block *block, struct vc_fiber *self)
{
	for (uint32_t i = 0; i < block->bulk->nmbars; i++) {
		struct vc_mbar *m = &block->bulk->mbar[i];

		m->unfenced = m->unfenced == self->pub.warp + 1 ? 0 : m->unfenced;
	}
}

void vc_mbar_arrive(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m,
		    uint32_t bytes)
{
	if (!m->pending) {
		vc_illegal(block, self, "more than %u arrivals in a phase of the barrier at %p",
			   m->nwarps, (void *)m->bar);
	}
	m->announced += bytes;
	m->pending--;
	m->arrived |= 1u << self->pub.warp;
	m->acquired[m->phase & 1] |= block->warp[self->pub.warp].acquired != 0;
	VC_RELEASE(&m->key[m->phase & 1]);
	if (!m->pending && m->announced != m->issued) {
		vc_illegal(block, self,
			   "a phase of the barrier at %p would never end: its warps have announced "
			   "%u bytes, and its loads bring %u",
			   (void *)m->bar, m->announced, m->issued);
	}
	vc_mbar_settle(m);
	vc_block_progress(block);
}

/*
 * All warps have arrived, somebody polls: its loads land at the second look, or at any with a seed,
 * unless they are late.
 */
static void vc_mbar_polled(struct vc_block *block, struct vc_mbar *m)
{
	struct vc_bulk *bulk = block->bulk;
	uint32_t phase = m->phase;

	if (m->pending || (!m->polls++ && !ep_simt_perturbed) || m->late) {
		return;
	}
	for (uint32_t i = bulk->ncopies; i-- > 0 && m->phase == phase;) {
		if (bulk->copy[i].bar == m && !(ep_simt_perturbed && vc_random(block) & 1)) {
			vc_load_land(block, &bulk->copy[i]);
		}
	}
}

bool ep_simt_mbar_over(struct ep_mbar *bar, uint32_t parity)
{
	struct vc_fiber *self = (struct vc_fiber *)ep_simt_self;
	struct vc_block *block = &vc_self->block;
	struct vc_mbar *m = vc_mbar_find(block, self, bar, "ep_mbar_try_wait()");

	if (parity > 1) {
		vc_illegal(block, self, "ep_mbar_try_wait() for parity %u: it is 0 or 1", parity);
	}
	if ((m->phase & 1) == parity) {
		vc_mbar_polled(block, m);
	}
	if ((m->phase & 1) == parity) {
		return false;
	}
	VC_ACQUIRE(&m->key[parity]);
	if (m->acquired[parity]) {
		block->warp[self->pub.warp].acquired = EP_FULL_MASK;
	}
	return true;
}
