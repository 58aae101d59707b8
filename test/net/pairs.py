#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL pairs GPUs with NICs of the network plugin as ep_topo does, on recorded machines.

  pairs.py EP_TOPO PROPS FILE...              FILE: NCCL's topology XML, or hwloc's
  pairs.py EP_TOPO PROPS recorded DIRECTORY   all of these (EP_TOPOLOGIES names another place)

A machine's PCI tree becomes a /sys, in which the plugin finds its devices' places; what it tells NCCL of
them (test/net/props.c) is put into the tree, and NCCL's rule says which NICs are local to each GPU and
which of these it takes. That is compared with what ep_topo says. The rule is written down here anew:

  local     the NICs with the widest path to the GPU, of these those with the nearest kind of path
  taken     local NIC number i + channel, i being the GPU's number, with its bits mirrored where the number
            of local NICs is a power of two; as many channels as NICs per GPU that has the same
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

# GB/s of 16 lanes, and between CPUs.
LANE = {"2.5": 15, "5": 30, "5.0": 30, "8": 60, "8.0": 60, "16": 120, "16.0": 120, "32": 240, "32.0": 240,
        "64.0": 480}
BETWEEN_CPUS = {"AuthenticAMD": 16.0}
PIX, PXB, PHB, SYS = range(4)
# GPUs that share local NICs with others, for which NCCL takes other ones of these than ep_topo.
OTHERS = {"hwloc-aws-p4d.24xl.xml": 4, "hwloc-aws-p5en.48xl.xml": 4, "flat-vm.xml": 2}


class Node:
    def __init__(self, elem, parent, cpu):
        self.elem, self.parent, self.cpu = elem, parent, cpu
        self.busid = elem.get("busid", "").lower()
        lanes = int(elem.get("link_width") or 0) or 16
        speed = LANE.get((elem.get("link_speed") or "").split(" ")[0], 60)
        self.bw = float(elem.get("bw") or lanes * speed / 80)
        self.nets = []

    def up(self):
        node, path = self, []
        while node:
            path.append(node)
            node = node.parent
        return path


def number(text):
    return int(text or "0", 0)


def is_gpu(elem):
    return elem.find("gpu") is not None or number(elem.get("class")) >> 16 == 0x03


def ports_of(elem, index):
    """(name, port, guid, Mbit/s) of what the plugin would find there."""
    nets = [n for nic in elem.findall("nic") for n in nic.findall("net")]
    if not nets and number(elem.get("class")) >> 16 == 0x02:
        return [(f"mlx5_{index}", 1, 0x1000 + index, 100000)]
    of = {}
    for net in nets:
        if net.get("guid") != "0x0" and "+" not in net.get("name") and not net.get("name").endswith("_dma"):
            of.setdefault(net.get("name"), []).append(net)
    # The first of a card's functions has its first ports.
    return [(name, i + 1, number(net.get("guid")) or 0x1000 + index, number(net.get("speed")) or 100000)
            for name, several in of.items() for i, net in enumerate(several)]


def nccl_tree(hwloc, topo):
    """hwloc's tree in NCCL's form: a <cpu> for each NUMA node, a <pci> for each switch, GPU and RDMA device."""
    places = {d["pci"].lower(): d for d in topo["gpus"] + topo["nics"] if d["pci"]}
    cpus = {}

    def pci(obj, class_id):
        gbs = float(obj.get("pci_link_speed") or 0)
        bw = {"bw": f"{round(gbs * 12 / 15.75, 2)}"} if gbs else {}
        return ET.Element("pci", {"busid": obj.get("pci_busid"), "class": class_id, **bw})

    def device(obj, place):
        elem = pci(obj, "0x030200" if "gpu" in place else "0x020000")
        guids = [int(i.get("value").replace(":", ""), 16) for i in obj.iter("info") if i.get("name") == "NodeGUID"]
        guid = {"guid": hex(guids[0])} if any(guids) else {}
        for port in place.get("ports", []):
            if port["state"] != "down":
                ET.SubElement(ET.SubElement(elem, "nic"), "net", name=place["device"],
                              speed=str(port["mbps"] or 0), **guid)
        return elem

    def below(parent, bridges=0):
        found = []
        for obj in parent.findall("object"):
            place = places.get((obj.get("pci_busid") or "").lower())
            inner = [] if place else below(obj, bridges + (obj.get("type") == "Bridge"))
            if place:
                found.append(device(obj, place))
            elif inner and obj.get("bridge_type", "").startswith("0"):
                numa = next(places[e.get("busid").lower()]["numa"] for top in inner for e in top.iter("pci")
                            if e.get("busid").lower() in places)
                cpus.setdefault(numa, ET.Element("cpu")).extend(inner)
            elif inner and obj.get("type") == "Bridge" and bridges % 2 == 0:
                found.append(pci(obj, "0x060400"))
                found[-1].extend(inner)
            else:
                found += inner
        return found

    below(hwloc)
    system = ET.Element("system")
    system.extend(cpus.values())
    return system


