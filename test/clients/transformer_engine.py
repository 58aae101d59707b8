# SPDX-License-Identifier: Apache-2.0
"""TransformerEngine, and Megatron-LM through it: handles on the caller's memory, forward and backward.

transformer_engine/common/ep/ep_backend.cpp of NVIDIA/TransformerEngine (commit 00145f7c). One group
for the process and one handle per layer. The routing stays in the layer's memory: a handle that is
made anew on it, or on a copy of it, goes on without an update.
"""

import ctypes

import numpy as np

from cluster import Buffer, D, RANK, WORLD, Window, cuda, ep, group, main, new_stream
from oracle import Problem, expect, from_bf16, to_bf16

HIDDEN, LOCAL, MOST, TOPK, ALIGN = 7168, 4, 8, 3, 4  # the hidden size of DeepSeek-V3
ROWS = WORLD * MOST * TOPK + LOCAL * ALIGN
LAYOUT = int(ep.Layout.EXPERT_MAJOR)


def make_group():
    """EPBackend::init"""
    return group(algorithm=ep.Algorithm.HIGH_THROUGHPUT, num_experts=WORLD * LOCAL,
                 max_dispatch_tokens_per_rank=MOST, max_recv_tokens_per_rank=ROWS,
                 max_token_bytes=HIDDEN * 2)


class Layer:
    """register_layer, then prepare, dispatch, combine and what autograd calls on the way back."""

    def __init__(self, made):
        self.group, self.handle, self.stream = made, None, new_stream()
        self.config = ep.HandleConfig(dispatch_output_per_expert_alignment=ALIGN)
        size = ep._ep_bindings.handle_mem_size(made.ptr, LAYOUT, self.config._lowpp.ptr, TOPK)
        self.memory = Buffer(D.UINT8, (size,))
        self.counts = Buffer(D.INT32, (LOCAL,))

    def open(self):
        """get_or_open_handle"""
        if self.handle is not None:
            self.handle.destroy()
        self.handle = self.group.keep(ep.Handle(ep._ep_bindings.init_handle(
            self.group.ptr, LAYOUT, self.config._lowpp.ptr, TOPK, self.memory.tensor.ptr)))

    def move(self):
        """The program has moved the memory (allow_handle_mem_reloc)."""
        cuda("cudaStreamSynchronize", ctypes.c_void_p(self.stream))
        old, self.memory = self.memory, Buffer(D.UINT8, self.memory.shape, self.memory.read())
        self.open()
        old.write()

    def prepare(self, p):
        self.problem = p
        if self.handle is None:
            self.open()
        self.ids = Buffer(D.INT64, p.ids.shape, p.ids)
        self.handle.update(self.ids.tensor, layout_info=ep.LayoutInfo(
            expert_counters=self.counts.tensor), stream=self.stream)
        expect("expert counters", self.counts.read(), p.zones(ALIGN)[1])

    def send(self, tokens, rows, weights=None, row_weights=None):
        """dispatch; without weights it is the backward of combine."""
        direction = ep.PassDir.BWD if weights is None else ep.PassDir.FWD
        self.handle.dispatch(
            ep.DispatchInputs(tokens=tokens.tensor, topk_weights=weights and weights.tensor),
            ep.DispatchOutputs(tokens=rows.tensor, topk_weights=row_weights and row_weights.tensor),
            layout_info=None, config=ep.DispatchConfig(pass_direction=direction),
            stream=self.stream)

    def forward(self, memory=Buffer):
        p = self.problem
        rows, row_weights = memory(D.BFLOAT16, (ROWS, HIDDEN)), Buffer(D.FLOAT32, (ROWS,))
        self.send(Buffer(D.BFLOAT16, p.tokens.shape, p.tokens), rows,
                  Buffer(D.FLOAT32, p.weights.shape, p.weights), row_weights)
        expect("rows", rows.read(), p.zoned(p.all_tokens, ROWS, ALIGN))
        weights = p.zone_weights(ALIGN)
        expect("weights", row_weights.read()[[*weights]], [*weights.values()])
        out = Buffer(D.BFLOAT16, p.tokens.shape)
        rows.write(p.zoned_results(ROWS, ALIGN))
        self.handle.combine(ep.CombineInputs(tokens=rows.tensor),
                            ep.CombineOutputs(tokens=out.tensor), config=None, stream=self.stream)
        expect("combined rows", out.read(), p.combined_by_expert())
        return rows

    def backward(self):
        """combine_bwd sends gradients out, dispatch_bwd brings theirs and those of weights back."""
        p = self.problem
        rows = Buffer(D.BFLOAT16, (ROWS, HIDDEN))
        self.send(Buffer(D.BFLOAT16, p.tokens.shape, p.tokens), rows)
        expect("gradients of experts", rows.read(), p.zoned(p.all_tokens, ROWS, ALIGN))
        gradients = np.zeros(ROWS, np.float32)
        for row, weight in p.zone_weights(ALIGN).items():
            gradients[row] = 2 * weight
        out, out_weights = Buffer(D.BFLOAT16, p.tokens.shape), Buffer(D.FLOAT32, p.weights.shape)
        self.handle.combine(
            ep.CombineInputs(tokens=rows.tensor,
                             topk_weights=Buffer(D.FLOAT32, (ROWS,), gradients).tensor),
            ep.CombineOutputs(tokens=out.tensor, topk_weights=out_weights.tensor),
            config=ep.CombineConfig(pass_direction=ep.PassDir.BWD), stream=self.stream)
        copies = (p.ids >= 0).sum(1, keepdims=True)
        expect("gradients of tokens", out.read(), to_bf16(0 + copies * from_bf16(p.tokens)))
        expect("gradients of weights", out_weights.read(), np.where(p.ids >= 0, 2 * p.weights, 0))


def problem(seed, empty=None):
    return Problem(WORLD, RANK, seed, LOCAL, MOST, HIDDEN, TOPK, empty)


def training_step():
    """Two layers: both go forward, then both come back in the other order."""
    with make_group() as made:
        layers = [Layer(made) for _ in range(2)]
        for seed in (0, 2):
            for i, layer in enumerate(layers):
                layer.prepare(problem(seed + i))
                layer.forward()
            for layer in reversed(layers):
                layer.backward()


def idle_rank():
    with make_group() as made:
        layer = Layer(made)
        layer.prepare(problem(1, empty=0))
        layer.forward()
        layer.backward()


def another_handle():
    """The routing is in the memory: a new handle on it, or on a copy elsewhere, needs no update."""
    with make_group() as made:
        layer = Layer(made)
        layer.prepare(problem(4))
        layer.forward()
        layer.open()
        layer.forward()
        layer.move()
        layer.backward()


def window():
    """make_payload_tensor prefers the window where the program has one."""
    with make_group() as made:
        layer = Layer(made)
        layer.prepare(problem(5))
        rows = layer.forward(Window)
    rows.release()


main("transformer_engine", [training_step, idle_rank, another_handle, window])
