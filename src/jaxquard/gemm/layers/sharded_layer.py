"""A fully connected layer on a mesh: its three products with their options, and the shardings of X, W and Y."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxquard.gemm.algorithms.products.batch_axes import with_batch
from jaxquard.gemm.algorithms.products.layer_products import Products
from jaxquard.gemm.algorithms.products.product import Axes, Product
from jaxquard.gemm.algorithms.products.shardings import axes_of, lhs_spec, num_chips, out_spec, rhs_spec
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.problem import AlgorithmOptions, ProductRole

Options = tuple[AlgorithmOptions, AlgorithmOptions, AlgorithmOptions]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedLayer:
    """A layer whose plan is resolved; hashable, for use as a static argument.

    Attributes:
        products: in the order of `ProductRole`, as are their `options`.
        batch_axes: the mesh axes over which the first dim of x and y is sharded besides, major to those of the product.
    """

    algorithm: str
    products: Products
    options: Options
    batch_axes: Axes = ()

    def __iter__(self) -> Iterator[tuple[ProductRole, Product, AlgorithmOptions]]:
        return zip(ProductRole, self.products, self.options, strict=True)

    @property
    def result_dtype(self) -> np.dtype | None:
        """The dtype of y and of sums that travel; None for that of x and w."""
        return self.products[0].layout.result_dtype

    @property
    def w_spec(self) -> PartitionSpec:
        """The sharding of w[K,N], as the user wrote it."""
        return rhs_spec(self.products[0])

    def x_spec(self, ndim: int) -> PartitionSpec:
        """Returns the sharding of x[...,K]: the first of its dims and the last are sharded."""
        return self._with_inner_dims(lhs_spec(self.products[0]), ndim)

    def y_spec(self, ndim: int) -> PartitionSpec:
        """Returns the sharding of y[...,N]."""
        return self._with_inner_dims(out_spec(self.products[0]), ndim)

    def _with_inner_dims(self, spec: PartitionSpec, ndim: int) -> PartitionSpec:
        first, last = with_batch(spec, self.batch_axes)
        return PartitionSpec(first, *(None,) * (ndim - 2), last)

    def first_dim_shards(self, shape: Mapping[str, int]) -> int:
        """Returns the number of shards that the products make of the first dim of x and y, batch axes aside.

        Args:
            shape: of the mesh.
        """
        specs = lhs_spec(self.products[0]), out_spec(self.products[0])
        return math.lcm(*(num_chips(axes_of(spec[0]), shape) for spec in specs))

    def multiply(self, role: ProductRole, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        """Multiplies the shards of one chip, inside `shard_map`."""
        product, options = next((product, options) for found, product, options in self if found is role)
        return find_algorithm(self.algorithm).multiply(lhs, rhs, product, options)
