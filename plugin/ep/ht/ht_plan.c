/* SPDX-License-Identifier: Apache-2.0 */
/* How a launch of high throughput shares out blocks, warps, shared memory and parts of rows. */
#include "core/util.h"
#include "ep/ht/ht.h"

/*
 * A block moves rows the faster the more bytes it has in flight, which its shared memory holds; a
 * bulk copy of less than 2 KiB costs more than it brings. Measured, as the rest:
 * doc/design/measurements.md.
 */
#define EP_HT_DISPATCH_PART 14336u
#define EP_HT_LEAST_PART 2048u
/* Units of a rank at least, in combine, if rows can be cut so: for each SM, and at most. */
#define EP_HT_SM_UNITS 4u
#define EP_HT_UNITS 256u
#define EP_HT_DISPATCH_WARPS 15u
#define EP_HT_COMBINE_WARPS (EP_HT_COMBINE_THREADS / 32u)
#define EP_HT_EXPERTS_WARPS (EP_HT_EXPERTS_THREADS / 32u)
/*
 * Expert-major combine with more blocks than that has enough in flight, and is faster with fewer
 * warps; but not if each return is a warp's only one.
 */
#define EP_HT_CROWDED_BLOCKS 64u
#define EP_HT_CROWDED_WARPS 10u
#define EP_HT_LEAST_WARPS 2u
#define EP_HT_MOST_LAG 256u
#define EP_HT_FLAT_SHIFT                                                                           \
	2u             /* flat rows are copied and added faster in chunks of 4 tokens than of 8 */
#define EP_HT_ROLES 2u /* warps of a block that serve the NICs, in groups of several nodes */
/*
 * Combine has larger parts where so few ranks contribute to a row: per part it does less then. Out
 * of windows rows come faster if the next one is loaded while one is added.
 */
#define EP_HT_FEW 2u
#define EP_HT_DIRECT_PART 7168u

/*
 * With max_num_sms AUTO: flat combine is slower with more blocks than this, if all warps return
 * rows and add them; groups of several nodes wait for NICs, whose 50 GB/s so many SMs copy several
 * times over.
 */
#define EP_HT_AUTO_FLAT_COMBINE 64u
#define EP_HT_AUTO_NODES 16u

/*
 * The same with NCCL_EP_OVERLAP: with so many SMs a pair costs the GEMMs beside it least
 * (doc/plan.md).
 */
#define EP_HT_OVERLAP_FLAT 20u
#define EP_HT_OVERLAP_EXPERTS 40u

static uint32_t ht_overlap_sms(uint32_t layout)
{
	return layout == EP_HT_FLAT ? EP_HT_OVERLAP_FLAT : EP_HT_OVERLAP_EXPERTS;
}

/*
 * A warp takes microseconds for each row of a unit, so few tokens are cut into small chunks, for
 * all warps; many into larger ones, which have less to publish. What travels between nodes is
 * posted by whole chunks.
 */
uint32_t ep_ht_chunk_shift(const struct ep_shape *shape, uint32_t layout)
{
	static const uint32_t most[EP_HT_CHUNK_SHIFT] = { 128, 256, 1024 };
	uint32_t shift = 0;

	if (shape->nodes.flows) {
		return EP_HT_CHUNK_SHIFT;
	}
	while (shift < EP_HT_CHUNK_SHIFT && shape->max_tokens > most[shift]) {
		shift++;
	}
	return layout == EP_HT_FLAT ? (uint32_t)ep_min_u64(shift, EP_HT_FLAT_SHIFT) : shift;
}

/* Chunks of a rank's tokens. */
static uint32_t ht_shape_chunks(const struct ep_shape *shape, uint32_t layout)
{
	return ep_ht_chunks(shape->max_tokens, ep_ht_chunk_shift(shape, layout));
}

/* SMs for which a rank's rows are cut: the same on all ranks. */
static uint64_t ht_sms(const struct ep_ht_operation *op)
{
	return op->overlap && !op->shape.nodes.flows
		       ? ep_min_u64(op->least_sms, ht_overlap_sms(op->layout))
		       : op->least_sms;
}

/* Units that they are cut into, at least. */
static uint32_t ht_units(const struct ep_ht_operation *op)
{
	return (uint32_t)ep_min_u64(EP_HT_SM_UNITS * ht_sms(op), EP_HT_UNITS);
}

