"""The pricer with a stand-in for the process with the GPU: prices, failures, the cache, and the search."""

import dataclasses
import math
import time

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import load_cluster
from jaxquard.errors import ClusterError, PricingError, ShardingError
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import Failure, FailureReason, MockGpuPricer, Price, PriceCache
from jaxquard.pricing.end_of_time import OutOfTimeError
from jaxquard.pricing.mock_gpu.program_request import CompiledRequest
from jaxquard.pricing.workers.serve import Reply
from jaxquard.pricing.workers.worker import WorkerEndedError
from tests.pricing.mock_gpu.test_combine_times import RECORDED
from tests.pricing.programs import array, make

MESH = AbstractMesh((8,), ("x",))
TEXT = RECORDED["segment 1: columns contracted columns columns"]["text"]


class FakeDevices:
    """Answers as the process does; `answers` replaces those of the n-th program that is compiled."""

    device_kind = "NVIDIA H200"
    most_runs = math.inf

    def __init__(self, *, time_s=7e-3, text=TEXT, free_bytes=None, answers=None, ends=()):
        self.time_s, self.text, self.free, self.answers = time_s, text, free_bytes, answers or {}
        self.ends = set(ends)
        self.codes, self.runs, self.stops, self.forgotten = [], [], 0, []
        self._places = {}

    def compile(self, requests, *, end_s=math.inf):
        self._check_time(end_s)
        for number, request in requests.items():
            self.codes.append(request.code)
            self._places[number] = place = len(self.codes) - 1
            if place in self.ends:
                raise WorkerEndedError("the process with the GPU ended: Segmentation fault")
            yield number, self.answers.get(place, Reply(value=CompiledRequest(text=self.text, peak_bytes=3 << 30)))

    def run(self, number, budget, *, end_s=math.inf):
        self._check_time(end_s)
        self.runs.append((self._places[number], budget))
        times_s = self.time_s(self._places[number]) if callable(self.time_s) else self.time_s
        return times_s if isinstance(times_s, Reply) else Reply(value=(1.02 * times_s, times_s, times_s, times_s))

    def _check_time(self, end_s):
        if len(self.runs) == self.most_runs and math.isfinite(end_s):
            raise OutOfTimeError

    def forget(self, number):
        self.forgotten.append(number)

    def free_bytes(self):
        return self.free

    def stop(self):
        self.stops += 1


def products(count):
    return [
        make(jnp.matmul, array(8, 8), array(8, 16 * (n + 1)), ins=(P("x"), P()), name=f"p{n}") for n in range(count)
    ]


def pricer(devices, cache=None, **more):
    return MockGpuPricer("h200-8", MESH, cache=cache, devices=devices, **more)


def test_a_price_says_what_was_measured_and_what_was_modelled():
    price = pricer(FakeDevices()).price(products(1)[0])
    assert price.compute_s == 7e-3
    assert price.communication_s > 1e-3
    assert price.time_s == pytest.approx(price.compute_s + price.communication_s)
    assert price.peak_bytes == 3 << 30
    assert price.spread == pytest.approx(0.02)
    assert price.provenance.pricer == "mock-gpu"
    assert price.provenance.device_kind == "NVIDIA H200"
    assert (price.provenance.num_devices, price.provenance.num_runs) == (8, 4)
    assert price.provenance.modelled == (
        "communication_s, from the links of h200-8; compute_s is measured on one device, peak_bytes is the compiler's"
    )


def test_prices_come_from_the_cache_and_start_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxquard.pricing.mock_gpu.mock_gpu_pricer.gpu_model", lambda: "NVIDIA H200")
    first = FakeDevices()
    prices = pricer(first, PriceCache(tmp_path)).price_all(products(3))
    assert len(first.codes) == 3
    second = FakeDevices()
    found = []
    again = pricer(second, PriceCache(tmp_path)).price_all(products(3), on_progress=found.append)
    assert second.codes == []
    assert again == prices
    assert found[-1].num_cached == 3
    other = FakeDevices()
    MockGpuPricer("h200-1x8", MESH, cache=PriceCache(tmp_path), devices=other).price_all(products(3))
    assert len(other.codes) == 3


def test_equal_programs_are_measured_once():
    devices = FakeDevices()
    one = products(1)[0]
    prices = pricer(devices).price_all([one, dataclasses.replace(one, name="again")])
    assert len(devices.codes) == 1
    assert prices[0] == prices[1]


def test_failures_are_named():
    answers = {
        0: Reply(error="RESOURCE_EXHAUSTED: Out of memory while trying to allocate"),
        1: Reply(error="no such op\nmore"),
    }
    devices = FakeDevices(answers=answers, time_s=lambda place: Reply(error="INTERNAL: a kernel failed"))
    results = pricer(devices).price_all(products(3))
    assert [result.reason for result in results] == [
        FailureReason.OUT_OF_MEMORY, FailureReason.NO_COMPILATION, FailureReason.NO_RUN,
    ]  # fmt: skip
    assert str(results[1]) == "p1: does not compile (no such op)"


