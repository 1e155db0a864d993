"""Virtual CPU devices that take a steady time: each computes on one thread of its own.

By default they share a pool of threads, in which the parts of one device's computation wait for those of others. On 16
cores, with 8 devices, the least of 12 runs of a small GPT's step then wandered between 16 and 29 ms from one dozen to
the next; on one thread each, between 13.2 and 14.1 ms. It is also nearer to real devices, which share no cores.
"""

import os

from jaxquard import _jax_compat

_FLAG = "--xla_cpu_multi_thread_eigen"


def compute_on_one_thread() -> None:
    """Asks XLA for it, unless the user has said otherwise in `XLA_FLAGS` or JAX has started already."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags and not _jax_compat.has_started():
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}=false".strip()
