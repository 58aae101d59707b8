/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "nic.h"

#define BAD(nic, ...)                                                                              \
	do {                                                                                       \
		if ((nic)->bad++ < 8 && !(nic)->quiet) {                                           \
			fprintf(stderr, "nic: " __VA_ARGS__);                                      \
			fputc('\n', stderr);                                                       \
		}                                                                                  \
	} while (0)

/* Memory behind `addr`, or NULL when key, bounds or alignment do not fit. */
static unsigned char *nic_memory(struct nic *nic, uint64_t addr, uint64_t bytes, uint32_t key,
				 bool remote, uint32_t align)
{
	for (int i = 0; i < NIC_REGIONS; i++) {
		const struct nic_region *r = &nic->region[i];

		if ((remote ? r->rkey : r->lkey) != key || !key) {
			continue;
		}
		if (addr < r->addr || addr + bytes > r->addr + r->bytes || addr % align) {
			break;
		}
		return r->memory + (addr - r->addr);
	}
	BAD(nic, "index %llu: %s key 0x%x does not give %llu bytes at 0x%llx",
	    (unsigned long long)nic->ci, remote ? "remote" : "local", key,
	    (unsigned long long)bytes, (unsigned long long)addr);
	return NULL;
}

static void nic_write(struct nic *nic, const union ep_mlx5_wqe_view *q, uint32_t ds)
{
	const struct ep_mlx5_wqe_write *w = &q->write;
	const struct ep_mlx5_wqe_inline *in = &q->in;
	uint32_t bytes = ds > 2 ? be32toh(w->data.byte_count) : 0;
	uint64_t to_addr = be64toh(w->raddr.addr);
	const unsigned char *from;
	unsigned char *to;

	if (bytes & EP_MLX5_INLINE) {
		bytes &= ~EP_MLX5_INLINE;
		if (!bytes || bytes > EP_MLX5_MAX_INLINE || ds != 2 + (bytes + 4 + 15) / 16) {
			BAD(nic, "index %llu: %u bytes inline with DS %u",
			    (unsigned long long)nic->ci, bytes, ds);
			return;
		}
		from = in->data.data;
	} else {
		if ((ds == 3 && (!bytes || bytes > EP_MLX5_MAX_BYTES)) || ds > 3) {
			BAD(nic, "index %llu: WRITE of %u bytes with DS %u",
			    (unsigned long long)nic->ci, bytes, ds);
			return;
		}
		from = ds > 2 ? nic_memory(nic, be64toh(w->data.addr), bytes, be32toh(w->data.lkey),
					   false, 1)
			      : (const unsigned char *)q;
	}
	to = nic_memory(nic, to_addr, bytes, be32toh(w->raddr.rkey), true, 1);
	if (!from || !to) {
		return;
	}
	if (nic->on_write && !nic->on_write(nic->arg, to_addr, from, bytes)) {
		BAD(nic, "index %llu: wrong data", (unsigned long long)nic->ci);
	}
	memcpy(to, from, bytes);
}

static void nic_read(struct nic *nic, const union ep_mlx5_wqe_view *q, uint32_t ds)
{
	const struct ep_mlx5_wqe_write *w = &q->write;
	uint32_t bytes = be32toh(w->data.byte_count);
	unsigned char *from, *to;

	if (ds != 3 || !bytes || bytes > EP_MLX5_MAX_BYTES) {
		BAD(nic, "index %llu: READ of %u bytes with DS %u", (unsigned long long)nic->ci,
		    bytes, ds);
		return;
	}
	from = nic_memory(nic, be64toh(w->raddr.addr), bytes, be32toh(w->raddr.rkey), true, 1);
	to = nic_memory(nic, be64toh(w->data.addr), bytes, be32toh(w->data.lkey), false, 1);
	if (from && to) {
		memcpy(to, from, bytes);
	}
}

