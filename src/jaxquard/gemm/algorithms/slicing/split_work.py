"""The work of MeshSlice's split form: what a chip does for one slice besides its share of the product's flops.

For prices: plain numbers of `split.py`, by the shapes alone. Dims are those of the product as the form sees it: RS is
LS in a mirror, with rows and columns of the mesh exchanged.

    products   OS: two halves along M; the last slice is one product. LS, RS: P turns of two streams, each of half the
               rows of C by one chip's part of the slice; the last turn of a stream is made block by block if a slice
               has a few wide blocks, so that it is written where it belongs
    starts     the transfers that a slice starts: one all-gather for each input that moves along more than one chip, and
               a permute for each product of a stream but its last turn
    bytes      what the copies of a slice read and write on the chip, besides products: the slices that are taken out of
               the inputs to be gathered. Sums are added and rounded in the epilogue of a product: of the sum that
               arrives a product reads its own number of elements, `reads_sum`
"""

from dataclasses import dataclass

from jaxquard.cluster.times.ring import ring_size
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, SizedProduct
from jaxquard.gemm.algorithms.slicing.blocked_slices import BlockedSlices, widest_block
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProduct:
    """`count` local products of one size in a slice.

    Attributes:
        reads_sum: it adds to a sum that it reads: of other slices in OS (float32), of other chips in LS and RS (the
            dtype of the matrices).
    """

    m: int
    k: int
    n: int
    count: int
    reads_sum: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWork:
    """The work of one slice on one chip.

    Attributes:
        products: those of a slice that is neither the first nor the last.
        last_products: those of the last slice.
        num_gathers: the all-gathers that a slice starts.
        num_permutes: the permutes that a slice starts, both directions together; each runs beside the one product that
            follows, so that they take turns on the links: one direction at a time.
        permute_bytes: the bytes that a chip sends in the largest of them.
        copied_bytes: the bytes that the elementwise operations of a slice read and write.
    """

    products: tuple[SplitProduct, ...]
    last_products: tuple[SplitProduct, ...]
    num_gathers: int
    num_permutes: int
    permute_bytes: int
    copied_bytes: int

    @property
    def num_starts(self) -> int:
        """The asynchronous operations that a slice starts."""
        return self.num_gathers + self.num_permutes

    @property
    def num_products(self) -> int:
        return sum(product.count for product in self.products)


def split_work(product: SizedProduct, mesh_shape: MeshShape, options: AlgorithmOptions) -> SplitWork:
    """Returns the work of one slice of MeshSlice with `split_for_overlap`; there are 2 slices or more.

    Args:
        mesh_shape: the rows and columns of the mesh, as the product sees it.
    """
    match product.dataflow:
        case Dataflow.OS:
            return _halves_work(product, mesh_shape, options)
        case Dataflow.LS:
            return _streams_work(product, mesh_shape, options)
        case Dataflow.RS:
            return split_work(product.mirrored(), mesh_shape[::-1], options)


def _halves_work(product: SizedProduct, mesh_shape: MeshShape, options: AlgorithmOptions) -> SplitWork:
    slices = options.slices or 1
    m, k, n = product.local_shape(mesh_shape)
    halves = _sizes(m // 2, m - m // 2)
    return SplitWork(
        products=tuple(SplitProduct(m=rows, k=k // slices, n=n, count=count, reads_sum=True) for rows, count in halves),
        last_products=(SplitProduct(m=m, k=k // slices, n=n, count=1, reads_sum=True),),
        num_gathers=sum(chips > 1 for chips in mesh_shape),
        num_permutes=0,
        permute_bytes=0,
        copied_bytes=_slicing_bytes(product, mesh_shape, slices),
    )


def _streams_work(product: SizedProduct, mesh_shape: MeshShape, options: AlgorithmOptions) -> SplitWork:
    slices, (num_rows, num_columns) = options.slices or 1, mesh_shape
    m, k, n = product.local_shape(mesh_shape)
    width = n // (num_columns * slices)
    if num_columns == 1:
        products, rows = (SplitProduct(m=m, k=k, n=width, count=1, reads_sum=False),), [m]
    else:
        block = widest_block(n, slices=slices, mesh_shape=mesh_shape)
        out = BlockedSlices(dim=1, size=n // num_columns, slices=slices, block=block)
        rows = [m // 2, m - m // 2] if m > 1 else [m]
        products = tuple(
            SplitProduct(m=height, k=k, n=size, count=count * turns, reads_sum=reads_sum)
            for height, count in _sizes(*rows)
            for size, turns, reads_sum in (
                (width, 1, False),
                (width, num_columns - 2, True),
                (out.block_widths[0], len(out.block_widths), True),
            )
            if turns
        )
    return SplitWork(
        products=products,
        last_products=products,
        num_gathers=int(num_rows > 1),
        num_permutes=len(rows) * (num_columns - 1),
        permute_bytes=max(rows) * width * product.item_bytes if num_columns > 1 else 0,
        copied_bytes=_slicing_bytes(product, mesh_shape, slices),
    )


def _sizes(*sizes: int) -> tuple[tuple[int, int], ...]:
    """Returns each size once, with the number of times that it occurs."""
    return tuple((size, sizes.count(size)) for size in dict.fromkeys(sizes) if size)


def _slicing_bytes(product: SizedProduct, mesh_shape: MeshShape, slices: int) -> int:
    """Returns the bytes that taking one slice out of each input that is gathered reads and writes."""
    inputs = (moving for moving in product.moving if not moving.is_output and ring_size(moving.axis, mesh_shape) > 1)
    return sum(2 * int(product.shard_bytes(moving, mesh_shape)) // slices for moving in inputs)
