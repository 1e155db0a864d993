"""The tuned product of every layer of the paper's models on one chip, over XLA's own product, forward and backward.

On one chip nothing moves, so the tuner should slice nothing, and a layer should cost what `x @ w` costs.
"""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from benchmarks.measure import measure
from jaxquard.gemm import GemmProblem, autotune, gpt3, matmul, megatron_nlg
from jaxquard.pricing.values.make_values import make_array

LIMIT = 1.05
MODELS = {"gpt3": gpt3, "megatron-nlg": megatron_nlg}


def main(num_rows: int = 0, cluster: str = "h200") -> None:
    """Prints a ratio for each layer; fewer rows on a CPU."""
    is_cpu = jax.devices()[0].platform == "cpu"
    rows = num_rows or (64 if is_cpu else 8192)
    mesh = Mesh(np.reshape(jax.devices()[:1], (1, 1)), ("rows", "columns"))
    worst = 0.0
    for model, make in MODELS.items():
        layers = make(num_blocks=1).layers
        problem = GemmProblem(layers=layers, num_rows=rows)
        plan = autotune(problem, cluster, 1, memory_limit_bytes=math.inf).plan
        for layer in layers:
            planned = plan.layer(layer.name)
            shrink = 16 if is_cpu else 1
            sizes = (layer.in_features // shrink, layer.out_features // shrink)
            sharding, shapes = NamedSharding(mesh, jax.P()), ((rows, sizes[0]), sizes)
            x, w = (make_array(jax.ShapeDtypeStruct(shape, jnp.bfloat16), sharding) for shape in shapes)

            def ours(x, w, planned=planned):
                return jnp.sum(matmul(x, w, mesh=mesh, plan=planned).astype(jnp.float32))

            def whole(x, w):
                return jnp.sum((x @ w).astype(jnp.float32))

            runs = {name: jax.jit(jax.grad(run, argnums=(0, 1))) for name, run in (("ours", ours), ("x @ w", whole))}
            times = measure({name: lambda run=run, x=x, w=w: run(x, w) for name, run in runs.items()}, num_rounds=12)
            ratio = times["ours"].ratio_to(times["x @ w"])
            worst = max(worst, ratio)
            whole_ms = times["x @ w"].median_s * 1e3
            spread = times["ours"].spread
            print(f"{model:14} {layer.name:4} {planned.slices}: {ratio:.3f} of {whole_ms:.2f} ms, spread {spread:.1%}")
    print(f"the worst of all {worst:.3f}, at most {LIMIT} is asked")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
