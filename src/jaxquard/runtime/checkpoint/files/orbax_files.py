"""Writes and reads NumPy arrays under names, as an orbax checkpoint. Only this file knows orbax.

Orbax is imported when it is first needed: it takes half a second, and `import jaxquard` does without. Its own protocol
for several processes is set up as if this process were alone, as each of ours writes a separate checkpoint: also those
that share a `jax.distributed`, where it would otherwise wait for the others at barriers. There, all but the first
write the values themselves, in the same format: orbax takes NumPy arrays for copies, which the first process has too.
Nothing is compressed: the state of a training is noise, which takes twice the time and gets a few per cent smaller.
"""

import contextlib
import importlib.util
import inspect
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxquard._install_hint import install_hint
from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.disk import one_line


def require_orbax() -> None:
    """Raises if orbax is not installed; does not import it."""
    if importlib.util.find_spec("orbax") is None or importlib.util.find_spec("orbax.checkpoint") is None:
        raise CheckpointError(
            f"checkpoints are written with orbax, which is not installed here. {install_hint('checkpoint')}"
        )


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Makes the folder, with the arrays in it."""
    import orbax.checkpoint as ocp

    stored = {key: _to_stored(array) for key, array in arrays.items()}
    with _checkpointer(ocp) as checkpointer, _without_noise():
        checkpointer.save(folder, args=ocp.args.PyTreeSave(stored))
    if not _is_first():
        _write_values(folder, stored)


class UnreadableArrayError(Exception):
    """An array cannot be read; `is_damaged` if its files are not those that were written."""

    def __init__(self, key: str, why: str, is_damaged: bool) -> None:
        super().__init__(key, why, is_damaged)
        self.key, self.why, self.is_damaged = key, why, is_damaged


def read_arrays(folder: Path, sizes_bytes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Reads some of the arrays, and no others. An array whose dtype orbax cannot store comes as bytes.

    TensorStore reads them without orbax, which would leave reads behind when one fails: those then log one traceback
    each, as the event loop that they report to is closed.

    Args:
        sizes_bytes: the keys of the arrays, and the size that each must have: a file that claims more is not read.

    Raises:
        UnreadableArrayError: once no array is being read any more.
    """
    stores = _open_all(folder, tuple(sizes_bytes))
    for key, store in stores.items():
        _check_sizes(key, store, sizes_bytes[key])
    return _results({key: store.read() for key, store in stores.items()})


def _check_sizes(key: str, store: Any, size_bytes: int) -> None:
    """Raises if an array, or a chunk of it, would take more memory than the array should."""
    found = prod(store.shape) * store.dtype.numpy_dtype.itemsize
    if found != size_bytes:
        raise UnreadableArrayError(key, f"it has {found} bytes, not {size_bytes}", True)
    chunk = store.chunk_layout.read_chunk.shape or store.shape  # None for a scalar.
    if any(part > max(1, dim) for part, dim in zip(chunk, store.shape, strict=True)):
        raise UnreadableArrayError(key, f"it is of shape {store.shape}, but its chunks are of shape {chunk}", True)


def _open_all(folder: Path, keys: Iterable[str]) -> dict[str, Any]:
    import tensorstore as ts

    # What leads to the arrays is read once, not once for each.
    context = ts.Context({"cache_pool#tree": {"total_bytes_limit": 100_000_000}})
    files = {"driver": "file", "path": f"{folder}/"}
    is_database = (folder / "manifest.ocdbt").exists()

    def store_of(key: str) -> dict[str, Any]:
        if is_database:
            return {"driver": "ocdbt", "base": files, "path": f"{key}/", "cache_pool": "cache_pool#tree"}
        return {"driver": "file", "path": f"{folder / key}/"}

    return _results(
        {
            key: ts.open({"driver": "zarr", "kvstore": store_of(key)}, context=context, open=True, read=True)
            for key in keys
        }
    )


def _results(futures: Mapping[str, Any]) -> dict[str, Any]:
    """Waits for all; only then raises the first error."""
    found: dict[str, Any] = {}
    errors: list[UnreadableArrayError] = []
    for key, future in futures.items():
        try:
            found[key] = future.result()
        except Exception as error:
            why = one_line(error)
            errors.append(UnreadableArrayError(key, why, not why.startswith(_NOT_DAMAGE)))
    if errors:
        raise errors[0]
    return found


# The codes of TensorStore for what does not lie in the files.
_NOT_DAMAGE = ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "ABORTED")


def _is_first() -> bool:
    return jax.process_index() == 0


def _checkpointer(ocp: Any) -> Any:
    index = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"jaxquard-{uuid.uuid4().hex}"
    )
    # Without a handler of JAX arrays, orbax warns.
    registry = ocp.type_handlers.create_type_handler_registry(
        (np.ndarray, _numpy_handler(ocp)),
        (jax.Array, ocp.type_handlers.ArrayHandler(primary_host=index)),
    )
    handler = ocp.PyTreeCheckpointHandler(
        use_ocdbt=_is_first(),
        use_zarr3=False,
        use_compression=False,
        multiprocessing_options=alone,
        type_handler_registry=registry,
    )
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _numpy_handler(ocp: Any) -> Any:
    """Makes the handler of NumPy arrays. They are copies already; after 0.12.4 orbax can be asked to copy no more."""
    handler = ocp.type_handlers.NumpyHandler
    knows = "deepcopy_host_arrays" in inspect.signature(handler).parameters
    return handler(deepcopy_host_arrays=False) if knows else handler()


def _write_values(folder: Path, stored: Mapping[str, np.ndarray]) -> None:
    """Puts the values where orbax looks for them: one zarr array for each key."""
    import tensorstore as ts

    writes = []
    for key, array in stored.items():
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": f"{folder / key}/"},
            "metadata": {"compressor": None},
        }
        opened = ts.open(spec, create=True, delete_existing=True, dtype=array.dtype, shape=array.shape)
        writes.append(opened.result().write(array))
    for write in writes:
        write.result()


_NOISE = ("_SignalingThread.run() raised", "Skipping merge of OCDBT checkpoints")


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Keeps orbax from logging the errors of its threads: it raises them as well."""

    def is_other(record: logging.LogRecord) -> bool:
        return not any(text in str(record.msg) for text in _NOISE)

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _to_stored(array: np.ndarray) -> np.ndarray:
    """Views the small dtypes of `ml_dtypes`, of which TensorStore knows some, as bytes."""
    is_known = array.dtype.isbuiltin == 1 or array.dtype.name == "bfloat16"
    return array if is_known else array.view(np.uint8)
