# SPDX-License-Identifier: Apache-2.0
"""CollectiveX, the benchmark of InferenceX: one handle for a ladder of sizes, routing in every step.

experimental/CollectiveX/bench/ep_nccl.py of SemiAnalysisAI/InferenceX: `staged` is the text of
commit 843c625, which completes every operation; FP8 is that of a later text than 0ec8d84, which the
other cases follow.
"""

import os

from cluster import Allocator, Buffer, D, Graph, RANK, WORLD, Window, ep, group, main, new_stream
from oracle import Problem, expect, expect_quantised

HIDDEN, LOCAL, MOST, TOPK = 1024, 4, 8, 3
ROWS = WORLD * MOST
HIGH, LOW = ep.Algorithm.HIGH_THROUGHPUT, ep.Algorithm.LOW_LATENCY
ONE_NODE = int(os.environ.get("LOCAL_WORLD_SIZE", WORLD)) == WORLD


def make_group(algorithm, zero_copy=ep.ZeroCopyMode.AUTO, **config):
    """NCCLEPBackend.create_buffer: there is room for all tokens of all ranks."""
    return group(algorithm=algorithm, num_experts=WORLD * LOCAL, max_dispatch_tokens_per_rank=MOST,
                 max_recv_tokens_per_rank=ROWS, max_token_bytes=HIDDEN * 2, zero_copy=zero_copy,
                 **config)


def recipe(quantised):
    recipes = ep.DispatchQuantizationRecipe
    return recipes.DS_FP8E3M4 if quantised else recipes.NONE


class Shape:
    """What _ensure_handle makes for one size of the ladder, and keeps for all its steps."""

    def __init__(self, seed):
        p = self.problem = Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK)
        self.tokens = Buffer(D.BFLOAT16, p.tokens.shape, p.tokens)
        self.ids = Buffer(D.INT64, p.ids.shape, p.ids)
        self.weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        self.out = Buffer(D.BFLOAT16, p.tokens.shape)
        self.total, self.experts = Buffer(D.INT32, (1,)), Buffer(D.INT32, (LOCAL,))
        self.info = ep.LayoutInfo(expert_counters=self.experts.tensor,
                                  recv_total_counter=self.total.tensor)


class Backend:
    """The single handle of a group: the first shape makes it, the others rebind it."""

    def __init__(self, made, layout, complete=False):
        self.group, self.layout, self.completes = made, layout, complete
        self.handle, self.stream = None, new_stream()

    def bind(self, shape):
        info = shape.info if self.layout == ep.Layout.FLAT else None
        if self.handle is None:
            self.handle = self.group.create_handle(self.layout, shape.ids.tensor, layout_info=info,
                                                   config=ep.HandleConfig(), stream=self.stream)
        else:
            self.handle.update(shape.ids.tensor, layout_info=info, stream=self.stream)

    def finish(self):
        if self.completes:
            self.handle.complete(stream=self.stream)

    def dispatch(self, inputs, outputs, info, quantisation=ep.DispatchQuantizationRecipe.NONE):
        self.handle.dispatch(inputs, outputs, layout_info=info, stream=self.stream,
                             config=ep.DispatchConfig(send_only=0, round_scales=0,
                                                      quantization_recipe=quantisation))
        self.finish()

    def combine(self, tokens, shape, weights=None):
        self.handle.combine(ep.CombineInputs(tokens=tokens.tensor),
                            ep.CombineOutputs(tokens=shape.out.tensor, topk_weights=weights),
                            config=ep.CombineConfig(send_only=0), stream=self.stream)
        self.finish()
        return shape.out.read()


