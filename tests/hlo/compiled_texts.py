"""Texts of real compilers, to be read without them.

`python -m tests.hlo.compiled_texts` writes those whose compiler is here. A text is compressed, and without the names of
files and places of the source.
"""

import functools
import gzip
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from jaxquard.errors import InfeasibleError
from jaxquard.pricing import CompilePricer, ShardedProgram

FOLDER = Path(__file__).parent / "compiled"
CLUSTERS = {"cpu": "cpu-8", "h100": "h100-8", "v5e": "v5e-2x4"}
MESH = AbstractMesh((2, 4), ("data", "model"))
_BATCH, _WIDTH, _HIDDEN, _LAYERS = 512, 1024, 2048, 4


def _layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> jax.Array:
    up, down = weights
    return x + jax.nn.gelu(x @ up) @ down


def _loss(weights: tuple[jax.Array, jax.Array], x: jax.Array, *, is_scanned: bool) -> jax.Array:
    if is_scanned:
        x, _ = jax.lax.scan(lambda x, weights: (_layer(x, weights), None), x, weights)
    else:
        x = _layer(x, weights)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def program(name: str) -> ShardedProgram:
    """`layer`: tensor parallel, with its gradient; `scan`: four such layers in a loop, weights sharded over all."""
    is_scanned = name == "scan"
    stack = (_LAYERS,) if is_scanned else ()
    shapes = [(*stack, _WIDTH, _HIDDEN), (*stack, _HIDDEN, _WIDTH), (_BATCH, _WIDTH)]
    types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    grad = jax.value_and_grad(functools.partial(_loss, is_scanned=is_scanned))
    jaxpr = jax.make_jaxpr(lambda up, down, x: jax.tree.leaves(grad((up, down), x)))(*types)
    if is_scanned:
        weights = (P(None, ("data", "model")), P(None, ("data", "model")))
        x = P(("data", "model"))
    else:
        weights, x = (P(None, "model"), P("model", None)), P("data")
    return ShardedProgram(name=name, jaxpr=jaxpr, in_specs=(*weights, x), out_specs=(P(), *weights))


def read_text(backend: str, name: str) -> str:
    """Returns a text that was compiled before."""
    return gzip.decompress((FOLDER / f"{backend}_{name}.hlo.gz").read_bytes()).decode()


def compile_text(backend: str, name: str) -> str:
    """Compiles a program for the backend's cluster of 8 chips; 2 by 4."""
    with CompilePricer(CLUSTERS[backend], MESH, cache=None, num_compilers=1) as pricer:
        _, compiled = pricer.walk(program(name))
    return without_sources(compiled.text)


def without_sources(text: str) -> str:
    text = re.sub(r", metadata=\{[^{}]*\}", "", text)
    return re.sub(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*\n?", "", text, flags=re.M)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for backend in CLUSTERS:
        for name in ("layer", "scan"):
            try:
                text = compile_text(backend, name)
            except InfeasibleError as error:
                print(f"{backend}: {error}")  # noqa: T201
                continue
            (FOLDER / f"{backend}_{name}.hlo.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
