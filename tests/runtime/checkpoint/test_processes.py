"""An actor that spans processes: each writes and reads just its own shards, and none waits for another."""

import pickle
import subprocess
import sys
import time

import jax
import numpy as np

from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint, read_region
from jaxquard.runtime.checkpoint.files.regions import Region
from tests.free_port import free_port
from tests.runtime.checkpoint.subprocesses import environment

WORKER = """
import pickle, sys, time
from pathlib import Path
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

index, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.files.read_arrays import RowsWanted, rows_job
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint, read_jobs
from jaxquard.runtime.checkpoint.files.write_pieces import write_pieces

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
values = np.arange(32, dtype=np.float32).reshape(4, 8)

def array(values, *spec):
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda i: values[i])

keys = jax.random.wrap_key_data(array(np.arange(8, dtype=np.uint32).reshape(4, 2), "x"))
arrays = {"sharded": array(values, "x", "y"), "copied": array(values, None, "y"), "keys": keys}
for number in range(1 + index):  # One writes more often than the other.
    writing = write_pieces(folder, f"actor0.{index}.{number}", arrays)
    writing.wait()
draft = folder / f"draft{index}"
draft.write_bytes(pickle.dumps((writing.pieces, writing.wait())))
draft.rename(folder / f"table{index}")
while not (folder / "jaxquard.json").exists():
    time.sleep(0.02)
manifest = Manifest.read(folder)
types = [ArrayType(dtype=leaf.dtype, shape=leaf.shape) for leaf in manifest.leaves]
jobs = [
    rows_job(RowsWanted(leaf=leaf, start=0, type=type_), NamedSharding(mesh, PartitionSpec("y")))
    for leaf, type_ in zip(manifest.leaves, types)
]
sharded, copied, keys = read_jobs(Checkpoint(path=folder, id=manifest.id), jobs)
for found in (sharded, copied):
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index])
for shard in jax.random.key_data(keys).addressable_shards:
    np.testing.assert_array_equal(shard.data, np.arange(8).reshape(4, 2)[shard.index])
"""


def test_two_processes(tmp_path):
    port = str(free_port())
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(index), port, str(tmp_path)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        replies = [_read_when_there(tmp_path / f"table{index}", workers) for index in range(2)]
        tables = [pieces for pieces, _ in replies]
        shapes = {"sharded": ("float32", (4, 8)), "copied": ("float32", (4, 8)), "keys": ("key<fry>", (4,))}
        leaves = tuple(
            LeafRecord(path=name, dtype=dtype, shape=shape, pieces=tables[0][name] + tables[1][name]).with_digests(
                replies[0][1] | replies[1][1]
            )
            for name, (dtype, shape) in shapes.items()
        )
        assert [len(leaf.pieces) for leaf in leaves] == [4, 2, 2]
        assert tables[1]["copied"] == (), "the first process has these copies too"
        Manifest(id="one", leaves=leaves).write(tmp_path)
        for worker in workers:
            assert worker.wait(120) == 0, worker.stderr.read()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    whole = read_region(Checkpoint(path=tmp_path, id="one"), leaves[0], Region.whole((4, 8)))
    assert whole.tolist() == np.arange(32).reshape(4, 8).tolist()
    assert jax.process_count() == 1


def _read_when_there(path, workers):
    while not path.exists():
        assert all(worker.poll() is None for worker in workers), [worker.communicate() for worker in workers]
        time.sleep(0.05)
    return pickle.loads(path.read_bytes())