/* Grows with the bytes, and with `units`. `pieces`: into so many a rank's rows are cut already. */
static uint32_t ht_parts(uint32_t units, uint32_t pieces, uint32_t most, uint32_t row_bytes)
{
	uint64_t wanted = ep_min_u64(ep_ceil_div(units, pieces), row_bytes / EP_HT_LEAST_PART);

	return (uint32_t)ep_max_u64(1, ep_max_u64(wanted, ep_ceil_div(row_bytes, most)));
}

/* Units that the busiest SM sends and receives in dispatch, where each rank has so many. */
static uint64_t ht_busiest(const struct ep_ht_operation *op, uint64_t units)
{
	uint64_t received = units * (op->shape.roles.senders - 1);

	return ep_ceil_div(units, ht_sms(op)) + ep_ceil_div(received, ht_sms(op));
}

/*
 * Copies of dispatch cost the same whatever their size. Expert-major rows, which are stored many
 * times, are cut in two where that takes more than an eighth off the busiest SM: of 128 chunks each
 * of 105 SMs has one or two.
 */
static uint32_t ht_dispatch_parts(const struct ep_ht_operation *op)
{
	uint32_t parts = ep_ceil_div(op->row_bytes, EP_HT_DISPATCH_PART);
	uint64_t chunks = ht_shape_chunks(&op->shape, op->layout);

	if (op->layout == EP_HT_FLAT || op->shape.nodes.flows || op->arrivals || parts > 1 ||
	    op->row_bytes < 2 * EP_HT_LEAST_PART) {
		return parts;
	}
	return 8 * ht_busiest(op, 2 * chunks) < 7 * 2 * ht_busiest(op, chunks) ? 2 : 1;
}

uint32_t ep_ht_most_parts(const struct ep_shape *shape)
{
	/* expert-major has the larger chunks, combine the smaller parts */
	return ht_parts(EP_HT_UNITS, ht_shape_chunks(shape, EP_HT_EXPERT_MAJOR), EP_HT_COMBINE_PART,
			shape->max_token_bytes);
}

/* The most that is added to one row of combine, by who returns it or by whose token it is. */
static uint32_t ht_contributions(const struct ep_ht_operation *op)
{
	uint64_t n = op->shape.roles.holders;

	if (op->layout == EP_HT_EXPERT_MAJOR) {
		n = ep_max_u64(n, op->shape.nlocal);
	}
	return (uint32_t)ep_min_u64(n, op->topk);
}

static uint32_t ht_part_most(const struct ep_ht_operation *op)
{
	if (ht_contributions(op) > EP_HT_FEW || op->shape.nodes.flows) {
		return EP_HT_COMBINE_PART;
	}
	return op->direct ? EP_HT_DIRECT_PART : EP_HT_COMBINE_MOST;
}

/* Parts for which a warp's stage must have room. */
static uint32_t ht_least_stage(const struct ep_ht_operation *op, uint32_t part_bytes)
{
	if (op->kind != EP_HT_COMBINE || part_bytes <= EP_HT_COMBINE_PART) {
		return 1;
	}
	return op->direct ? 2 * EP_HT_FEW : EP_HT_FEW;
}

/* The same on all ranks, whatever their GPUs are. */
static void ht_plan_parts(struct ep_ht_plan *plan, const struct ep_ht_operation *op)
{
	/*
	 * what is summed from windows need not be cut, as nobody waits for units, which may be of
	 * one token
	 */
	uint32_t pieces = op->direct ? op->shape.max_tokens
				     : ht_shape_chunks(&op->shape, op->layout);
	uint32_t parts = op->kind == EP_HT_DISPATCH
				 ? ht_dispatch_parts(op)
				 : ht_parts(ht_units(op), pieces, ht_part_most(op), op->row_bytes);
	uint64_t bytes = ep_ceil_div(op->row_bytes, parts);

	plan->part_bytes = (uint32_t)ep_round_up(bytes, EP_HT_STAGE_ALIGN);
	plan->parts = ep_ceil_div(op->row_bytes, plan->part_bytes);
}

/* Parts in each warp's stage, or 0: not even one. What rounds barriers up may take one of them. */
static uint32_t ht_plan_stage(const struct ep_ht_operation *op, uint32_t warps, uint32_t bytes)
{
	uint32_t part = ep_ht_stage_align(bytes) + 8; /* and its barrier */
	uint32_t n = op->device.shared_bytes / (warps * part);

	n = (uint32_t)ep_min_u64(n, EP_HT_MAX_STAGE_PARTS);
	while (n && ep_ht_stage_bytes(warps, n, bytes) > op->device.shared_bytes) {
		n--;
	}
	return n;
}

