# SPDX-License-Identifier: Apache-2.0
"""What dispatch and combine must give, from the inputs of all ranks. It has no code of the library.

All numbers are small integers and weights are eighths, so that every sum is exact in fp32 and
results are compared bit by bit.
"""

import numpy as np

POISON = 0x7f  # every byte of an output before the library writes; as bf16 or fp32 it is huge


def poisoned(shape, dtype):
    array = np.empty(shape, dtype)
    array.view(np.uint8).fill(POISON)
    return array


def to_bf16(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    # To the nearest, of two equally near ones to the even one.
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_e4m3(bits):
    exponent, fraction = (bits >> 3).astype(int) & 15, (bits & 7).astype(int)
    value = np.where(exponent, np.ldexp(1 + fraction / 8, exponent - 7), np.ldexp(fraction / 8, -6))
    return np.where(bits & 128, -value, value)


E4M3 = from_e4m3(np.arange(127, dtype=np.uint8))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(values, x):
    """The element of `values`, of two equally near ones that with the even number."""
    x, middles = np.asarray(x, np.float64), (values[1:] + values[:-1]) / 2
    at = np.searchsorted(middles, abs(x))
    at += (at < len(middles)) & (middles[np.minimum(at, len(middles) - 1)] == abs(x)) & (at % 2 == 1)
    return np.copysign(values[at], x)


def through_nvfp4(rows, scales):
    """What comes of rows that travel as e2m1, with a scale of e4m3 for 16 numbers and one per row."""
    groups, scales = rows.astype(np.float32).reshape(*rows.shape[:-1], -1, 16), scales[..., None]
    sixth = abs(groups).max(axis=-1, keepdims=True) * np.float32(1 / 6)
    scale = nearest(E4M3, scales * sixth).astype(np.float32)
    inverse = np.divide(scales, scale, where=scale > 0, out=np.zeros_like(scale))
    codes = nearest(E2M1, groups * inverse)
    back = np.divide(codes * scale, scales.astype(np.float64), where=scales > 0, out=np.zeros_like(codes))
    return back.reshape(rows.shape)


def factor(expert):
    """Expert number `expert` multiplies a row by this."""
    return 1 + expert % 3


def expect(what, got, wanted):
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape:
        raise AssertionError("%s has shape %s, not %s" % (what, got.shape, wanted.shape))
    wrong = np.argwhere(got != wanted)
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise AssertionError("%s: %d of %d differ, the first at %s: %s, not %s" % (
            what, len(wrong), got.size, list(at), got[at], wanted[at]))


def expect_quantised(got, scales, rows, counts):
    """Of each part, as many rows as `counts` has are e4m3 with an fp32 scale per 128 channels."""
    wanted = from_bf16(rows).reshape(*rows.shape[:2], -1, 128)
    for part, count in enumerate(counts):
        values = wanted[part, :count]
        scale = np.maximum(abs(values).max(axis=-1), 1e-4) / 448
        expect("scales", np.isclose(scales[part, :count], scale, rtol=1e-6), scale > 0)
        back = from_e4m3(got[part, :count].reshape(values.shape)) * scale[..., None]
        # Half a step: 3 bits of fraction, and the smallest step of all is 2^-9.
        limit = abs(values) / 16 + scale[..., None] / 1024
        expect("rows", abs(back - values) <= limit * 1.0001, limit > 0)
        expect("other rows", got[part, count:], poisoned(got[part, count:].shape, np.uint8))


class Problem:
    """Tokens, expert ids and weights of all ranks for one step.

    Ranks differ in the number of tokens. Some choices are -1 (no expert), and a token may have no
    expert at all. empty: a rank that has no tokens.
    """

    first_seed, seeds = 0, []  # which is added to every seed; all that were used

    def __init__(self, world, rank, seed, local, most, hidden, topk, empty=None):
        seed += self.first_seed
        self.seeds.append(seed)
        self.world, self.rank, self.local, self.most = world, rank, local, most
        self.topk = topk
        self.all_ids, self.all_weights, self.all_tokens = [], [], []
        for r in range(world):
            rng = np.random.default_rng([seed, r])
            count = 0 if r == empty else most - (r + seed) % 3
            ids = np.array([rng.permutation(world * local)[:topk] for _ in range(count)])
            ids = ids.reshape(count, topk).astype(np.int64)
            ids[rng.random(ids.shape) < 0.1] = -1
            self.all_ids.append(ids)
            self.all_weights.append((rng.integers(1, 9, ids.shape) / 8).astype(np.float32))
            self.all_tokens.append(to_bf16(rng.integers(-8, 9, (count, hidden))))
        self.ids, self.weights = self.all_ids[rank], self.all_weights[rank]
        self.tokens = self.all_tokens[rank]

    def payload(self, dtype, width, seed):
        """Rows of arbitrary bits for every rank's tokens, as packed formats have them."""
        return [np.random.default_rng([seed, r]).integers(
            0, 1 << 8 * np.dtype(dtype).itemsize, (len(ids), width)).astype(dtype)
            for r, ids in enumerate(self.all_ids)]

    def owner(self, ids):
        return np.where(ids >= 0, ids // self.local, -1)

    # ---- dispatch ----

    def expert_rows(self, expert):
        """(source, token) of every row of an expert, in the order that the header promises."""
        return [(source, token) for source in range(self.world)
                for token, ids in enumerate(self.all_ids[source])
                for chosen in ids if chosen == expert]

    def rank_rows(self, source):
        """The tokens of a source that have chosen an expert of this rank, in ascending order."""
        return [token for token, ids in enumerate(self.all_ids[source])
                if self.rank in self.owner(ids)]

    def expert_counts(self):
        return [len(self.expert_rows(self.rank * self.local + e)) for e in range(self.local)]

    def rank_counts(self):
        return [len(self.rank_rows(source)) for source in range(self.world)]

    def by_expert(self, sources):
        """What a tensor [L, R*B, W] holds after dispatch. Other rows stay as they were."""
        rows = poisoned((self.local, self.world * self.most, sources[0].shape[1]), sources[0].dtype)
        for e in range(self.local):
            for slot, (source, token) in enumerate(self.expert_rows(self.rank * self.local + e)):
                rows[e, slot] = sources[source][token]
        return rows

    def by_rank(self, sources):
        """The same for a tensor [R, B, W]."""
        rows = poisoned((self.world, self.most, sources[0].shape[1]), sources[0].dtype)
        for source in range(self.world):
            for slot, token in enumerate(self.rank_rows(source)):
                rows[source, slot] = sources[source][token]
        return rows

    def ids_by_rank(self, numbered_globally):
        rows = np.full((self.world, self.most, self.topk), -1, np.int32)
        for source in range(self.world):
            for slot, token in enumerate(self.rank_rows(source)):
                ids = self.all_ids[source][token]
                numbers = ids if numbered_globally else ids - self.rank * self.local
                rows[source, slot] = np.where(self.owner(ids) == self.rank, numbers, -1)
        return rows

    # ---- dispatch of high throughput: rows of all sources one behind the other ----

    def flat_rows(self):
        return [(source, token) for source in range(self.world)
                for token in self.rank_rows(source)]

    def flat(self, sources, rows):
        """What a tensor [rows, W] holds after dispatch."""
        out = poisoned((rows, sources[0].shape[1]), sources[0].dtype)
        for slot, (source, token) in enumerate(self.flat_rows()):
            out[slot] = sources[source][token]
        return out

    def flat_choices(self, rows):
        """Local experts of each row in ascending order, and their weights: [rows, K]."""
        ids = np.full((rows, self.topk), -1, np.int64)
        weights = np.zeros((rows, self.topk), np.float32)
        for slot, (source, token) in enumerate(self.flat_rows()):
            pairs = sorted((chosen, weight) for chosen, weight in
                           zip(self.all_ids[source][token], self.all_weights[source][token])
                           if self.owner(chosen) == self.rank)
            for j, (chosen, weight) in enumerate(pairs):
                ids[slot, j], weights[slot, j] = chosen - self.rank * self.local, weight
        return ids, weights

    def zones(self, align):
        """First row and padded rows of each local expert."""
        rows = [-(-count // align) * align for count in self.expert_counts()]
        return np.cumsum([0] + rows[:-1]), np.array(rows)

    def zoned(self, sources, rows, align):
        """What a tensor [rows, W] holds after dispatch by experts: padding is zeros."""
        out = poisoned((rows, sources[0].shape[1]), sources[0].dtype)
        for e, (first, count) in enumerate(zip(*self.zones(align))):
            out[first:first + count] = 0
            for slot, (source, token) in enumerate(self.expert_rows(self.rank * self.local + e)):
                out[first + slot] = sources[source][token]
        return out

    def zone_weights(self, align):
        """{row: weight} of the rows that are no padding."""
        weights = {}
        for e, first in enumerate(self.zones(align)[0]):
            expert = self.rank * self.local + e
            for slot, (source, token) in enumerate(self.expert_rows(expert)):
                chosen = list(self.all_ids[source][token]).index(expert)
                weights[int(first) + slot] = self.all_weights[source][token][chosen]
        return weights

    def flat_results(self, rows):
        """[rows, H]: per row, what the experts of this rank make of it."""
        return self.flat([self.returned(source, self.rank) for source in range(self.world)], rows)

    def zoned_results(self, rows, align):
        """The same, a row for each expert, weighted."""
        out, weights = self.zoned(self.all_tokens, rows, align), self.zone_weights(align)
        for e, first in enumerate(self.zones(align)[0]):
            expert = self.rank * self.local + e
            for row in range(first, first + len(self.expert_rows(expert))):
                out[row] = to_bf16(weights[row] * factor(expert) * from_bf16(out[row]))
        return out

    # ---- what the experts make of it ----

    def gain(self, source, here=None):
        """Per token: the sum of weight times factor, over all ranks or those experts that rank
        `here` has."""
        ids = self.all_ids[source]
        chosen = ids >= 0 if here is None else self.owner(ids) == here
        return np.where(chosen, self.all_weights[source] * factor(ids), 0).sum(1, keepdims=True)

    def results_by_expert(self):
        """[L, R*B, H]: what every expert of this rank makes of its rows."""
        rows = self.by_expert(self.all_tokens)
        for e, count in enumerate(self.expert_counts()):
            value = from_bf16(rows[e, :count]) * factor(self.rank * self.local + e)
            rows[e, :count] = to_bf16(value)
        return rows

    def results_by_rank(self):
        """[R, B, H]: per row, the weighted sum of what the experts of this rank make of it."""
        return self.by_rank([self.returned(source, self.rank) for source in range(self.world)])

    def returned(self, source, here):
        return to_bf16(self.gain(source, here) * from_bf16(self.all_tokens[source]))

    # ---- combine ----

    def combined_by_expert(self):
        return to_bf16(0 + self.gain(self.rank) * from_bf16(self.tokens))  # a sum begins with +0

    def echoed_by_expert(self, tokens):
        """The same where experts return what they got."""
        gain = np.where(self.ids >= 0, self.weights, 0).sum(1, keepdims=True)
        return to_bf16(0 + gain * from_bf16(tokens))

    def combined_by_rank(self):
        """Each rank returns one row per token, rounded to bf16; the source adds these up."""
        return to_bf16(sum(from_bf16(self.returned(self.rank, r)) for r in range(self.world)))
