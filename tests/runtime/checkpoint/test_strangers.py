"""Manifests that a stranger wrote: whatever they say is refused in one line, and nothing outside the folder is read."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from jaxquard.errors import CheckpointError, DamagedCheckpointError
from jaxquard.ir.codec import DataError
from jaxquard.runtime.checkpoint.files import read_pieces
from jaxquard.runtime.checkpoint.files.leaf_records import read_leaves
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from tests.mutate_json import HOSTILE_TEXTS, mutations, result_or_one_line
from tests.runtime.checkpoint.damage import write_signed

ts = pytest.importorskip("tensorstore")
STATE = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(6.0).reshape(2, 3) + 10, "n": 3}
DIGEST = "0" * 32


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("strangers") / "a"
    save(path, STATE).wait()
    return path


def refused(path, like=STATE):
    with pytest.raises(CheckpointError) as caught:
        restore(path, like=like)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_with_changes(saved, data):
    """It is refused, or means the same."""
    manifest = saved / "jaxquard.json"
    original = manifest.read_text()
    content = data.draw(mutations(json.loads(original)))
    assume(content.get("schema") != 1)  # has no digests
    write_signed(manifest, content)
    try:
        found = result_or_one_line(lambda: restore(saved, like=STATE), CheckpointError)
    finally:
        manifest.write_text(original)
    assert found is None or all(np.array_equal(found[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("number", range(len(HOSTILE_TEXTS)))
def test_texts_that_are_no_manifest(saved, tmp_path, number):
    shutil.copytree(saved, tmp_path / "a")
    (tmp_path / "a" / "jaxquard.json").write_text(HOSTILE_TEXTS[number], errors="surrogatepass")
    assert refused(tmp_path / "a").startswith(f"jaxquard.json in {tmp_path / 'a'} is damaged: ")


@pytest.mark.parametrize("folder", ["..", "../b", "/etc", ".", "", "a/../..", "controller/", "a\x00b"])
def test_folders_stay_inside(saved, tmp_path, folder):
    for name in "ab":
        shutil.copytree(saved, tmp_path / name)
    manifest = tmp_path / "a" / "jaxquard.json"
    content = json.loads(manifest.read_text())
    content["leaves"][0]["pieces"][0]["folder"] = folder
    write_signed(manifest, content)
    assert f"has a piece with the folder {folder!r}, which jq.save does not write" in refused(tmp_path / "a")


def test_links_stay_inside(saved, tmp_path):
    for name in "ab":
        shutil.copytree(saved, tmp_path / name)
    shutil.rmtree(tmp_path / "a" / "controller")
    (tmp_path / "a" / "controller").symlink_to(tmp_path / "b" / "controller")
    assert "/a is damaged: controller is a link to a place outside of it." in refused(tmp_path / "a")
    inside = tmp_path / "b" / "controller" / "inside"
    inside.symlink_to(tmp_path / "b" / "controller" / "d")
    restore(tmp_path / "b", like=STATE)


def _array_files(path, key="p0"):
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path / 'controller'}/"}, "path": f"{key}/"}
    return ts.KvStore.open(database).result()


def test_a_chunk_that_needs_more_memory_than_its_array(saved, tmp_path):
    """A gigabyte of zeros is a megabyte on disk."""
    shutil.copytree(saved, tmp_path / "a")
    files = _array_files(tmp_path / "a")
    content = json.loads(files.read(".zarray").result().value)
    content |= {"chunks": [1 << 27, *content["chunks"][1:]], "compressor": {"id": "zlib", "level": 1}}
    files.write(".zarray", json.dumps(content)).result()
    assert "but its chunks are of shape (134217728, 3)" in refused(tmp_path / "a")


def leaf(*boxes, shape=(4, 4), **others):
    pieces = [
        {"folder": "controller", "key": f"p{number}", "starts": list(starts), "shape": list(sizes), "digest": DIGEST}
        for number, (starts, sizes) in enumerate(boxes)
    ]
    return {"path": "['a']", "dtype": "float32", "shape": list(shape), "pieces": pieces, **others}


UPPER, LOWER, LEFT = ((0, 0), (2, 4)), ((2, 0), (2, 4)), ((0, 0), (4, 2))


def test_pieces_are_verified_a_bounded_number_of_bytes_at_a_time(monkeypatch):
    monkeypatch.setattr(read_pieces, "_BATCH_BYTES", 1000)
    rows = [((row, 0), (1, 4)) for row in range(200)]
    (many,) = read_leaves([leaf(*rows, shape=(200, 4))], has_digests=True)
    batches = list(read_pieces._piece_batches([many]))
    assert [piece for batch in batches for _, piece in batch] == list(many.pieces)
    assert [len(batch) for batch in batches] == [62, 62, 62, 14]  # 16 bytes each


@pytest.mark.parametrize(
    "boxes",
    [
        [UPPER],
        [UPPER, UPPER],
        [UPPER, LOWER, UPPER],
        [UPPER, LEFT],
        [LEFT, ((2, 0), (4, 2))],
        [((0, 0), (4, 0)), UPPER],
    ],
)
def test_pieces_that_do_not_cover_each_element_once(boxes):
    with pytest.raises(DataError, match=r"exactly once|outside of it"):
        read_leaves([leaf(*boxes)], has_digests=True)


@given(st.data())
def test_covers_are_found_as_a_count_of_elements_finds_them(data):
    """The oracle counts how often each element is covered."""
    size = st.integers(1, 4)
    shape = data.draw(st.tuples(size, size, size))
    boxes = []
    for _ in range(data.draw(st.integers(1, 4))):
        starts = [data.draw(st.integers(0, dim - 1)) for dim in shape]
        boxes.append(
            (starts, [data.draw(st.integers(1, dim - start)) for dim, start in zip(shape, starts, strict=True)])
        )
    halves = data.draw(st.sampled_from([dim for dim in range(3) if shape[dim] > 1] or [None]))
    if data.draw(st.booleans()) and halves is not None:
        first = [1 if dim == halves else size for dim, size in enumerate(shape)]
        rest = [size - 1 if dim == halves else size for dim, size in enumerate(shape)]
        boxes = [([0, 0, 0], first), ([int(dim == halves) for dim in range(3)], rest)]
    counts = np.zeros(shape, int)
    for starts, sizes in boxes:
        counts[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))] += 1
    content = [leaf(*boxes, shape=shape)]
    if (counts == 1).all():
        read_leaves(content, has_digests=True)
    else:
        with pytest.raises(DataError, match="exactly once"):
            read_leaves(content, has_digests=True)


def test_a_grid_of_many_pieces_is_checked_fast():
    grid = [((row * 2, column), (2, 1)) for row in range(64) for column in range(64)]
    read_leaves([leaf(*grid, shape=(128, 64))], has_digests=True)


@pytest.mark.parametrize(
    "dtype", ["float33", "object", "U8", "S3", "datetime64[s]", "float128", "f4", "key<none>", "key<", "V8", "f4,f4"]
)
def test_dtypes_that_no_state_has(dtype):
    with pytest.raises(DataError, match="which does not exist here"):
        read_leaves([leaf(((0, 0), (4, 4)), dtype=dtype)], has_digests=True)


@pytest.mark.parametrize("shape", [(10**15, 10**15), (1,) * 65, (-1,), (2.5,), (True,), ("1",), 4, None])
def test_shapes_that_nothing_has(shape):
    content = leaf() | {"shape": list(shape) if isinstance(shape, tuple) else shape}
    with pytest.raises(DataError, match=r"larger than any disk|should be a list of sizes"):
        read_leaves([content], has_digests=True)


def test_names_that_come_twice():
    one = leaf(((0, 0), (4, 4)))
    with pytest.raises(DataError, match="it has \"\\['a'\\]\" twice"):
        read_leaves([one, one], has_digests=True)
    with pytest.raises(DataError, match="has the array controller/p0, as another piece does"):
        read_leaves([one, one | {"path": "['b']"}], has_digests=True)


def test_a_piece_without_digest_is_damage(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "a")
    content = json.loads((tmp_path / "a" / "jaxquard.json").read_text())
    del content["leaves"][0]["pieces"][0]["digest"]
    write_signed(tmp_path / "a" / "jaxquard.json", content)
    with pytest.raises(DamagedCheckpointError, match="lacks the key digest"):
        restore(tmp_path / "a", like=STATE)
