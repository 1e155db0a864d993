"""The process that compiles and runs: with virtual CPU devices in place of a GPU, and without any GPU."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxquard.errors import PricingError
from jaxquard.hlo import list_schedule, parse_module
from jaxquard.pricing.mock_gpu.mock_process import MockProcess, mock_environment
from jaxquard.pricing.mock_gpu.mock_worker import alone_on
from jaxquard.pricing.mock_gpu.program_request import lower_request
from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget
from jaxquard.pricing.program.sharded_program import abstract_mesh
from jaxquard.pricing.workers.worker import WorkerEndedError
from tests.pricing.programs import array, make

MESH = abstract_mesh(AbstractMesh((4,), ("x",)))
QUICK = BlockBudget(num_warmups=1, num_blocks=2, max_blocks=2, max_runs=2)


@pytest.fixture(scope="module")
def process():
    found = MockProcess(platform="cpu", num_devices=4, num_compilers=1, limit_s=120.0)
    yield found
    found.stop()


def request_of(fn, *types, **more):
    return lower_request(make(fn, *types, **more), mesh=MESH, platform="cpu")[0]


def test_programs_are_compiled_for_all_devices_and_run(process):
    def step(key, weight, batch):
        return weight - (batch.T @ batch).sum() * jax.random.normal(key, weight.shape), batch.sum()

    types = (jax.eval_shape(lambda: jax.random.key(0)), array(8, 8), array(16, 8))
    good = request_of(step, *types, ins=(P(), P(), P("x")), outs=(P(), None), donated=(1,))
    plain = request_of(jnp.matmul, array(8, 8), array(8, 8), ins=(P("x"), P()), outs=(P("x"),))
    answers = dict(process.compile({5: good, 7: plain}))
    assert list(answers) == [5, 7]
    assert "num_partitions=4" in answers[5].value.text
    assert answers[5].value.peak_bytes > 0
    assert any(one.collective for one in list_schedule(parse_module(answers[5].value.text)))
    # A donated weight comes back from the run before, again and again.
    assert all(time_s > 0 for time_s in process.run(5, QUICK).value)
    process.forget(7)
    assert process.device_kind == "cpu"


def test_errors_of_a_program_are_answers(process):
    broken = request_of(jnp.matmul, array(8, 8), array(8, 8))
    code = broken.code[: len(broken.code) // 2]
    answers = dict(process.compile({1: type(broken)(**{**_fields(broken), "code": code}), 2: broken}))
    assert answers[1].error
    assert "num_partitions=4" in answers[2].value.text
    process.forget(2)


@pytest.mark.slow
def test_a_process_that_ends_says_so_and_another_one_starts(process):
    assert process.free_bytes() is None  # Starts one, if no test before this one has.
    process._worker._process.kill()
    with pytest.raises(WorkerEndedError, match="the process with the GPU ended"):
        process.free_bytes()
    assert process.free_bytes() is None


def test_no_gpu_at_hand():
    process = MockProcess(platform="cuda", num_devices=8, num_compilers=1, limit_s=60.0)
    with pytest.raises(PricingError) as caught:
        process.free_bytes()
    said = str(caught.value)
    assert said.startswith("one GPU stands in for many, but JAX finds none that it can use: ")
    assert "Run this on a machine with an NVIDIA GPU" in said
    assert "\n" not in said


def test_the_environment_of_the_process():
    ours = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --mine=1", "CUDA_VISIBLE_DEVICES": "3,4",
            "JAX_PLATFORMS": "cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}  # fmt: skip
    found = mock_environment("cuda", ours)
    assert found["XLA_FLAGS"] == "--mine=1 --xla_gpu_shard_autotuning=false"
    assert found["CUDA_VISIBLE_DEVICES"] == "3"
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "JAX_PLATFORMS" not in found
    assert mock_environment("cpu", {})["XLA_FLAGS"] == ""


def test_one_worker_times_programs_on_a_gpu_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    order = []

    def second():
        with alone_on("GPU-1/2"):
            order.append("second")

    with alone_on("GPU-1/2"), alone_on("0"), alone_on(None):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert len(list(tmp_path.iterdir())) == 2


def _fields(request):
    return {name: getattr(request, name) for name in ("axes", "inputs", "free_outputs", "successors")}
