"""The cost of digests: the time of a save and of a restore with them, as a ratio to the same without.

The state has 8 arrays, 0.5 GB in all, written to the folder for temporary files (a disk here) and, where there is one,
to a file system in memory, which is as fast as a disk can be. A save is timed from `jq.save` to the end of `wait`.
"""

import contextlib
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

import jax
import numpy as np

import jaxquard as jq
from benchmarks.measure import measure, print_ratios
from jaxquard.runtime.checkpoint.files import read_pieces, write_pieces
from jaxquard.runtime.checkpoint.files.digests import checksums_of

NUM_ARRAYS, ARRAY_BYTES = 8, 64 << 20
NUM_ROUNDS = 7
AT_MOST = 1.10


class _NoChecksums:
    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays

    def result(self) -> dict[str, str]:
        return dict.fromkeys(self.arrays, "")


@contextlib.contextmanager
def _no_checksums(arrays: Mapping[str, np.ndarray]) -> Iterator[_NoChecksums]:
    yield _NoChecksums(arrays)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    random = np.random.default_rng(0)
    state = {str(number): random.integers(256, size=ARRAY_BYTES, dtype=np.uint8) for number in range(NUM_ARRAYS)}
    size_gb = NUM_ARRAYS * ARRAY_BYTES / 1e9
    _print_hashing(state, size_gb)
    for parent in (tempfile.gettempdir(), "/dev/shm"):
        if os.path.isdir(parent) and shutil.disk_usage(parent).free > 4 * NUM_ARRAYS * ARRAY_BYTES:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                _compare(folder, state, size_gb)


def _print_hashing(state: Mapping[str, np.ndarray], size_gb: float) -> None:
    times_s = {}
    for name, hash_all in {
        "one thread": lambda: [zlib.crc32(array) for array in state.values()],
        "as a save does": lambda: _hash(state),
    }.items():
        start_s = time.perf_counter()
        hash_all()
        times_s[name] = time.perf_counter() - start_s
    print(", ".join(f"{name} {size_gb / time_s:.2f} GB/s" for name, time_s in times_s.items()))


def _hash(state: Mapping[str, np.ndarray]) -> None:
    with checksums_of(state) as in_progress:
        in_progress.result()


def _compare(folder: str, state: Mapping[str, np.ndarray], size_gb: float) -> None:
    def without(run: Callable[[], None]) -> Callable[[], None]:
        def patched() -> None:
            with (
                mock.patch.object(write_pieces, "checksums_of", _no_checksums),
                mock.patch.object(read_pieces, "_check_digests", return_value=None),
            ):
                run()

        return patched

    def save(name: str) -> Callable[[], None]:
        return lambda: jq.save(f"{folder}/{name}", state).wait()

    def restore() -> None:
        jq.restore(f"{folder}/with", like=state)

    for kind, with_digests, bare in (
        ("save", save("with"), without(save("bare"))),
        ("restore", restore, without(restore)),
    ):
        found = measure({f"{kind} without digests": bare, f"{kind} with digests": with_digests}, num_rounds=NUM_ROUNDS)
        _print_processor_time(kind, bare, with_digests, size_gb)
        title = f"{size_gb:.2f} GB in {os.path.dirname(folder)}, {NUM_ROUNDS} rounds"
        limit = {f"{kind} with digests": AT_MOST} if kind == "save" else {}
        print_ratios(found, title=title, base=f"{kind} without digests", at_most=limit)


def _print_processor_time(
    kind: str, bare: Callable[[], None], with_digests: Callable[[], None], size_gb: float
) -> None:
    """Prints the processor time of one GB, which other programs on a busy machine hardly change."""
    found = []
    for run in (bare, with_digests):
        times_s = []
        for _ in range(3):
            start_s = time.process_time()
            run()
            times_s.append(time.process_time() - start_s)
        found.append(min(times_s) / size_gb)
    print(f"{kind}: {found[0]:.2f} s of processor time a GB without digests, {found[1]:.2f} s with")


if __name__ == "__main__":
    main()
