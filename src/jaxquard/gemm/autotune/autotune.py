"""The autotuner (MeshSlice, section 3.2): the stationary matrices, the mesh and the slice counts.

Phase 1 (`dataflows.py`) chooses the dataflow of each layer, phase 2 (`meshes.py`) the mesh and the slice counts. Two
things go beyond the paper: each of a layer's three products has its own slice count, and plans that exceed the memory
are left out. What cannot be answered is refused first, in the user's words.

SUMMA, Wang and the 1D algorithms are unrolled to the slice counts that MeshSlice is tuned to (section 4.2), each at
its own best mesh. A plan has all options that its price assumes.
"""

import math
from typing import Any

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.choices import find_choice, find_count, find_flag
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.autotune.dataflows import choose_dataflows
from jaxquard.gemm.autotune.meshes import MeshSearch, usable_meshes
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.cost.products import kept_bytes, plan_products
from jaxquard.gemm.problem import FcLayer, GemmProblem, Stationary

UNROLLED = ("wang", "summa", "1d_tp", "fsdp")
"""The algorithms whose iterations are as many as MeshSlice has slices, or fewer."""


def autotune(
    problem: GemmProblem,
    cluster: str | Cluster = "tpu-v4",
    num_chips: int = 256,
    algorithm: str = "meshslice",
    memory_limit_bytes: float | None = None,
    keep: int = 10,
    *,
    block: int = 8,
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
        algorithm: a key of `ALGORITHMS`.
        memory_limit_bytes: the limit of one chip; by default the memory of the cluster's chips.
        keep: the number of meshes in the result.
        block: the number of neighbouring columns or rows that a slice takes at a time.
        recompute: recomputes activations inside a block in the backward pass instead of storing them.
        stationary: "y", "x" or "w": the matrix that does not move in every layer; by default each layer's largest.
        mesh_shape: the only mesh to consider.
        num_slices: the only slice count to consider, where it divides.
        unroll_as: MeshSlice's tuning of the same problem, whose slice counts the other algorithms unroll to; by default
            it is computed each time.

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
    find_algorithm(algorithm)
    _check_problem(problem)
    mesh_shape = _check_chips(target, num_chips, mesh_shape)
    kept = _check_tuning_options(
        algorithm,
        memory_limit_bytes=memory_limit_bytes,
        keep=keep,
        block=block,
        recompute=recompute,
        stationary=stationary,
        num_slices=num_slices,
        unroll_as=unroll_as,
    )
    layers = choose_dataflows(problem, algorithm=algorithm, stationary=kept)
    unrolled = None
    if algorithm in UNROLLED:
        how = {"block": block, "stationary": kept, "num_slices": num_slices}
        tuned = unroll_as or autotune(problem, target, num_chips, memory_limit_bytes=math.inf, **how)
        unrolled = _unrolled_slices(tuned, problem, num_chips)
    search = MeshSearch(
        problem=problem,
        cluster=target,
        algorithm=algorithm,
        layers=layers,
        products=plan_products(problem, layers),
        block=block,
        unrolled=unrolled,
        num_slices=num_slices,
        kept_bytes=kept_bytes(problem, num_chips=num_chips, recompute=recompute),
    )
    meshes = usable_meshes(problem, layers, algorithm, num_chips, mesh_shape, most_chips=target.num_chips)
    limit_bytes = target.memory.size_bytes if memory_limit_bytes is None else memory_limit_bytes
    rows = search.rows(meshes, limit_bytes=limit_bytes)
    return Tuning(
        problem=problem, cluster=target.name, num_chips=num_chips, table=tuple(rows[:keep]), num_meshes=len(rows)
    )


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


def _check_tuning_options(
    algorithm: str,
    *,
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
    if unroll_as is not None and not isinstance(unroll_as, Tuning):
        raise GemmError(f"unroll_as must be what `autotune` returned for MeshSlice, but is {unroll_as!r:.80}.")
    if num_slices is not None and find_count(num_slices, "num_slices") > 1 and not find_algorithm(algorithm).has_slices:
        raise GemmError(f"{algorithm} does not slice, but num_slices is {num_slices}. Leave it out.")
    if memory_limit_bytes is not None and not _is_above_0(memory_limit_bytes):
        raise GemmError(f"memory_limit_bytes must be a number above 0, but is {memory_limit_bytes!r}.")
    if stationary is None:
        return None
    kept = find_choice(Stationary, stationary, "stationary")
    if algorithm == "1d_tp" or (algorithm == "fsdp" and kept is Stationary.W):
        what = "keeps w, whatever" if algorithm == "1d_tp" else "moves w, but"
        raise GemmError(f"{algorithm} {what} stationary is {kept.value!r}. Leave it out.")
    return kept


def _is_above_0(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value) and value > 0