class Flat:
    """Outputs of high throughput, which stay. Dispatch also gets counters that only update fills."""

    def __init__(self, tokens=Buffer):
        self.tokens = tokens(D.BFLOAT16, (ROWS, HIDDEN))
        self.ids, self.weights = Buffer(D.INT64, (ROWS, TOPK)), Buffer(D.FLOAT32, (ROWS, TOPK))
        self.counts = Buffer(D.INT32, (LOCAL,))

    def dispatch(self, backend, shape):
        backend.dispatch(
            ep.DispatchInputs(tokens=shape.tokens.tensor, topk_weights=shape.weights.tensor),
            ep.DispatchOutputs(tokens=self.tokens.tensor, topk_weights=self.weights.tensor,
                               topk_idx=self.ids.tensor),
            ep.LayoutInfo(expert_counters=self.counts.tensor))

    def poison(self):
        for buffer in (self.tokens, self.ids, self.weights):
            buffer.write()

    def check(self, shape):
        p = shape.problem
        expect("total", shape.total.read(), [len(p.flat_rows())])
        expect("expert counters", shape.experts.read(), p.expert_counts())
        expect("rows", self.tokens.read(), p.flat(p.all_tokens, ROWS))
        expect("top-k ids", self.ids.read(), p.flat_choices(ROWS)[0])
        expect("top-k weights", self.weights.read(), p.flat_choices(ROWS)[1])


def staged():
    """High throughput in plain memory; combine gets the rows there are, not all that might be."""
    with make_group(HIGH) as made:
        backend, flat = Backend(made, ep.Layout.FLAT, complete=True), Flat()
        for shape in (Shape(0), Shape(1), Shape(2)):
            backend.bind(shape)
            for _ in range(2):
                flat.poison()
                flat.dispatch(backend, shape)
                flat.check(shape)
                p, count = shape.problem, max(1, int(shape.total.read()[0]))
                results = Buffer(D.BFLOAT16, (count, HIDDEN), p.flat_results(ROWS)[:count])
                expect("combined rows", backend.combine(results, shape), p.combined_by_rank())


def staged_low_latency():
    """The same by experts: the weights go to combine."""
    with make_group(LOW) as made:
        by_expert(Backend(made, ep.Layout.EXPERT_MAJOR, complete=True))


