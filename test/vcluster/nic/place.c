/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between the NIC and memory: the bus.
 *
 * A write to a region with relaxed ordering is cut into pieces of 64 to 256 bytes, which arrive in
 * any order and some of them later. Some of these pieces are themselves two parts, since PCIe
 * promises rising addresses within a write only where it is not relaxed. A write to any other
 * region, a read and an atomic push all earlier writes of their NIC before them. A packet is
 * acknowledged when all of it has arrived. Naturally aligned words of 8 bytes never tear.
 *
 * Of some packets a part is held, so that the program sees the others without it.
 */
#include <stdlib.h>
#include <string.h>
#include "nic/nic.h"
#include "tsan.h"

#define VN_CHUNKS 512 /* pieces of a NIC that are on their way */
#define VN_CHUNK 256

/*
 * A part is held until the program has looked for completions so often: it has seen the others
 * then. Or for so many turns of the NIC, less where nobody has looked since a part was held before.
 */
#define VN_HELD_LOOKS 16
#define VN_HELD_TURNS 16384
#define VN_HELD_TURNS_UNSEEN 256

struct vn_parcel { /* pieces of one packet */
	uint32_t left;
	struct vn_link *link;
	struct vn_packet answer;
};

struct vn_piece {
	struct vn_parcel *parcel;
	uint8_t *to;
	uint32_t len;
	bool flag; /* as vn_tsan_store() has it */
};

struct vn_chunk {
	struct vn_piece piece;
	uint32_t turns; /* 0: not held */
	uint32_t looks; /* when it was held */
	uint8_t data[VN_CHUNK];
};

/* ----------------------------------------------------------------------------- plain memory */

/* Stores `len` bytes, 1, 4 or 8, at once; `to` is aligned to them. */
static void vn_copy_word(uint8_t *to, const uint8_t *from, uint32_t len)
{
	uint64_t eight;
	uint32_t four;

	if (len == 8) {
		memcpy(&eight, from, 8);
		__atomic_store_n((uint64_t *)to, eight, __ATOMIC_RELEASE);
	} else if (len == 4) {
		memcpy(&four, from, 4);
		__atomic_store_n((uint32_t *)to, four, __ATOMIC_RELEASE);
	} else {
		__atomic_store_n(to, *from, __ATOMIC_RELAXED);
	}
	if (vn_config.step) {
		vn_step_placed();
	}
}

/* Copies upwards; words of 8 bytes at the destination are stored at once. */
static void vn_copy(uint8_t *to, const uint8_t *from, uint32_t len)
{
	while (len) {
		uint32_t n = len >= 8 && (uintptr_t)to % 8 == 0   ? 8
			     : len >= 4 && (uintptr_t)to % 4 == 0 ? 4
								  : 1;

		vn_copy_word(to, from, n);
		to += n;
		from += n;
		len -= n;
	}
}

/*
 * What the race detector is told: small writes, and all to memory without relaxed ordering, are
 * flags, that is atomics with release order on every word; the others are plain data.
 */
static bool vn_is_flag(const struct vn_mr *mr, uint32_t len)
{
	return len <= VN_INLINE || !(mr->access & IBV_ACCESS_RELAXED_ORDERING);
}

static void vn_tsan_store(uint8_t *to, uint32_t len, bool flag)
{
#ifdef VC_TSAN
	if (!flag) {
		__tsan_write_range(to, len);
		return;
	}
	for (uintptr_t at = ((uintptr_t)to + 3) & ~(uintptr_t)3; at + 4 <= (uintptr_t)to + len;
	     at += 4) {
		VC_RELEASE(at);
	}
#else
	(void)to;
	(void)len;
	(void)flag;
#endif
}

/*
 * Tells the race detector what a NIC reads: whole words as relaxed atomics. Data is reported as
 * before if the post does not come after it. Words that carry their epoch are not: whoever posts
 * them has loaded each one, and what reads a word after that finds it or a later one.
 */
static void vn_tell_load(const uint8_t *from, uint32_t len)
{
#ifdef VC_TSAN
	uintptr_t at = (uintptr_t)from, end = at + len, word = (at + 7) & ~(uintptr_t)7;

	if (len <= VN_INLINE) {
		return;
	}
	__tsan_read_range((void *)at, word - at);
	for (; word + 8 <= end; word += 8) {
		(void)__tsan_atomic64_load((const volatile unsigned long *)word, 0);
	}
	__tsan_read_range((void *)word, end - word);
#else
	(void)from;
	(void)len;
#endif
}

void vn_store(struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len)
{
	if (mr->mem.gpu) {
		vn_deferred_before(to, len);
		vn_gpu_write(mr->mem.gpu, mr, to, from, len);
		return;
	}
	vn_tsan_store(to, len, vn_is_flag(mr, len));
	vn_copy(to, from, len);
}

const uint8_t *vn_payload(struct vn_mr *mr, const uint8_t *at, uint32_t len)
{
	if (mr->mem.gpu) {
		vn_deferred_before(at, len);
		return vn_gpu_fetch(mr->mem.gpu, at, len);
	}
	vn_tell_load(at, len);
	return at;
}

uint64_t vn_atomic(const struct vn_packet *p, struct vn_mr *mr, uint8_t *at)
{
	uint64_t old, value;

	/* Atomic among NICs only, as on hardware. */
	VC_ACQUIRE(at);
	old = __atomic_load_n((uint64_t *)at, __ATOMIC_ACQUIRE);
	value = old + p->add;
	vn_store(mr, at, (uint8_t *)&value, p->len);
	return old;
}

