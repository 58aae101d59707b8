#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What posting and the links allow across nodes: the tables of doc/design/rdma.md, "Speed, by a model".

  nic_model.py [SOURCE_ROOT]   prints them

Nodes have 8 GPUs with a NIC each; 256 experts, top-8, hidden 7168, uniform routing. Numbers of rows in
a load, queues and sizes of rings are those of the sources, times of posting those of
doc/design/measurements.md. What no NIC has told is assumed: ROUND_TRIP, and that each load that waits for
another costs as much as a look at a completion.
"""
import re
import sys
from math import ceil, comb
from pathlib import Path

EXPERTS, TOPK, NODE = 256, 8, 8
FP8, BF16 = 7168 + 4 * 56, 2 * 7168  # bytes of a row
TOKENS = 4096                        # of a rank, in high throughput
ROUND_TRIP = 8.0                     # us from the last byte sent to its acknowledgement
MTU, PACKET = 4096, 90               # bytes; all headers of a packet
RATES = 200, 400, 800                # Gb/s
NODES = 2, 8, 32
# Of a send warp for each load, beside posting (device/ht/post.h): 12 loads one after another, and a word released.
LOOKS = 12
WARPS = 16                           # of a block in low latency, that own the queues of its channel
SIDE = 32                            # rows of a side


class Sources:
    """Numbers that the library is built with, and what posting takes, in us."""

    def __init__(self, root):
        self.root = root
        self.chunk = 1 << self.define("device/ht/ht_layout.h", "EP_HT_CHUNK_SHIFT")
        self.most_shift = self.define("device/ht/ht_layout.h", "EP_HT_MOST_BUNCH_SHIFT")
        self.stage = self.define("plugin/ep/ht/ht_heap.c", "EP_HT_STAGE_CHUNKS")
        self.queues = self.define("plugin/ep/ht/ht.c", "EP_HT_AUTO_QUEUES")
        self.blocks = self.define("plugin/ep/ht/ht_plan.c", "EP_HT_AUTO_NODES")
        params = self.text("plugin/core/param.c")
        self.depth = int(re.search(r'"NCCL_EP_RDMA_DEPTH", (\d+)', params)[1])
        self.ring = 1 << int(re.search(r'"NCCL_EP_HT_RING_BYTES", 1 << (\d+)', params)[1])
        self.row_queues = self.define("plugin/ep/group_config.c", "EP_GROUP_ROW_QUEUES")
        # doorbells cross PCIe, and so does a word that others than this GPU may look at
        self.look = self.ns("look at the completion")
        self.build = self.ns("build and store 32 WQEs, a lane each")
        self.signal = self.ns("build and store a WQE")
        self.doorbell = self.ns("put by 32 lanes, one doorbell") - self.build
        self.fence = self.ns("put by 32 lanes, one doorbell", 0) - self.build
        self.put_signal = self.ns("put_signal by 32 lanes, 33 WQEs")

    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8")

    def define(self, name, what):
        return int(re.search(r"^#define %s\s+\(?(\d+)" % what, self.text(name), re.M)[1])

    def ns(self, operation, place=1):
        """Of the columns with the doorbell in GPU memory (0) or in host memory (1)."""
        row = re.search(r"^\| %s \|(.*)\|$" % operation, self.text("doc/design/measurements.md"), re.M)[1]
        return int(row.split("|")[3 * place + 1]) / 1000


def link(rate, row):
    """Bytes of such rows that a link carries in a us."""
    return rate * 1000 / 8 * row / (row + PACKET * ceil(row / MTU))


def none_of(experts):
    """How likely it is that a token selects none of so many."""
    return comb(EXPERTS - experts, TOPK) / comb(EXPERTS, TOPK)


class Flows:
    """High throughput from one GPU, with as many rows staged as there is room for."""

    def __init__(self, s, nodes, row):
        self.s, self.row, self.count = s, row, nodes - 1
        chunks = min(s.stage, max(2, s.ring // 4 // (s.chunk * BF16 * self.count)))
        shift = 0
        while shift < s.most_shift and 8 << shift <= chunks:
            shift += 1
        self.bunch = 1 << shift
        self.ahead = (chunks // 2 >> shift) + 1  # loads that are under way
        self.share = 1 - none_of(EXPERTS // nodes)  # of tokens that go by a flow
        self.rows = self.bunch * s.chunk * self.share  # of a load
        self.queues = max(1, s.queues // self.count)
        self.in_turn = ceil(self.count / min(s.blocks, self.count))  # flows of a send warp

    def doorbells(self):
        """Of a load: its own, and those of quarters of the queue."""
        return 1 + (self.rows + 1) / (self.s.depth / 4)

    def post(self):
        s = self.s
        return (LOOKS * s.look + s.fence + ceil(self.bunch * s.chunk / 32) * s.build + s.signal +
                self.doorbells() * s.doorbell)

    def under_way(self):
        return self.ahead * self.rows * self.row * self.count

    def rate(self, gbits, ordered):
        """Bytes of all flows in a us: what the slowest of link, send warps, stage and queues allows."""
        load, wire = self.rows * self.row, link(gbits, self.row)
        trips = ROUND_TRIP if ordered else 2 * ROUND_TRIP
        busy = self.in_turn * self.post()
        allowed = [wire, self.count * load / busy,
                   self.under_way() / (busy + self.count * load / wire + trips)]
        if not ordered:
            allowed.append(self.count * min(self.queues, self.ahead) * load / (load / wire + ROUND_TRIP))
        return min(allowed)

    def all_rows(self):
        return TOKENS * self.share * self.count


def high_throughput(s):
    yield "| nodes | rows | rows of a load | doorbells | signals | MB under way | posting, GB/s |%s" % "".join(
        " %s, %d Gb/s |" % (row, gbits) for row in ("FP8", "BF16") for gbits in RATES)
    yield "|" + "---:|" * (7 + 2 * len(RATES))
    for nodes in NODES:
        fp8, bf16 = Flows(s, nodes, FP8), Flows(s, nodes, BF16)
        loads = fp8.all_rows() / fp8.rows
        head = "%d | %.0f | %.0f | %.0f | %.0f | %.1f / %.1f | %.0f / %.0f" % (
            nodes, fp8.all_rows(), fp8.rows, loads * fp8.doorbells(), loads, fp8.under_way() / 1e6,
            bf16.under_way() / 1e6, fp8.count * fp8.rows * FP8 / fp8.in_turn / fp8.post() / 1000,
            bf16.count * bf16.rows * BF16 / bf16.in_turn / bf16.post() / 1000)
        cells = []
        for flows in fp8, bf16:
            for gbits in RATES:
                rates = [flows.rate(gbits, ordered) for ordered in (True, False)]
                cells.append(", ".join("%s %s" % (" / ".join(dict.fromkeys(numbers)), unit) for numbers, unit in (
                    (["%.0f" % (rate / (gbits * 1.25)) for rate in rates], "%"),
                    (["%.0f" % (flows.all_rows() * flows.row / rate) for rate in rates], "us"))))
        yield "| %s | %s |" % (head, " | ".join(cells))


def low_latency(s, tokens=128):
    yield "| nodes | channels | rows, dispatch / combine | doorbells | posting, us |%s" % "".join(
        " %d Gb/s |" % gbits for gbits in RATES)
    yield "|" + "---:|" * (5 + len(RATES))
    for nodes in NODES:
        peers = NODE * (nodes - 1)
        channels = max(1, min(8, s.row_queues // peers))
        sides = ceil(ceil(tokens / channels) / SIDE)
        there = tokens * peers * (1 - none_of(EXPERTS // (NODE * nodes)))
        back = tokens * TOPK * (nodes - 1) / nodes
        posting = sides * ceil(peers / WARPS) * s.put_signal
        head = "%d | %d | %.0f / %.0f | %d | %.0f" % (nodes, channels, there, back, channels * sides * peers, posting)
        yield "| %s |%s" % (head, "".join(" %.0f + %.0f |" % (there * FP8 / link(gbits, FP8), back * BF16 / link(gbits, BF16))
                                          for gbits in RATES))


def tables(root):
    s = Sources(root)
    return [list(high_throughput(s)), list(low_latency(s))]


if __name__ == "__main__":
    for table in tables(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]):
        print("\n".join(table), end="\n\n")
