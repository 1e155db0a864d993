"""Prices from compilers: with the one of the CPU, which is always here, and with texts that others have compiled."""

from concurrent.futures import Future
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import load_cluster
from jaxquard.errors import PricingError
from jaxquard.pricing import CompilePricer, Failure, FailureReason, Price, PriceCache, ShardedProgram
from jaxquard.pricing.target import compile_pricer
from jaxquard.pricing.target import find_target as targets
from jaxquard.pricing.target.compiled_program import CompiledFolder, CompiledProgram
from jaxquard.pricing.workers.serve import Reply
from tests.hlo.compiled_texts import MESH, program, read_text

LINE = AbstractMesh((8,), ("x",))


OVER_DEVICES = P("x")


def product(rows=64, *, contracted=OVER_DEVICES, name="x @ w"):
    left, right = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 64), (64, 64)))
    return ShardedProgram(
        name=name,
        jaxpr=jax.make_jaxpr(jnp.matmul)(left, right),
        in_specs=(P(None, *contracted), contracted),
        out_specs=(P(),),
    )


class Recorded:
    """Compilers that answer with a text of before."""

    num_asked = 0

    def __init__(self, start, *, num_workers, limit_s):
        pass

    def submit(self, request, *, end_s):
        type(self).num_asked += 1
        answer, found = self.answer(), Future()
        found.set_result((Reply(error=answer) if isinstance(answer, str) else Reply(value=answer), b""))
        return found

    @staticmethod
    def answer():
        return compiled("h100", "layer")

    def stop(self):
        pass


def compiled(backend, name, *, peak_bytes=10**9):
    return CompiledProgram(
        text=read_text(backend, name),
        peak_bytes=peak_bytes,
        argument_bytes=10**8,
        temporary_bytes=9 * 10**8,
        chips=tuple(range(8)),
        compile_s=1.0,
    )


@pytest.fixture
def recorded(monkeypatch):
    """Lets clusters of GPUs and TPUs be priced here; tests change the answer."""
    monkeypatch.setattr(targets, "_is_installed", lambda name: True)
    fresh = type("Fresh", (Recorded,), {"num_asked": 0})
    monkeypatch.setattr(compile_pricer, "WorkerPool", fresh)
    return fresh