/* Parts that all warps of a block have in flight; 0: one part is loaded when another is stored. */
static uint32_t ht_plan_flight(const struct ep_ht_operation *op, uint32_t warps, uint32_t bytes)
{
	uint32_t stage = ht_plan_stage(op, warps, bytes);

	return stage > 1 ? warps * stage : 0;
}

/* Warps of a block, at most. */
static uint32_t ht_most_warps(const struct ep_ht_operation *op, uint32_t blocks, uint64_t units)
{
	if (op->kind == EP_HT_DISPATCH) {
		return EP_HT_DISPATCH_WARPS;
	}
	if (op->layout == EP_HT_EXPERT_MAJOR && !op->shape.nodes.flows) {
		bool crowded = blocks > EP_HT_CROWDED_BLOCKS &&
			       units > (uint64_t)blocks * EP_HT_EXPERTS_WARPS;

		return crowded ? EP_HT_CROWDED_WARPS : EP_HT_EXPERTS_WARPS;
	}
	return EP_HT_COMBINE_WARPS;
}

/*
 * The most warps among those who have nearly the most in flight: they do more than to copy. With
 * large parts of combine, the most whose stages have room for a row's contributions.
 */
static uint32_t ht_plan_warps(const struct ep_ht_operation *op, uint32_t blocks, uint64_t units,
			      uint32_t part_bytes)
{
	uint32_t all = ht_most_warps(op, blocks, units);
	uint32_t least = EP_HT_LEAST_WARPS + (op->shape.nodes.flows ? EP_HT_ROLES : 0);
	uint32_t most = 0, warps = all, slots = ht_least_stage(op, part_bytes);

	if (slots > 1) {
		while (warps > least && ht_plan_stage(op, warps, part_bytes) < slots) {
			warps--;
		}
		return warps;
	}
	for (uint32_t w = least; w <= all; w++) {
		uint32_t flight = ht_plan_flight(op, w, part_bytes);

		most = flight > most ? flight : most;
	}
	while (warps > least && (10 * ht_plan_flight(op, warps, part_bytes) < 9 * most ||
				 !ht_plan_stage(op, warps, part_bytes))) {
		warps--;
	}
	return warps;
}

static struct ep_ht_plan ht_plan_route(const struct ep_ht_operation *op)
{
	uint32_t holders = op->shape.roles.holders;
	uint64_t blocks = ep_min_u64(op->device.max_blocks, EP_HT_ROUTE_BLOCKS);

	return (struct ep_ht_plan){
		.blocks = (uint32_t)ep_min_u64(blocks, ht_shape_chunks(&op->shape, op->layout)),
		.threads = EP_HT_MAX_THREADS,
		.shared_bytes =
			ep_ht_route_shared(op->shape.nranks, holders, holders * op->shape.nlocal),
	};
}

/*
 * Returns by how many chunks a warp's sends are ahead of what it receives. A ring that has room for
 * all chunks is never written twice, so nothing bounds the lag. Across nodes a row goes through a
 * ring twice, and what has been read from a net ring is posted when it is worth a message. With
 * rings or net rings of two chunks that leaves 0, and units of all kinds have one key: then the
 * order of ties prevents deadlock (work_take in device/ht/combine.h).
 */
static uint32_t ht_plan_lag(const struct ep_ht_operation *op)
{
	uint64_t lag = ep_min_u64(op->ring_chunks / 2, EP_HT_MOST_LAG);

	if (!op->shape.nodes.flows && op->ring_chunks >= ht_shape_chunks(&op->shape, op->layout)) {
		return EP_HT_MOST_LAG;
	}
	if (!op->shape.nodes.flows) {
		return (uint32_t)ep_max_u64(1, lag);
	}
	lag = ep_min_u64((op->ring_chunks - 1) / 2, EP_HT_MOST_LAG);
	return (uint32_t)ep_min_u64(lag, op->net_chunks - ep_ht_credit_step(op->net_chunks) - 1);
}

/*
 * ---- who sends, and who receives ----
 *
 * Links are full when a few SMs send. Where more of them do, what they store to their own memory
 * waits behind what the links do not take, and rows that have come wait until the sends are over.
 * So with enough SMs some warps only send, and the others only receive, or add. Each side can move
 * what links bring, so it does not matter how rows are spread over ranks.
 *
 * Flat rows move faster so, but cost GEMMs beside them more. So all warps do both with
 * NCCL_EP_OVERLAP, and with fewer SMs than that takes, which are for computation. Measured on two
 * H200, as all numbers here: doc/design/measurements.md.
 */

