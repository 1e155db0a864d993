"""Refuses questions that the autotuner cannot answer, before it looks for an answer, in the user's words."""

import math
from typing import Any

from jaxquard.cluster import Cluster
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.choices import find_choice, find_count, find_flag
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.problem import FcLayer, GemmProblem, Stationary


def check_problem(problem: GemmProblem) -> None:
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
        raise GemmError(f"each layer of a problem needs a name of its own, but {names.count(twice)} are {twice!r}.")
    for name in ("num_rows", "num_blocks", "item_bytes"):
        find_count(getattr(problem, name), f"{name} of a problem")


def check_chips(cluster: Cluster, num_chips: int, mesh_shape: Any) -> tuple[int, int] | None:
    """The only mesh to look at, if there is one; refuses a mesh of other chips, and more than the cluster has."""
    find_count(num_chips, "num_chips")
    if num_chips > cluster.num_chips:
        raise GemmError(
            f"num_chips should be from 1 to the {cluster.num_chips} of {cluster.name}, found {num_chips}. "
            "Ask for fewer, or raise num_chips in the cluster's file."
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


def check_tuning_options(
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
    """What every layer should keep, if that was said; raises a GemmError if an option is none, or would be ignored."""
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
