"""The autotuner: the layouts of the layers, the mesh, the algorithms and their slice counts.

Two methods give a `Tuning`. `exact` (`exact.py`) prices what would run, every layout, algorithm and slice count of
every layer, and simulates the finalists. `paper` is section 3.2 of MeshSlice: phase 1 (`dataflows.py`) chooses the
dataflow of each layer by its largest matrix, phase 2 (`meshes.py`) the mesh and the slice counts, at the prices of the
paper's cost model, which hides every transfer. Its baselines are unrolled to the slice counts that MeshSlice is tuned
to (section 4.2), each at its own best mesh.

Two things go beyond the paper in both: each of a layer's three products has its own slice count, and plans that exceed
the memory are left out. What cannot be answered is refused first, in the user's words.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.errors import GemmError, GemmWarning
from jaxquard.gemm.algorithms.choices import find_choice, find_count, find_flag
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.autotune.dataflows import choose_dataflows
from jaxquard.gemm.autotune.exact import ExactSearch, variants_of
from jaxquard.gemm.autotune.layouts import forms_of
from jaxquard.gemm.autotune.meshes import MeshSearch, usable_meshes
from jaxquard.gemm.autotune.slices import needs_split
from jaxquard.gemm.autotune.table import Tuning, TuningRow
from jaxquard.gemm.cost.products import kept_bytes, plan_products
from jaxquard.gemm.problem import FcLayer, GemmProblem, Stationary

UNROLLED = ("wang", "summa", "1d_tp", "fsdp")
"""The algorithms whose iterations are as many as MeshSlice has slices, or fewer, in the paper's method."""
ALL = ("meshslice", "collective", "wang", "summa", "cannon")
"""The algorithms that `algorithm="all"` chooses from; the 1D ones are Wang's on a mesh of one row or one column."""
METHODS = ("exact", "paper")


def autotune(
    problem: GemmProblem,
    cluster: str | Cluster = "tpu-v4",
    num_chips: int = 256,
    algorithm: str | Sequence[str] = "meshslice",
    memory_limit_bytes: float | None = None,
    keep: int = 10,
    *,
    method: Literal["exact", "paper"] = "exact",
    block: int = 8,
    optimizer_bytes: int = 12,
    recompute: bool = False,
    stationary: Stationary | str | None = None,
    mesh_shape: tuple[int, int] | None = None,
    num_slices: int | None = None,
    unroll_as: Tuning | None = None,
) -> Tuning:
    """Finds the fastest mesh, dataflows and slice counts for the layers of a problem on a cluster.

    Args:
        problem: the layers and their sizes.
        cluster: the name of a preset, the path of a TOML file, or a `Cluster`.
        num_chips: the number of chips to use.
        algorithm: a key of `ALGORITHMS`; or several, or "all", of which each layer takes the fastest.
        memory_limit_bytes: the limit of one chip; by default the memory of the cluster's chips.
        keep: the number of meshes in the result.
        method: "exact", or "paper" for the phases and prices of MeshSlice's section 3.2, with one algorithm.
        block: the number of neighbouring columns or rows that a slice takes at a time.
        optimizer_bytes: bytes of optimizer state for each parameter; Adam over bf16 weights has 12: an fp32 copy and
            two moments.
        recompute: recomputes activations inside a block in the backward pass instead of storing them.
        stationary: "y", "x" or "w": the matrix that does not move in every layer; by default the fastest, and in the
            paper's method the largest.
        mesh_shape: the only mesh to consider.
        num_slices: the only slice count to consider, where it divides.
        unroll_as: in the paper's method, MeshSlice's tuning of the same problem, whose slice counts the other
            algorithms unroll to; by default it is computed each time.

    Warns:
        GemmWarning: if an exact search is asked to plan with the paper's own constants, which leave out much.

    Raises:
        GemmError: if an argument is not valid, the algorithm is unknown or does not use it, no mesh divides the layers,
            or none fits in memory.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> tuning.best.plan.mesh_shape
        (4, 4)
    """
    target = load_cluster(cluster)
    names = _find_algorithms(algorithm, method)
    _check_problem(problem)
    mesh_shape = _check_chips(target, num_chips, mesh_shape)
    kept = _check_tuning_options(
        names,
        method=method,
        memory_limit_bytes=memory_limit_bytes,
        keep=keep,
        block=block,
        optimizer_bytes=optimizer_bytes,
        recompute=recompute,
        stationary=stationary,
        num_slices=num_slices,
        unroll_as=unroll_as,
    )
    limit_bytes = target.memory.size_bytes if memory_limit_bytes is None else memory_limit_bytes
    chip_bytes = kept_bytes(problem, num_chips=num_chips, recompute=recompute, optimizer_bytes=optimizer_bytes)
    if method == "exact":
        if target.is_paper_set:
            warnings.warn(
                f"{target.name} has the constants of MeshSlice's own cost model, which hides every transfer and "
                "charges neither thin slices nor sums nor copies: plans may be far off. Use another cluster, or the "
                "paper's method.",
                GemmWarning,
                stacklevel=2,
            )
        search = ExactSearch(
            problem=problem,
            cluster=target,
            variants=variants_of(names, target),
            forms=forms_of(names, stationary=kept),
            block=block,
            kept_bytes=chip_bytes,
            limit_bytes=limit_bytes,
            num_slices=num_slices,
        )
        rows = search.rows(search.meshes(num_chips, mesh_shape))
    else:
        rows = _paper_rows(
            problem,
            target,
            num_chips,
            names[0],
            stationary=kept,
            mesh_shape=mesh_shape,
            block=block,
            num_slices=num_slices,
            unroll_as=unroll_as,
            kept_bytes=chip_bytes,
            limit_bytes=limit_bytes,
        )
    return Tuning(
        problem=problem, cluster=target.name, num_chips=num_chips, table=tuple(rows[:keep]), num_meshes=len(rows)
    )