/* SMs by which rows move at the rate of the links, 360 GB/s, in uniform routing. */
struct ht_link_sms {
	double send;
	double receive;
};

#define EP_HT_LINK_SEND 9.7 /* a row that is loaded and sent to one rank, */
#define EP_HT_LINK_COPY 5.6 /* and each copy of it in this GPU's memory */
#define EP_HT_LINK_LOAD 2.5 /* a row that has come is loaded */
#define EP_HT_LINK_ADD 5.3  /* a row is added to a sum */

/* There are two ranks or more. */
static struct ht_link_sms ht_link_sms(const struct ep_ht_operation *op)
{
	double ranks = op->shape.roles.holders, missed = 1, reached, others, copies;
	struct ht_link_sms s = { EP_HT_LINK_SEND, 0 };

	for (uint32_t k = 0; k < op->topk; k++) {
		missed *= 1 - 1 / ranks;
	}
	reached = ranks * (1 - missed); /* ranks to which a token goes, this one included */
	others = reached - reached / ranks;
	if (op->kind == EP_HT_COMBINE) {
		s.receive = EP_HT_LINK_ADD * reached / others;
		return s;
	}
	copies = op->layout == EP_HT_FLAT ? 1 : op->topk / reached; /* of a row at one rank */
	s.send += EP_HT_LINK_COPY * copies * (reached / ranks) / others;
	s.receive = EP_HT_LINK_LOAD + EP_HT_LINK_COPY * copies;
	return s;
}

/* That is for rows of so many bytes and more. A row costs an SM as much as more bytes would. */
#define EP_HT_LINK_ROW 7168u
#define EP_HT_LINK_ROW_COST 6144.0

/* Returns how many times as many SMs the operation's rows take. */
static double ht_row_sms(const struct ep_ht_operation *op)
{
	double bytes = (double)ep_min_u64(op->row_bytes, EP_HT_LINK_ROW);

	return (1 + EP_HT_LINK_ROW_COST / bytes) / (1 + EP_HT_LINK_ROW_COST / EP_HT_LINK_ROW);
}

/* Of dispatch into windows: with so many SMs links are full in spite of what waits. */
#define EP_HT_WINDOWS_MANY 56u
/* Fewer are just short of full links: 14 take 184 us for 4096 tokens, 24 take 204, 64 take 180. */
#define EP_HT_WINDOWS_SHARE 0.93
/* 512 tokens are over before that shows: they take 35.2 with 12 SMs and 32.7 with 32. */
#define EP_HT_WINDOWS_TOKENS 512u

static uint32_t ht_windows_blocks(const struct ep_ht_operation *op, uint64_t blocks)
{
	struct ht_link_sms sms;

	if (op->kind != EP_HT_DISPATCH || !op->direct || op->overlap ||
	    op->shape.roles.holders < 2 || blocks >= EP_HT_WINDOWS_MANY ||
	    op->shape.max_tokens <= EP_HT_WINDOWS_TOKENS || op->row_bytes < EP_HT_LINK_ROW) {
		return (uint32_t)blocks;
	}
	sms = ht_link_sms(op);
	if ((double)blocks < sms.send + sms.receive) {
		return (uint32_t)blocks;
	}
	return (uint32_t)(EP_HT_WINDOWS_SHARE * sms.send);
}

/*
 * Are there two things to do that some warps each do better alone? Ranks that bring no tokens, or
 * hold no experts, have one. Short rows that are stored many times do not fill links. Expert-major
 * sums are work of all SMs. So are sums of more ranks than two: eight ranks that share two GPUs
 * took 2234 us for 4096 flat tokens in place of 1824.
 */
static bool ht_divides(const struct ep_ht_operation *op)
{
	const struct ep_roles *r = &op->shape.roles;

	if (op->shape.nranks < 2 || r->senders != op->shape.nranks ||
	    r->holders != op->shape.nranks) {
		return false;
	}
	if (op->layout == EP_HT_EXPERT_MAJOR) {
		return op->kind == EP_HT_DISPATCH && op->row_bytes >= EP_HT_LINK_ROW;
	}
	return !op->overlap && (op->kind == EP_HT_DISPATCH || ht_contributions(op) <= EP_HT_FEW);
}

