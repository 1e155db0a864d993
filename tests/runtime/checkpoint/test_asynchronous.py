"""A save goes on in the background: what it saves is what was there when it was called."""

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files import write_pieces
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from tests.runtime.checkpoint.listing import names_in
from tests.runtime.checkpoint.subprocesses import PROLOGUE, environment


@pytest.fixture
def gate(monkeypatch):
    """Nothing is written before it is set."""
    gate = threading.Event()
    original = write_pieces.write_arrays

    def wait(folder, arrays):
        assert gate.wait(60)
        original(folder, arrays)

    monkeypatch.setattr(write_pieces, "write_arrays", wait)
    yield gate
    gate.set()


def test_what_is_changed_after_the_call_is_not_saved(tmp_path, gate):
    host, device = np.arange(4.0), jnp.arange(8.0)
    saving = save(tmp_path / "a", {"host": host, "device": device})
    assert not saving.is_done()
    assert repr(saving) == f"Saving('{tmp_path / 'a'}', in progress)"
    host[:] = -1
    jax.jit(lambda x: x * -1, donate_argnums=0)(device)
    assert device.is_deleted()
    gate.set()
    saving.wait()
    assert saving.is_done()
    found = restore(tmp_path / "a", like={"host": host, "device": np.zeros(8, np.float32)})
    assert found["host"].tolist() == [0, 1, 2, 3]
    assert found["device"].tolist() == list(range(8))


def test_a_second_save_and_a_restore_wait_for_the_first(tmp_path, gate):
    first = save(tmp_path / "a", {"x": np.ones(2)})
    done = []

    def second():
        save(tmp_path / "a", {"x": np.full(2, 2.0)}).wait()
        done.append(True)

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.1)
    assert not done
    other = save(tmp_path / "b", {"x": np.ones(2)})
    gate.set()
    thread.join(20)
    assert done
    assert first.is_done()
    assert restore(tmp_path / "a", like={"x": np.ones(2)})["x"].tolist() == [2, 2]
    other.wait()
    save(tmp_path / "a", {"x": np.full(2, 3.0)})
    assert restore(tmp_path / "a", like={"x": np.ones(2)})["x"].tolist() == [3, 3]
    assert names_in(tmp_path) == ["a", "b"]


def test_an_error_is_raised_by_each_wait_and_logged(tmp_path, monkeypatch, caplog):
    save(tmp_path / "a", {"x": np.ones(2)}).wait()

    def fail(folder, arrays):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(write_pieces, "write_arrays", fail)
    saving = save(tmp_path / "a", {"x": np.zeros(2)})
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"saving into .* failed on .*: \[Errno 13\] Permission denied\. "):
            saving.wait()
    assert "Permission denied" in caplog.text
    assert restore(tmp_path / "a", like={"x": np.ones(2)})["x"].tolist() == [1, 1]
    assert names_in(tmp_path) == ["a"]


def test_the_interpreter_waits_at_exit(tmp_path):
    script = f"""
import threading
from jaxquard.runtime.checkpoint.files import write_pieces
looked, original = threading.Event(), write_pieces.write_arrays
write_pieces.write_arrays = lambda *args: looked.wait(60) and original(*args)
saving = save({str(tmp_path / "a")!r}, {{"x": np.arange(1 << 22)}})
assert not saving.is_done()
looked.set()
"""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + script], env=environment(), capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert restore(tmp_path / "a", like={"x": np.zeros(1 << 22, int)})["x"][-1] == (1 << 22) - 1


def test_importing_jaxquard_does_not_import_orbax():
    script = "import sys; assert not {'orbax.checkpoint', 'tensorstore'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", PROLOGUE + script], env=environment(), check=True, timeout=240)
