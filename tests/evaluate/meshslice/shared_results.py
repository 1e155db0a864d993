"""All results of the evaluation, computed once for all tests of a run: it takes a quarter of a minute."""

import fcntl
import os
import pickle

import pytest

from jaxquard.evaluate.meshslice import Reproduction, reproduce_meshslice


def meshslice_results(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """Returns the results that the first process of a run computes; the others wait, and read them."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    file = folder / "meshslice.pickle"
    with (folder / "meshslice.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_bytes(pickle.dumps(reproduce_meshslice()))
        return pickle.loads(file.read_bytes())