/* With so many SMs a few warps of each are better than all of a few SMs. */
#define EP_HT_SPREAD_SMS 85u
/* So much of what both sides need is enough for expert-major rows. */
#define EP_HT_SPLIT_LEAST 0.8

/*
 * Warps of this rank that only send. Others need not have as many. There are none if each would
 * have less than two units, but for one of an odd number of units. Expert-major chunks are few, and
 * warps send them in rounds: no more of them than the same number of rounds takes.
 */
static void ht_plan_senders(const struct ep_ht_operation *op, struct ep_ht_plan *p)
{
	uint32_t warps = p->threads / 32, blocks = p->blocks, send = 0;
	uint64_t units = (uint64_t)ht_shape_chunks(&op->shape, op->layout) * p->parts, senders;
	bool flat = op->layout == EP_HT_FLAT;
	struct ht_link_sms sms;
	double both, more;

	if (op->shape.nodes.flows || op->arrivals || op->direct) {
		return;
	}
	if (op->send_warps >= 0) {
		p->send_warps = (uint32_t)ep_min_u64((uint64_t)op->send_warps, warps - 1);
		p->send_blocks = p->send_warps ? blocks : 0;
		return;
	}
	if (!ht_divides(op)) {
		return;
	}
	sms = ht_link_sms(op);
	both = sms.send + sms.receive;
	if (flat && blocks >= EP_HT_SPREAD_SMS) {
		send = ep_ceil_div(warps, 4);
	} else if (flat && blocks >= both) {
		more = ht_row_sms(op); /* as far as there are as many more to receive */
		more = more < blocks / both ? more : blocks / both;
		blocks = (uint32_t)(sms.send * more + 0.5);
		send = warps;
	} else if (!flat && blocks >= EP_HT_SPLIT_LEAST * both) {
		blocks = (uint32_t)ep_min_u64(blocks, (uint64_t)both);
		send = ep_ceil_div(3 * warps, 8);
	}
	if (!send) {
		return;
	}
	senders = (uint64_t)blocks * send;
	if (!flat) {
		senders = ep_ceil_div(units, ep_ceil_div(units, senders));
	}
	if (units + 1 >= 2 * senders) {
		p->send_warps = send;
		p->send_blocks = ep_ceil_div(senders, send);
	}
}

static uint32_t ht_plan_blocks(const struct ep_ht_operation *op, uint64_t units)
{
	uint64_t most = ep_min_u64(op->device.max_blocks, EP_GROUP_MAX_BLOCKS);

	if (op->device.auto_sms && op->shape.nodes.flows) {
		most = ep_min_u64(most, EP_HT_AUTO_NODES);
	} else if (op->device.auto_sms && op->overlap) {
		most = ep_min_u64(most, ht_overlap_sms(op->layout));
	} else if (op->device.auto_sms && op->kind == EP_HT_COMBINE && op->layout == EP_HT_FLAT &&
		   ht_contributions(op) > EP_HT_FEW) {
		most = ep_min_u64(most, EP_HT_AUTO_FLAT_COMBINE);
	}
	return ht_windows_blocks(op, ep_min_u64(most, units));
}

/*
 * Where each warp has one of the returns, sums end the operation, and are cut as far as there is a
 * warp for each. Where the ring is used again a chunk is one sum, which gives its place free.
 */
static uint32_t ht_plan_sums(const struct ep_ht_operation *op, uint32_t parts, uint64_t returns,
			     uint32_t warps)
{
	uint32_t chunks = ht_shape_chunks(&op->shape, op->layout), shift = 0;

	if (op->kind != EP_HT_COMBINE || op->layout == EP_HT_FLAT || op->shape.nodes.flows ||
	    op->ring_chunks < chunks || returns > warps) {
		return 0;
	}
	while (shift < ep_ht_chunk_shift(&op->shape, op->layout) &&
	       (uint64_t)chunks * parts << (shift + 1) <= warps) {
		shift++;
	}
	return shift;
}

/*
 * ---- rows as lines ----
 *
 * Lines take fewer trips than rings, but threads move them, which is more work of an SM than bulk
 * copies are. With so many SMs links bound both. With fewer, lines are for few rows: measured on
 * two H200, in combine they save 8 us, and a row takes 2.1 us of an SM, where a ring takes 0.0455
 * at the rate of the links.
 */
