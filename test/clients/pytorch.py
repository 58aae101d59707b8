# SPDX-License-Identifier: Apache-2.0
"""PyTorch's token switch: several routings of one group at once, and the way back of autograd.

torch/csrc/distributed/c10d/symm_mem/nccl_ep.cu (commit 06afd171): nccl_ep_create_group,
nccl_ep_create_handle, nccl_ep_dispatch, nccl_ep_combine. A handle never changes its routing; the
backward of combine is a dispatch on the same handle, that of dispatch a combine.
"""

from cluster import Buffer, D, RANK, WORLD, Window, ep, group, main, new_stream
from oracle import Problem, expect

HIDDEN, LOCAL, MOST, TOPK = 512, 4, 8, 2
ROWS = WORLD * MOST * TOPK  # enough by experts, too


def make_group():
    return group(algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=WORLD * LOCAL,
                 max_dispatch_tokens_per_rank=MOST, max_recv_tokens_per_rank=ROWS,
                 max_token_bytes=HIDDEN * 2)


class Routing:
    """NcclEpHandle, with a problem of its own and what the tests of PyTorch allocate for it."""

    def __init__(self, made, layout, stream, seed, empty=None):
        p = self.problem = Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK, empty)
        self.by_expert, self.stream = layout == ep.Layout.EXPERT_MAJOR, stream
        self.ids = Buffer(D.INT64, p.ids.shape, p.ids)
        self.weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        self.counts, self.total = Buffer(D.INT32, (LOCAL,)), Buffer(D.INT32, (1,))
        info = ep.LayoutInfo(expert_counters=self.counts.tensor,
                             recv_total_counter=self.total.tensor)
        self.handle = made.create_handle(layout, self.ids.tensor, layout_info=info, stream=stream)

    def dispatch(self, memory=Buffer):
        p = self.problem
        tokens = Buffer(D.BFLOAT16, p.tokens.shape, p.tokens)
        self.rows = memory(D.BFLOAT16, (ROWS, HIDDEN))
        self.row_weights = Buffer(D.FLOAT32, (ROWS,) if self.by_expert else (ROWS, TOPK))
        self.row_ids = None if self.by_expert else Buffer(D.INT64, (ROWS, TOPK))
        self.handle.dispatch(
            ep.DispatchInputs(tokens=tokens.tensor, topk_weights=self.weights.tensor),
            ep.DispatchOutputs(tokens=self.rows.tensor, topk_weights=self.row_weights.tensor,
                               topk_idx=self.row_ids.tensor if self.row_ids else None),
            config=ep.DispatchConfig(), stream=self.stream)

    def check(self):
        p = self.problem
        expect("expert counters", self.counts.read(), p.expert_counts())
        if self.by_expert:
            expect("total", self.total.read(), [sum(p.expert_counts())])
            expect("rows", self.rows.read(), p.zoned(p.all_tokens, ROWS, 1))
            weights = p.zone_weights(1)
            expect("weights", self.row_weights.read()[[*weights]], [*weights.values()])
            return
        expect("total", self.total.read(), [len(p.flat_rows())])
        expect("rows", self.rows.read(), p.flat(p.all_tokens, ROWS))
        expect("top-k ids", self.row_ids.read(), p.flat_choices(ROWS)[0])
        expect("top-k weights", self.row_weights.read(), p.flat_choices(ROWS)[1])

    def combine(self):
        """The experts write over their rows."""
        p, out = self.problem, Buffer(D.BFLOAT16, self.problem.tokens.shape)
        self.rows.write(p.zoned_results(ROWS, 1) if self.by_expert else p.flat_results(ROWS))
        self.handle.combine(ep.CombineInputs(tokens=self.rows.tensor),
                            ep.CombineOutputs(tokens=out.tensor), config=ep.CombineConfig(),
                            stream=self.stream)
        expect("combined rows", out.read(),
               p.combined_by_expert() if self.by_expert else p.combined_by_rank())


def two_routings(layout, empty=None):
    """Both are on their way at once; then back in the other order, as autograd does."""
    with make_group() as made:
        stream = new_stream()
        first, second = (Routing(made, layout, stream, seed, empty) for seed in (1, 5))
        for order in ((first, second), (second, first)):
            for routing in order:
                routing.dispatch()
            for routing in order:
                routing.check()
            for routing in (first, second):
                routing.combine()


def flat():
    two_routings(ep.Layout.FLAT)


def by_expert():
    two_routings(ep.Layout.EXPERT_MAJOR)


def idle_rank():
    two_routings(ep.Layout.FLAT, empty=0)


def symmetric_memory():
    """make_ep_tensor: rows go to, and combine reads, what the program has registered."""
    with make_group() as made:
        routing = Routing(made, ep.Layout.FLAT, new_stream(), 2)
        routing.dispatch(Window)
        routing.check()
        routing.combine()
    routing.rows.release()


main("pytorch", [flat, by_expert, idle_rank, symmetric_memory])