def by_expert(backend, quantised=False):
    tokens = Buffer(D.FLOAT8E4M3 if quantised else D.BFLOAT16, (LOCAL, ROWS, HIDDEN))
    scales = Buffer(D.FLOAT32, (LOCAL, ROWS, HIDDEN // 128)) if quantised else None
    counts, results = Buffer(D.INT32, (LOCAL,)), Buffer(D.BFLOAT16, tokens.shape)
    for seed in (0, 1, 2, 1):
        shape = Shape(seed)
        p = shape.problem
        backend.bind(shape)
        tokens.write()
        backend.dispatch(ep.DispatchInputs(tokens=shape.tokens.tensor),
                         ep.DispatchOutputs(tokens=tokens.tensor,
                                            scales=scales.tensor if quantised else None),
                         ep.LayoutInfo(expert_counters=counts.tensor), recipe(quantised))
        expect("expert counters", counts.read(), p.expert_counts())
        rows = p.by_expert(p.all_tokens)
        if quantised:
            expect_quantised(tokens.read(), scales.read(), rows, p.expert_counts())
        else:
            expect("rows", tokens.read(), rows)
        results.write(p.results_by_expert())
        expect("combined rows", backend.combine(results, shape, shape.weights.tensor),
               p.combined_by_expert())


def high_throughput():
    """Rows go to a window, the experts work there, and combine reads all of it. Every step updates
    the handle. The library's memory is the program's (_routing_window_alloc)."""
    allocator = Allocator("ncclMemAlloc", "ncclMemFree")
    with make_group(HIGH, ep.ZeroCopyMode.ON, alloc=allocator.config) as made:
        backend, flat = Backend(made, ep.Layout.FLAT), Flat(Window)
        for shape in (Shape(0), Shape(1), Shape(2)):
            for _ in range(2):
                flat.poison()
                backend.bind(shape)
                flat.dispatch(backend, shape)
                flat.check(shape)
                flat.tokens.write(shape.problem.flat_results(ROWS))
                expect("combined rows", backend.combine(flat.tokens, shape),
                       shape.problem.combined_by_rank())
        expect("memory is held", bool(allocator.held), True)
    expect("memory that was not freed", len(allocator.held), 0)
    flat.tokens.release()


def captured():
    """The same step as a CUDA graph."""
    with make_group(HIGH, ep.ZeroCopyMode.ON) as made:
        backend, flat, shape = Backend(made, ep.Layout.FLAT), Flat(Window), Shape(0)
        backend.bind(shape)
        with Graph(backend.stream) as update_and_dispatch:
            backend.bind(shape)
            flat.dispatch(backend, shape)
        for seed in (0, 3, 6):  # seeds of the same numbers of tokens
            p = shape.problem = Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK)
            for buffer, values in ((shape.tokens, p.tokens), (shape.ids, p.ids),
                                   (shape.weights, p.weights)):
                buffer.write(values)
            flat.poison()
            update_and_dispatch.launch()
            flat.check(shape)
            flat.tokens.write(p.flat_results(ROWS))
            expect("combined rows", backend.combine(flat.tokens, shape), p.combined_by_rank())
        update_and_dispatch.release()
    flat.tokens.release()


class Planes:
    """Outputs of low latency by ranks, which stay."""

    def __init__(self, dtype, tokens=Buffer):
        planes = (WORLD, MOST)
        self.tokens = tokens(dtype, (*planes, HIDDEN))
        self.scales = Buffer(D.FLOAT32, (*planes, HIDDEN // 128))
        self.ids, self.weights = Buffer(D.INT32, (*planes, TOPK)), Buffer(D.FLOAT32, (*planes, TOPK))
        self.counts = Buffer(D.INT32, (WORLD,))

    def dispatch(self, backend, shape, quantised):
        for buffer in (self.tokens, self.scales, self.ids, self.weights):
            buffer.write()
        backend.dispatch(
            ep.DispatchInputs(tokens=shape.tokens.tensor, topk_weights=shape.weights.tensor),
            ep.DispatchOutputs(tokens=self.tokens.tensor, topk_weights=self.weights.tensor,
                               topk_idx=self.ids.tensor,
                               scales=self.scales.tensor if quantised else None),
            ep.LayoutInfo(src_rank_counters=self.counts.tensor),
            recipe(quantised))
        p = shape.problem
        expect("source rank counters", self.counts.read(), p.rank_counts())
        expect("top-k ids", self.ids.read(), p.ids_by_rank(numbered_globally=False))
        expect("top-k weights", self.weights.read(), p.by_rank(p.all_weights))


def low_latency():
    """By ranks, within a node straight into a window, which combine reads."""
    mode = ep.ZeroCopyMode.ON if ONE_NODE else ep.ZeroCopyMode.OFF
    with make_group(LOW, mode) as made:
        backend = Backend(made, ep.Layout.RANK_MAJOR)
        planes = Planes(D.BFLOAT16, Window if ONE_NODE else Buffer)
        for seed in (0, 1, 2, 1):
            shape = Shape(seed)
            p = shape.problem
            backend.bind(shape)
            planes.dispatch(backend, shape, quantised=False)
            wanted, got = p.by_rank(p.all_tokens), planes.tokens.read()
            for source, count in enumerate(p.rank_counts()):
                expect("rows", got[source, :count], wanted[source, :count])
            planes.tokens.write(p.results_by_rank())
            expect("combined rows", backend.combine(planes.tokens, shape), p.combined_by_rank())
    if ONE_NODE:
        planes.tokens.release()


def low_latency_by_expert():
    with make_group(LOW, ep.ZeroCopyMode.OFF) as made:
        by_expert(Backend(made, ep.Layout.EXPERT_MAJOR))


def low_latency_fp8():
    """The library quantises; combine gets bf16 rows from elsewhere."""
    with make_group(LOW, ep.ZeroCopyMode.OFF) as made:
        backend, planes = Backend(made, ep.Layout.RANK_MAJOR), Planes(D.FLOAT8E4M3)
        results = Buffer(D.BFLOAT16, planes.tokens.shape)
        for seed in (0, 1):
            shape = Shape(seed)
            p = shape.problem
            backend.bind(shape)
            planes.dispatch(backend, shape, quantised=True)
            expect_quantised(planes.tokens.read(), planes.scales.read(), p.by_rank(p.all_tokens),
                             p.rank_counts())
            results.write(p.results_by_rank())
            expect("combined rows", backend.combine(results, shape), p.combined_by_rank())


def low_latency_by_expert_fp8():
    with make_group(LOW, ep.ZeroCopyMode.OFF) as made:
        by_expert(Backend(made, ep.Layout.EXPERT_MAJOR), quantised=True)


main("collectivex", [staged, staged_low_latency, high_throughput, captured, low_latency,
                     low_latency_by_expert, low_latency_fp8, low_latency_by_expert_fp8])