class Machine:
    def __init__(self, root):
        self.nodes, self.gpus, self.nets = [], [], []
        for cpu in root.findall("cpu"):
            for child in cpu.findall("pci"):
                self.walk(child, None, cpu)

    def walk(self, elem, parent, cpu):
        node = Node(elem, parent, cpu)
        self.nodes.append(node)
        if is_gpu(elem):
            self.gpus.append(node)
        for child in elem.findall("pci"):
            self.walk(child, node, cpu)

    def sysfs(self, top):
        """Directories and links as the kernel has them. The ports, as lines for props."""
        lines, os_links = [], os.path.join(top, "class")
        os.mkdir(os_links)
        for node in self.nodes:
            where = "/".join(n.busid for n in reversed(node.up()))
            os.makedirs(os.path.join(top, "devices/pci0000:00", where), exist_ok=True)
            for name, port, guid, mbps in ports_of(node.elem, len(lines)):
                link = os.path.join(os_links, name)
                if not os.path.exists(link):
                    os.mkdir(link)
                    os.symlink(os.path.join(top, "devices/pci0000:00", where), link + "/device")
                lines.append(f"{name} {port} {guid:x} {mbps}\n")
        return lines

    def put(self, props):
        """As NCCL does: the last part of the path is the PCI address."""
        at = {node.busid: node for node in self.nodes}
        seen = set()
        for line in props.splitlines():
            name, line = line.split(" ", 1)
            path, port, guid, mbps = line.rsplit(" ", 3)
            assert (guid, port) not in seen, f"{name}: NCCL would take it for another one's port {port}"
            seen.add((guid, port))
            node = at[path.rsplit("/", 1)[1]]
            node.nets.append((name, int(mbps) / 8000))
        self.nets = [(node, name, bw) for node in self.nodes for name, bw in node.nets]

    def path(self, gpu, net):
        """Width and kind."""
        nic, _, net_bw = net
        mine, its = gpu.up()[1:], nic.up()[1:]
        common = [n for n in mine if n in its]
        if common:
            switches = mine[:mine.index(common[0]) + 1] + its[:its.index(common[0])]
            kind = PIX if len(switches) == 1 else PXB
            crossed = [n for n in switches if n is not common[0]]
            between = []
        else:
            crossed = mine + its
            kind = PHB if gpu.cpu is nic.cpu else SYS
            between = [] if kind == PHB else [BETWEEN_CPUS.get(gpu.cpu.get("vendor"), 10.0)]
        return min([gpu.bw, nic.bw, net_bw] + [n.bw for n in crossed] + between), kind

    def nearest(self, paths):
        best = max(paths, key=lambda p: (p[0], -p[1]))
        return [i for i, p in enumerate(paths) if p == best]

    def choose(self, index):
        """Names of the local NICs of a GPU, and of those that it takes."""
        ordered = sorted(self.gpus, key=lambda g: g.busid)
        local = self.nearest([self.path(ordered[index], net) for net in self.nets])
        sharing = self.nearest([self.path(gpu, self.nets[local[0]]) for gpu in self.gpus])
        each = -(-len(local) // len(sharing))
        first = index
        if len(local) & (len(local) - 1) == 0:
            bits = len(local).bit_length() - 1
            first = sum(1 << (bits - 1 - b) for b in range(bits) if index >> b & 1)
        taken = [local[(first + c) % len(local)] for c in range(each)]
        return [{self.nets[i][1] for i in which} for which in (local, taken)]


def ask(*command, **kwargs):
    return subprocess.run(command, check=True, capture_output=True, text=True, **kwargs).stdout


def names_of(machine):
    """ep_topo's name of a port -> the plugin's: files without names have PCI addresses."""
    names = {node.busid: name for node in machine.nodes for name, _ in node.nets}
    labels = {name for _, name, _ in machine.nets}

    def name(rail):
        label = f"{rail['device']}:{rail['port']}"
        return label if label in labels else names.get(rail["device"].lower(), rail["device"])
    return name


def check(ep_topo, props, path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "HWLOC_"))}
    topo = json.loads(ask(ep_topo, "--json", path, env=env))
    root = ET.parse(path).getroot()
    machine = Machine(root if root.tag == "system" else nccl_tree(root, topo))
    with tempfile.TemporaryDirectory() as top:
        machine.put(ask(props, top + "/class", input="".join(machine.sysfs(top))))
    name = names_of(machine)
    same = wrong = 0
    for index, gpu in enumerate(topo["gpus"]):
        rails = {name(rail) for rail in gpu["nics"]}
        if not machine.nets:
            assert not rails, f"{path}: ep_topo has NICs for GPU {index}, NCCL has none"
            same += 1
            continue
        local, taken = machine.choose(index)
        print(f"{os.path.basename(path)} GPU {index}: ep_topo {sorted(rails)}, NCCL takes {sorted(taken)} of "
              f"{sorted(local)}")
        wrong += not rails <= local
        same += rails == taken
    return len(topo["gpus"]), same, wrong


def main():
    ep_topo, props, *files = sys.argv[1:]
    failed = 0
    if files[0] == "recorded":
        place = os.environ.get("EP_TOPOLOGIES", files[1])
        files = sorted(glob.glob(place + "/*.xml"))
        if not files:
            print(f"skipped: no recorded machines in {place} (EP_TOPOLOGIES names another place)")
            return 77
    for path in files:
        gpus, same, wrong = check(ep_topo, props, path)
        print(f"{path}: {gpus} GPUs, the same NICs for {same}, a NIC that is not local for {wrong}")
        failed += wrong > 0 or gpus - same != OTHERS.get(os.path.basename(path), 0)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