class TestRecorded:
    def test_a_price(self, recorded):
        price = CompilePricer("h100-8", MESH, cache=None).price(program("layer"))
        assert 5e-5 < price.time_s < 5e-3
        assert price.time_s == pytest.approx(price.compute_s + price.communication_s)
        assert 0 < price.communication_s < price.time_s
        assert (price.peak_bytes, price.spread) == (10**9, None)
        origin = price.provenance
        assert (origin.pricer, origin.platform, origin.num_devices, origin.num_runs) == ("compiled", "cuda", 8, 0)
        assert origin.modelled.startswith("seconds of all operations, from the figures of h100-8")

    def test_a_slower_chip_takes_longer(self, recorded):
        times_s = [
            CompilePricer(name, MESH, cache=None).price(program("layer")).time_s for name in ("h100-8", "a100-8")
        ]
        assert times_s[1] > times_s[0]

    def test_prices_come_from_disk(self, recorded, tmp_path):
        prices = []
        for _ in range(2):
            with CompilePricer("h100-8", MESH, cache=PriceCache(tmp_path)) as pricer:
                prices.append(pricer.price(program("layer")))
        assert prices[0] == prices[1]
        assert recorded.num_asked == 1

    def test_other_figures_compile_nothing_but_price_anew(self, recorded, tmp_path):
        cluster = load_cluster("h100-8")
        slower = replace(cluster, compute=replace(cluster.compute, effective_flops_per_s=1e13))
        times_s = [
            CompilePricer(one, MESH, cache=PriceCache(tmp_path)).price(program("layer")).time_s
            for one in (cluster, slower)
        ]
        assert times_s[1] > times_s[0]
        assert recorded.num_asked == 1

    def test_other_options_compile_anew(self, recorded, tmp_path):
        for options in ({}, {"xla_gpu_enable_triton_gemm": "false"}):
            CompilePricer("h100-8", MESH, cache=PriceCache(tmp_path), compiler_options=options).price(program("layer"))
        assert recorded.num_asked == 2

    def test_equal_programs_are_compiled_once(self, recorded):
        programs = [program("layer"), replace(program("layer"), name="again"), program("scan")]
        assert len(CompilePricer("h100-8", MESH, cache=None).price_all(programs)) == 3
        assert recorded.num_asked == 2

    def test_what_does_not_fit_fails_by_so_much(self, recorded):
        recorded.answer = staticmethod(lambda: compiled("h100", "layer", peak_bytes=95 * 10**9))
        pricer = CompilePricer("h100-8", MESH, cache=None)
        (failure,) = pricer.price_all([program("layer")])
        assert isinstance(failure, Failure)
        assert failure.reason is FailureReason.OUT_OF_MEMORY
        assert "takes 95.00 GB on each device of h100-8, which has 80.00: 15.00 GB too much" in failure.message
        with pytest.raises(PricingError, match=r"15.00 GB too much"):
            pricer.price(program("layer"))

    def test_a_compiler_that_finds_it_too_large(self, recorded):
        message = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Exceeded hbm capacity by 13.75G.\nmore"
        recorded.answer = staticmethod(lambda: message)
        (failure,) = CompilePricer("v5e-2x4", MESH, cache=None).price_all([program("layer")])
        assert (failure.reason, failure.message) == (FailureReason.OUT_OF_MEMORY, message.splitlines()[0])

    def test_a_program_that_does_not_compile(self, recorded):
        recorded.answer = staticmethod(lambda: "INTERNAL: no")
        (failure,) = CompilePricer("h100-8", MESH, cache=None).price_all([program("layer")])
        assert (failure.reason, failure.message) == (FailureReason.NO_COMPILATION, "INTERNAL: no")

    def test_a_text_that_cannot_be_read_is_quoted(self, recorded):
        broken = compiled("h100", "layer")
        text = broken.text.replace(
            " all-reduce-done(%all-reduce-start)", ' custom-call(%all-reduce-start), custom_call_target="odd"'
        )
        recorded.answer = staticmethod(lambda: replace(broken, text=text))
        (failure,) = CompilePricer("h100-8", MESH, cache=None).price_all([program("layer")])
        assert "its compiled text cannot be read" in failure.message
        assert "all-reduce-done = custom-call(%all-reduce-start)" in failure.message

    def test_a_sharding_that_jax_refuses(self, recorded):
        (failure,) = CompilePricer("h100-8", LINE, cache=None).price_all([product(contracted=P("y"))])
        assert failure.reason is FailureReason.NO_LOWERING

    def test_a_walk_has_timeline_and_collectives(self, recorded):
        recorded.answer = staticmethod(lambda: compiled("v5e", "layer"))
        walked, found = CompilePricer("v5e-2x4", MESH, cache=None).walk(program("layer"))
        assert found.peak_bytes == 10**9
        assert [one.opcode for one in walked.collectives] == ["all-reduce"] * 3
        assert walked.timeline.time_s == pytest.approx(walked.time_s)

    def test_walks_of_many_go_on_after_a_failure(self, recorded):
        pricer = CompilePricer("h100-8", MESH, cache=None)
        found = list(pricer.walk_all([program("layer"), product(contracted=P("y")), program("layer")]))
        assert isinstance(found[1], Failure)
        for walked, whole in (found[0], found[2]):
            assert walked.time_s > 0
            assert whole == compiled("h100", "layer")
        assert pricer.compile_s == 2 * compiled("h100", "layer").compile_s


class TestFolder:
    def test_there_and_back(self, tmp_path):
        folder = CompiledFolder(tmp_path / "compiled")
        assert folder.find("a") is None
        folder.store("a", compiled("cpu", "layer"))
        assert folder.find("a") == compiled("cpu", "layer")

    def test_a_damaged_file_counts_as_absent(self, tmp_path):
        folder = CompiledFolder(tmp_path)
        folder.store("a", compiled("cpu", "layer"))
        (path,) = tmp_path.glob("*.gz")
        whole = path.read_bytes()
        path.write_bytes(whole[:50])
        assert folder.find("a") is None
        path.write_bytes(whole[:20] + bytes(100) + whole[120:])
        assert folder.find("a") is None

    def test_a_full_disk_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("jaxquard.pricing.cache.os.replace", full)
        CompiledFolder(tmp_path).store("a", compiled("cpu", "layer"))
        assert not list(tmp_path.iterdir())


def test_with_the_compiler_of_the_cpu(tmp_path):
    """A process compiles: the product that is summed over devices has an all-reduce, the other has none."""
    with CompilePricer("cpu-8", LINE, cache=PriceCache(tmp_path), num_compilers=1) as pricer:
        summed, whole = pricer.price_all([product(), product(contracted=P(), name="whole")])
    assert isinstance(summed, Price)
    assert isinstance(whole, Price)
    assert summed.communication_s > 0
    assert whole.communication_s == 0
    assert summed.peak_bytes < whole.peak_bytes
