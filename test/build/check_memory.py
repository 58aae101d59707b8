#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether ep_info --memory says what the library answers, and why something is not possible.

  check_memory.py EP_INFO VCLUSTER_DIR

The library is asked by ncclEpExtDeviceMemory, which other tests compare with what groups take.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import device_memory

EP_INFO, VCLUSTER = sys.argv[1:]
problems = 0


def complain(text):
    global problems
    problems += 1
    print("wrong:", text)


def run(*args, **variables):
    env = dict(os.environ, LD_LIBRARY_PATH=VCLUSTER, **variables)
    done = subprocess.run([EP_INFO, *args], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def check_sizes(library):
    layouts = {"em": 1, "rm": 2, "flat": 3}
    for mode, layout, ranks, node in (("ll", "em", 64, 8), ("ll", "rm", 8, 8), ("ll", "em", 12, 8), ("ll", "em", 16, 4),
                                      ("ht", "flat", 16, 8), ("ht", "em", 8, 8)):
        experts, hidden, tokens, topk = 192, 4096, 96, 6
        status, out, err = run("--memory", "--experts", str(experts), "--hidden", str(hidden), "--tokens", str(tokens),
                               "--ranks", str(ranks), "--topk", str(topk), "--mode", mode, "--layout", layout,
                               "--node-ranks", str(node), "--json")
        # a rank of the smallest node has the most
        want = device_memory.ask(library, int(mode == "ht"), layouts[layout], experts, hidden, tokens, topk, ranks, node,
                                 ranks - (ranks % node or node))
        if status or not want:
            complain("%s %s %d: status %d, the library %s: %s%s" % (mode, layout, ranks, status, want, out, err))
            continue
        got = json.loads(out)
        if [got["group_bytes"], got["heap_bytes"], got["handle_bytes"]] != want or not got["possible"]:
            complain("%s %s %d: %s, the library has %s" % (mode, layout, ranks, out, want))
        rows = {"em": ranks * tokens * (experts // ranks if mode == "ll" else min(topk, experts // ranks)),
                "rm": ranks * tokens, "flat": ranks * tokens}[layout]
        if got["rows"] != rows or got["output_bytes"] != rows * hidden * 2:
            complain("%s %s %d: %d rows, not %d" % (mode, layout, ranks, got["rows"], rows))


GOOD = ["--memory", "--experts", "256", "--hidden", "7168", "--tokens", "128", "--ranks", "64"]


def check_file():
    """What a program would get from NCCL's file counts."""
    ht = [*GOOD, "--mode", "ht", "--json"]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("NCCL_EP_HT_RING_BYTES=1048576\n")
        file.flush()
        got = run(*ht, NCCL_CONF_FILE=file.name)
    if got != run(*ht, NCCL_EP_HT_RING_BYTES="1048576") or got == run(*ht):
        complain("NCCL_EP_HT_RING_BYTES in NCCL's file: status %d, %s%s" % got)


def check_text():
    status, out, err = run(*GOOD)
    for text in ("low latency, 256 experts, 128 tokens of 7168 x bf16, top-8, em, 64 ranks in nodes of 8\n",
                 "  group                       242.", "\n    received tokens           448.0 MiB, room for 32768 rows\n",
                 "\n  possible"):
        if status or text not in out:
            complain("status %d, '%s' is not in %s%s" % (status, text, out, err))


def check_formats():
    """Of a received row: elements, and scales."""
    for quant, row in (("none", 7168 * 2), ("fp8", 7168 + 7168 // 32), ("mxfp8", 7168 + 7168 // 32), ("nvfp4", 7168 // 2 + 7168 // 16)):
        answer = json.loads(run(*GOOD, "--quant", quant, "--json")[1])
        if answer["output_bytes"] != answer["rows"] * row:
            complain("%s: %d bytes of %d rows" % (quant, answer["output_bytes"], answer["rows"]))


def check_roles():
    """With experts and tokens on different ranks: rows of those that bring tokens alone, and less of everything."""
    plain, apart = (json.loads(run(*GOOD, *more, "--json")[1]) for more in ([], ["--holders", "56:8", "--senders", "0:56"]))
    if apart["rows"] != 256 // 8 * 56 * 128 or (apart["holders"], apart["senders"]) != ("56:8", "0:56"):
        complain("roles: %s" % apart)
    if apart["heap_bytes"] >= plain["heap_bytes"] or apart["handle_bytes"] >= plain["handle_bytes"]:
        complain("roles take more: %s, %s" % (plain, apart))
    status, out, err = run(*GOOD, "--holders", "56:8")
    if status or "experts on ranks 56:8, tokens from ranks all" not in out:
        complain("roles: %s%s" % (out, err))


def check_refused():
    """Why not, and status 1."""
    for args, why in ((["--experts", "250"], "--experts is 250"), (["--topk", "40"], "--topk is 40"),
                      (["--hidden", "7164"], "--hidden: rows of 7164 bf16, 2 bytes each: they need a positive multiple of 16 bytes"), (["--ranks", "2048"], "--ranks: 2048 ranks: low latency mode takes 1 to 1024"),
                      (["--hidden", "7104", "--quant", "fp8"], "a multiple of 128 elements"),
                      (["--hidden", "7104", "--quant", "mxfp8"], "a multiple of 128 elements"),
                      (["--hidden", "7072", "--quant", "nvfp4"], "a multiple of 64 elements"),
                      (["--mode", "ht", "--recv-tokens", "5"], "--recv-tokens is 5: it is 0, or from --tokens 128"),
                      (["--holders", "60:8"], "--holders: the first rank is 60 and num_holders is 8: there are 64 ranks"),
                      (["--gpu-memory", "1"], "--gpu-memory in bytes is 1073741824: lower --tokens")):
        status, out, _ = run(*GOOD, *args)
        if status != 1 or "\n  not possible: " not in out or why not in out:
            complain("%s: status %d, %s" % (args, status, out))
        status, out, _ = run(*GOOD, *args, "--json")
        if status != 1 or json.loads(out)["possible"] or why not in json.loads(out)["reason"]:
            complain("%s --json: status %d, %s" % (args, status, out))
    if run(*GOOD, "--gpu-memory", "2")[0]:
        complain("2 GiB are enough")


def check_usage():
    for args, why in ((GOOD[:-2], "--memory needs --ranks"), (GOOD[1:], "sizes of a group need --memory"),
                      ([*GOOD, "--mode", "low"], "--mode: got 'low'"), ([*GOOD, "--layout", "x"], "--layout: got 'x'"),
                      ([*GOOD, "--ranks", "-1"], "--ranks: got '-1'"), ([*GOOD, "--ranks", "0"], "--ranks: got '0', allowed is a number from 1"),
                      ([*GOOD, "--experts", "0"], "--experts: got '0'"), ([*GOOD, "--topk", "0"], "--topk: got '0'"),
                      ([*GOOD, "--layout", "flat"], "--layout: got 'flat', allowed is em or rm"),
                      ([*GOOD, "--mode", "ht", "--layout", "rm"], "--layout: got 'rm'"),
                      ([*GOOD, "--mode", "ht", "--quant", "fp8"], "--quant: got 'fp8', allowed is none"),
                      ([*GOOD, "--quant", "fwd"], "--quant: got 'fwd', allowed is one of none fp8 mxfp8 nvfp4"),
                      ([*GOOD, "--recv-tokens", "200"], "--recv-tokens: got '--mode ll'"), ([*GOOD, "--ranks", "8x"], "--ranks: got '8x'"),
                      ([*GOOD, "--holders", "8"], "--holders: got '8', allowed is the first rank"), ([*GOOD, "--senders", "0:8x"], "--senders: got '0:8x'"),
                      ([*GOOD, "--holders", "4294967296:8"], "--holders: got '4294967296:8'"), ([*GOOD, "--senders", "-1:8"], "--senders: got '-1:8'"),
                      ([*GOOD, "--gpu-memory", "0"], "--gpu-memory: got '0'"), ([*GOOD, "--live"], "--live or --memory"),
                      ([*GOOD, "-v"], "print nothing else"), ([*GOOD, "--prometheus"], "--prometheus needs --live"),
                      (["--json"], "--json needs")):
        status, out, err = run(*args)
        if status != 2 or why not in err or out:
            complain("%s: status %d, %s%s" % (args, status, out, err))


check_sizes(ctypes.CDLL(VCLUSTER + "/libnccl_ep.so.0"))
check_file()
check_text()
check_formats()
check_roles()
check_refused()
check_usage()
sys.exit(problems != 0)
