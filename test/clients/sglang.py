# SPDX-License-Identifier: Apache-2.0
"""SGLang: both layouts, dispatch and combine in two halves, a new handle per step.

python/sglang/srt/layers/moe/token_dispatcher/ of sgl-project/sglang: nccl_ep.py of commit 04591270
(NcclEpBuffer, NcclEpDispatcher), nccl_ep_graph.py of commit 57c50167 (NcclEpGraphResources).
"""

from cluster import Buffer, D, Graph, RANK, WORLD, ep, group, main, new_stream
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

    layout = ep.Layout.EXPERT_MAJOR

    def __init__(self, made):
        self.group, self.handle, self.stream = made, None, new_stream()
        self.allocate()

    def allocate(self):
        self.tokens = Buffer(D.BFLOAT16, (LOCAL, WORLD * MOST, HIDDEN))
        self.counts = Buffer(D.INT32, (LOCAL,))
        self.offsets = Buffer(D.INT32, (LOCAL + 1,))
        self.total = Buffer(D.INT32, (1,))

    def new_handle(self, ids):
        """dispatch_a: the handle of the step before goes, a new one comes."""
        if self.handle is not None:
            self.handle.destroy()
        self.handle = self.group.create_handle(layout=self.layout, topk_idx=ids.tensor,
                                               config=ep.HandleConfig(), stream=self.stream)

    def same_handle(self, ids):
        """With CUDA graphs: the handle is made without routing and gets it in every step."""
        if self.handle is None:
            self.handle = self.group.keep(ep.Handle(ep._ep_bindings.init_handle(
                self.group.ptr, int(ep.Layout.EXPERT_MAJOR), 0, TOPK, 0)))
        self.handle.update(topk_idx=ids.tensor, layout_info=None, stream=self.stream)

    def send(self, tokens):
        """The first half of dispatch. Low latency ignores the offsets and the total."""
        self.handle.dispatch(
            ep.DispatchInputs(tokens=tokens.tensor), ep.DispatchOutputs(tokens=self.tokens.tensor),
            layout_info=ep.LayoutInfo(expert_counters=self.counts.tensor,
                                      expert_offsets=self.offsets.tensor,
                                      recv_total_counter=self.total.tensor),
            config=ep.DispatchConfig(send_only=1), stream=self.stream)

    def send_tokens(self, p, routing):
        """dispatch_a"""
        self.tokens.write()
        for counter in (self.counts, self.offsets, self.total):
            counter.write(0)
        routing(self, Buffer(D.INT64, p.ids.shape, p.ids))
        self.weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        self.send(Buffer(D.BFLOAT16, p.tokens.shape, p.tokens))

    def complete(self):
        """dispatch_b and combine_b"""
        self.handle.complete(config=0, stream=self.stream)

    def check(self, p):
        expect("expert counters", self.counts.read(), p.expert_counts())
        expect("rows", self.tokens.read(), p.by_expert(p.all_tokens))

    def send_results(self, p):
        """combine_a"""
        self.out = Buffer(D.BFLOAT16, p.tokens.shape)
        self.send_back(Buffer(D.BFLOAT16, self.tokens.shape, self.results(p)), self.out,
                       self.weights)

    def send_back(self, results, out, weights=None):
        self.handle.combine(
            ep.CombineInputs(tokens=results.tensor),
            ep.CombineOutputs(tokens=out.tensor, topk_weights=weights and weights.tensor),
            config=ep.CombineConfig(send_only=1), stream=self.stream)

    def results(self, p):
        return p.results_by_expert()

    def combined(self, p):
        return p.combined_by_expert()


class RankDispatcher(Dispatcher):
    """The same by ranks: weights go with the tokens, and rows come back weighted and added up."""

    layout = ep.Layout.RANK_MAJOR

    def allocate(self):
        """NcclEpBuffer._alloc_rank_major_scratch"""
        planes = (WORLD, MOST)
        self.tokens = Buffer(D.BFLOAT16, (*planes, HIDDEN))
        self.ids = Buffer(D.INT32, (*planes, TOPK))
        self.row_weights = Buffer(D.FLOAT32, (*planes, TOPK))
        self.counts = Buffer(D.INT32, (WORLD,))
        self.offsets = self.total = self.counts  # there are none

    def send(self, tokens):
        """_dispatch_a_rank_major"""
        for buffer in (self.ids, self.row_weights):
            buffer.write()
        self.handle.dispatch(
            ep.DispatchInputs(tokens=tokens.tensor, topk_weights=self.weights.tensor),
            ep.DispatchOutputs(tokens=self.tokens.tensor, topk_idx=self.ids.tensor,
                               topk_weights=self.row_weights.tensor),
            layout_info=ep.LayoutInfo(src_rank_counters=self.counts.tensor),
            config=ep.DispatchConfig(send_only=1), stream=self.stream)

    def check(self, p):
        expect("source rank counters", self.counts.read(), p.rank_counts())
        expect("rows", self.tokens.read(), p.by_rank(p.all_tokens))
        expect("top-k ids", self.ids.read(), p.ids_by_rank(numbered_globally=False))
        expect("top-k weights", self.row_weights.read(), p.by_rank(p.all_weights))

    def send_back(self, results, out, weights=None):
        super().send_back(results, out)

    def results(self, p):
        return p.results_by_rank()

    def combined(self, p):
        return p.combined_by_rank()


