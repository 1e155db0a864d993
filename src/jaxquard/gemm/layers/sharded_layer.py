"""A fully connected layer on a mesh: its three products with their options, and the shardings of X, W and Y."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
from jax.sharding import PartitionSpec

from jaxquard.gemm.algorithms.products.layer_products import Products
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.products.shardings import lhs_spec, out_spec, rhs_spec
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.problem import AlgorithmOptions, ProductRole

Options = tuple[AlgorithmOptions, AlgorithmOptions, AlgorithmOptions]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedLayer:
    """A layer whose plan is resolved; hashable, for use as a static argument.

    Attributes:
        products: in the order of `ProductRole`, as are their `options`.
    """

    algorithm: str
    products: Products
    options: Options

    def __iter__(self) -> Iterator[tuple[ProductRole, Product, AlgorithmOptions]]:
        return zip(ProductRole, self.products, self.options, strict=True)

    @property
    def w_spec(self) -> PartitionSpec:
        """The sharding of w[K,N], as the user wrote it."""
        return rhs_spec(self.products[0])

    def x_spec(self, ndim: int) -> PartitionSpec:
        """Returns the sharding of x[...,K]: the first of its dims and the last are sharded."""
        return _with_inner_dims(lhs_spec(self.products[0]), ndim)

    def y_spec(self, ndim: int) -> PartitionSpec:
        """Returns the sharding of y[...,N]."""
        return _with_inner_dims(out_spec(self.products[0]), ndim)

    def multiply(self, role: ProductRole, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """Multiplies the shards of one chip, inside `shard_map`."""
        product, options = next((product, options) for found, product, options in self if found is role)
        return find_algorithm(self.algorithm).multiply(lhs, rhs, product, options)


def _with_inner_dims(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    first, last = spec
    return PartitionSpec(first, *(None,) * (ndim - 2), last)
