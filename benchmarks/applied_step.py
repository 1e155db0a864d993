"""The host time of calling a sharded step, relative to `jax.jit` of the same step with the same shardings.

The model computes next to nothing on one device, so only the host's work for each leaf is left.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import measure, print_ratios
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import OnProgress, Price, ShardedProgram
from jaxquard.pricing.price import Provenance

_NUM_LEAVES = (40, 400)
_WIDTH = 8


def main() -> None:
    """Prints a table for each number of leaves."""
    jax.config.update("jax_platforms", "cpu")
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    for num_leaves in _NUM_LEAVES:
        state, batch = _make_state(num_leaves // 4), np.ones((_WIDTH, _WIDTH), np.float32)
        plan = search_sharding(_train_step, (state, batch), mesh=mesh, pricer=_AllAlike())
        shardings = jax.tree.map(lambda leaf: leaf.sharding, plan.shard(state))
        plain = jax.jit(_train_step, in_shardings=(shardings, None), out_shardings=(shardings, None), donate_argnums=0)
        found = measure(
            {
                "jax.jit": _looped(plain, plan.shard(state), batch),
                "a plan's step": _looped(plan.apply(_train_step), plan.shard(state), batch),
            },
            num_rounds=300,
            num_warmups=20,
        )
        print_ratios(found, title=f"a call with {num_leaves} leaves of state", base="jax.jit")


def _make_state(num_layers: int) -> dict[str, Any]:
    params = [(jnp.full((_WIDTH, _WIDTH), 0.1), jnp.zeros(_WIDTH)) for _ in range(num_layers)]
    return {"params": params, "means": jax.tree.map(jnp.zeros_like, params)}


def _train_step(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    def loss(params: Any) -> jax.Array:
        x = batch
        for weight, bias in params:
            x = jnp.tanh(x @ weight + bias)
        return jnp.mean(x**2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    means = jax.tree.map(lambda mean, grad: 0.9 * mean + grad, state["means"], grads)
    params = jax.tree.map(lambda param, mean: param - 0.1 * mean, state["params"], means)
    return {"params": params, "means": means}, value


def _looped(step: Callable[..., Any], state: Any, batch: np.ndarray) -> Callable[[], object]:
    """A call that goes on with the state of the last one."""

    def call() -> object:
        nonlocal state
        state, value = step(state, batch)
        return state, value

    return call


class _AllAlike:
    """Any plan will do, so all programs have one price."""

    def price(self, program: ShardedProgram) -> Price:
        source = Provenance(
            pricer="none",
            jax_version=jax.__version__,
            platform="cpu",
            device_kind="cpu",
            num_devices=1,
            date="",
            num_runs=1,
        )
        return Price(time_s=1.0, compute_s=None, communication_s=None, peak_bytes=1, spread=None, provenance=source)

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Any]:
        return [self.price(program) for program in programs]

    def compare(self, programs: Sequence[ShardedProgram], *, on_progress: OnProgress | None = None) -> list[Any]:
        return [self.price(program) for program in programs]


if __name__ == "__main__":
    main()