def steps(made, routing, empty=None, kind=Dispatcher):
    dispatcher = kind(made)
    for seed in range(3):
        p = Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK, empty)
        dispatcher.send_tokens(p, routing)
        dispatcher.complete()
        dispatcher.check(p)
        dispatcher.send_results(p)
        dispatcher.complete()
        expect("combined rows", dispatcher.out.read(), dispatcher.combined(p))
    return dispatcher


def new_handles():
    with make_group() as made:
        steps(made, Dispatcher.new_handle)


def rank_major():
    with make_group() as made:
        steps(made, Dispatcher.new_handle, kind=RankDispatcher)


def rank_major_idle_rank():
    with make_group() as made:
        steps(made, Dispatcher.new_handle, empty=0, kind=RankDispatcher)


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


class Decode:
    """NcclEpGraphResources: a handle and memory for all layers and numbers of tokens."""

    def __init__(self, made):
        self.dispatcher = Dispatcher(made)
        self.ids = Buffer(D.INT64, (MOST, TOPK), -1)
        self.weights = Buffer(D.FLOAT32, (MOST, TOPK))
        self.tokens = Buffer(D.BFLOAT16, (MOST, HIDDEN))
        self.outs = [Buffer(D.BFLOAT16, (MOST, HIDDEN)) for _ in range(2)]
        self.dispatcher.new_handle(self.ids)


class Bucket:
    """A graph of two layers for as many tokens as `p` has: the first rows of that memory. Later its
    contents change, and no update announces it."""

    def __init__(self, decode, p):
        self.dispatcher = decode.dispatcher
        self.ids, self.weights, self.tokens, *self.outs = (
            buffer.head(len(p.tokens))
            for buffer in (decode.ids, decode.weights, decode.tokens, *decode.outs))
        self.dispatcher.handle.update(self.ids.tensor, stream=self.dispatcher.stream)
        self.step(p, self.layers)
        self.graph = Graph(self.dispatcher.stream)
        with self.graph:
            self.layers()

    def layers(self):
        """The experts return what they got; the second layer sends what the first one made."""
        d = self.dispatcher
        for tokens, out in zip((self.tokens, *self.outs), self.outs):
            d.send(tokens)
            d.complete()
            d.send_back(d.tokens, out, self.weights)
            d.complete()

    def step(self, p, run):
        for buffer, values in ((self.ids, p.ids), (self.weights, p.weights),
                               (self.tokens, p.tokens)):
            buffer.write(values)
        for buffer in (self.dispatcher.tokens, *self.outs):
            buffer.write()
        run()
        wanted = p.tokens
        for out in self.outs:
            wanted = p.echoed_by_expert(wanted)
            expect("combined rows", out.read(), wanted)
        expect("expert counters", self.dispatcher.counts.read(), p.expert_counts())


def decode_graphs():
    with make_group(num_topk=TOPK) as made:
        problems = {seed: Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK)
                    for seed in (0, 1, 3, 4)}
        decode = Decode(made)
        buckets = [Bucket(decode, problems[seed]) for seed in (0, 1)]
        for seed in (3, 4, 1, 0):  # with a seed that is three more each rank has as many tokens
            bucket = buckets[seed % 3]
            bucket.step(problems[seed], bucket.graph.launch)
        for bucket in buckets:
            bucket.graph.release()


def group_before_handle():
    """NcclEpBuffer.destroy: the handle of the last step is never destroyed."""
    with make_group() as made:
        steps(made, Dispatcher.new_handle)
        made.destroy()
        made.handles.clear()


main("sglang", [new_handles, one_handle, idle_rank, rank_major, rank_major_idle_rank,
                size_of_its_own, two_batches, decode_graphs, group_before_handle])
