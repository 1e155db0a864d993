"""The leaves of a checkpoint and their pieces, and their reading from JSON that a stranger may have written.

`read_leaves` lets nothing pass that `save` would not write: the names of folders stay inside the checkpoint, dtypes
exist, sizes are bounded, and the pieces of a leaf cover each of its elements exactly once.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.ir.codec import DataError
from jaxquard.runtime.checkpoint.files.digests import Checksums, piece_digest
from jaxquard.runtime.checkpoint.files.regions import Region
from jaxquard.runtime.transfer import is_key

_MAX_DIMS = 64
_MAX_SIZE_BYTES = 1 << 60
_MAX_TEXT = 10_000
# Pieces that overlap in a dim without being equal there are compared in pairs.
_MAX_PAIRED = 1000
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_KEY = re.compile(r"p[0-9]{1,12}")
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """A dtype of NumPy, and the dims that data has beyond those of the leaf."""

    dtype: np.dtype
    tail: tuple[int, ...] = ()

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize


@functools.cache
def data_type_of(dtype: str) -> DataType:
    """Returns the type on disk for the name of a dtype."""
    if not is_key(dtype):
        return DataType(dtype=_jax_compat.dtype_named(dtype))
    make = functools.partial(jax.random.key, 0, impl=_jax_compat.key_implementation(dtype))
    data = jax.eval_shape(lambda: jax.random.key_data(make()))
    return DataType(dtype=np.dtype(data.dtype), tail=data.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One array on disk, which box of its leaf it is, and its digest; None in a checkpoint of schema 1."""

    folder: str
    key: str
    region: Region
    digest: str | None = None

    def shifted(self, rows: int) -> "Piece":
        return dataclasses.replace(self, region=self.region.shifted(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRecord:
    """One leaf of the state; `path` is its tree path, as `jax.tree_util.keystr` writes it."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def type_text(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of the data on disk: of random keys, with the dims of a key."""
        return (*self.shape, *data_type_of(self.dtype).tail)

    @property
    def size_bytes(self) -> int:
        return sum(piece.region.size for piece in self.pieces) * data_type_of(self.dtype).itemsize

    def digest_of(self, piece: Piece, checksum: str) -> str:
        """Returns the digest of a piece of this leaf whose bytes have this checksum."""
        return piece_digest(path=self.path, dtype=self.dtype, shape=self.shape, region=piece.region, checksum=checksum)

    def with_digests(self, checksums: Checksums) -> "LeafRecord":
        """Returns the leaf with the digests of its pieces."""
        pieces = [
            dataclasses.replace(piece, digest=self.digest_of(piece, checksums[piece.folder, piece.key]))
            for piece in self.pieces
        ]
        return dataclasses.replace(self, pieces=tuple(pieces))


def data_type(leaf: LeafRecord) -> DataType:
    """Returns the type in which a leaf is on disk: its own, or for random keys that of their data."""
    return data_type_of(leaf.dtype)


def read_leaves(content: Any, *, has_digests: bool) -> tuple[LeafRecord, ...]:
    """Reads the leaves of a manifest.

    Raises:
        DataError: if they are not what `save` writes.
    """
    if not isinstance(content, list):
        raise DataError(f"its leaves should be a list, found {content!r:.80}")
    leaves = [_read_leaf(entry, f"leaves[{number}]", has_digests) for number, entry in enumerate(content)]
    paths, arrays = set(), set()
    for leaf in leaves:
        if leaf.path in paths:
            raise DataError(f"it has {leaf.path!r:.80} twice")
        paths.add(leaf.path)
        for piece in leaf.pieces:
            if (piece.folder, piece.key) in arrays:
                raise DataError(f"{leaf.path!r:.80} has the array {piece.folder}/{piece.key}, as another piece does")
            arrays.add((piece.folder, piece.key))
    return tuple(leaves)


def _read_leaf(content: Any, where: str, has_digests: bool) -> LeafRecord:
    path = _text(content, "path", where)
    where = f"leaf {path!r:.80}"
    dtype = _text(content, "dtype", where)
    _check_dtype(dtype, where)
    pieces = _entry(content, "pieces", where)
    if not isinstance(pieces, list):
        raise DataError(f"{where}: pieces should be a list, found {pieces!r:.80}")
    leaf = LeafRecord(
        path=path,
        dtype=dtype,
        shape=_numbers(content, "shape", where),
        pieces=tuple(_read_piece(piece, where, has_digests) for piece in pieces),
    )
    if prod(leaf.data_shape) * data_type(leaf).itemsize > _MAX_SIZE_BYTES:
        raise DataError(f"{where} is of shape {leaf.shape!s:.80}, which is larger than any disk")
    _check_cover(leaf, where)
    return leaf


def _read_piece(content: Any, where: str, has_digests: bool) -> Piece:
    return Piece(
        folder=_name(content, "folder", where, _FOLDER),
        key=_name(content, "key", where, _KEY),
        region=Region(starts=_numbers(content, "starts", where), shape=_numbers(content, "shape", where)),
        digest=_name(content, "digest", where, _DIGEST) if has_digests else None,
    )


def _entry(content: Any, key: str, where: str) -> Any:
    if not isinstance(content, dict):
        raise DataError(f"{where} should have tables, found {content!r:.80}")
    if key not in content:
        raise DataError(f"{where} lacks the key {key}")
    return content[key]


def _text(content: Any, key: str, where: str) -> str:
    text = _entry(content, key, where)
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise DataError(f"{where}: {key} should be a text, found {text!r:.80}")
    return text


def _name(content: Any, key: str, where: str, pattern: re.Pattern[str]) -> str:
    name = _text(content, key, where)
    if not pattern.fullmatch(name):
        raise DataError(f"{where} has a piece with the {key} {name!r:.80}, which jq.save does not write")
    return name


def _numbers(content: Any, key: str, where: str) -> tuple[int, ...]:
    numbers = _entry(content, key, where)
    if not isinstance(numbers, list) or len(numbers) > _MAX_DIMS or not all(map(_is_size, numbers)):
        raise DataError(f"{where}: {key} should be a list of sizes, found {numbers!r:.80}")
    return tuple(numbers)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_SIZE_BYTES


def _check_dtype(dtype: str, where: str) -> None:
    try:
        found = data_type_of(dtype).dtype
    except (TypeError, ValueError, KeyError, SyntaxError):
        found = None
    # A name such as "object" or "U8" means something to NumPy, but no array of a state has it.
    if found is None or not is_savable_dtype(found) or (not is_key(dtype) and found.name != dtype):
        raise DataError(f"{where} has the dtype {dtype!r:.80}, which does not exist here")


def is_savable_dtype(dtype: Any) -> bool:
    """Returns True for numbers of a fixed size and booleans, also those of `ml_dtypes`."""
    if not isinstance(dtype, np.dtype) or dtype.char in "gG":
        return False
    return bool(jax.dtypes.issubdtype(dtype, np.number) or dtype == np.bool_)


def _check_cover(leaf: LeafRecord, where: str) -> None:
    """Checks that the pieces cover each element exactly once: inside, disjoint, and of the right size together."""
    shape = leaf.data_shape
    for piece in leaf.pieces:
        starts, sizes = piece.region.starts, piece.region.shape
        is_box = len(starts) == len(sizes) == len(shape)
        if not is_box or not all(
            size > 0 and start + size <= dim for start, size, dim in zip(starts, sizes, shape, strict=True)
        ):
            raise DataError(f"{where} has a piece outside of it: starts {starts!s:.80}, shape {sizes!s:.80}")
    if sum(piece.region.size for piece in leaf.pieces) != prod(shape) or not _are_disjoint(
        [piece.region for piece in leaf.pieces], dim=0
    ):
        raise DataError(f"the pieces of {where} do not cover each of its elements exactly once")


def _are_disjoint(regions: Sequence[Region], dim: int) -> bool:
    """Returns True if no two boxes overlap; goes from dim to dim, as the shards of an array are a grid."""
    if len(regions) <= 1:
        return True
    if dim == len(regions[0].shape):
        return False
    ordered = sorted(regions, key=lambda region: region.starts[dim])
    groups: list[list[Region]] = []
    end = -1
    for region in ordered:
        if region.starts[dim] >= end:
            groups.append([])
        groups[-1].append(region)
        end = max(end, region.starts[dim] + region.shape[dim])
    return all(_is_group_disjoint(group, dim) for group in groups)


def _is_group_disjoint(group: Sequence[Region], dim: int) -> bool:
    if all((region.starts[dim], region.shape[dim]) == (group[0].starts[dim], group[0].shape[dim]) for region in group):
        return _are_disjoint(group, dim + 1)
    if len(group) > _MAX_PAIRED:
        return False
    return not any(one.overlap(other) for number, one in enumerate(group) for other in group[:number])