def _paper_rows(
    problem: GemmProblem,
    cluster: Cluster,
    num_chips: int,
    algorithm: str,
    *,
    stationary: Stationary | None,
    mesh_shape: tuple[int, int] | None,
    block: int,
    num_slices: int | None,
    unroll_as: Tuning | None,
    kept_bytes: float,
    limit_bytes: float,
) -> list[TuningRow]:
    """Returns the meshes of the paper's two phases."""
    layers = choose_dataflows(problem, algorithm=algorithm, stationary=stationary)
    unrolled = None
    if algorithm in UNROLLED:
        how = {"block": block, "stationary": stationary, "num_slices": num_slices}
        tuned = unroll_as or autotune(problem, cluster, num_chips, memory_limit_bytes=math.inf, method="paper", **how)
        unrolled = _unrolled_slices(tuned, problem, num_chips)
    # The paper's prices hide every transfer; a plan is split where that needs it.
    hiding = replace(cluster, network=replace(cluster.network, hides_one_collective=False))
    search = MeshSearch(
        problem=problem,
        cluster=hiding,
        algorithm=algorithm,
        is_split=needs_split(cluster, algorithm),
        layers=layers,
        products=plan_products(problem, layers),
        block=block,
        unrolled=unrolled,
        num_slices=num_slices,
        kept_bytes=kept_bytes,
    )
    meshes = usable_meshes(problem, layers, algorithm, num_chips, mesh_shape, most_chips=cluster.num_chips)
    return search.rows(meshes, limit_bytes=limit_bytes)


def _unrolled_slices(tuned: Tuning, problem: GemmProblem, num_chips: int) -> tuple[tuple[int, int, int], ...]:
    """Returns the slices of each layer's products that MeshSlice was tuned to."""
    if (tuned.problem, tuned.num_chips, tuned.plan.algorithm) != (problem, num_chips, "meshslice"):
        raise GemmError(
            f"unroll_as must be what MeshSlice was tuned to for the same problem on {num_chips} chips, but is for "
            f"{tuned.plan.algorithm} on {tuned.num_chips}, or for another problem. Leave it out."
        )
    return tuple(layer.slices for layer in tuned.plan.layers)


