"""Steps whose costs can be computed by hand; shared by the tests of this folder."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.planner.prices.price_strategies import price_strategies
from jaxquard.planner.prices.step_costs import PricedStrategies
from jaxquard.pricing import RooflinePricer
from tests.intraop.zoo_analyses import analyse_model

BATCH, DIM, HIDDEN = 64, 128, 512
WEIGHT_BYTES = 4 * DIM * HIDDEN


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp_loss(params, x, y, dtype=jnp.float32):
    hidden = jnp.tanh(x @ params["a"].astype(dtype))
    return jnp.mean((hidden @ params["b"].astype(dtype) - y) ** 2)


def momentum_step(params, moments, x, y, *, loss=mlp_loss):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    moments = jax.tree.map(lambda moment, grad: 0.9 * moment + grad, moments, grads)
    return jax.tree.map(lambda param, moment: param - 0.1 * moment, params, moments), moments, value


@functools.cache
def analyse_mlp(axes: tuple[tuple[str, int], ...] = (("x", 8),), dtype: Any = jnp.float32) -> Analysis:
    params = {"a": array(DIM, HIDDEN), "b": array(HIDDEN, DIM)}
    step = functools.partial(momentum_step, loss=functools.partial(mlp_loss, dtype=dtype))
    data = array(BATCH, DIM, dtype=dtype)
    return analyse_step(trace_step(step, (params, params, data, data)), axes=dict(axes))


def coarse_pricer(analysis: Analysis, cluster: str = "h100-8") -> RooflinePricer:
    return RooflinePricer(cluster, AbstractMesh(tuple(analysis.axes.values()), tuple(analysis.axes)))


@functools.cache
def priced_mlp(axes: tuple[tuple[str, int], ...] = (("x", 8),), dtype: Any = jnp.float32) -> PricedStrategies:
    analysis = analyse_mlp(axes, dtype)
    return price_strategies(analysis, coarse=coarse_pricer(analysis))


@functools.cache
def priced_model(name: str, axes: tuple[tuple[str, int], ...] = (("x", 8),), num_layers: int = 6) -> PricedStrategies:
    analysis = analyse_model(name, axes=axes, num_layers=num_layers)
    return price_strategies(analysis, coarse=coarse_pricer(analysis), batch_axis=axes[0][0] if len(axes) > 1 else None)
