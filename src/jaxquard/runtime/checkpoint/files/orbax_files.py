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
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxquard._install_hint import install_hint
from jaxquard.errors import CheckpointError


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


def read_arrays(folder: Path, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads some of the arrays, and no others. An array whose dtype orbax cannot store comes as bytes."""
    import orbax.checkpoint as ocp

    restore_args = {key: ocp.RestoreArgs(restore_type=np.ndarray) for key in keys}
    with _checkpointer(ocp) as checkpointer:
        args = ocp.args.PyTreeRestore(dict.fromkeys(restore_args, 0), restore_args=restore_args, partial_restore=True)
        return checkpointer.restore(folder, args=args)


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
