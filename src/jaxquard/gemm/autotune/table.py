"""The answer of the autotuner: a plan, and the table of the best meshes that it was chosen from."""

from dataclasses import dataclass

from jaxquard.gemm.cost.cost import GemmCost
from jaxquard.gemm.problem import GemmPlan, GemmProblem, LayerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRow:
    """One mesh with its best slice counts.

    Attributes:
        cost: the cost of all layers and passes of one step.
        utilisation: the share of the cluster's peak FLOP/s.
        memory_bytes: the memory of one chip: weights, activations and the largest buffers.
        simulated_s: the time that the simulator gives, of the finalists of an exact search.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> row = tuning.table[0]
        >>> row.plan.mesh_shape, 0 < row.utilisation < 1
        ((4, 4), True)
    """

    plan: GemmPlan
    cost: GemmCost
    utilisation: float
    memory_bytes: float
    simulated_s: float | None = None

    @property
    def mesh_shape(self) -> tuple[int, int]:
        return self.plan.mesh_shape

    @property
    def time_s(self) -> float:
        return self.cost.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The plans that the autotuner found, fastest first; `str` gives a table.

    Attributes:
        cluster: the name of the cluster.
        num_meshes: the number of meshes that divide the problem; the table may have fewer.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> tuning.num_meshes, tuning.best.plan.algorithm
        (5, 'meshslice')
    """

    problem: GemmProblem
    cluster: str
    num_chips: int
    table: tuple[TuningRow, ...]
    num_meshes: int

    @property
    def best(self) -> TuningRow:
        return self.table[0]

    @property
    def plan(self) -> GemmPlan:
        return self.best.plan

    def __str__(self) -> str:
        return tuning_text(self)


def tuning_text(tuning: Tuning) -> str:
    """Returns the table of a tuning; slices are those of the products forward, backward for X and backward for W."""
    names = [layer.name for layer in tuning.problem.layers]
    is_simulated = any(row.simulated_s is not None for row in tuning.table)
    simulated = ["simulated"] if is_simulated else []
    lines = [["mesh", *names, "time", *simulated, "utilisation", "exposed", "memory"]]
    for row in tuning.table:
        slices = [_slices_text(row.plan, layer) for layer in row.plan.layers]
        simulated = [_milliseconds(row.simulated_s)] if is_simulated else []
        lines.append(
            [
                "x".join(map(str, row.mesh_shape)),
                *slices,
                _milliseconds(row.time_s),
                *simulated,
                f"{row.utilisation:.1%}",
                f"{row.cost.exposed_s / row.time_s:.1%}",
                f"{row.memory_bytes / 1e9:.1f} GB",
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    title = (
        f"{tuning.plan.algorithm} on {tuning.num_chips} chips of {tuning.cluster}: "
        f"the best {len(tuning.table)} of {tuning.num_meshes} meshes"
    )
    body = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([title, _kept_text(tuning), *body])


def _slices_text(plan: GemmPlan, layer: LayerPlan) -> str:
    """Returns the slices of a layer's products, after its algorithm where that is not the plan's own."""
    slices = ",".join(map(str, layer.slices))
    return slices if layer.algorithm in (None, plan.algorithm) else f"{layer.algorithm} {slices}"


def _milliseconds(time_s: float | None) -> str:
    return "" if time_s is None else f"{time_s * 1e3:.1f} ms"


def _kept_text(tuning: Tuning) -> str:
    kept = (
        f"{layer.name} keeps {layer.stationary.name}{' transposed' if layer.is_transposed else ''}"
        for layer in tuning.plan.layers
    )
    return ", ".join(kept)