def test_a_program_that_does_not_fit_says_by_how_much():
    devices = FakeDevices(free_bytes=2 << 30)
    (result,) = pricer(devices).price_all(products(1))
    assert str(result) == (
        "p0: out of memory (it takes 3.22 GB on each device, and the one that runs it has 2.15 GB free: "
        "1.07 GB too much)"
    )
    assert devices.forgotten == [0]
    assert devices.runs == []


def test_what_ends_the_process_fails_alone():
    devices = FakeDevices(ends=(1, 3))  # The second of the batch; and the same one again, alone.
    results = pricer(devices).price_all(products(3))
    assert [type(result) for result in results] == [Price, Failure, Price]
    assert "the process with the GPU ended: Segmentation fault" in str(results[1])


def test_a_text_that_cannot_be_read_is_a_failure():
    text = TEXT.replace("replica_groups=", "replica_groups=some ")
    (result,) = pricer(FakeDevices(text=text)).price_all(products(1))
    assert isinstance(result, Failure)
    assert "its compiled text cannot be read: expected replica groups" in str(result)


def test_slow_programs_of_a_group_are_stopped_early():
    devices = FakeDevices()
    pricer(devices, slow_factor=2.0).price_all(products(3), groups=["a", "a", "b"])
    slow_s = [budget.slow_s for _, budget in devices.runs]
    assert slow_s[0] == slow_s[2] == float("inf")
    assert slow_s[1] == pytest.approx(2 * pricer(FakeDevices()).price(products(1)[0]).time_s)


def test_comparing_takes_more_blocks():
    devices = FakeDevices()
    pricer(devices).compare(products(1))
    assert devices.runs[0][1].num_blocks > 4


def test_an_interrupt_ends_the_process():
    def interrupt(place):
        raise KeyboardInterrupt

    devices = FakeDevices(time_s=interrupt)
    with pytest.raises(KeyboardInterrupt):
        pricer(devices).price_all(products(1))
    assert devices.stops == 1


def test_a_mesh_larger_than_the_cluster():
    with pytest.raises(PricingError, match=r"the mesh has 16 devices, but h200-8 has 8 chips\. Take a smaller mesh"):
        MockGpuPricer("h200-8", AbstractMesh((16,), ("x",)), cache=None)


def test_a_cluster_of_unknown_chips():
    strange = dataclasses.replace(load_cluster("h200-8"), name="basement")
    with pytest.raises(ClusterError, match=r"the cluster is called 'basement'"):
        MockGpuPricer(strange, MESH, cache=None)
    calibrated = dataclasses.replace(load_cluster("h200-8"), name="calibrated h200-8")
    assert MockGpuPricer(calibrated, MESH, cache=None).cluster == calibrated


def train_step(weights, batch):
    def loss(weights):
        return jnp.mean((jnp.tanh(batch @ weights["up"]) @ weights["down"]) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), value


ARGS = ({"up": array(64, 128), "down": array(128, 64)}, array(32, 64))


def test_what_is_late_fails_and_the_others_have_prices():
    """The first batches are small, so that something has run when the time is over."""
    devices = FakeDevices()
    devices.most_runs = 7
    found = pricer(devices).price_all(products(30), end_s=time.monotonic() + 1000)
    assert [isinstance(one, Price) for one in found] == [True] * 7 + [False] * 23
    assert {one.reason for one in found[7:]} == {FailureReason.NO_TIME}
    assert len(devices.codes) < 30
    again = FakeDevices()
    assert not any(isinstance(one, Price) for one in pricer(again).price_all(products(3), end_s=time.monotonic()))
    assert again.codes == []


def test_the_search_takes_it_on_a_mesh_without_devices():
    devices = FakeDevices(time_s=lambda place: 1e-3 * (1 + place % 5))
    plan = search_sharding(train_step, ARGS, mesh=MESH, pricer=pricer(devices), num_finalists=2)
    assert plan.mesh is None
    assert plan.provenance.startswith("mock-gpu ")
    assert "on 8 x NVIDIA H200" in plan.provenance
    assert plan.time_s > 0


def test_the_search_takes_it_on_devices_of_other_processes(monkeypatch):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    plan = search_sharding(train_step, ARGS, mesh=mesh, pricer=pricer(FakeDevices()), num_finalists=0)
    assert dict(plan.axes) == {"x": 8}
    with pytest.raises(ShardingError, match=r"devices of other processes .*MockGpuPricer"):
        search_sharding(train_step, ARGS, mesh=mesh, num_finalists=0)


def test_the_search_refuses_a_pricer_of_another_mesh():
    with pytest.raises(
        ShardingError, match=r"the pricer is for a mesh of {'x': 8}, but the one to plan for is {'x': 4}"
    ):
        search_sharding(train_step, ARGS, mesh=AbstractMesh((4,), ("x",)), pricer=pricer(FakeDevices()))
