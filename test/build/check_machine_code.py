#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code of the kernels: what their speed and the safety of lines stand on, and no
test on the virtual cluster can see. And where multicast stores are, and that atomics stay in one GPU.

  check_machine_code.py LIBRARY NVCC DISASSEMBLER_DIR ARCH...

LIBRARY is libnccl_ep.so, or a cubin. Exit status 77 where there is nothing to check, or nothing to
check it with. A kernel not in KERNELS below is checked for registers, spills and its lack of lines.

How lines are told from the rest: a line is loaded, and stored, by one volatile instruction of 128
bits (LDG or STG.E.128.STRONG.SYS) right behind a __syncwarp(), which is a BRA.DIV or WARPSYNC
earlier in the same run of instructions without a branch, or a NOP where the warp cannot have
diverged. Packets look the same without it.
"""

import re
import subprocess
import sys

ARCHS = ("80", "90", "100")  # for which numbers of registers and spills below hold
LINES_ARCH = "90"  # and those of lines: how barriers look differs between architectures
RELEASE = "13.0"  # of the compiler that makes these numbers; OTHERWISE has those of another
REGISTERS = 128   # for 512 threads on an SM's 65536


class Expect:
    """What a kernel has; without arguments, one that moves no lines."""

    def __init__(self, loads=0, batches=(), alone=0, stores=0, spilled=0, registers=REGISTERS):
        self.loads = loads      # of lines
        self.batches = batches  # loads that are issued together, in the order of addresses
        self.alone = alone      # at most: loads of lines that wait for the one before
        self.stores = stores    # of lines
        self.spilled = spilled  # at most: bytes that go to the stack
        self.registers = registers  # at most


# Combine adds 8 rows at once: a look at their lines, and one at all that are missing. Where rows of
# remote ranks may be among them, the first look waits for each row in turn. Rows return by four lines, of
# a token's rows or of one from a list.
COMBINE = Expect(16, (8, 8), 0, 8)
COMBINE_REMOTE = Expect(16, (8,), 8, 8)
# Rows that are quantised are added one by one: the first one, the next one while one is added, and one
# that has not arrived. A tile has two lines, or one.
COMBINE_FP8 = Expect(3, (), 3, 2)
COMBINE_NVFP4 = Expect(3, (), 3, 1)
# Dispatch looks at 4 lines (of quantised rows: 2) together with their header, and again at these. It
# would also look at the next ones of a part one by one, but no plan makes parts of more.
DISPATCH = Expect(12, (5, 4), 4, 4)
DISPATCH_FP8 = Expect(6, (3, 2), 2, 2)
DISPATCH_NVFP4 = Expect(6, (3, 2), 2, 1)
KERNELS = {
    "ep_clean_kernel": Expect(),
    "ep_drain_kernel": Expect(),
    "ep_expert_rows_kernel": Expect(),
    "ep_lost_kernel": Expect(),
    "ep_update_kernel": Expect(),
    # sums of 7 x 8 numbers, in blocks of at most 384 threads
    "ep_ht_combine_bf16_kernel": Expect(registers=168),
    "ep_ht_combine_fp16_kernel": Expect(registers=168),
    "ep_ht_combine_fp32_kernel": Expect(registers=168),
    # and of rows that travel as lines: a look at a piece and one at it again, in combine also one ahead
    "ep_ht_dispatch_lines_kernel": Expect(8, (4, 4), 0, 4),
    "ep_ht_combine_bf16_lines_kernel": Expect(12, (4, 4, 4), 0, 4, registers=168),
    "ep_ht_combine_fp16_lines_kernel": Expect(12, (4, 4, 4), 0, 4, registers=168),
    "ep_ht_combine_fp32_lines_kernel": Expect(12, (4, 4, 4), 0, 4, registers=168),
    # the same in blocks of 512: words go to the stack on sm_80, on sm_90 two of MXFP8
    "ep_ht_combine_bf16_experts_kernel": Expect(spilled=216),
    "ep_ht_combine_fp16_experts_kernel": Expect(spilled=216),
    "ep_ht_combine_fp32_experts_kernel": Expect(spilled=4), # a word on sm_100
    "ep_ht_combine_mxfp8_kernel": Expect(spilled=168),
    # ten words on sm_100: five once a kernel, five for a path that is taken when a wait takes long
    "ep_ht_combine_bf16_nodes_kernel": Expect(registers=168, spilled=40),
    "ep_ht_combine_fp16_nodes_kernel": Expect(registers=168, spilled=40),
    "ep_ht_combine_fp32_nodes_kernel": Expect(registers=168),
    # two packets are loaded together, by who keeps lists and by who counts what is cut off
    "ep_ht_route_kernel": Expect(batches=(2, 2)),
    "ep_ht_route_nodes_kernel": Expect(spilled=240),
    "ep_ll_combine_bf16_kernel": COMBINE,
    "ep_ll_combine_fp16_kernel": COMBINE,
    "ep_ll_combine_fp32_kernel": COMBINE,
    "ep_ll_combine_bf16_remote_kernel": COMBINE_REMOTE,
    "ep_ll_combine_fp16_remote_kernel": COMBINE_REMOTE,
    "ep_ll_combine_fp32_remote_kernel": COMBINE_REMOTE,
    "ep_ll_combine_fp8_kernel": COMBINE_FP8,
    "ep_ll_combine_fp8_remote_kernel": COMBINE_FP8,
    # nine words around the call of a path that is taken when a wait takes long
    "ep_ll_combine_nvfp4_kernel": Expect(3, (), 3, 1, spilled=36),
    "ep_ll_combine_nvfp4_remote_kernel": COMBINE_NVFP4,
    "ep_ll_dispatch_kernel": DISPATCH,
    "ep_ll_dispatch_fp8_kernel": DISPATCH_FP8,
    "ep_ll_dispatch_mxfp8_kernel": DISPATCH_FP8,
    "ep_ll_dispatch_nvfp4_kernel": DISPATCH_NVFP4,
    # five words on sm_90, and four: outside of loops, since a wait that takes long posts to NICs
    "ep_ll_dispatch_remote_kernel": Expect(12, (5, 4), 4, 4, spilled=20),
    "ep_ll_dispatch_fp8_remote_kernel": DISPATCH_FP8,
    "ep_ll_dispatch_mxfp8_remote_kernel": DISPATCH_FP8,
    "ep_ll_dispatch_nvfp4_remote_kernel": Expect(6, (3, 2), 2, 1, spilled=16),
}

# What differs by the compiler's release.
OTHERWISE = {
    "12.4": {
        "ep_ll_dispatch_fp8_kernel": Expect(6, (2, 2), 2, 2),
        "ep_ll_dispatch_remote_kernel": Expect(12, (5, 4), 4, 4, spilled=64),
    },
}

NONE = 7  # the number of no scoreboard
problems = []


def complain(text):
    problems.append(text)
    print("wrong:", text)


class Instruction:
    """One instruction, with the part of its control word that says what it waits for."""

    def __init__(self, address, text, control):
        self.address = address
        self.guarded = text.startswith("@")
        self.text = re.sub(r"^@!?U?P\w+ +", "", text)
        self.name = self.text.split()[0]
        self.scoreboard = control >> 5 & 7   # that what it loads will clear
        self.waits = control >> 11 & 63      # for these, before it is issued

    def is_wait_for(self, other):
        if other.scoreboard == NONE:
            return False
        return bool(self.waits >> other.scoreboard & 1) or (
            self.name.startswith("DEPBAR") and "SB%d," % other.scoreboard in self.text)

    def is_volatile(self, kind):
        return self.name == kind + ".E.128.STRONG.SYS"

    def is_atomic_of_peers(self):
        """PCIe has no atomics between GPUs, and host memory none between a GPU and others."""
        return self.name.split(".")[0] in ("ATOM", "ATOMG", "RED", "REDG") and "SYS" in self.name

    def is_branch(self):
        return self.name.split(".")[0] in ("BRA", "BRX", "JMP", "JMX", "EXIT", "RET", "CALL",
                                           "BSYNC", "BREAK") and self.name != "BRA.DIV"

    def spills(self):
        """Bytes of a store to the thread's stack."""
        if not self.name.startswith("STL"):
            return 0
        return {"64": 8, "128": 16, "U8": 1, "U16": 2}.get(self.name.split(".")[-1], 4)


