# SPDX-License-Identifier: Apache-2.0
"""The benchmark of mscclpp: one routing for the whole run, and a graph for each operation.

test/python/ep/ep_bench_nccl.py of microsoft/mscclpp (commit 22a80be4). It passes the weights to
combine in both layouts; by ranks they have no effect.
"""

import numpy as np

from cluster import Buffer, D, Graph, RANK, WORLD, ep, group, last_error, main, new_stream
from oracle import Problem, expect

HIDDEN, LOCAL, MOST, TOPK = 1024, 4, 8, 3


class Bench:
    """setup_nccl: all descriptors exist before the first operation."""

    def __init__(self, made, layout):
        p = self.problem = Problem(WORLD, RANK, 3, LOCAL, MOST, HIDDEN, TOPK)
        self.by_rank, self.stream = layout == ep.Layout.RANK_MAJOR, new_stream()
        ids = Buffer(D.INT64, p.ids.shape, p.ids)
        self.handle = made.create_handle(layout, ids.tensor, layout_info=None,
                                         config=ep.HandleConfig(), stream=self.stream)
        self.tokens = Buffer(D.BFLOAT16, p.tokens.shape, p.tokens)
        self.weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        self.out = Buffer(D.BFLOAT16, p.tokens.shape)
        if self.by_rank:
            self.rows = Buffer(D.BFLOAT16, (WORLD, MOST, HIDDEN))
            self.counts = Buffer(D.INT32, (WORLD,))
            self.row_weights = Buffer(D.FLOAT32, (WORLD, MOST, TOPK))
            self.row_ids = Buffer(D.INT32, (WORLD, MOST, TOPK))
            self.inputs = ep.DispatchInputs(tokens=self.tokens.tensor,
                                            topk_weights=self.weights.tensor)
            self.outputs = ep.DispatchOutputs(tokens=self.rows.tensor,
                                              topk_weights=self.row_weights.tensor,
                                              topk_idx=self.row_ids.tensor)
            self.info = ep.LayoutInfo(src_rank_counters=self.counts.tensor)
        else:
            self.rows = Buffer(D.BFLOAT16, (LOCAL, WORLD * MOST, HIDDEN))
            self.counts = Buffer(D.INT32, (LOCAL,))
            self.inputs = ep.DispatchInputs(tokens=self.tokens.tensor)
            self.outputs = ep.DispatchOutputs(tokens=self.rows.tensor)
            self.info = ep.LayoutInfo(expert_counters=self.counts.tensor)

    def dispatch(self):
        self.handle.dispatch(self.inputs, self.outputs, layout_info=self.info,
                             config=ep.DispatchConfig(), stream=self.stream)

    def combine(self):
        self.handle.combine(ep.CombineInputs(tokens=self.rows.tensor),
                            ep.CombineOutputs(tokens=self.out.tensor,
                                              topk_weights=self.weights.tensor),
                            config=ep.CombineConfig(), stream=self.stream)

    def check_rows(self):
        p = self.problem
        expect("counters", self.counts.read(), p.rank_counts() if self.by_rank else p.expert_counts())
        expect("rows", self.rows.read(), (p.by_rank if self.by_rank else p.by_expert)(p.all_tokens))
        if self.by_rank:
            expect("top-k weights", self.row_weights.read(), p.by_rank(p.all_weights))
            expect("top-k ids", self.row_ids.read(), p.ids_by_rank(numbered_globally=False))

    def check_sums(self):
        p = self.problem
        expect("combined rows", self.out.read(),
               p.combined_by_rank() if self.by_rank else p.combined_by_expert())

    def step(self, dispatch, combine):
        p = self.problem
        self.rows.write()
        self.out.write()
        dispatch()
        self.check_rows()
        self.rows.write(p.results_by_rank() if self.by_rank else p.results_by_expert())
        combine()
        self.check_sums()


def run(layout):
    with group(algorithm=ep.Algorithm.LOW_LATENCY, num_experts=WORLD * LOCAL,
               max_dispatch_tokens_per_rank=MOST, max_recv_tokens_per_rank=MOST * WORLD,
               max_token_bytes=HIDDEN * 2, alloc=ep.AllocConfig()) as made:
        bench = Bench(made, layout)
        bench.step(bench.dispatch, bench.combine)
        with Graph(bench.stream) as dispatch:
            bench.dispatch()
        with Graph(bench.stream) as combine:
            bench.combine()
        for _ in range(3):
            bench.step(dispatch.launch, combine.launch)
        dispatch.release()
        combine.release()


def by_expert():
    run(ep.Layout.EXPERT_MAJOR)


def by_rank():
    run(ep.Layout.RANK_MAJOR)


def planes_in_high_throughput():
    """An output of three dimensions is low latency's: it is refused by name, and nothing is sent."""
    with group(algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=WORLD * LOCAL,
               max_dispatch_tokens_per_rank=MOST, max_recv_tokens_per_rank=MOST * WORLD * TOPK,
               max_token_bytes=HIDDEN * 2) as made:
        bench = Bench(made, ep.Layout.EXPERT_MAJOR)
        bench.inputs = ep.DispatchInputs(tokens=bench.tokens.tensor,
                                         topk_weights=bench.weights.tensor)
        try:
            bench.dispatch()
            refused = ""
        except Exception:
            refused = last_error()
        expect("refusal", "outputs->tokens: 3 dimensions, it needs 2" in refused, True)
        expect("rows", bench.rows.read(), np.broadcast_to(np.uint16(0x7f7f), bench.rows.shape))


main("mscclpp", [by_expert, by_rank, planes_in_high_throughput])