def _check_problem(problem: GemmProblem) -> None:
    """Raises a GemmError unless a problem has layers, all of them with sizes and with names of their own."""
    if not isinstance(problem, GemmProblem):
        raise GemmError(f"problem must be a GemmProblem, but is {problem!r}. Make one: GemmProblem(layers=..., ...).")
    layers = problem.layers
    if not isinstance(layers, tuple | list) or not layers or not all(isinstance(one, FcLayer) for one in layers):
        raise GemmError(f"layers of a problem must be one FcLayer or more, in a tuple, but are {layers!r}.")
    for layer in layers:
        find_count(layer.in_features, "in_features", found=f" in layer {layer.name!r}")
        find_count(layer.out_features, "out_features", found=f" in layer {layer.name!r}")
    names = [layer.name for layer in layers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise GemmError(f"each layer of a problem needs its own name, but {names.count(twice)} are {twice!r}.")
    for name in ("num_rows", "num_blocks", "item_bytes"):
        find_count(getattr(problem, name), f"{name} of a problem")


def _check_chips(cluster: Cluster, num_chips: int, mesh_shape: Any) -> tuple[int, int] | None:
    """Returns the only mesh to look at, if any; refuses a mesh of other chips, and more than the cluster has."""
    find_count(num_chips, "num_chips")
    if num_chips > cluster.num_chips:
        raise GemmError(
            f"num_chips should be from 1 to the {cluster.num_chips} of {cluster.name}, found {num_chips}. "
            "Ask for fewer, or raise the number of chips in the cluster's file."
        )
    if mesh_shape is None:
        return None
    if not isinstance(mesh_shape, tuple | list) or len(mesh_shape) != 2:
        raise GemmError(f"mesh_shape must be the rows and columns of chips, say (4, 2), but is {mesh_shape!r}.")
    rows, columns = (find_count(count, "each of mesh_shape", found=f" in {mesh_shape!r}") for count in mesh_shape)
    if rows * columns != num_chips:
        raise GemmError(
            f"the mesh {rows}x{columns} has {rows * columns} chips, but num_chips is {num_chips}. Make them agree."
        )
    return rows, columns


def _find_algorithms(algorithm: Any, method: Any) -> tuple[str, ...]:
    """Returns the names of the algorithms to choose from.

    Raises:
        GemmError: if one is none, there is none, or the method has only one.
    """
    if method not in METHODS:
        raise GemmError(f"method must be one of {', '.join(METHODS)}, but is {method!r}.")
    names = ALL if algorithm == "all" else (algorithm,) if isinstance(algorithm, str) else algorithm
    if not isinstance(names, tuple | list) or not names:
        raise GemmError(f"algorithm must be a name, several names or 'all', but is {algorithm!r}.")
    found = tuple(dict.fromkeys(find_algorithm(name).name for name in names))
    if method == "paper" and len(found) > 1:
        raise GemmError(f"the paper's method tunes one algorithm at a time, but found {', '.join(found)}. Name one.")
    one_dimensional = [name for name in found if name in ("1d_tp", "fsdp")]
    if one_dimensional and len(found) > 1:
        raise GemmError(
            f"{one_dimensional[0]} sees the mesh as one row or column, and cannot be mixed with other algorithms. "
            "Tune it by itself; with 'all', Wang's algorithm on such a mesh stands for it."
        )
    return found


def _check_tuning_options(
    algorithms: tuple[str, ...],
    *,
    method: str,
    optimizer_bytes: Any,
    memory_limit_bytes: Any,
    keep: Any,
    block: Any,
    recompute: Any,
    stationary: Any,
    num_slices: Any,
    unroll_as: Any,
) -> Stationary | None:
    """Returns the stationary matrix if one is given; raises a GemmError if an option is none, or would be ignored."""
    find_count(keep, "keep")
    find_count(block, "block")
    find_flag(recompute, "recompute")
    if not isinstance(optimizer_bytes, int) or isinstance(optimizer_bytes, bool) or optimizer_bytes < 0:
        raise GemmError(f"optimizer_bytes must be a whole number, 0 or more, but is {optimizer_bytes!r}.")
    if unroll_as is not None and method != "paper":
        raise GemmError("unroll_as is for the paper's method. Leave it out, or say method='paper'.")
    if unroll_as is not None and not isinstance(unroll_as, Tuning):
        raise GemmError(f"unroll_as must be what `autotune` returned for MeshSlice, but is {unroll_as!r:.80}.")
    has_slices = any(find_algorithm(name).has_slices for name in algorithms)
    if num_slices is not None and find_count(num_slices, "num_slices") > 1 and not has_slices:
        raise GemmError(f"{algorithms[0]} does not slice, but num_slices is {num_slices}. Leave it out.")
    if memory_limit_bytes is not None and not _is_above_0(memory_limit_bytes):
        raise GemmError(f"memory_limit_bytes must be a number above 0, but is {memory_limit_bytes!r}.")
    if stationary is None:
        return None
    kept = find_choice(Stationary, stationary, "stationary")
    if "1d_tp" in algorithms or ("fsdp" in algorithms and kept is Stationary.W):
        what = "keeps w, whatever" if "1d_tp" in algorithms else "moves w, but"
        raise GemmError(f"{algorithms[0]} {what} stationary is {kept.value!r}. Leave it out.")
    return kept


def _is_above_0(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value) and value > 0
