"""Virtual CPU devices that take a steady time, and are nearer to real ones.

Each computes on one thread of its own. By default they share a pool of threads, in which the parts of one device's
computation wait for those of others. On 16 cores, with 8 devices, the minimum of 12 runs of a small GPT's step then
wandered between 16 and 29 ms from one dozen to the next; on one thread each, between 13.2 and 14.1 ms.

The process keeps its memory, as the allocator of a real device does. By default glibc gives large buffers back to the
system when a run ends, and takes them again, page by page, in the next. Data parallelism on a GPT 512 wide then has
107 000 page faults in a run and takes 540 ms on 2 cores, and 415 ms without them; and which plans have any depends on
what the process did before. Buffers of more than 64 MiB, the most that glibc keeps for a thread, are still given back.
"""

import ctypes
import os
from pathlib import Path

from jaxquard import _jax_compat

_FLAG = "--xla_cpu_multi_thread_eigen"
# Of glibc's <malloc.h>: give nothing back from the end of the heap; map nothing apart; and keep the further heaps of
# threads, of 64 MiB, which are given back whole unless more than a heap shall stay free.
_KEEP = {"M_TRIM_THRESHOLD": (-1, -1), "M_MMAP_MAX": (-4, 0), "M_TOP_PAD": (-2, 128 * 2**20)}

_is_memory_kept = False


def make_cpu_steady() -> bool:
    """Makes virtual CPU devices take a steady time: each computes on one thread, and the process keeps its memory.

    For a process that is there for measuring, as the commands are. The user's own `XLA_FLAGS` go before.

    Returns:
        Whether it came in time: nothing is changed when JAX has started.

    Example:
        >>> num_devices = len(jax.devices())  # JAX starts
        >>> jq.pricing.make_cpu_steady()  # too late
        False
    """
    is_early = not _jax_compat.has_started()
    if is_early:
        compute_on_one_thread()
        keep_memory()
    return is_early


def compute_on_one_thread() -> None:
    """Asks XLA for it, unless the user has said otherwise in `XLA_FLAGS` or JAX has started already."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags and not _jax_compat.has_started():
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}=false".strip()


def keep_memory() -> None:
    """Asks glibc for it, if that is what allocates here."""
    global _is_memory_kept
    try:
        ask = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    answers = [ask(name, value) for name, value in _KEEP.values()]
    _is_memory_kept = answers == [1] * len(_KEEP)


def is_memory_kept() -> bool:
    """Returns whether the process keeps freed memory, which changes prices on the CPU."""
    return _is_memory_kept


def retained_heap_bytes() -> int:
    """Returns the bytes that the process keeps and does not use; 0 if it keeps none, or if they cannot be read."""
    if not _is_memory_kept:
        return 0
    try:
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = _MallocInfo
        found = ask()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    # Of what is free, some was never touched and is no memory yet.
    return max(0, min(found.fordblks, resident - found.uordblks))


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )
