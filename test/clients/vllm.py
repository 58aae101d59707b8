# SPDX-License-Identifier: Apache-2.0
"""vLLM: expert-major in two halves, two micro-batches in flight, each with a handle of its own.

vllm/model_executor/layers/fused_moe/prepare_finalize/nccl_ep_batched.py of vllm-project/vllm, commit
098d9fce (NcclEPBatchedPrepareAndFinalize)
"""

import ctypes

from cluster import Buffer, D, RANK, WORLD, cuda, ep, group, main, new_stream
from oracle import Problem, expect

HIDDEN, LOCAL, MOST = 1024, 4, 8


def make_group(**config):
    return group(algorithm=ep.Algorithm.LOW_LATENCY, num_experts=WORLD * LOCAL,
                 max_dispatch_tokens_per_rank=MOST, max_token_bytes=HIDDEN * 2, **config)


def problem(seed, topk=2):
    return Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, topk)


class MicroBatch:
    def prepare(self, made, p, stream):
        """prepare_async: all but the hook, which the caller runs later, as self.complete."""
        self.p, ids = p, Buffer(D.INT64, p.ids.shape, p.ids)
        self.handle = made.create_handle(ep.Layout.EXPERT_MAJOR, ids.tensor,
                                         config=ep.HandleConfig(), stream=stream)
        self.rows = Buffer(D.BFLOAT16, (LOCAL, WORLD * MOST, HIDDEN))
        self.counts = Buffer(D.INT32, (LOCAL,))
        tokens = Buffer(D.BFLOAT16, p.tokens.shape, p.tokens)
        self.handle.dispatch(ep.DispatchInputs(tokens=tokens.tensor),
                             ep.DispatchOutputs(tokens=self.rows.tensor),
                             layout_info=ep.LayoutInfo(expert_counters=self.counts.tensor),
                             config=ep.DispatchConfig(send_only=1), stream=stream)

    def complete(self, stream):
        """The hook: on what is the current stream when it runs."""
        self.handle.complete(stream=stream)

    def check_rows(self):
        expect("expert counters", self.counts.read(), self.p.expert_counts())
        expect("rows", self.rows.read(), self.p.by_expert(self.p.all_tokens))

    def finalize(self, stream):
        """_finalize: all but the hook."""
        p = self.p
        results = Buffer(D.BFLOAT16, self.rows.shape, p.results_by_expert())
        weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        self.out = Buffer(D.BFLOAT16, p.tokens.shape)
        self.handle.combine(ep.CombineInputs(tokens=results.tensor),
                            ep.CombineOutputs(tokens=self.out.tensor, topk_weights=weights.tensor),
                            config=ep.CombineConfig(send_only=1), stream=stream)

    def check_out(self):
        expect("combined rows", self.out.read(), self.p.combined_by_expert())


def one_batch():
    stream = new_stream()
    with make_group() as made:
        for seed in range(3):
            batch = MicroBatch()
            batch.prepare(made, problem(seed, topk=1 + seed), stream)
            batch.complete(stream)
            batch.check_rows()
            batch.finalize(stream)
            batch.complete(stream)
            batch.check_out()


def two_batches():
    """Dual batch overlap: both send before either receives."""
    stream = new_stream()
    with make_group() as made:
        for seed in (0, 2, 4):
            pair = [MicroBatch(), MicroBatch()]
            for i, batch in enumerate(pair):
                batch.prepare(made, problem(seed + i), stream)
            for batch in pair:
                batch.complete(stream)
                batch.check_rows()
            for batch in pair:
                batch.finalize(stream)
            for batch in pair:
                batch.complete(stream)
                batch.check_out()


def hook_on_another_stream():
    """The hook runs when another stream is current, and nothing has ordered it after the one that
    sends, which is busy meanwhile."""
    sending, receiving = new_stream(), new_stream()
    with make_group(timeout_ns=10_000_000_000) as made:
        batch = MicroBatch()
        for step, check in ((lambda: batch.prepare(made, problem(0), sending), batch.check_rows),
                            (lambda: batch.finalize(sending), batch.check_out)):
            cuda("cudaLaunchHostFunc", ctypes.c_void_p(sending), ctypes.CDLL(None).usleep,
                 ctypes.c_void_p(1_000_000))
            step()
            batch.complete(receiving)
            check()


def handles_left():
    """self.handles only ever forgets a handle; none is destroyed before the group."""
    stream = new_stream()
    with make_group() as made:
        for seed in range(3):
            batch = MicroBatch()
            batch.prepare(made, problem(seed), stream)
            batch.complete(stream)
            batch.check_rows()
        made.destroy()
        made.handles.clear()


main("vllm", [one_batch, two_batches, hook_on_another_stream, handles_left])
