#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep_topo --nccl-xml writes what ep_topo reads back as the same machine.

  nccl_xml.py EP_TOPO FILE...                FILE: NCCL's topology XML, or hwloc's
  nccl_xml.py EP_TOPO recorded DIRECTORY     all of these (EP_TOPOLOGIES names another place)

What cannot be written: which of a node's host bridges a device is behind, and GPUs and NICs whose node
is unknown are beside each other.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

# GPUs and NICs are paired by host bridges of one node.
BRIDGES = {"hwloc-aws-p4d.24xl.xml"}
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "HWLOC_"))}


def ask(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENV).stdout


def gpus_of(topo, path):
    gpus = []
    for gpu in topo["gpus"]:
        keep = {k: gpu[k] for k in ("pci", "mig", "sm", "numa", "host", "nvlink_domain", "nics")}
        if gpu["nvlinks"] is not None:
            keep["nvlinks"], keep["nvswitch"] = gpu["nvlinks"], gpu["nvswitch"]
        if gpu["numa"] is not None:
            keep["dist"] = "PHB" if gpu["dist"] == "NODE" else gpu["dist"]
        if os.path.basename(path) in BRIDGES:
            keep.pop("nics")
        if gpu["mig"] is not None:
            for key in ("nvlinks", "nvswitch", "nvlink_domain"):
                keep.pop(key, None)
        gpus.append(keep)
    return gpus


def main():
    ep_topo, *files = sys.argv[1:]
    failed = 0
    if files[0] == "recorded":
        place = os.environ.get("EP_TOPOLOGIES", files[1])
        files = sorted(glob.glob(place + "/*.xml"))
        if not files:
            print(f"skipped: no recorded machines in {place} (EP_TOPOLOGIES names another place)")
            return 77
    for path in files:
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as copy:
            copy.write(ask(ep_topo, "--nccl-xml", path))
            copy.flush()
            want = gpus_of(json.loads(ask(ep_topo, "--json", path)), path)
            got = gpus_of(json.loads(ask(ep_topo, "--json", copy.name)), path)
        for a, b in zip(want, got):
            if a != b:
                print(f"{path}: {a}\n  written and read: {b}")
        failed += want != got
        print(f"{path}: {len(want)} GPUs, {len(got)} written and read")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
