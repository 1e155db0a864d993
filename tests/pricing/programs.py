"""Small programs that the tests price."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxquard.pricing import PriceCache, ShardedProgram
from jaxquard.pricing.measure.measured_pricer import MeasuredPricer


def line_mesh() -> Mesh:
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def array(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def make(fn, *types, ins=None, outs=None, name="p", **more) -> ShardedProgram:
    closed = jax.make_jaxpr(fn)(*types)
    return ShardedProgram(
        name=name,
        jaxpr=closed,
        in_specs=tuple(ins or [P()] * len(closed.in_avals)),
        out_specs=tuple(outs or [None] * len(closed.out_avals)),
        **more,
    )


def product(size: int, name: str = "product") -> ShardedProgram:
    return make(jnp.matmul, array(size, size), array(size, size), ins=(P("x"), P()), outs=(P("x"),), name=name)


def quick_pricer(cache: PriceCache | None = None, **more) -> MeasuredPricer:
    """A pricer that takes few runs and compiles here."""
    settings = {"num_warmups": 1, "num_runs": 4, "max_runs": 0, "num_compilers": 0, "cache": cache, **more}
    return MeasuredPricer(line_mesh(), **settings)
