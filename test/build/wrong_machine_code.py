#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small kernels with all that check_machine_code.py looks for, to see that it says so."""

import contextlib
import io
import sys

import check_machine_code as machine

# Each line: the instruction, the scoreboard that it sets ("s5") and those that it awaits ("w5,2").
# As recorded from the kernels, with less between the instructions that matter.
SYNC = "BRA.DIV UR4, 0xdf60"
WAIT = "ACQBULK"
LOAD = [SYNC, WAIT, "LDG.E.128.STRONG.SYS R24, desc[UR6][R24.64] | s5", "BSYNC B4"]
TEST = "ISETP.NE.AND P5, PT, R27, R3, PT | w5"
STORE = [SYNC, "STG.E.128.STRONG.SYS desc[UR6][R50.64], R24"]
LOOP = ["@!P0 BRA 0x0", "EXIT"]
GOOD = LOAD + LOAD + [TEST] + STORE + LOOP
EXPECT = machine.Expect(2, (2,), 0, 1)

CASES = {
    "good": (GOOD, EXPECT, 128, []),
    "no wait for the kernel before": (["NOP" if x == WAIT else x for x in GOOD], EXPECT, 128,
                                      ["kernel for sm_90 does not wait for the kernel before it"]),
    "a load ahead of that wait": (["LDG.E R2, desc[UR6][R2.64]"] + GOOD, EXPECT, 128,
                                  ["kernel for sm_90 does not wait for the kernel before it"]),
    "a test between loads": (LOAD + [TEST] + LOAD + [TEST] + STORE + LOOP, EXPECT, 128,
                             ["batches of [] and 2 alone, expected [2] and 0"]),
    "a wait by count": (LOAD + ["DEPBAR.LE SB5, 0x1"] + LOAD + [TEST] + STORE + LOOP, EXPECT, 128,
                        ["batches of [] and 2 alone"]),
    "the wait of another scoreboard": (LOAD + [TEST.replace("w5", "w2")] + LOAD + [TEST] + STORE +
                                       LOOP, EXPECT, 128, []),
    "a load in the divergent part": (LOAD + LOAD[2:] + [TEST] + STORE + LOOP, EXPECT, 128,
                                     ["1 loads of lines with all lanes converged, expected 2"]),
    "a store behind a branch": (LOAD + LOAD + [TEST, SYNC, "@P1 BRA 0x90"] + STORE[1:] + LOOP,
                                EXPECT, 128,
                                ["0 stores of lines with all lanes converged, expected 1"]),
    "a fence on the way": (LOAD + LOAD + [TEST, "MEMBAR.ALL.SYS"] + STORE + LOOP, EXPECT, 128,
                           ["a MEMBAR on every way from 00020, a line's LDG",
                            "a MEMBAR on every way from 00060, a line's LDG",
                            "a MEMBAR on every way from 000b0, a line's STG"]),
    "a fence out of the way": ([WAIT, "BRA 0x40", "MEMBAR.ALL.SYS", "EXIT"] + LOAD + LOAD +
                               [TEST, "@P3 BRA 0x20"] + STORE + LOOP, EXPECT, 128, []),
    "spills": (GOOD[:-1] + ["STL.64 [R1+0x8], R4", "STL [R1], R2", "EXIT"], EXPECT, 128,
               ["spills 12 bytes, 0 at most"]),
    "registers": (GOOD, EXPECT, 130, ["130 registers, 128 at most"]),
}


def dump(code):
    """What cuobjdump -sass prints of it."""
    text = ["\t\tFunction : kernel"]
    for index, line in enumerate(code):
        instruction, _, marks = line.partition(" | ")
        scoreboard, waits = machine.NONE, 0
        for mark in marks.split():
            numbers = [int(number) for number in mark[1:].split(",")]
            if mark[0] == "s":
                scoreboard = numbers[0]
            else:
                waits |= sum(1 << number for number in numbers)
        text.append("        /*%04x*/  %s ;  /* 0x0000000604187981 */" % (16 * index, instruction))
        text.append("        /* 0x%016x */" % ((waits << 11 | scoreboard << 5) << 41))
    return "\n".join(text)


FUNC = "FUNC LOCAL DEFAULT - $ep_ll_dispatch_kernel$_ZN3_1_17ep_step_multicastERK1"
ENTRY = "FUNC GLOBAL DEFAULT ep_ll_dispatch_kernel"
STORE_ALL = "\tmultimem.st.relaxed.sys.global.u64 [%rd1], %rd2;"
IN_FUNC = ".func  (.param .b32 func_retval0) _ZN3_1_17ep_step_multicastERK1("
IN_DONE = ".func _ZN3_1_17ep_ht_done_multicastERK1("
RELEASE = STORE_ALL.replace("relaxed", "release")
OTHERS = [IN_DONE, RELEASE]
MULTICAST = [
    (machine.check_multicast_symbols, ("90", FUNC + "\n" + ENTRY), []),
    (machine.check_multicast_symbols, ("80", ENTRY), []),
    (machine.check_multicast_symbols, ("80", FUNC + "\n" + ENTRY), ["for sm_80: a function"]),
    (machine.check_multicast_symbols, ("100", ENTRY), ["for sm_100: no function"]),
    (machine.check_multicast_ptx, ("\n".join([IN_FUNC, STORE_ALL] + OTHERS),), []),
    (machine.check_multicast_ptx, ("\n".join(OTHERS + [IN_FUNC, STORE_ALL, ".visible .entry ep_ll_x(",
                                              STORE_ALL]),), ["PTX of ep_ll_x has multicast stores"]),
    (machine.check_multicast_ptx, ("\n".join([IN_FUNC, STORE_ALL.replace(".st", ".red")] + OTHERS),),
     ["multimem.red"]),
    (machine.check_multicast_ptx, ("\n".join([IN_FUNC, STORE_ALL, IN_DONE, STORE_ALL]),), ["multimem.st.relaxed"]),
    (machine.check_multicast_ptx, ("\n".join([IN_FUNC] + OTHERS),),
     ["PTX has no multicast store in ep_step_multicast"]),
]


def wrong_multicast():
    failed = 0
    for check, arguments, wanted in MULTICAST:
        machine.problems.clear()
        with contextlib.redirect_stdout(io.StringIO()):
            check(*arguments)
        if len(machine.problems) != len(wanted) or not all(
                w in f for w, f in zip(wanted, machine.problems)):
            failed += 1
            print("%s%s: found %s" % (check.__name__, arguments, machine.problems))
    return failed


def main():
    failed = wrong_multicast()
    for name, (code, expect, registers, wanted) in CASES.items():
        machine.problems.clear()
        machine.KERNELS["kernel"] = expect
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            machine.check("90", dump(code), " Function kernel:\n  REG:%d STACK:0\n" % registers)
        found = machine.problems
        if len(found) != len(wanted) or not all(w in f for w, f in zip(wanted, found)):
            failed += 1
            print("%s: found %s, expected %s" % (name, found, wanted))
    return 1 if failed else 0


sys.exit(main())