static void nic_atomic(struct nic *nic, const union ep_mlx5_wqe_view *q, uint32_t ds, bool masked)
{
	const struct ep_mlx5_wqe_atomic *w = &q->atomic;
	const struct ep_mlx5_masked_add32_seg *m = &q->atomic32.atomic;
	uint32_t bytes = masked ? 4 : 8;
	unsigned char *word, *old;

	if (ds != 4 || be32toh(w->data.byte_count) != bytes) {
		BAD(nic, "index %llu: atomic with DS %u, %u bytes", (unsigned long long)nic->ci, ds,
		    be32toh(w->data.byte_count));
		return;
	}
	word = nic_memory(nic, be64toh(w->raddr.addr), bytes, be32toh(w->raddr.rkey), true, bytes);
	old = nic_memory(nic, be64toh(w->data.addr), bytes, be32toh(w->data.lkey), false, bytes);
	if (!word || !old) {
		return;
	}
	memcpy(old, word, bytes);
	if (masked) {
		uint32_t a, b = be32toh(m->add), stop = be32toh(m->boundary), sum = 0, carry = 0;

		memcpy(&a, word, 4);
		for (uint32_t i = 0; i < 32; i++) {
			uint32_t x = (a >> i & 1) + (b >> i & 1) + carry;

			sum |= (x & 1) << i;
			carry = stop >> i & 1 ? 0 : x >> 1;
		}
		memcpy(word, &sum, 4);
	} else {
		uint64_t v;

		memcpy(&v, word, 8);
		v += be64toh(w->atomic.swap_add);
		memcpy(word, &v, 8);
	}
}

static void nic_complete(struct nic *nic, uint32_t opcode, uint8_t kind, uint8_t syndrome,
			 uint8_t vendor)
{
	struct ep_mlx5_cqe *c = nic->cqe;
	uint32_t error = (uint32_t)syndrome << 24 | (uint32_t)vendor << 16;
	uint32_t last = (uint32_t)kind << 28 | htobe16((uint16_t)nic->ci);

	c->opcode_qpn = htobe32(opcode << 24 | nic->qpn);
	if (kind != EP_MLX5_CQE_REQ) {
		__atomic_store_n((uint32_t *)((char *)c + EP_MLX5_CQE_ERROR_AT), error,
				 __ATOMIC_RELAXED);
	}
	__atomic_store_n((uint32_t *)((char *)c + EP_MLX5_CQE_DONE_AT), last, __ATOMIC_RELEASE);
}

/* Serves the WQE at nic->ci. */
static void nic_serve(struct nic *nic)
{
	struct ep_mlx5_wqe *slot = &nic->sq[nic->ci & (nic->depth - 1)];
	union ep_mlx5_wqe_view q = { .words = *slot };
	const struct ep_mlx5_ctrl_seg *ctrl = &q.ctrl;
	const struct ep_mlx5_raddr_seg *raddr = &q.write.raddr;
	uint32_t what = be32toh(ctrl->opmod_idx_opcode), opcode = what & 0xff;
	uint32_t ds = be32toh(ctrl->qpn_ds) & 0x3f, flags = ctrl->fm_ce_se;
	bool atomic32 = opcode == EP_MLX5_OP_MASKED_FETCH_ADD;
	bool fail = nic->failed || nic->ci == nic->fail_at;

	nic->kept[nic->ci % NIC_KEEP] = q.words;
	memset(slot, NIC_POISON, sizeof(*slot));
	if ((what >> 8 & 0xffff) != (nic->ci & 0xffff) ||
	    (be32toh(ctrl->qpn_ds) & ~0x3fu) != nic->qpn << 8 || ctrl->signature ||
	    ctrl->stream[0] || ctrl->stream[1] || ctrl->imm ||
	    (flags & ~(EP_MLX5_FM_STRONG | EP_MLX5_CE_ALWAYS)) ||
	    what >> 24 != (atomic32 ? EP_MLX5_OPMOD_MASKED_4 : 0u) ||
	    (opcode != EP_MLX5_OP_NOP && raddr->reserved)) {
		BAD(nic, "index %llu: control segment %08x %08x %08x", (unsigned long long)nic->ci,
		    what, be32toh(ctrl->qpn_ds), flags);
	} else if (!fail) {
		switch (opcode) {
		case EP_MLX5_OP_NOP:
			if (ds != 1) {
				BAD(nic, "NOP with DS %u", ds);
			}
			nic->nops++;
			break;
		case EP_MLX5_OP_WRITE:
			nic_write(nic, &q, ds);
			break;
		case EP_MLX5_OP_READ:
			nic_read(nic, &q, ds);
			break;
		case EP_MLX5_OP_FETCH_ADD:
		case EP_MLX5_OP_MASKED_FETCH_ADD:
			nic_atomic(nic, &q, ds, atomic32);
			break;
		default:
			BAD(nic, "index %llu: opcode 0x%x", (unsigned long long)nic->ci, opcode);
		}
	}
	if (!fail && (((nic->ci + 1) & (nic->depth / 4 - 1)) == 0) &&
	    !(flags & EP_MLX5_CE_ALWAYS)) {
		BAD(nic, "index %llu ends a quarter, but is not signaled",
		    (unsigned long long)nic->ci);
	}
	if (fail) {
		nic_complete(nic, opcode, EP_MLX5_CQE_REQ_ERR,
			     nic->failed ? (uint8_t)EP_MLX5_SYND_FLUSHED : nic->syndrome,
			     nic->failed ? 0 : nic->vendor);
		nic->failed = true;
	} else if (flags & EP_MLX5_CE_ALWAYS) {
		nic->signaled++;
		nic->reported = nic->ci + 1; /* before the other side can know */
		nic_complete(nic, opcode, EP_MLX5_CQE_REQ, 0, 0);
	}
	nic->ci++;
}

