"""A step with collectives in a branch and beside it, run on 8 devices: `python -m tests.intraop.branching_step`.

Without `jaxquard.pricing.program.compiler_options` XLA:CPU of JAX 0.10.2 stops in it, and ends the process after 40 s.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.intraop.plan.sharded_step import CompiledStep
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import analyse, inputs, mesh_of, weights


def branching_step():
    def loss(params, batch, count):
        x, targets = batch
        x = jax.checkpoint(lambda x: jax.nn.gelu(x @ params["w1"]))(x)
        x = lax.cond(count % 2 == 0, lambda x: x @ params["w2"], lambda x: jnp.tanh(x @ params["w2"].T), x)
        largest = lax.stop_gradient(jnp.abs(x).max())
        halvings, _ = lax.while_loop(lambda c: c[1] > 1e-3, lambda c: (c[0] + 1, c[1] / 2), (0, largest))
        x = lax.fori_loop(0, 3, lambda _, x: x + 0.1 * jnp.sin(x @ params["w4"]), x)
        return jnp.mean((x @ params["w3"] - targets) ** 2), halvings

    def step(state, batch):
        (value, halvings), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], batch, state["count"])
        params = lax.cond(
            jnp.isfinite(value),
            lambda: jax.tree.map(lambda old, grad: old - 0.1 * grad, state["params"], grads),
            lambda: state["params"],
        )
        return {"params": params, "count": state["count"] + 1}, value, halvings

    params = weights(w1=(16, 32), w2=(32, 32), w3=(32, 8), w4=(32, 32))
    return step, ({"params": params, "count": jnp.int32(0)}, (inputs(16, 16), inputs(16, 8, seed=3)))


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_platforms", "cpu")
    step, args = branching_step()
    wanted = jax.jit(step)(*args)
    sharded = CompiledStep(analyse(step, args), {0: ("columns",), 1: ("rows",)}, mesh=mesh_of(x=8), donate=False)
    for _ in range(15):
        check_same(sharded(*args), wanted)


if __name__ == "__main__":
    main()
