"""Damages checkpoints on disk."""

import json
from pathlib import Path

import numpy as np

from jaxquard.runtime.checkpoint.files.digests import content_digest


def write_signed(manifest: Path, content) -> None:
    """Writes a manifest with the digest of its new content, as a stranger may."""
    manifest.write_text(json.dumps(content | {"digest": content_digest(content)}))


def data_file(path: Path) -> Path:
    """The file that has the most bytes of arrays; arrays below 1 kB are in the tree that leads to the others."""
    large = [file for file in path.glob("*/ocdbt.process_0/d/*") if file.stat().st_size > 10_000]
    return max(large or path.glob("*/d/*"), key=lambda file: file.stat().st_size)


def flip_bit(path: Path, random: np.random.Generator) -> None:
    file = data_file(path)
    data = bytearray(file.read_bytes())
    data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
    file.write_bytes(data)


def write_zeros(path: Path, random: np.random.Generator) -> None:
    file = data_file(path)
    data = bytearray(file.read_bytes())
    start = int(random.integers(max(1, len(data) - 4096)))
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    file.write_bytes(data)


def truncate(path: Path, random: np.random.Generator) -> None:
    file = data_file(path)
    with file.open("r+b") as opened:
        opened.truncate(int(random.integers(file.stat().st_size)))


def remove_file(path: Path, random: np.random.Generator) -> None:
    data_file(path).unlink()


def swap_keys(path: Path, random: np.random.Generator) -> None:
    """Swaps two arrays of equal shape in the manifest, and signs it."""
    manifest = path / "jaxquard.json"
    content = json.loads(manifest.read_text())
    pieces = [
        (piece, (leaf["dtype"], piece["shape"], piece["folder"]))
        for leaf in content["leaves"]
        for piece in leaf["pieces"]
    ]
    pairs = [(one, other) for one, kind in pieces for other, same in pieces if kind == same and one is not other]
    one, other = pairs[int(random.integers(len(pairs)))]
    one["key"], other["key"] = other["key"], one["key"]
    write_signed(manifest, content)


def flip_manifest_bit(path: Path, random: np.random.Generator) -> None:
    """Flips a bit of the manifest in a place that means something: in a digest."""
    manifest = path / "jaxquard.json"
    data = bytearray(manifest.read_bytes())
    places = [data.index(b'"digest": "', start) + 11 for start in range(0, data.rindex(b'"digest": "'), 97)]
    data[places[int(random.integers(len(places)))] + int(random.integers(32))] ^= 1
    manifest.write_bytes(data)


DAMAGES = {
    "a flipped bit": flip_bit,
    "4 kB of zeros": write_zeros,
    "a file that is too short": truncate,
    "a file that is missing": remove_file,
    "swapped keys": swap_keys,
    "a flipped bit in the manifest": flip_manifest_bit,
}
