# SPDX-License-Identifier: Apache-2.0
"""SGLang: expert-major, dispatch and combine in two halves, a new handle per step.

python/sglang/srt/layers/moe/token_dispatcher/nccl_ep.py (NcclEpBuffer, NcclEpDispatcher)
"""

from cluster import Buffer, D, RANK, WORLD, ep, group, main, new_stream
from oracle import Problem, expect

HIDDEN, LOCAL, MOST, TOPK = 2048, 4, 8, 2


def make_group(**config):
    """NcclEpBuffer._create_group. max_num_sms leaves the other SMs to the model."""
    return group(algorithm=ep.Algorithm.LOW_LATENCY, num_experts=WORLD * LOCAL,
                 max_dispatch_tokens_per_rank=MOST, max_recv_tokens_per_rank=0,
                 max_token_bytes=HIDDEN * 2, max_num_sms=20, **config)


def size_hint():
    """NcclEpBuffer._low_latency_rdma_size_hint: four times the rows of all local experts."""
    return LOCAL * WORLD * MOST * HIDDEN * 2 * 4


class Dispatcher:
    """NcclEpDispatcher, with what NcclEpBuffer._alloc_scratch allocates once."""

    def __init__(self, made):
        self.group, self.handle, self.stream = made, None, new_stream()
        self.tokens = Buffer(D.BFLOAT16, (LOCAL, WORLD * MOST, HIDDEN))
        self.counts = Buffer(D.INT32, (LOCAL,))
        self.offsets = Buffer(D.INT32, (LOCAL + 1,))
        self.total = Buffer(D.INT32, (1,))

    def new_handle(self, ids):
        """dispatch_a: the handle of the step before goes, a new one comes."""
        if self.handle is not None:
            self.handle.destroy()
        self.handle = self.group.create_handle(layout=ep.Layout.EXPERT_MAJOR, topk_idx=ids.tensor,
                                               config=ep.HandleConfig(), stream=self.stream)

    def same_handle(self, ids):
        """With CUDA graphs: the handle is made without routing and gets it in every step."""
        if self.handle is None:
            self.handle = self.group.keep(ep.Handle(ep._ep_bindings.init_handle(
                self.group.ptr, int(ep.Layout.EXPERT_MAJOR), 0, TOPK, 0)))
        self.handle.update(topk_idx=ids.tensor, layout_info=None, stream=self.stream)

    def send_tokens(self, p, routing):
        """dispatch_a. Low latency ignores the offsets and the total."""
        self.tokens.write()
        for counter in (self.counts, self.offsets, self.total):
            counter.write(0)
        routing(self, Buffer(D.INT64, p.ids.shape, p.ids))
        tokens = Buffer(D.BFLOAT16, p.tokens.shape, p.tokens)
        self.handle.dispatch(
            ep.DispatchInputs(tokens=tokens.tensor), ep.DispatchOutputs(tokens=self.tokens.tensor),
            layout_info=ep.LayoutInfo(expert_counters=self.counts.tensor,
                                      expert_offsets=self.offsets.tensor,
                                      recv_total_counter=self.total.tensor),
            config=ep.DispatchConfig(send_only=1), stream=self.stream)

    def complete(self):
        """dispatch_b and combine_b"""
        self.handle.complete(config=0, stream=self.stream)

    def check(self, p):
        expect("expert counters", self.counts.read(), p.expert_counts())
        expect("rows", self.tokens.read(), p.by_expert(p.all_tokens))

    def send_results(self, p):
        """combine_a"""
        results = Buffer(D.BFLOAT16, self.tokens.shape, p.results_by_expert())
        weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        self.out = Buffer(D.BFLOAT16, p.tokens.shape)
        self.handle.combine(
            ep.CombineInputs(tokens=results.tensor),
            ep.CombineOutputs(tokens=self.out.tensor, topk_weights=weights.tensor),
            config=ep.CombineConfig(send_only=1), stream=self.stream)


def steps(made, routing, empty=None):
    dispatcher = Dispatcher(made)
    for seed in range(3):
        p = Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK, empty)
        dispatcher.send_tokens(p, routing)
        dispatcher.complete()
        dispatcher.check(p)
        dispatcher.send_results(p)
        dispatcher.complete()
        expect("combined rows", dispatcher.out.read(), p.combined_by_expert())
    return dispatcher


def new_handles():
    with make_group() as made:
        steps(made, Dispatcher.new_handle)


def one_handle():
    with make_group() as made:
        steps(made, Dispatcher.same_handle)


def idle_rank():
    """A rank without tokens takes part: its tensors have no elements and no address."""
    with make_group() as made:
        steps(made, Dispatcher.new_handle, empty=0)


def size_of_its_own():
    """The group gets the size that the hint says, so that making a handle allocates nothing."""
    with make_group(rdma_buffer_size=size_hint()) as made:
        steps(made, Dispatcher.new_handle)


def two_batches():
    """Two-batch overlap: each half has a group of the one communicator and a stream, and the halves
    of their operations interleave."""
    with make_group() as first, make_group() as second:
        halves = [Dispatcher(made) for made in (first, second)]
        for seed in range(0, 6, 2):
            problems = [Problem(WORLD, RANK, seed + i, LOCAL, MOST, HIDDEN, TOPK) for i in range(2)]
            for half, p in zip(halves, problems):
                half.send_tokens(p, Dispatcher.new_handle)
            for half in halves:
                half.complete()
            for half, p in zip(halves, problems):
                half.check(p)
                half.send_results(p)
            for half, p in zip(halves, problems):
                half.complete()
                expect("combined rows", half.out.read(), p.combined_by_expert())


def group_before_handle():
    """NcclEpBuffer.destroy: the handle of the last step is never destroyed."""
    with make_group() as made:
        steps(made, Dispatcher.new_handle)
        made.destroy()
        made.handles.clear()


main("sglang", [new_handles, one_handle, idle_rank, size_of_its_own, two_batches,
                group_before_handle])
