# SPDX-License-Identifier: Apache-2.0
"""FlashInfer: both layouts, a handle per layer and step, Complete after every dispatch, masks.

flashinfer/moe_ep/backends/split/comm/nccl_ep/ of flashinfer-ai/flashinfer (fleet.py, handle.py of
commit 08665da5, _mask_ffi.py)
"""

import contextlib
import ctypes

import numpy as np

from cluster import Allocator, Buffer, D, Graph, RANK, WORLD, ep, group, main, new_stream
from oracle import Problem, expect

HIDDEN, LOCAL, MOST = 1024, 4, 8
PAYLOAD = {D.BFLOAT16: HIDDEN, D.UINT8: HIDDEN + HIDDEN // 32}  # MXFP8: a byte of scale per 32


def make_group(algorithm=ep.Algorithm.LOW_LATENCY, **config):
    """NcclEpFleet._build_group_config."""
    return group(algorithm=algorithm, num_experts=WORLD * LOCAL, max_dispatch_tokens_per_rank=MOST,
                 max_token_bytes=HIDDEN * 2, rdma_buffer_size=0, num_qp_per_rank=0, num_channels=0,
                 **config)


class Handle:
    """NcclEpHandle. staged is HandleAlgoKnobSplitOperation."""

    def __init__(self, made, p, layout, staged, stream=0):
        self.p, self.layout, self.staged, self.stream = p, layout, int(staged), stream
        self.by_rank = layout == ep.Layout.RANK_MAJOR
        self.counts = Buffer(D.INT32, (WORLD if self.by_rank else LOCAL,))
        self.handle = made.create_handle(layout, Buffer(D.INT64, p.ids.shape, p.ids).tensor,
                                         layout_info=None, config=None, stream=stream)

    def update(self, p):
        self.p = p
        self.handle.update(Buffer(D.INT64, p.ids.shape, p.ids).tensor, layout_info=None,
                           stream=self.stream)

    def dispatch(self, dtype=D.BFLOAT16, sources=None):
        """dispatch: _dispatch_ll_rank_major or _dispatch_ll, then check."""
        p, sources = self.p, sources or self.p.all_tokens
        tokens = Buffer(dtype, sources[RANK].shape, sources[RANK])
        weights = Buffer(D.FLOAT32, p.weights.shape, p.weights)
        rows = (WORLD, MOST) if self.by_rank else (LOCAL, MOST * WORLD)
        out = Buffer(dtype, (*rows, PAYLOAD[dtype]))
        out_weights, out_idx = Buffer(D.FLOAT32, (*rows, p.topk)), Buffer(D.INT32, (*rows, p.topk))
        config = ep.DispatchConfig(send_only=self.staged, round_scales=0)
        if self.by_rank:
            self.handle.dispatch(
                ep.DispatchInputs(tokens=tokens.tensor, topk_weights=weights.tensor),
                ep.DispatchOutputs(tokens=out.tensor, topk_weights=out_weights.tensor,
                                   topk_idx=out_idx.tensor),
                layout_info=ep.LayoutInfo(src_rank_counters=self.counts.tensor), config=config,
                stream=self.stream)
        else:
            self.handle.dispatch(
                ep.DispatchInputs(tokens=tokens.tensor), ep.DispatchOutputs(tokens=out.tensor),
                layout_info=ep.LayoutInfo(expert_counters=self.counts.tensor), config=config,
                stream=self.stream)
        self.handle.complete(stream=self.stream)
        if self.by_rank:
            expect("source rank counters", self.counts.read(), p.rank_counts())
            expect("rows", out.read(), p.by_rank(sources))
            expect("top-k weights", out_weights.read(), p.by_rank(p.all_weights))
            expect("top-k ids", out_idx.read(), p.ids_by_rank(numbered_globally=False))
        else:
            expect("expert counters", self.counts.read(), p.expert_counts())
            expect("rows", out.read(), p.by_expert(sources))

    def combine(self):
        p = self.p
        results = p.results_by_rank() if self.by_rank else p.results_by_expert()
        weights = None if self.by_rank else Buffer(D.FLOAT32, p.weights.shape, p.weights).tensor
        out = Buffer(D.BFLOAT16, p.tokens.shape)
        self.handle.combine(
            ep.CombineInputs(tokens=Buffer(D.BFLOAT16, results.shape, results).tensor),
            ep.CombineOutputs(tokens=out.tensor, topk_weights=weights),
            config=ep.CombineConfig(send_only=self.staged), stream=self.stream)
        if self.staged:
            self.handle.complete(stream=self.stream)
        expect("combined rows", out.read(),
               p.combined_by_rank() if self.by_rank else p.combined_by_expert())

    def destroy(self):
        """NcclEpHandle.destroy, also called when Python collects the object."""
        with contextlib.suppress(Exception):
            self.handle.destroy()


def problem(seed, topk=2, empty=None):
    return Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, topk, empty)


