# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM: rank-major, ids numbered globally, one handle for all steps, outputs that stay.

tensorrt_llm/_torch/moe/fused_moe/nccl_ep_utils.py of NVIDIA/TensorRT-LLM (commit 23a09d5c), and
communication/nccl_ep.py beside it.
"""

import ctypes

import numpy as np
from packaging.version import Version

from cluster import Buffer, D, Graph, RANK, WORLD, Window, cuda, ep, group, main, new_stream
from oracle import Problem, expect, expect_quantised, from_bf16, poisoned, through_nvfp4

RECIPE = ep.DispatchQuantizationRecipe
HIDDEN, LOCAL, MOST, TOPK = 1024, 4, 8, 2


def make_group():
    """NcclEpContext.__init__. A row of combine is bf16 whatever dispatch carries."""
    return group(algorithm=ep.Algorithm.LOW_LATENCY, num_experts=WORLD * LOCAL,
                 max_dispatch_tokens_per_rank=MOST, max_recv_tokens_per_rank=WORLD * MOST,
                 max_token_bytes=HIDDEN * 2)


class Context:
    """NcclEpContext.__init__ once more: outputs and descriptors that live as long as the group."""

    def __init__(self, made, tokens=(D.BFLOAT16, HIDDEN), scales=None, recipe=RECIPE.NONE,
                 ids=D.INT32):
        self.group, self.handle, self.ids, self.stream = made, None, ids, new_stream()
        rows = (WORLD, MOST)
        self.tokens = Buffer(tokens[0], (*rows, tokens[1]))
        self.scales = Buffer(scales[0], (*rows, scales[1])) if scales else None
        self.topk_idx = Buffer(D.INT32, (*rows, TOPK))
        self.topk_weights = Buffer(D.FLOAT32, (*rows, TOPK))
        self.counts = Buffer(D.INT32, (WORLD,))
        self.outputs = self.bundle(self.tokens.tensor)
        self.layout_info = ep.LayoutInfo(src_rank_counters=self.counts.tensor,
                                         recv_topk_idx_kind=ep.ExpertIdKind.GLOBAL)
        self.config = ep.DispatchConfig(round_scales=0, quantization_recipe=recipe)

    def bundle(self, tokens):
        return ep.DispatchOutputs(tokens=tokens, topk_weights=self.topk_weights.tensor,
                                  topk_idx=self.topk_idx.tensor,
                                  scales=self.scales.tensor if self.scales else None)

    def poison(self):
        for buffer in (self.tokens, self.scales, self.topk_idx, self.topk_weights, self.counts):
            if buffer:
                buffer.write()


def problem(seed):
    return Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK)


def dispatch(ctx, p, tokens, scales=None, outputs=None):
    """NcclEP.dispatch with _setup_handle: ids and weights are new tensors in every step."""
    ids = Buffer(ctx.ids, p.ids.shape, p.ids)
    if ctx.handle is None:
        ctx.handle = ctx.group.create_handle(ep.Layout.RANK_MAJOR, ids.tensor, stream=ctx.stream)
    else:
        ctx.handle.update(ids.tensor, stream=ctx.stream)
    weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
    inputs = ep.DispatchInputs(tokens=tokens.tensor, topk_weights=weights.tensor,
                               scales=scales.tensor if scales else None)
    ctx.handle.dispatch(inputs, outputs or ctx.outputs, layout_info=ctx.layout_info,
                        config=ctx.config, stream=ctx.stream)


def combine(ctx, p):
    """NcclEP.combine, without NVFP4."""
    results = Buffer(D.BFLOAT16, (WORLD, MOST, HIDDEN), p.results_by_rank())
    out = Buffer(D.BFLOAT16, p.tokens.shape)
    ctx.handle.combine(ep.CombineInputs(tokens=results.tensor),
                       ep.CombineOutputs(tokens=out.tensor), stream=ctx.stream)
    return out


def check_routing(ctx, p):
    expect("source rank counters", ctx.counts.read(), p.rank_counts())
    expect("top-k ids", ctx.topk_idx.read(), p.ids_by_rank(numbered_globally=True))
    expect("top-k weights", ctx.topk_weights.read(), p.by_rank(p.all_weights))


def copied(dtype, width, scale_width=None, recipe=RECIPE.NONE, ids=D.INT32):
    """Rows, and scales if there are any, arrive bit by bit; three steps with one handle."""
    scale_kind = (D.UINT8, scale_width) if scale_width else None
    with make_group() as made:
        ctx = Context(made, (dtype, width), scale_kind, recipe, ids)
        for seed in range(3):
            p = problem(seed)
            rows = p.all_tokens if width == HIDDEN else p.payload(np.uint16, width, seed)
            scales = p.payload(np.uint8, scale_width, seed) if scale_width else None
            ctx.poison()
            dispatch(ctx, p, Buffer(dtype, rows[RANK].shape, rows[RANK]),
                     Buffer(D.UINT8, scales[RANK].shape, scales[RANK]) if scales else None)
            check_routing(ctx, p)
            expect("rows", ctx.tokens.read(), p.by_rank(rows))
            if scales:
                expect("scales", ctx.scales.read(), p.by_rank(scales))
            expect("combined rows", combine(ctx, p).read(), p.combined_by_rank())


def bf16():
    copied(D.BFLOAT16, HIDDEN)


def bf16_ids_of_64_bits():
    """What libraries before 0.2 get."""
    copied(D.BFLOAT16, HIDDEN, ids=D.INT64)


def external_fp8():
    """e4m3 rows, seen as bf16 of half the width."""
    copied(D.BFLOAT16, HIDDEN // 2)


def external_nvfp4():
    """Two 4-bit values in a byte, seen as bf16 of a quarter of the width, and block scales."""
    copied(D.BFLOAT16, HIDDEN // 4, HIDDEN // 16, RECIPE.FWD)


def internal_fp8():
    """The library quantises: e4m3, and an fp32 scale per 128 channels."""
    with make_group() as made:
        ctx = Context(made, (D.FLOAT8E4M3, HIDDEN), (D.FLOAT32, HIDDEN // 128), RECIPE.DS_FP8E3M4)
        p = problem(3)
        dispatch(ctx, p, Buffer(D.BFLOAT16, p.tokens.shape, p.tokens))
        check_routing(ctx, p)
        expect_quantised(ctx.tokens.read(), ctx.scales.read(), p.by_rank(p.all_tokens),
                         p.rank_counts())
        expect("combined rows", combine(ctx, p).read(), p.combined_by_rank())


def row_scales(rows):
    largest = abs(rows).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):  # of a row of zeros it is infinite there, too
        return np.float32(2688) / largest


def nvfp4_combine():
    """NcclEP.combine with use_low_precision_combine: 4 bits and a scale of fp32 per row."""
    with make_group() as made:
        ctx, p = Context(made), problem(4)
        dispatch(ctx, p, Buffer(D.BFLOAT16, p.tokens.shape, p.tokens))
        check_routing(ctx, p)
        rows = p.results_by_rank()
        scales = row_scales(from_bf16(rows))
        results = Buffer(D.BFLOAT16, rows.shape, rows)
        out = Buffer(D.BFLOAT16, p.tokens.shape)
        ctx.handle.combine(
            ep.CombineInputs(tokens=results.tensor,
                             scales=Buffer(D.FLOAT32, scales.shape, scales).tensor),
            ep.CombineOutputs(tokens=out.tensor),
            config=ep.CombineConfig(quantization_recipe=ep.CombineQuantizationRecipe.NVFP4),
            stream=ctx.stream)
        returned = [from_bf16(p.returned(RANK, r)) for r in range(WORLD)]
        wanted = sum(through_nvfp4(rows, row_scales(rows)) for rows in returned)
        # bf16 has 8 bits; the sum of fp32 has enough more
        error = abs(from_bf16(out.read()) - wanted)
        expect("combined rows", error <= abs(wanted) / 256 + 1e-4, np.ones(error.shape, bool))


def window():
    """NcclEP.dispatch with zerocopy_enabled: rows go to a window of the engine's pool."""
    with make_group() as made:
        ctx, p = Context(made), problem(5)
        target = Window(D.BFLOAT16, ctx.tokens.shape)
        dispatch(ctx, p, Buffer(D.BFLOAT16, p.tokens.shape, p.tokens),
                 outputs=ctx.bundle(target.tensor))
        check_routing(ctx, p)
        expect("rows beside the window", ctx.tokens.read(), poisoned(ctx.tokens.shape, np.uint16))
        wanted, got = p.by_rank(p.all_tokens), target.read()
        for source, count in enumerate(p.rank_counts()):
            expect("rows", got[source, :count], wanted[source, :count])
        expect("combined rows", combine(ctx, p).read(), p.combined_by_rank())
    target.release()


