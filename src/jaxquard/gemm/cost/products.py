"""The products of a layer as shapes and dataflows, without what is in them.

Table 1 of MeshSlice (section 3.2.1) gives the three products of a layer that keeps one of its matrices in place, and
section 2.3.1 what each of them moves:

    OS  [M,K] along the columns, [K,N] along the rows                cut into slices along K
    LS  [N,K] along the rows, the result [M,N] along the columns     cut along N
    RS  [K,M] along the columns, the result [M,N] along the rows     cut along M
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.cluster import Axis, Collective
from jaxquard.cluster.collective_time import ring_size
from jaxquard.gemm.problem import Dataflow, FcLayer, GemmProblem, LayerPlan, Stationary


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingMatrix:
    """A matrix that moves along one direction of the mesh; of an output, partial sums are reduced."""

    name: str
    axis: Axis
    num_elements: int
    is_output: bool

    @property
    def collective(self) -> Collective:
        return Collective.REDUCE_SCATTER if self.is_output else Collective.ALL_GATHER


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedProduct:
    """C[M,N] from a contraction over K, by a dataflow; see `problem.py` for how A and B lie in each."""

    dataflow: Dataflow
    m: int
    k: int
    n: int
    item_bytes: int = 2

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def sliced_dim(self) -> int:
        """The dim that the matrix in place does not have: both others are cut along it."""
        return {Dataflow.OS: self.k, Dataflow.LS: self.n, Dataflow.RS: self.m}[self.dataflow]

    @property
    def accumulates(self) -> bool:
        """Whether the products of slices are summed on the chip, not laid side by side."""
        return self.dataflow is Dataflow.OS

    @property
    def moving(self) -> tuple[MovingMatrix, MovingMatrix]:
        """The two matrices that move; inputs first."""
        a, b, c = self.m * self.k, self.k * self.n, self.m * self.n
        return {
            Dataflow.OS: (_moving("A", Axis.COLUMNS, a), _moving("B", Axis.ROWS, b)),
            Dataflow.LS: (_moving("B", Axis.ROWS, b), _moving("C", Axis.COLUMNS, c, is_output=True)),
            Dataflow.RS: (_moving("A", Axis.COLUMNS, a), _moving("C", Axis.ROWS, c, is_output=True)),
        }[self.dataflow]

    def local_shape(self, mesh_shape: tuple[int, int]) -> tuple[int, int, int]:
        """M, K and N of what one chip multiplies."""
        rows, columns = mesh_shape
        return {
            Dataflow.OS: (self.m // rows, self.k, self.n // columns),
            Dataflow.LS: (self.m // rows, self.k // columns, self.n),
            Dataflow.RS: (self.m, self.k // rows, self.n // columns),
        }[self.dataflow]

    def slice_shape(self, mesh_shape: tuple[int, int], num_slices: int) -> tuple[float, float, float]:
        """M, K and N of what one chip multiplies for one slice."""
        m, k, n = self.local_shape(mesh_shape)
        return {
            Dataflow.OS: (m, k / num_slices, n),
            Dataflow.LS: (m, k, n / num_slices),
            Dataflow.RS: (m / num_slices, k, n),
        }[self.dataflow]

    def indivisible(self, mesh_shape: tuple[int, int]) -> str:
        """What of the product the mesh does not divide, in words; empty if it divides all."""
        rows, columns = mesh_shape
        cuts = {
            Dataflow.OS: (("M", self.m, rows), ("N", self.n, columns), ("K", self.k, rows), ("K", self.k, columns)),
            Dataflow.LS: (("M", self.m, rows), ("K", self.k, columns), ("N", self.n, rows), ("N", self.n, columns)),
            Dataflow.RS: (("K", self.k, rows), ("N", self.n, columns), ("M", self.m, rows), ("M", self.m, columns)),
        }[self.dataflow]
        for dim, size, parts in cuts:
            if size % parts:
                return f"{dim} = {size} does not divide by {parts}"
        return ""

    def shard_bytes(self, moving: MovingMatrix, mesh_shape: tuple[int, int]) -> float:
        """Of a moving matrix, what one chip holds."""
        return moving.num_elements * self.item_bytes / (mesh_shape[0] * mesh_shape[1])

    def gathered_bytes(self, moving: MovingMatrix, mesh_shape: tuple[int, int]) -> float:
        """Of a moving matrix, what one chip multiplies or makes in all."""
        return self.shard_bytes(moving, mesh_shape) * ring_size(moving.axis, mesh_shape)


def _moving(name: str, axis: Axis, num_elements: int, *, is_output: bool = False) -> MovingMatrix:
    return MovingMatrix(name=name, axis=axis, num_elements=num_elements, is_output=is_output)


def sized_products(
    layer: FcLayer, *, num_rows: int, stationary: Stationary, is_transposed: bool = False, item_bytes: int = 2
) -> tuple[SizedProduct, SizedProduct, SizedProduct]:
    """The products of a layer forward, backward for X and backward for W (Table 1)."""
    rows, inner, outer = num_rows, layer.in_features, layer.out_features
    shapes = {
        Stationary.Y: ((rows, inner, outer), (rows, outer, inner), (inner, rows, outer)),
        Stationary.X: ((rows, inner, outer), (rows, outer, inner), (outer, rows, inner)),
        Stationary.W: ((rows, inner, outer), (inner, outer, rows), (inner, rows, outer)),
    }[stationary]
    products = (
        SizedProduct(dataflow=dataflow, m=m, k=k, n=n, item_bytes=item_bytes)
        for dataflow, (m, k, n) in zip(stationary.dataflows, shapes, strict=True)
    )
    first, second, third = (transpose(product) if is_transposed else product for product in products)
    return first, second, third


def transpose(product: SizedProduct) -> SizedProduct:
    """The product of the transposed matrices: C^T = B^T A^T, so that what stood left stands right."""
    swapped = {Dataflow.OS: Dataflow.OS, Dataflow.LS: Dataflow.RS, Dataflow.RS: Dataflow.LS}
    return SizedProduct(
        dataflow=swapped[product.dataflow], m=product.n, k=product.k, n=product.m, item_bytes=product.item_bytes
    )


# Of one layer: forward, gradient of the input, gradient of the weight.
Products = tuple[SizedProduct, SizedProduct, SizedProduct]


def plan_products(problem: GemmProblem, layers: Sequence[LayerPlan]) -> tuple[Products, ...]:
    """The three products of each layer, as planned."""
    return tuple(
        sized_products(
            layer,
            num_rows=problem.num_rows,
            stationary=plan.stationary,
            is_transposed=plan.is_transposed,
            item_bytes=problem.item_bytes,
        )
        for layer, plan in zip(problem.layers, layers, strict=True)
    )


def problem_flops(problem: GemmProblem) -> float:
    """Of all layers, forward and backward, of one step."""
    weights = sum(layer.in_features * layer.out_features for layer in problem.layers)
    return 3 * 2.0 * problem.num_rows * weights * problem.num_blocks