def layers(made, layout, stream=0):
    for seed in range(4):
        handle = Handle(made, problem(seed, 1 + seed % 3, empty=1 if seed == 3 else None), layout,
                        staged=seed % 2, stream=stream)
        handle.dispatch()
        handle.combine()
        handle.destroy()


def expert_major():
    with make_group() as made:
        layers(made, ep.Layout.EXPERT_MAJOR)


def rank_major():
    with make_group() as made:
        layers(made, ep.Layout.RANK_MAJOR, new_stream())


def updated_handle():
    """NcclEpHandle.update: fewer tokens than the handle was made for."""
    with make_group() as made:
        handle = Handle(made, problem(0), ep.Layout.EXPERT_MAJOR, staged=False)
        for seed in (0, 1, 2):
            handle.update(problem(seed))
            handle.dispatch()
            handle.combine()
        handle.destroy()


def captured():
    """NcclEpHandle.update within a graph, on another stream than that of the handle's making."""
    with make_group() as made:
        p, stream = problem(0), new_stream()
        ids, weights = Buffer(D.INT64, p.ids.shape), Buffer(D.FLOAT32, p.weights.shape)
        tokens, out = (Buffer(D.BFLOAT16, p.tokens.shape) for _ in range(2))
        rows, counts = Buffer(D.BFLOAT16, (LOCAL, MOST * WORLD, HIDDEN)), Buffer(D.INT32, (LOCAL,))
        ids.write(-1)
        handle = made.create_handle(ep.Layout.EXPERT_MAJOR, ids.tensor, layout_info=None,
                                    config=None, stream=0)
        with Graph(stream) as graph:
            handle.update(ids.tensor, layout_info=None, stream=stream)
            handle.dispatch(
                ep.DispatchInputs(tokens=tokens.tensor), ep.DispatchOutputs(tokens=rows.tensor),
                layout_info=ep.LayoutInfo(expert_counters=counts.tensor),
                config=ep.DispatchConfig(send_only=0, round_scales=0), stream=stream)
            handle.complete(stream=stream)
            handle.combine(
                ep.CombineInputs(tokens=rows.tensor),
                ep.CombineOutputs(tokens=out.tensor, topk_weights=weights.tensor),
                config=ep.CombineConfig(send_only=0), stream=stream)
        for seed in (0, 3, 6):  # of the same numbers of tokens
            p = problem(seed)
            for buffer, values in ((ids, p.ids), (weights, p.weights), (tokens, p.tokens)):
                buffer.write(values)
            rows.write()
            graph.launch()
            expect("combined rows", out.read(), p.echoed_by_expert(p.tokens))
            expect("rows", rows.read(), p.by_expert(p.all_tokens))
            expect("expert counters", counts.read(), p.expert_counts())
        graph.release()


def own_allocator():
    """NcclEpFleet._install_torch_allocator: callbacks written in Python."""
    allocator = Allocator()
    with make_group(alloc=allocator.config) as made:
        layers(made, ep.Layout.RANK_MAJOR)
        expect("memory is held", bool(allocator.held), True)
    expect("memory that was not freed", len(allocator.held), 0)


def masks():
    """_MaskFfi: five functions that the bindings do not wrap, found among the process's symbols."""
    c = ctypes.CDLL(None)
    stream, everyone = ctypes.c_void_p(new_stream()), np.ones(WORLD, np.int32)
    with make_group(enable_mask=True, timeout_ns=30_000_000_000) as made:
        group_ptr, error = ctypes.c_void_p(made.ptr), ctypes.c_int(-1)

        def call(name, *args):
            expect(name, getattr(c, name)(group_ptr, *args), 0)

        def check():
            mask = Buffer(D.INT32, (WORLD,))
            call("ncclEpMaskQuery", ctypes.c_void_p(mask.pointer), stream)
            call("ncclEpGetAsyncError", ctypes.byref(error))
            expect("mask", mask.read(), everyone)
            expect("error flag", error.value, 0)

        layers(made, ep.Layout.EXPERT_MAJOR, stream.value)
        check()
        call("ncclEpMaskUpdate", ctypes.c_void_p(everyone.ctypes.data), stream)
        call("ncclEpMaskClean", stream)
        call("ncclEpErrorClear")
        check()
        layers(made, ep.Layout.EXPERT_MAJOR, stream.value)


def new_topology():
    """NcclEpFleet.update_topology: another group on a communicator that has had one."""
    for layout in (ep.Layout.EXPERT_MAJOR, ep.Layout.RANK_MAJOR):
        with make_group() as made:
            layers(made, layout)


def packed_rows(layout):
    with make_group() as made:
        p = problem(5)
        handle = Handle(made, p, layout, staged=False)
        handle.dispatch(D.UINT8, p.payload(np.uint8, PAYLOAD[D.UINT8], 5))
        handle.combine()
        handle.destroy()


def packed_rows_by_expert():
    """pack_dispatch_payload for MXFP8: values and scales in one row of bytes, recipe NONE."""
    packed_rows(ep.Layout.EXPERT_MAJOR)


