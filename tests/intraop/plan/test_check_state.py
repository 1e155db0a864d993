"""A memory limit that the arguments alone exceed is refused before anything is priced."""

import jax
import jax.numpy as jnp
import pytest

from jaxquard.errors import InfeasibleShardingError
from jaxquard.intraop.plan import search_sharding as search_module
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import MeasuredPricer, RooflinePricer
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.steps import mesh_of

# 16 x 32 weights of 4 bytes; 3 x 5 that no axis divides; a batch of 64 x 16.
TYPES = (
    {"odd": jax.ShapeDtypeStruct((3, 5), jnp.float32), "w": jax.ShapeDtypeStruct((16, 32), jnp.float32)},
    jax.ShapeDtypeStruct((64, 16), jnp.float32),
    jax.ShapeDtypeStruct((1 << 20,), jnp.float32),
)
BOUND = 4 * 16 * 32 // 8 + 4 * 15 + 4 * 64 * 16 // 8


def step(state, batch, unused):
    grad = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"])
    return {"odd": 2 * state["odd"], "w": state["w"] - grad}


class Unpriced(Exception):
    """The search has begun to price."""


@pytest.fixture
def pricer(monkeypatch):
    def price(*args, **more):
        raise Unpriced

    monkeypatch.setattr(search_module, "price_segments", price)
    with MeasuredPricer(mesh_of(x=8), cache=None) as made:
        yield made


def search(pricer, limit, axes=None):
    search_sharding(step, TYPES, mesh=mesh_of(**(axes or {"x": 8})), pricer=pricer, memory_limit_bytes=limit)


def test_the_bytes_and_the_term_are_named(pricer):
    with pytest.raises(InfeasibleShardingError) as caught:
        search(pricer, BOUND - 1)
    assert str(caught.value) == (
        f"memory_limit_bytes={BOUND - 1} (0.00 MiB) cannot hold the arguments of the step: sharded over all of x=8 "
        f"they take {BOUND} bytes (0.00 MiB) of each device before anything is computed (data in argument 1: 512, "
        "state in argument 0: 316). Raise the limit, use more devices, or keep less state."
    )


def test_the_bound_itself_is_priced(pricer):
    with pytest.raises(Unpriced):
        search(pricer, BOUND)


def test_a_pricer_in_closed_form_counts_the_arguments(pricer):
    roofline = RooflinePricer("h100-8", mesh_of(x=8))
    with pytest.raises(InfeasibleShardingError, match=f"they take {BOUND} bytes"):
        search(roofline, BOUND - 1)
    with pytest.raises(Unpriced):
        search(roofline, BOUND)


def test_the_memory_of_the_devices_is_a_limit_too(pricer, monkeypatch):
    monkeypatch.setattr(search_module, "capacity_bytes", lambda mesh: 100)
    with pytest.raises(InfeasibleShardingError, match=r"^the memory of a device .* cannot hold .*\. Use more devices"):
        search(pricer, None)


def test_what_a_custom_pricer_counts_is_its_own_affair():
    search(FakePricer(), 60)


@pytest.mark.parametrize(("shape", "parts"), [((8, 3), 8), ((2, 4), 8), ((4, 2), 8), ((2, 3), 2), ((3,), 1), ((), 1)])
def test_each_leaf_is_sharded_as_far_as_two_axes_divide_it(pricer, shape, parts):
    size = 4
    for dim in shape:
        size *= dim
    kept = jax.ShapeDtypeStruct(shape, jnp.float32)
    weight = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    bound = size // parts + 4 * 16 * 32 // 8 + 4 * 64 * 16 // 8
    mesh = mesh_of(x=2, y=4)
    with MeasuredPricer(mesh, cache=None) as made, pytest.raises(InfeasibleShardingError, match=f"take {bound} bytes"):
        search_sharding(
            step, ({"odd": kept, "w": weight}, *TYPES[1:]), mesh=mesh, pricer=made, memory_limit_bytes=bound - 1
        )
