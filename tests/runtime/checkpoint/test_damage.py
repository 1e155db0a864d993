"""Checkpoints whose bytes have changed on disk: every damage is found, before a wrong number is returned."""

import json
import shutil
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import CheckpointError, CheckpointWarning, DamagedCheckpointError
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from jaxquard.runtime.checkpoint.verify import verify
from tests.runtime.checkpoint.damage import DAMAGES, flip_bit

RANDOM = np.random.default_rng(0)
STATE = {name: RANDOM.normal(size=(64, 128)) for name in "abcd"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "a"
    save(path, STATE).wait()
    return path


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found(whole, tmp_path, kind):
    """25 places for each kind."""
    for seed in range(25):
        path = tmp_path / f"a{seed}"
        shutil.copytree(whole, path)
        DAMAGES[kind](path, np.random.default_rng(seed))
        with pytest.raises(DamagedCheckpointError) as caught:
            restore(path, like=STATE)
        assert "\n" not in str(caught.value)
        with pytest.raises(DamagedCheckpointError):
            verify(path)


def test_a_whole_one_is_verified(whole, tmp_path):
    seen = []
    report = verify(whole, progress=lambda *args: seen.append(args))
    assert (report.path, len(report.leaves), report.num_pieces) == (whole, 4, 4)
    assert report.size_bytes == sum(array.nbytes for array in STATE.values())
    assert seen == [(report.size_bytes, report.size_bytes, "['d']")]
    assert report.digest == json.loads((whole / "jaxquard.json").read_text())["digest"]
    assert repr(report).startswith(f"CheckpointReport('{whole}', 4 leaves, 4 pieces, 262144 bytes, digest=")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        verify(tmp_path / "a")


def test_what_is_said(whole, tmp_path):
    path = tmp_path / "a"
    shutil.copytree(whole, path)
    DAMAGES["swapped keys"](path, np.random.default_rng(0))
    with pytest.raises(DamagedCheckpointError, match=r"/a is damaged: the bytes of \['.'\] \(controller/p.\) are n"):
        restore(path, like=STATE)


def test_only_pieces_that_are_read_are_checked(tmp_path):
    with jq.RemoteMesh((1,)) as mesh:
        save(tmp_path / "a", {"x": np.arange(4.0), "y": np.ones(10_000, np.float32)}).wait()
        flip_bit(tmp_path / "a", np.random.default_rng(0))
        like = {"x": np.zeros(4), "y": mesh.init(lambda: jnp.zeros(10_000))}
        found = restore(tmp_path / "a", like=like)
        assert found["x"].tolist() == [0, 1, 2, 3]
        with pytest.raises(DamagedCheckpointError, match=r"\['y'\]"):
            np.asarray(found["y"])


def test_a_checkpoint_of_before_has_no_digests(whole, tmp_path):
    """It still loads, with one warning."""
    path = tmp_path / "a"
    shutil.copytree(whole, path)
    content = json.loads((path / "jaxquard.json").read_text())
    del content["digest"], content["fence"]
    for leaf in content["leaves"]:
        for piece in leaf["pieces"]:
            del piece["digest"]
    (path / "jaxquard.json").write_text(json.dumps(content | {"schema": 1}))
    with pytest.warns(CheckpointWarning, match=r"/a has no digests, because an earlier jaxquard wrote it: dam"):
        found = restore(path, like=STATE)
    assert all((found[name] == STATE[name]).all() for name in STATE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore(path, like=STATE)


def test_digests_cannot_be_left_out_by_one_number(whole, tmp_path):
    """A manifest whose schema has become the one without digests."""
    path = tmp_path / "a"
    shutil.copytree(whole, path)
    text = (path / "jaxquard.json").read_text()
    (path / "jaxquard.json").write_text(text.replace('"schema": 2', '"schema": 1'))
    with pytest.raises(DamagedCheckpointError, match=r"it has a digest, but the schema that has none \(1\)"):
        restore(path, like=STATE)
