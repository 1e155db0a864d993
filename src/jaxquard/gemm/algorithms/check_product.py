"""Refuses a product that an algorithm cannot do on a mesh, before anything is traced, in the user's names."""

import math
from collections.abc import Mapping

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.choices import find_count
from jaxquard.gemm.algorithms.product import Product
from jaxquard.gemm.algorithms.registry import ALGORITHMS, Algorithm
from jaxquard.gemm.algorithms.sizes import choose_ring
from jaxquard.gemm.problem import Dataflow

# Besides the sliced dim: the dims that are cut over the mesh's rows and over its columns.
_CUT_OVER = {Dataflow.OS: ("M", "N"), Dataflow.LS: ("M", "K"), Dataflow.RS: ("K", "N")}


def check_product(
    algorithm: Algorithm,
    product: Product,
    *,
    sizes: Mapping[str, int],
    num_rows: int,
    num_columns: int,
    names: Mapping[str, str],
) -> None:
    """Checks that mesh, slices and sizes fit.

    Args:
        sizes: of M, K and N, the rows of the product, the dim summed over, and the columns.
        num_rows: of the mesh, as the product sees it; likewise `num_columns`.
        names: what the user calls M, K and N.

    Raises:
        GemmError: if they don't; it says which size is wrong and which are the nearest that fit.
    """
    _check_mesh(algorithm, num_rows=num_rows, num_columns=num_columns)
    check_options(algorithm, product)
    if algorithm.has_ring_iterations:
        _check_iterations(algorithm, product, sizes, num_rows, num_columns)
    over_rows, over_columns = _CUT_OVER[product.dataflow]
    pieces = algorithm.num_pieces(product, num_rows=num_rows, num_columns=num_columns)
    mesh = f"a {num_rows}x{num_columns} mesh"
    check_size(names[over_rows], sizes[over_rows], num_rows, why=f"{mesh} cuts it into {num_rows}")
    check_size(names[over_columns], sizes[over_columns], num_columns, why=f"{mesh} cuts it into {num_columns}")
    sliced = product.sliced_dim
    check_size(
        names[sliced], sizes[sliced], pieces, why=_pieces(algorithm, product, mesh, pieces, num_rows, num_columns)
    )
    if algorithm.has_packets:
        _check_packets(product, sizes, pieces, num_rows, num_columns, names)


def check_size(name: str, size: int, divisor: int, *, why: str) -> None:
    """Raises a GemmError, with the nearest sizes that fit, unless `divisor` divides `size`."""
    if size % divisor == 0 and size > 0:
        return
    below = size // divisor * divisor
    nearest = f"{below} or {below + divisor}" if below else f"{divisor}"
    raise GemmError(
        f"{name} must be a multiple of {divisor} ({why}), but is {size}. Pad it: the nearest that fit: {nearest}."
    )


def _check_mesh(algorithm: Algorithm, *, num_rows: int, num_columns: int) -> None:
    if algorithm.is_square and num_rows != num_columns:
        side = math.isqrt(num_rows * num_columns)
        raise GemmError(
            f"{algorithm.name} needs a square mesh, but this one has {num_rows} rows and {num_columns} columns of "
            f"chips. Use {side}x{side}, or an algorithm for any mesh: meshslice, collective, wang, summa."
        )


def check_options(algorithm: Algorithm, product: Product) -> None:
    """Raises a GemmError if a count is none, or something is asked for that the algorithm would ignore."""
    counts = {"slices": product.slices, "block": product.block, "num_packets": product.num_packets}
    for name, count in counts.items():
        if count is not None:
            find_count(count, name)
    given = {
        "in_parts": product.in_parts,
        "num_packets": product.num_packets > 1,
        "ring": product.ring is not None,
        "both_ways": product.both_ways,
    }
    for name, is_given in given.items():
        if is_given:
            check_option(algorithm, name)
    if product.slices not in (None, 1) and not algorithm.has_slices:
        raise GemmError(
            f"{algorithm.name} does not slice, but slices is {product.slices}. Leave it out, or use meshslice."
        )


def check_option(algorithm: Algorithm, option: str) -> None:
    """Raises a GemmError if the algorithm does not take the option."""
    if option not in algorithm.options:
        takers = ", ".join(other.name for other in ALGORITHMS.values() if option in other.options)
        raise GemmError(f"{algorithm.name} takes no {option}, which is an option of {takers}. Leave it out.")


def _check_iterations(
    algorithm: Algorithm, product: Product, sizes: Mapping[str, int], num_rows: int, num_columns: int
) -> None:
    is_columns = choose_ring(product, sizes, num_rows, num_columns) == product.columns
    chips = num_columns if is_columns else num_rows
    if product.slices is not None and chips % product.slices:
        fitting = [str(count) for count in range(1, chips + 1) if chips % count == 0]
        raise GemmError(
            f"{algorithm.name} is unrolled to `slices` iterations, which must divide the {chips} chips of its ring, "
            f"but slices is {product.slices}. Use one of: {', '.join(fitting)}."
        )


def _pieces(algorithm: Algorithm, product: Product, mesh: str, pieces: int, num_rows: int, num_columns: int) -> str:
    """Why the sliced dim is cut into so many pieces."""
    chips = math.lcm(num_rows, num_columns)
    if pieces == chips:
        return f"{mesh} cuts it into {num_rows} and into {num_columns}"
    if algorithm.has_packets:
        return f"{mesh} and {product.slices} iterations cut it into {pieces}"
    return f"{mesh} cuts it into {chips}, each into {product.slices} slices of blocks of {product.block}"


def _check_packets(
    product: Product, sizes: Mapping[str, int], pieces: int, num_rows: int, num_columns: int, names: Mapping[str, str]
) -> None:
    """A broadcast or reduced part of each moving matrix must be cut into packets: its whole extent counts."""
    over_rows, over_columns = _CUT_OVER[product.dataflow]
    sliced = sizes[product.sliced_dim] // pieces
    for dim, chips in ((over_rows, num_rows), (over_columns, num_columns)):
        if (sliced * sizes[dim] // chips) % product.num_packets:
            raise GemmError(
                f"summa sends parts of {sliced * sizes[dim] // chips} elements ({names[product.sliced_dim]} by "
                f"{names[dim]}), which {product.num_packets} packets do not divide. Use a number of packets that does."
            )