class Kernel:
    """The instructions of a kernel in the order of their addresses."""

    def __init__(self, name):
        self.name = name
        self.code = []

    def converged(self, at):
        """Is there a __syncwarp() behind the last branch before it?"""
        for before in reversed(self.code[:at]):
            if before.name in ("BRA.DIV", "NOP") or before.name.startswith("WARPSYNC"):
                return True
            if before.is_branch() or before.name.startswith(("SHFL", "VOTE", "MATCH", "REDUX")):
                return False
        return False

    def reached(self):
        """Instructions that run when no warp diverges. Others are copies for warps that have, which
        the compiler brings together before each line."""
        index = {x.address: i for i, x in enumerate(self.code)}
        seen, ahead = set(), [0]
        while ahead:
            i = ahead.pop()
            if i is not None and i < len(self.code) and i not in seen:
                seen.add(i)
                ahead += self.next_of(i, index)
        return seen

    def lines(self, kind):
        """Where lines are loaded (LDG) or stored (STG)."""
        reached = self.reached()
        return [i for i, x in enumerate(self.code)
                if x.is_volatile(kind) and i in reached and self.converged(i)]

    def wait_between(self, first, last):
        """The instruction that awaits the load `first` before the one at `last` is issued."""
        return next((x for x in self.code[first + 1:last + 1] if x.is_wait_for(self.code[first])),
                    None)

    def runs(self):
        """Volatile loads that nothing waits for before the next one is issued, and the wait that
        ended each run."""
        runs, ends = [], []
        for i in (i for i, x in enumerate(self.code) if x.is_volatile("LDG")):
            wait = next(filter(None, (self.wait_between(j, i) for j in (runs[-1] if runs else []))),
                        None)
            if runs and not wait:
                runs[-1].append(i)
            else:
                ends += [wait] if runs else []
                runs.append([i])
        return list(zip(runs, ends + [None]))

    def next_of(self, at, index):
        """Indices of what may run after the instruction at `at`; divergence is left out."""
        x = self.code[at]
        if x.name in ("BRA", "BRA.U"):
            target = index.get(int(re.findall(r"0x([0-9a-f]+)", x.text)[-1], 16))
            return [target, at + 1] if x.guarded or "," in x.text else [target]
        if x.name in ("EXIT", "BRX", "JMX") or x.name.startswith("RET"):
            return [at + 1] if x.guarded else []
        return [at + 1]

    def comes_again(self, at):
        """Is there a way from the instruction back to it without a MEMBAR?"""
        index = {x.address: i for i, x in enumerate(self.code)}
        seen, ahead = set(), self.next_of(at, index)
        while ahead:
            i = ahead.pop()
            if i is None or i in seen or i >= len(self.code):
                continue
            seen.add(i)
            if not self.code[i].name.startswith("MEMBAR"):
                ahead += self.next_of(i, index)
        return at in seen