#define EP_HT_LINES_SMS 46u
#define EP_HT_LINES_DISPATCH 24u /* rows to others for each SM, where there are fewer */
#define EP_HT_LINES_COMBINE 176u /* 8 us in rows of a ring */

#define EP_HT_LINES_PIECE 4u /* quads that a warp moves at a time at most, */
#define EP_HT_LINES_UNITS 3u /* if half of the warps have so many such pieces */

/* The same on all ranks. Sums of expert-major rows are no faster. */
static bool ht_by_lines(const struct ep_ht_operation *op)
{
	uint64_t others = ep_min_u64(op->topk, op->shape.roles.holders - 1), sms = ht_sms(op);
	uint64_t rows = op->shape.max_tokens * others;

	if (!op->lines || !rows ||
	    (op->kind == EP_HT_COMBINE && op->layout == EP_HT_EXPERT_MAJOR)) {
		return false;
	}
	if (sms >= EP_HT_LINES_SMS || op->lines_asked) {
		return true;
	}
	return op->kind == EP_HT_DISPATCH
		       ? rows <= EP_HT_LINES_DISPATCH * sms
		       : rows * (EP_HT_LINES_SMS - sms) <= EP_HT_LINES_COMBINE * sms;
}

static struct ep_ht_plan ht_plan_lines(const struct ep_ht_operation *op)
{
	uint32_t quads = ep_ceil_div(op->row_bytes, EP_QUAD_BYTES), piece = EP_HT_LINES_PIECE;
	uint64_t most = ep_min_u64(op->device.max_blocks, EP_GROUP_MAX_BLOCKS);
	uint64_t tokens = op->shape.max_tokens;
	bool combine = op->kind == EP_HT_COMBINE;
	struct ep_ht_plan p = { .threads = combine ? EP_HT_COMBINE_THREADS : EP_HT_MAX_THREADS,
				.stage_parts = 1 };

	if (op->device.auto_sms && op->overlap) {
		most = ep_min_u64(most, ht_overlap_sms(op->layout));
	}
	p.blocks = (uint32_t)ep_min_u64(most, tokens * quads);
	while (piece > 1 && tokens * ep_ceil_div(quads, piece) <
				    (uint64_t)EP_HT_LINES_UNITS * p.blocks * (p.threads / 64)) {
		piece--;
	}
	p.lines = (struct ep_ht_lines){
		.quads = quads,
		.piece_quads = piece,
		/* in combine those that add have more to do */
		.send_warps = combine ? p.threads / 32 / 3 : p.threads / 32 * 3 / 4,
		.by_pieces = ep_div_make(ep_ceil_div(quads, piece)),
	};
	p.parts = p.lines.by_pieces.d;
	/* bulk copies clear padding */
	p.part_bytes = (uint32_t)ep_min_u64(ep_round_up(op->row_bytes, EP_HT_STAGE_ALIGN),
					    EP_HT_LEAST_PART);
	p.shared_bytes = ep_ht_stage_bytes(p.threads / 32, p.stage_parts, p.part_bytes);
	return p;
}

struct ep_ht_plan ep_ht_plan_make(const struct ep_ht_operation *op)
{
	struct ep_ht_plan p = { 0 };
	uint64_t units;
	uint32_t warps;

	if (op->kind == EP_HT_ROUTE) {
		return ht_plan_route(op);
	}
	if (ht_by_lines(op)) {
		return ht_plan_lines(op);
	}
	ht_plan_parts(&p, op);
	units = op->direct ? op->shape.max_tokens
			   : (uint64_t)op->shape.nranks * ht_shape_chunks(&op->shape, op->layout);
	units *= p.parts;
	p.blocks = ht_plan_blocks(op, units);
	warps = ht_plan_warps(op, p.blocks, units, p.part_bytes);
	p.stage_parts = ht_plan_stage(op, warps, p.part_bytes);
	p.stage_parts = (uint32_t)ep_max_u64(p.stage_parts, ht_least_stage(op, p.part_bytes));
	p.threads = 32 * warps;
	p.shared_bytes = ep_ht_stage_bytes(warps, p.stage_parts, p.part_bytes);
	p.lag = ht_plan_lag(op);
	p.sum_shift = ht_plan_sums(op, p.parts, units, p.blocks * warps);
	ht_plan_senders(op, &p);
	return p;
}

bool ep_ht_plan_fits(const struct ep_ht_operation *op, const struct ep_ht_plan *plan)
{
	return plan->shared_bytes <= op->device.shared_bytes;
}