/* ------------------------------------------------------------------------- relaxed ordering */

static void vn_arrive(struct vn_nic *nic, uint32_t i)
{
	struct vn_chunk *c = &nic->chunks[i];
	struct vn_parcel *parcel = c->piece.parcel;

	vn_tsan_store(c->piece.to, c->piece.len, c->piece.flag);
	vn_copy(c->piece.to, c->data, c->piece.len);
	*c = nic->chunks[--nic->nchunks];
	if (!--parcel->left) {
		vn_link_send(parcel->link, &parcel->answer, NULL);
		free(parcel);
	}
}

void vn_place_flush(struct vn_nic *nic)
{
	while (nic->nchunks) {
		vn_arrive(nic, (uint32_t)(vn_random() % nic->nchunks));
	}
}

/* Whether the piece stays away in this turn. */
static bool vn_is_held(struct vn_chunk *c)
{
	if (c->turns && __atomic_load_n(&vn.looks, __ATOMIC_RELAXED) - c->looks >= VN_HELD_LOOKS) {
		c->turns = 0;
	}
	return c->turns && --c->turns;
}

bool vn_place_some(struct vn_nic *nic)
{
	bool any = nic->nchunks != 0;

	for (uint32_t n = nic->nchunks / 2 + 1; n && nic->nchunks; n--) {
		uint32_t i = (uint32_t)(vn_random() % nic->nchunks);

		if (!vn_is_held(&nic->chunks[i])) {
			vn_arrive(nic, i);
		}
	}
	return any;
}

/* The piece ends at a multiple of the least one, or with the packet. */
static uint32_t vn_piece_len(const uint8_t *to, uint32_t len)
{
	uint32_t least = vn_config.piece, n = least << vn_random() % (least == 64 ? 3 : 2);

	n -= (uint32_t)((uintptr_t)to % least);
	return n < len ? n : len;
}

/* Where a piece is divided, between words of 8 bytes; `len`: it is not. Lines stay whole. */
static uint32_t vn_part(const uint8_t *to, uint32_t len)
{
	uint32_t first = 8 - (uint32_t)((uintptr_t)to % 8);

	if (vn_config.piece > 64 || len <= first || vn_random() % (len <= 64 ? 2 : 4)) {
		return len;
	}
	return first + (uint32_t)(vn_random() % ((len - first + 7) / 8)) * 8;
}

static void vn_chunk_add(struct vn_nic *nic, const struct vn_piece *piece, const uint8_t *from)
{
	struct vn_chunk *c;

	if (!piece->len) {
		return;
	}
	if (nic->nchunks == VN_CHUNKS) {
		vn_arrive(nic, (uint32_t)(vn_random() % VN_CHUNKS));
	}
	c = &nic->chunks[nic->nchunks++];
	c->piece = *piece;
	c->turns = 0;
	memcpy(c->data, from, piece->len);
	piece->parcel->left++;
}

/*
 * A piece of every fourth packet, or of every second that is small enough to be a flag and what it
 * speaks of. Where there was no room for all at once, of whichever.
 */
static void vn_hold(struct vn_nic *nic, uint32_t before, uint32_t len)
{
	uint32_t looks = __atomic_load_n(&vn.looks, __ATOMIC_RELAXED), i;

	if (before < nic->nchunks && vn_random() % (len <= VN_CHUNK ? 2 : 4) == 0) {
		i = before + (uint32_t)(vn_random() % (nic->nchunks - before));
		nic->chunks[i].turns = looks != nic->looks ? VN_HELD_TURNS : VN_HELD_TURNS_UNSEEN;
		nic->chunks[i].looks = nic->looks = looks;
	}
}

static void vn_place_relaxed(struct vn_nic *nic, struct vn_mr *mr, uint8_t *to, const uint8_t *from,
			     uint32_t len, struct vn_link *link, const struct vn_packet *answer)
{
	struct vn_parcel *parcel = malloc(sizeof(*parcel));
	uint32_t before = nic->nchunks, whole = len;

	if (!parcel) {
		abort();
	}
	*parcel = (struct vn_parcel){ 1, link, *answer };
	while (len) {
		uint32_t n = vn_piece_len(to, len), part = vn_part(to, n);
		struct vn_piece piece = { parcel, to, part, vn_is_flag(mr, n) };

		vn_chunk_add(nic, &piece, from);
		piece.to += part;
		piece.len = n - part;
		vn_chunk_add(nic, &piece, from + part);
		to += n;
		from += n;
		len -= n;
	}
	vn_hold(nic, before, whole);
	if (!--parcel->left) { /* all of it has arrived already */
		vn_link_send(link, answer, NULL);
		free(parcel);
	}
}

void vn_place(struct vn_nic *nic, struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len,
	      struct vn_link *link, const struct vn_packet *answer)
{
	if (mr->access & IBV_ACCESS_RELAXED_ORDERING && !mr->mem.gpu) {
		if (!nic->chunks) {
			nic->chunks = malloc(VN_CHUNKS * sizeof(*nic->chunks));
		}
		if (nic->chunks) {
			vn_place_relaxed(nic, mr, to, from, len, link, answer);
			return;
		}
	}
	vn_place_flush(nic);
	vn_store(mr, to, from, len);
	if (mr->mem.gpu) {
		vn_place_defer(link, answer);
	} else {
		vn_link_send(link, answer, NULL);
	}
}