def parse(text):
    """Kernels of what cuobjdump -sass prints: two lines for each instruction."""
    kernels, pending = [], None
    for line in text.splitlines():
        function = re.search(r"Function : (\S+)", line)
        first = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/", line)
        second = re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)
        if function:
            kernels.append(Kernel(function[1]))
        elif first:
            pending = int(first[1], 16), first[2]
        elif second and pending:
            kernels[-1].code.append(Instruction(*pending, int(second[1], 16) >> 41))
            pending = None
    return kernels


def check_loads(kernel, expect):
    lines = set(kernel.lines("LDG"))
    runs = kernel.runs()
    batches = tuple(len(run) for run, _ in runs if len(run) > 1)
    alone = [(run[0], wait) for run, wait in runs if len(run) == 1 and run[0] in lines]
    if batches != expect.batches or len(alone) > expect.alone:
        complain("%s: loads of lines go out in batches of %s and %d alone, expected %s and %d" % (
            kernel.name, list(batches), len(alone), list(expect.batches), expect.alone))
        for load, wait in alone:
            if wait:
                print("   %05x %s: awaited at %05x by %s" % (
                    kernel.code[load].address, kernel.code[load].text, wait.address, wait.text))
    return batches, len(alone)


def check_lines(kernel, expect):
    batches, alone = check_loads(kernel, expect)
    loads, stores = kernel.lines("LDG"), kernel.lines("STG")
    for kind, found, number in ("loads", loads, expect.loads), ("stores", stores, expect.stores):
        if len(found) != number:
            complain("%s: %d %s of lines with all lanes converged, expected %d" % (
                kernel.name, len(found), kind, number))
    for at in loads + stores:
        if not kernel.comes_again(at):
            complain("%s: a MEMBAR on every way from %05x, a line's %s, to the next" % (
                kernel.name, kernel.code[at].address, kernel.code[at].name[:3]))
    print("    lines: loads %s, %d alone, %d stores" % (list(batches), alone, len(stores)))


def check_start(arch, kernel):
    """A kernel may be on its SMs before the one before it has ended. It waits for that (ACQBULK) ahead of
    all that it does with memory."""
    memory = ("LDG", "STG", "LD.", "ST.", "ATOM", "RED.", "UBLK", "CCTL", "MEMBAR")
    first = next((i for i, x in enumerate(kernel.code) if x.name.startswith(memory)), None)
    wait = next((i for i, x in enumerate(kernel.code) if x.name == "ACQBULK"), None)
    if int(arch) >= 90 and (wait is None or (first is not None and first < wait)):
        complain("%s for sm_%s does not wait for the kernel before it" % (kernel.name, arch))


