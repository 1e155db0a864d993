"""Compares algorithms on the devices at hand, as ratios to XLA's plain product.

Times on a shared machine say little, so ratios are taken within a round: in each, every candidate runs once, in an
order that rotates, and a candidate's ratio is the median over rounds.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxquard.calibrate.sampling import time_runs_s
from jaxquard.errors import GemmError
from jaxquard.gemm import ALGORITHMS, Dataflow, Product, multiply
from jaxquard.gemm.algorithms.check_product import check_size
from jaxquard.gemm.algorithms.choices import find_choice
from jaxquard.gemm.algorithms.products.shardings import axes_of, lhs_spec, num_chips, out_spec, rhs_spec
from jaxquard.gemm.algorithms.registry import find_algorithm, mesh_shapes
from jaxquard.pricing.values.make_values import make_array

_PLAIN = "plain"
_SLICED = ("meshslice",)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One algorithm on one mesh.

    Attributes:
        num_slices: of MeshSlice; 1 for others.
        ratio: of its time to that of `lhs @ rhs` under jit with the same shardings; 0 where it does not fit.
        time_s: the minimum.
        worst_error: of its result, relative to the largest element of the plain one's.
        why_not: the reason why it does not fit, if so.
    """

    algorithm: str
    mesh_shape: tuple[int, int]
    num_slices: int
    ratio: float = 0.0
    time_s: float = 0.0
    worst_error: float = 0.0
    why_not: str = ""


def compare_algorithms(
    *,
    m: int,
    k: int,
    n: int,
    algorithms: Sequence[str] = tuple(ALGORITHMS),
    slices: Sequence[int] = (1, 2, 4),
    dataflow: str = "os",
    dtype: Any = jnp.bfloat16,
    devices: Sequence[jax.Device] | None = None,
    rounds: int = 5,
    sample_s: float = 0.02,
    on_progress: Progress | None = None,
) -> tuple[Comparison, ...]:
    """Runs [m, k] times [k, n] by every algorithm on every mesh of the devices that it can use, the fastest first.

    Raises:
        GemmError: an algorithm or the dataflow is unknown.
    """
    chosen = list(jax.devices() if devices is None else devices)
    shapes = [(rows, len(chosen) // rows) for rows in range(1, len(chosen) + 1) if len(chosen) % rows == 0]
    for name in algorithms:
        find_algorithm(name)
    find_choice(Dataflow, dataflow, "dataflow")
    found: list[Comparison] = []
    for number, shape in enumerate(shapes):
        mesh = Mesh(np.array(chosen).reshape(shape), ("rows", "columns"))
        candidates = [
            (name, count)
            for name in algorithms
            if shape in mesh_shapes(name, len(chosen))
            for count in (slices if name in _SLICED else (1,))
        ]
        bench = _Bench(mesh=mesh, sizes=(m, k, n), dataflow=dataflow, dtype=dtype, rounds=rounds, sample_s=sample_s)
        found += bench.compare(candidates)
        if on_progress is not None:
            on_progress(number + 1, len(shapes), f"{shape[0]}x{shape[1]}")
    return tuple(sorted(found, key=lambda one: (bool(one.why_not), one.ratio)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """The candidates of one mesh."""

    mesh: Mesh
    sizes: tuple[int, int, int]
    dataflow: str
    dtype: Any
    rounds: int
    sample_s: float

    def compare(self, candidates: Sequence[tuple[str, int]]) -> list[Comparison]:
        """Times each candidate beside the plain product, or says why it cannot run."""
        shape = self.mesh.devices.shape
        try:
            lhs, rhs, out_sharding = self.place()
        except GemmError as error:
            return [
                Comparison(algorithm=name, mesh_shape=(shape[0], shape[1]), num_slices=count, why_not=str(error))
                for name, count in [(_PLAIN, 1), *candidates]
            ]
        plain = jax.jit(jnp.matmul, out_shardings=out_sharding).lower(lhs, rhs).compile()
        runs: dict[tuple[str, int], Callable[..., Any]] = {(_PLAIN, 1): plain}
        refused = {}
        for name, count in candidates:
            try:
                runs[name, count] = self.compile(name, count, lhs, rhs)
            except GemmError as error:
                refused[name, count] = str(error)
        expected = np.asarray(plain(lhs, rhs), np.float32)
        errors = {
            key: float(np.max(np.abs(np.asarray(run(lhs, rhs), np.float32) - expected)) / np.max(np.abs(expected)))
            for key, run in runs.items()
        }
        times = self._times(runs, (lhs, rhs))
        compared = [
            Comparison(
                algorithm=name,
                mesh_shape=(shape[0], shape[1]),
                num_slices=count,
                ratio=statistics.median(
                    own / base for own, base in zip(times[name, count], times[_PLAIN, 1], strict=True)
                ),
                time_s=min(times[name, count]),
                worst_error=errors[name, count],
            )
            for name, count in runs
        ]
        return compared + [
            Comparison(algorithm=name, mesh_shape=(shape[0], shape[1]), num_slices=count, why_not=why)
            for (name, count), why in refused.items()
        ]

    def place(self) -> tuple[jax.Array, jax.Array, NamedSharding]:
        """Returns the matrices, sharded so that nothing moves before a product, and the sharding of the result.

        Raises:
            GemmError: the mesh does not divide them.
        """
        product = Product(dataflow=Dataflow(self.dataflow), rows=("rows",), columns=("columns",))
        specs = {"lhs": lhs_spec(product), "rhs": rhs_spec(product), "the product": out_spec(product)}
        m, k, n = self.sizes
        for (name, spec), sizes in zip(specs.items(), ((m, k), (k, n), (m, n)), strict=True):
            for dim, (size, entry) in enumerate(zip(sizes, spec, strict=True)):
                chips = num_chips(axes_of(entry), self.mesh.shape)
                check_size(f"dim {dim} of {name}", size, chips, why=f"the mesh shards it over {chips}")
        lhs_sharding, rhs_sharding, out_sharding = (NamedSharding(self.mesh, spec) for spec in specs.values())
        lhs = make_array(jax.ShapeDtypeStruct((m, k), self.dtype), lhs_sharding)
        rhs = make_array(jax.ShapeDtypeStruct((k, n), self.dtype), rhs_sharding, seed=1)
        return lhs, rhs, out_sharding

    def compile(self, name: str, count: int, lhs: jax.Array, rhs: jax.Array) -> Any:
        """Compiles one candidate; raises a GemmError if it does not fit."""

        def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            slices = count if name in _SLICED else None
            return multiply(lhs, rhs, mesh=self.mesh, algorithm=name, dataflow=self.dataflow, slices=slices)

        return jax.jit(product).lower(lhs, rhs).compile()

    def _times(
        self, runs: dict[tuple[str, int], Callable[..., Any]], arguments: tuple[Any, ...]
    ) -> dict[tuple[str, int], list[float]]:
        is_async = self.mesh.devices.flat[0].platform != "cpu"
        times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
        order = list(runs)
        for _ in range(self.rounds):
            for key in order:
                times[key].append(time_runs_s(runs[key], arguments, sample_s=self.sample_s, is_async=is_async))
            order = order[1:] + order[:1]
        return times
