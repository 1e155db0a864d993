"""Refuses a product that an algorithm cannot do on a mesh, before anything is traced, in the user's names."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace

from jaxquard.cluster.times.ring import ring_size
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.choices import find_count
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, SizedProduct
from jaxquard.gemm.algorithms.registry import ALGORITHMS, Algorithm
from jaxquard.gemm.problem import AlgorithmOptions

MATRIX_NAMES: Mapping[str, str] = {
    "M": "M, the rows of lhs,",
    "K": "K, the dim summed over,",
    "N": "N, the columns of rhs,",
}
"""The dims of a product in the words of `multiply`."""


def check_product(
    algorithm: Algorithm,
    product: SizedProduct,
    options: AlgorithmOptions,
    *,
    mesh_shape: MeshShape,
    names: Mapping[str, str] = MATRIX_NAMES,
) -> None:
    """Checks that mesh, slices and sizes fit.

    Args:
        mesh_shape: the rows and columns of the mesh, as the product sees it.
        names: the user's names of M, K and N.

    Raises:
        GemmError: if they don't; it says which size is wrong and which are the nearest that fit.
    """
    _check_mesh(algorithm, mesh_shape)
    check_options(algorithm, options)
    if algorithm.has_ring_iterations:
        _check_iterations(algorithm, product, options, mesh_shape)
    pieces = algorithm.num_pieces(options, mesh_shape)
    mesh = f"a {mesh_shape[0]}x{mesh_shape[1]} mesh"
    for dim, chips in zip(product.dataflow.stationary_dims, mesh_shape, strict=True):
        check_size(names[dim], product.size(dim), chips, why=f"{mesh} shards it over {chips}")
    why = _why_pieces(algorithm, options, mesh_shape, mesh, pieces)
    fitting = (
        _fitting_slices(algorithm, product.sliced_size, options, mesh_shape) if product.sliced_size % pieces else ""
    )
    check_size(names[product.dataflow.sliced_dim], product.sliced_size, pieces, why=why, instead=fitting)
    if algorithm.has_packets:
        _check_packets(product, options, pieces, mesh_shape, names)


def check_size(name: str, size: int, divisor: int, *, why: str, instead: str = "") -> None:
    """Raises a GemmError, with the nearest sizes that fit, unless `divisor` divides `size`.

    Args:
        instead: a sentence that names another way out.
    """
    if size % divisor == 0 and size > 0:
        return
    below = size // divisor * divisor
    nearest = f"{below} or {below + divisor}" if below else f"{divisor}"
    raise GemmError(
        f"{name} must be a multiple of {divisor} ({why}), but is {size}. Pad it: the nearest that fit: {nearest}."
        f"{instead}"
    )


def check_options(algorithm: Algorithm, options: AlgorithmOptions) -> None:
    """Raises a GemmError if a count is none, or something is asked for that the algorithm would ignore."""
    counts = {"slices": options.slices, "block": options.block, "num_packets": options.num_packets}
    for name, count in counts.items():
        if count is not None:
            find_count(count, name)
    for option in fields(options):
        if option.name not in ("slices", "block") and getattr(options, option.name) != option.default:
            check_option(algorithm, option.name)
    if options.slices not in (None, 1) and not algorithm.has_slices:
        raise GemmError(
            f"{algorithm.name} does not slice, but slices is {options.slices}. Leave it out, or use meshslice."
        )


def check_option(algorithm: Algorithm, option: str) -> None:
    """Raises a GemmError if the algorithm does not take the option."""
    if option not in algorithm.options:
        takers = ", ".join(other.name for other in ALGORITHMS.values() if option in other.options)
        raise GemmError(f"{algorithm.name} takes no {option}, which is an option of {takers}. Leave it out.")


def _check_mesh(algorithm: Algorithm, mesh_shape: MeshShape) -> None:
    num_rows, num_columns = mesh_shape
    if algorithm.is_square and num_rows != num_columns:
        side = math.isqrt(num_rows * num_columns)
        raise GemmError(
            f"{algorithm.name} needs a square mesh, but this one has {num_rows} rows and {num_columns} columns of "
            f"chips. Use {side}x{side}, or an algorithm for any mesh: meshslice, collective, wang, summa."
        )


def _check_iterations(
    algorithm: Algorithm, product: SizedProduct, options: AlgorithmOptions, mesh_shape: MeshShape
) -> None:
    chips = ring_size(options.ring or product.longer_ring(mesh_shape), mesh_shape)
    if options.slices is not None and chips % options.slices:
        fitting = [str(count) for count in range(1, chips + 1) if chips % count == 0]
        raise GemmError(
            f"{algorithm.name} is unrolled to `slices` iterations, which must divide the {chips} chips of its ring, "
            f"but slices is {options.slices}. Use one of: {', '.join(fitting)}."
        )


def _why_pieces(algorithm: Algorithm, options: AlgorithmOptions, mesh_shape: MeshShape, mesh: str, pieces: int) -> str:
    """Explains the number of pieces of the sliced dim."""
    chips = math.lcm(*mesh_shape)
    if pieces == chips:
        return f"{mesh} shards it over {mesh_shape[0]} and over {mesh_shape[1]}"
    if algorithm.has_packets:
        return f"{mesh} and {options.slices} iterations split it into {pieces}"
    return f"{mesh} splits it into {chips}, each into {options.slices} slices of blocks of {options.block}"


def _fitting_slices(algorithm: Algorithm, size: int, options: AlgorithmOptions, mesh_shape: MeshShape) -> str:
    """Names the numbers of slices next to those asked for that a size allows; nothing if there are none."""
    asked = options.slices or 1
    if asked == 1 or algorithm.has_ring_iterations:
        return ""

    def fits(slices: int) -> bool:
        return size % algorithm.num_pieces(replace(options, slices=slices), mesh_shape) == 0

    below = next((slices for slices in range(asked - 1, 0, -1) if fits(slices)), None)
    above = next((slices for slices in range(asked + 1, 2 * asked + 1) if fits(slices)), None)
    found = [str(slices) for slices in (below, above) if slices is not None]
    return f" Or ask for {' or '.join(found)} slices." if found else ""


def _check_packets(
    product: SizedProduct, options: AlgorithmOptions, pieces: int, mesh_shape: MeshShape, names: Mapping[str, str]
) -> None:
    """Checks that packets divide a broadcast or reduced part of each moving matrix: its whole extent counts."""
    sliced_dim, sliced = product.dataflow.sliced_dim, product.sliced_size // pieces
    for dim, chips in zip(product.dataflow.stationary_dims, mesh_shape, strict=True):
        size = sliced * product.size(dim) // chips
        if size % options.num_packets:
            raise GemmError(
                f"summa sends parts of {size} elements ({names[sliced_dim]} by {names[dim]}), which "
                f"{options.num_packets} packets do not divide. Use a number of packets that does."
            )
