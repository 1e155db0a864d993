"""The sizes of a product: of the whole matrices from the shards of a chip, and how much of it moves where."""

from collections.abc import Mapping

import jax

from jaxquard.gemm.algorithms.product import Axes, Product
from jaxquard.gemm.algorithms.rings import ring_size
from jaxquard.gemm.problem import Dataflow

# Over what each dim is cut: M and K those of A, N that of B (in OS, K of B is cut over the rows).
_CUT = {
    Dataflow.OS: {"M": "rows", "K": "columns", "N": "columns"},
    Dataflow.LS: {"M": "rows", "K": "columns", "N": "rows"},
    Dataflow.RS: {"M": "columns", "K": "rows", "N": "columns"},
}
# Which matrix moves along the columns and which along the rows.
_MOVES = {Dataflow.OS: ("MK", "KN"), Dataflow.LS: ("MN", "KN"), Dataflow.RS: ("MK", "MN")}


def global_sizes(lhs: jax.Array, rhs: jax.Array, product: Product) -> dict[str, int]:
    """M, K and N of the whole product, given one chip's shards; inside `shard_map`."""
    local = dict(zip(product.layout.rhs, rhs.shape, strict=True)) | dict(
        zip(product.layout.lhs, lhs.shape, strict=True)
    )
    return {dim: local[dim] * ring_size(getattr(product, over)) for dim, over in _CUT[product.dataflow].items()}


def choose_ring(product: Product, sizes: Mapping[str, int], num_rows: int, num_columns: int) -> Axes:
    """The axes along which Wang's ring runs: those asked for, or else those along which more elements move."""
    if product.ring is not None:
        return product.ring
    along_columns, along_rows = (sizes[first] * sizes[second] for first, second in _MOVES[product.dataflow])
    is_columns = (num_columns - 1) * along_columns >= (num_rows - 1) * along_rows
    return product.columns if is_columns else product.rows
