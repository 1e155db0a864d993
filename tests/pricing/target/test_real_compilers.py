"""The compilers that are here, each in its own processes; `make test-slow` has that of the TPU."""

import jax
import pytest
from jax.sharding import AbstractMesh

import jaxquard as jq
from jaxquard.cluster import load_cluster
from jaxquard.errors import InfeasibleError
from jaxquard.hlo import list_schedule, parse_module
from jaxquard.pricing import CompilePricer
from jaxquard.pricing.target.find_target import find_target
from tests.hlo.compiled_texts import CLUSTERS, MESH, compile_text, program, read_text

pytestmark = pytest.mark.slow


def require(cluster, mesh_shape):
    try:
        find_target(load_cluster(cluster), mesh_shape)
    except InfeasibleError as error:
        pytest.skip(str(error))


def flops(text):
    def total(operations):
        return sum(one.flops + one.times * sum(map(total, one.bodies)) for one in operations)

    return total(list_schedule(parse_module(text)))


@pytest.mark.parametrize("name", ["layer", "scan"])
@pytest.mark.parametrize("backend", CLUSTERS)
def test_the_work_is_that_of_the_recorded_text(backend, name):
    """Texts differ from version to version, but not the products in them."""
    require(CLUSTERS[backend], (2, 4))
    assert flops(compile_text(backend, name)) == flops(read_text(backend, name))


@pytest.mark.parametrize(
    "cluster", ["a100-8", "h200-8", "b200-8", "v100-nvlink", "tpu-v4-2x2x2", "v5p-2x2x2", "v6e-2x4"]
)
def test_every_chip_has_its_compiler(cluster):
    require(cluster, (2, 4))
    with CompilePricer(cluster, MESH, cache=None, num_compilers=1) as pricer:
        price = pricer.price(program("layer"))
    assert 1e-5 < price.time_s < 1e-2
    assert price.communication_s > 0


@pytest.mark.parametrize(("cluster", "shape"), [("h100-8x2", (2, 8)), ("v5e-4x4", (4, 4))])
def test_several_hosts(cluster, shape):
    require(cluster, shape)
    mesh = AbstractMesh(shape, ("data", "model"))
    with CompilePricer(cluster, mesh, cache=None, num_compilers=1) as pricer:
        walked, compiled = pricer.walk(program("layer"))
    assert sorted(compiled.chips) == list(range(16))
    assert walked.communication_s > 0


@pytest.mark.parametrize("cluster", ["h100-8", "v5e-2x4"])
def test_a_search_without_the_chips(cluster, tmp_path):
    require(cluster, (8,))
    mesh = AbstractMesh((8,), ("devices",))
    weight, batch = (jax.ShapeDtypeStruct(shape, jax.numpy.bfloat16) for shape in ((512, 512), (1024, 512)))

    def step(weight, batch):
        loss, gradient = jax.value_and_grad(lambda weight: jax.numpy.mean((batch @ weight) ** 2))(weight)
        return weight - gradient, loss

    with CompilePricer(cluster, mesh, cache=jq.pricing.PriceCache(tmp_path)) as pricer:
        plan = jq.search_sharding(step, (weight, batch), mesh=mesh, pricer=pricer, num_finalists=0)
    assert plan.provenance.startswith("compiled on 8 x ")