def graph():
    """An eager step makes the handle; then update, dispatch and combine are captured."""
    with make_group() as made:
        ctx, p = Context(made), problem(6)
        tokens = Buffer(D.BFLOAT16, p.tokens.shape, p.tokens)
        dispatch(ctx, p, tokens)
        cuda("cudaStreamSynchronize", ctypes.c_void_p(ctx.stream))
        ids, weights = (Buffer(D.INT32, p.ids.shape, p.ids),
                        Buffer(D.FLOAT32, p.weights.shape, p.weights))
        results = Buffer(D.BFLOAT16, ctx.tokens.shape)
        out = Buffer(D.BFLOAT16, p.tokens.shape)
        with Graph(ctx.stream) as captured:
            ctx.handle.update(ids.tensor, stream=ctx.stream)
            ctx.handle.dispatch(
                ep.DispatchInputs(tokens=tokens.tensor, topk_weights=weights.tensor),
                ctx.outputs, layout_info=ctx.layout_info, config=ctx.config, stream=ctx.stream)
            ctx.handle.combine(ep.CombineInputs(tokens=results.tensor),
                               ep.CombineOutputs(tokens=out.tensor), stream=ctx.stream)
        for seed in (6, 9, 12):  # seeds of the same numbers of tokens
            p = problem(seed)
            for buffer, values in ((tokens, p.tokens), (ids, p.ids), (weights, p.weights),
                                   (results, p.results_by_rank())):
                buffer.write(values)
            ctx.poison()
            captured.launch()
            check_routing(ctx, p)
            expect("rows", ctx.tokens.read(), p.by_rank(p.all_tokens))
            expect("combined rows", out.read(), p.combined_by_rank())
        captured.release()


def version():
    """nccl_ep_supports_version: below 0.2 quantised dispatch is refused, and ids are widened."""
    if ep.get_lib_version() < Version("0.2"):
        raise AssertionError("version %s is below 0.2" % ep.get_lib_version())


def group_before_handle():
    """destroy_all_nccl_ep_contexts, at exit: the group goes first, and its handle when Python
    collects the NcclEP. Neither place catches what the bindings raise."""
    with make_group() as made:
        p = problem(7)
        ctx = Context(made)
        dispatch(ctx, p, Buffer(D.BFLOAT16, p.tokens.shape, p.tokens))
        combine(ctx, p).read()
        made.destroy()
        ctx.handle.destroy()


main("trtllm", [version, bf16, bf16_ids_of_64_bits, external_fp8, external_nvfp4, internal_fp8,
                nvfp4_combine, window, graph, group_before_handle])
