# SPDX-License-Identifier: Apache-2.0
"""What ncclEpExtDeviceMemory answers, for tests that compare it."""
import ctypes

MAGIC = 0xC00FFFEE


class Config(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("size", "magic", "version", "algorithm", "experts", "tokens", "recv", "bytes")] + [
        ("rdma", ctypes.c_ulong), ("queues", ctypes.c_uint), ("channels", ctypes.c_uint), ("sms", ctypes.c_uint),
        ("alloc", ctypes.c_void_p * 3), ("mask", ctypes.c_uint), ("timeout", ctypes.c_uint64)] + [
        (n, ctypes.c_uint) for n in ("zero_copy", "overflow", "num_topk", "padding")]


class Roles(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("size", "magic", "first_holder", "holders", "first_sender", "senders")]


class Memory(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("magic", ctypes.c_uint)] + [
        (n, ctypes.c_uint64) for n in ("group", "heap", "handle")] + [
        ("remote", ctypes.c_uint), ("node", ctypes.c_uint), ("roles", ctypes.POINTER(Roles))]


def ask(library, algorithm, layout, experts, hidden, tokens, topk, ranks, node, remote, recv=0, roles=None):
    """Bytes of a group, its heap and a handle; None: it is not possible. Roles: first holder, holders, first sender, senders."""
    config = Config(ctypes.sizeof(Config), MAGIC, 2, algorithm, experts, tokens, recv, 2 * hidden, num_topk=topk)
    memory = Memory(ctypes.sizeof(Memory), MAGIC, remote=remote, node=node)
    if roles:
        memory.roles = ctypes.pointer(Roles(ctypes.sizeof(Roles), MAGIC, *roles))
    if library.ncclEpExtDeviceMemory(ctypes.byref(config), ranks, layout, topk, ctypes.byref(memory)):
        return None
    return [memory.group, memory.heap, memory.handle]