/* The index behind the last WQE handed over. */
static uint64_t nic_look(struct nic *nic)
{
	uint64_t value = __atomic_load_n(nic->db, __ATOMIC_ACQUIRE);
	uint32_t first = be32toh((uint32_t)value), dbr;
	uint16_t ahead;

	if (nic->index_mode) {
		if (value < nic->pi) {
			BAD(nic, "index goes back from %llu to %llu", (unsigned long long)nic->pi,
			    (unsigned long long)value);
			return nic->pi;
		}
		return value;
	}
	if (!value) {
		return nic->pi; /* never rung */
	}
	if (be32toh((uint32_t)(value >> 32)) != nic->qpn << 8 || first & 0xff0000ff) {
		BAD(nic, "doorbell %08x %08x", first, be32toh((uint32_t)(value >> 32)));
	}
	ahead = (uint16_t)((first >> 8) - nic->pi);
	if (ahead > 32768) {
		BAD(nic, "doorbell goes back from %llu by %u", (unsigned long long)nic->pi,
		    65536u - ahead);
		return nic->pi;
	}
	dbr = be32toh(__atomic_load_n(&nic->dbr->send, __ATOMIC_RELAXED));
	if (dbr > 0xffff || (uint16_t)(dbr - (first >> 8)) > 32768) {
		BAD(nic, "doorbell %u, but its record says %u", first >> 8 & 0xffff, dbr);
	}
	return nic->pi + ahead;
}

uint64_t nic_turn(struct nic *nic)
{
	uint64_t pi = nic_look(nic), n = 0;

	nic->doorbells += pi != nic->pi;
	nic->pi = pi;
	if (!nic->failed && pi - nic->reported > nic->depth) {
		BAD(nic, "overrun: index %llu posted while only %llu had completed",
		    (unsigned long long)pi, (unsigned long long)nic->reported);
	}
	if (pi - nic->reported > nic->peak) {
		nic->peak = pi - nic->reported;
	}
	while (nic->ci < nic->pi && nic->ci != nic->stuck_at && !(nic->most && n == nic->most)) {
		nic_serve(nic);
		n++;
	}
	return n;
}

static void *nic_main(void *arg)
{
	struct nic *nic = arg;

	for (;;) {
		int stop = __atomic_load_n(&nic->stop, __ATOMIC_ACQUIRE);
		uint64_t n = nic_turn(nic);

		if (nic->pause_us) {
			usleep(nic->pause_us);
		} else if (!n) {
			usleep(1);
		}
		if (stop && !n) {
			return NULL;
		}
	}
}

void nic_start(struct nic *nic)
{
	nic->stop = 0;
	if (pthread_create(&nic->thread, NULL, nic_main, nic)) {
		perror("pthread_create");
		_exit(1);
	}
}

void nic_finish(struct nic *nic)
{
	__atomic_store_n(&nic->stop, 1, __ATOMIC_RELEASE);
	pthread_join(nic->thread, NULL);
}