def check_kernel(arch, kernel, expect, registers):
    check_start(arch, kernel)
    spilled = sum(x.spills() for x in kernel.code)
    if spilled > expect.spilled:
        complain("%s: spills %d bytes, %d at most" % (kernel.name, spilled, expect.spilled))
    if registers > expect.registers:
        complain("%s: %d registers, %d at most" % (kernel.name, registers, expect.registers))
    for x in kernel.code:
        if x.is_atomic_of_peers():
            complain("%s: %s at %05x, peers without NVLink have no atomics" % (
                kernel.name, x.name, x.address))
    print("%-33s %5d instructions, %3d registers, %3d bytes spilled" % (
        kernel.name, len(kernel.code), registers, spilled))
    if arch == LINES_ARCH:
        check_lines(kernel, expect)


MULTICAST = "ep_step_multicast"  # the one function of low latency's kernels with multicast stores
# All functions with multicast stores, and which those are.
STORES = {
    MULTICAST: "relaxed",
    "ep_ht_done_multicast": "release",
    "ep_clean_kernel": "relaxed",
}


def check_multicast_symbols(arch, symbols):
    """Multicast is in kernels of low latency for sm_90 and later alone, and in a function of its own,
    which they call where there is a multicast address: what runs without one does not pass it."""
    kernels = [name for name in KERNELS if name.startswith("ep_ll") and name in symbols]
    for name in kernels:
        there = re.search(r"\$%s\$\S*%s" % (name, MULTICAST), symbols) is not None
        if there != (int(arch) >= 90):
            complain("%s for sm_%s: %s function %s" % (
                name, arch, "a" if there else "no", MULTICAST))
    return len(kernels)


def check_multicast_ptx(ptx):
    """The machine code of a multicast store is that of any store: only PTX tells them apart."""
    where, found = "", set()
    for line in ptx.splitlines():
        function = re.search(r"\.(?:entry|func)\b[^;]*?(\w+)\($", line)
        if function:
            where = function[1]
        elif "multimem." in line:
            names = [name for name in STORES if name in where]
            found.update(names)
            if not names:
                complain("PTX of %s has multicast stores" % where)
            elif "multimem.st.%s.sys.global.u64" % STORES[names[0]] not in line:
                complain("PTX of %s: %s" % (where, line.strip()))
    for name in STORES:
        if name not in found and name != "ep_clean_kernel":
            complain("PTX has no multicast store in " + name)


def check(arch, sass, usage):
    registers = dict(re.findall(r"Function (\S+):\s*REG:(\d+)", usage))
    kernels = parse(sass)
    if not kernels:
        complain("no machine code for sm_%s" % arch)
    print("sm_" + arch)
    for kernel in kernels:
        check_kernel(arch, kernel, KERNELS.get(kernel.name, Expect()),
                     int(registers.get(kernel.name, 0)) or 256)


def skipped(why):
    print("skipped:", why)
    return 77


def output(*command, path=""):
    # cuobjdump looks for nvdisasm on the path
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env={"PATH": path}).stdout


def main():
    library, nvcc, tools, archs = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    if library == "none":
        return skipped("this build has no GPU library (no nvcc, or -Dcuda=disabled)")
    known = [arch for arch in ARCHS if arch in archs]
    if not known:
        return skipped("this build has no code for any of sm_" + ", sm_".join(ARCHS))
    if tools == "none":
        return skipped("no nvdisasm and cuobjdump: run tools/setup.sh, then meson setup --reconfigure")
    release = re.search(r"release ([\d.]+),", output(nvcc, "--version"))[1]
    if release not in (RELEASE, *OTHERWISE):
        return skipped("the compiler is of release %s, what is expected holds for %s" % (
            release, ", ".join((RELEASE, *OTHERWISE))))
    KERNELS.update(OTHERWISE.get(release, {}))
    for arch in archs:
        check_multicast_symbols(arch, output(tools + "/cuobjdump", "-arch", "sm_" + arch, "-symbols",
                                             library, path=tools))
    if int(archs[-1]) >= 90:
        check_multicast_ptx(output(tools + "/cuobjdump", "-ptx", library, path=tools))
    for arch in known:
        dump = [tools + "/cuobjdump", "-arch", "sm_" + arch]
        check(arch, output(*dump, "-sass", library, path=tools),
              output(*dump, "-res-usage", library, path=tools))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