def packed_rows_by_rank():
    packed_rows(ep.Layout.RANK_MAJOR)


def high_throughput():
    """NcclEpHandle._dispatch_ht: flat rows, as many as there may be."""
    rows = MOST * WORLD
    with make_group(ep.Algorithm.HIGH_THROUGHPUT, max_recv_tokens_per_rank=rows) as made:
        for seed in range(3):
            p = problem(seed, 1 + seed, empty=1 if seed == 2 else None)
            counts, total = Buffer(D.INT32, (LOCAL,)), Buffer(D.INT64, (1,))
            handle = made.create_handle(
                ep.Layout.FLAT, Buffer(D.INT64, p.ids.shape, p.ids).tensor,
                layout_info=ep.LayoutInfo(expert_counters=counts.tensor,
                                          recv_total_counter=total.tensor),
                stream=0)
            out, idx = Buffer(D.BFLOAT16, (rows, HIDDEN)), Buffer(D.INT64, (rows, p.topk))
            weights = Buffer(D.FLOAT32, (rows, p.topk))
            handle.dispatch(
                ep.DispatchInputs(
                    tokens=Buffer(D.BFLOAT16, p.tokens.shape, p.tokens).tensor,
                    topk_weights=Buffer(D.FLOAT32, p.weights.shape, p.weights).tensor),
                ep.DispatchOutputs(tokens=out.tensor, topk_weights=weights.tensor,
                                   topk_idx=idx.tensor),
                config=ep.DispatchConfig(send_only=1), stream=0)
            handle.complete(stream=0)
            expect("expert counters", counts.read(), p.expert_counts())
            expect("total", total.read(), [len(p.flat_rows())])
            expect("rows", out.read(), p.flat(p.all_tokens, rows))
            expect("top-k ids", idx.read(), p.flat_choices(rows)[0])
            expect("top-k weights", weights.read(), p.flat_choices(rows)[1])
            results, combined = p.flat_results(rows), Buffer(D.BFLOAT16, p.tokens.shape)
            handle.combine(
                ep.CombineInputs(tokens=Buffer(D.BFLOAT16, results.shape, results).tensor),
                ep.CombineOutputs(tokens=combined.tensor), stream=0)
            handle.complete(stream=0)
            expect("combined rows", combined.read(), p.combined_by_rank())


def high_throughput_by_expert():
    """TransformerEngine's layout, in eager mode: the caller allocates as many rows as there are."""
    align = 4
    with make_group(ep.Algorithm.HIGH_THROUGHPUT, num_topk=3) as made:
        for seed in range(3):
            p = problem(seed, 1 + seed)
            counts, offsets = Buffer(D.INT64, (LOCAL,)), Buffer(D.INT64, (LOCAL,))
            total = Buffer(D.INT64, (1,))
            handle = made.create_handle(
                ep.Layout.EXPERT_MAJOR, Buffer(D.INT64, p.ids.shape, p.ids).tensor,
                layout_info=ep.LayoutInfo(expert_counters=counts.tensor,
                                          expert_offsets=offsets.tensor,
                                          recv_total_counter=total.tensor),
                config=ep.HandleConfig(dispatch_output_per_expert_alignment=align), stream=0)
            rows = int(total.read()[0])
            expect("total", rows, p.zones(align)[1].sum())
            expect("expert offsets", offsets.read(), p.zones(align)[0])
            expect("expert counters", counts.read(), p.zones(align)[1])
            out, weights = Buffer(D.BFLOAT16, (rows, HIDDEN)), Buffer(D.FLOAT32, (rows,))
            handle.dispatch(
                ep.DispatchInputs(
                    tokens=Buffer(D.BFLOAT16, p.tokens.shape, p.tokens).tensor,
                    topk_weights=Buffer(D.FLOAT32, p.weights.shape, p.weights).tensor),
                ep.DispatchOutputs(tokens=out.tensor, topk_weights=weights.tensor), stream=0)
            expect("rows", out.read(), p.zoned(p.all_tokens, rows, align))
            results, combined = p.zoned_results(rows, align), Buffer(D.BFLOAT16, p.tokens.shape)
            handle.combine(
                ep.CombineInputs(tokens=Buffer(D.BFLOAT16, results.shape, results).tensor),
                ep.CombineOutputs(tokens=combined.tensor), stream=0)
            expect("combined rows", combined.read(), p.combined_by_rank())


def group_before_handle():
    """NcclEpFleet.destroy or update_topology while a handle waits for Python to collect it."""
    with make_group() as made:
        handle = Handle(made, problem(0), ep.Layout.EXPERT_MAJOR, staged=False)
        handle.dispatch()
        made.destroy()
        handle.destroy()


main("flashinfer", [expert_major, rank_major, updated_handle, captured, own_allocator, masks,
                    new_topology, packed_rows_by_expert, packed_rows_by_rank, high_throughput,
                    high_throughput_by_expert, group_before_handle])
