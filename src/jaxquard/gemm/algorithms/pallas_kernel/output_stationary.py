"""MeshSlice's output-stationary product as one Pallas kernel for TPUs.

One program runs all S slices. While the MXU multiplies slice s tile by tile, both gathers of slice s + 1 are in flight
as remote DMAs: the core starts each step of them between two tiles, and waits for the last one when the product is
done. The gathers of slice 0 run before the first product. The schedule is ours, not the compiler's, so nothing depends
on what it makes asynchronous.

    HBM     the shards, slice by slice; two gathered slices of A and of B; C in float32
    VMEM    the tiles of the product that runs (`Tiles.vmem_bytes`), nothing that grows with the matrices

XLA splits the shards into slices before the kernel, and rounds C to the dtype of the matrices after it. Nobody has run
this on a chip yet: the interpreter checks its numbers and looks for race conditions, and the TPU compiler compiles it.

Dims: M rows of the product, N its columns, K the dim that is summed over; k: of one slice.
"""

import functools
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxquard._jax_compat import interpreted_as_tpu, is_pallas_interpreted
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.pallas_kernel.check_kernel import check_kernel
from jaxquard.gemm.algorithms.pallas_kernel.ring_gather import (
    Ref,
    RingGather,
    Semaphores,
    gather_semaphores,
    in_step,
    meet_neighbours,
)
from jaxquard.gemm.algorithms.pallas_kernel.tiles import MemoryTile, Tiles, choose_tiles, memory_tile
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.transfers.rings import axes_size
from jaxquard.gemm.problem import AlgorithmOptions

COLLECTIVE_ID = 20
"""That of the barrier at the start; a program's other Pallas kernels that communicate need others."""
VMEM_BYTES = 32 * 2**20
"""The VMEM of the tiles at most; of a chip with less than 43 MiB of it, three quarters."""
_INTERPRETED_KIND = "TPU v5e"


def output_stationary_kernel(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    """Multiplies the shards of one chip, inside `shard_map`.

    Raises:
        GemmError: if the kernel cannot do it; see `check_kernel`.
    """
    check_kernel(lhs, rhs, product, options)
    return _multiply(lhs, rhs, product, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _multiply(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> jax.Array:
    layout, slices = product.layout, options.slices or 1
    lhs_SMk = _stack_slices(lhs if layout.lhs == "MK" else lhs.T, dim=1, slices=slices, block=options.block)
    rhs_SkN = _stack_slices(rhs if layout.rhs == "KN" else rhs.T, dim=0, slices=slices, block=options.block)

    # Under `vmap`, one product after the other: each starts with a barrier of its own.
    @sequential_vmap
    def run(lhs_SMk: jax.Array, rhs_SkN: jax.Array) -> jax.Array:
        if not is_pallas_interpreted():
            return _multiply_slices(lhs_SMk, rhs_SkN, product, unit=memory_tile(lhs.dtype))
        with interpreted_as_tpu(_INTERPRETED_KIND):
            # An interpreter's memory has no tiles, so that small matrices do.
            return _multiply_slices(lhs_SMk, rhs_SkN, product, unit=(1, 1))

    out_MN = run(lhs_SMk, rhs_SkN).astype(layout.rounded(lhs.dtype))
    return out_MN if layout.out == "MN" else out_MN.T


def _refuse_gradients(lhs: jax.Array, rhs: jax.Array, product: Product, options: AlgorithmOptions) -> NoReturn:
    raise GemmError(
        "a product with kernel='pallas' has no gradients of its own. Use `matmul`, whose gradients are products by "
        "Table 1, or kernel='xla'."
    )


_multiply.defvjp(_refuse_gradients, lambda product, options, saved, d_out: saved)


def _stack_slices(shard: jax.Array, *, dim: int, slices: int, block: int) -> jax.Array:
    """Splits a shard into blocked slices (see `blocked_slices`), one after the other along a new first dim."""
    before, size, after = shard.shape[:dim], shard.shape[dim] // slices, shard.shape[dim + 1 :]
    width = block if slices > 1 else size
    blocks = shard.reshape(*before, size // width, slices, width, *after)
    return jnp.moveaxis(blocks, dim + 1, 0).reshape(slices, *before, size, *after)


def _multiply_slices(lhs_SMk: jax.Array, rhs_SkN: jax.Array, product: Product, *, unit: MemoryTile) -> jax.Array:
    """Multiplies a chip's shards, split into slices; the result is in float32."""
    slices, m, chunk_k = lhs_SMk.shape
    n = rhs_SkN.shape[2]
    num_rows, num_columns = axes_size(product.rows), axes_size(product.columns)
    k = chunk_k * num_columns
    vmem_bytes = min(VMEM_BYTES, pltpu.get_tpu_info().vmem_capacity_bytes * 3 // 4)
    tiles = choose_tiles(
        (m, k, n),
        item_bytes=lhs_SMk.dtype.itemsize,
        unit=unit,
        vmem_bytes=vmem_bytes,
        min_tiles=2 * max(num_rows - 1, num_columns - 1),
    )
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    out_MN, *_ = pl.pallas_call(
        functools.partial(_kernel, product=product, tiles=tiles, unit=unit),
        grid=(slices,),
        in_specs=[in_hbm] * 2,
        out_specs=[in_hbm] * 3,
        # The gathered slices are outputs because a kernel's own scratch is not in HBM.
        out_shape=[
            pltpu.HBM((m, n), jnp.float32),
            pltpu.HBM((2, m, k), lhs_SMk.dtype),
            pltpu.HBM((2, k, n), rhs_SkN.dtype),
        ],
        scratch_shapes=[gather_semaphores(num_columns), gather_semaphores(num_rows)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            collective_id=COLLECTIVE_ID if num_rows * num_columns > 1 else None,
            vmem_limit_bytes=vmem_bytes * 5 // 4,
        ),
        name="meshslice_output_stationary",
    )(lhs_SMk, rhs_SkN)
    return out_MN


def _kernel(
    lhs: Ref,
    rhs: Ref,
    out: Ref,
    lhs_buffers: Ref,
    rhs_buffers: Ref,
    lhs_semaphores: Semaphores,
    rhs_semaphores: Semaphores,
    *,
    product: Product,
    tiles: Tiles,
    unit: MemoryTile,
) -> None:
    """Multiplies slice s, the number of the program in the grid, while both gathers of slice s + 1 are in flight."""
    s, num_slices = pl.program_id(0), lhs.shape[0]
    lhs_gather = RingGather(
        axes=product.columns, dim=1, slices=lhs, buffers=lhs_buffers, semaphores=lhs_semaphores, unit=unit
    )
    rhs_gather = RingGather(
        axes=product.rows, dim=0, slices=rhs, buffers=rhs_buffers, semaphores=rhs_semaphores, unit=unit
    )
    gathers = (lhs_gather, rhs_gather)

    @pl.when(s == 0)
    def _() -> None:
        meet_neighbours(gathers)
        for gather in gathers:
            gather.start(s)
        for gather, step in in_step(gathers):
            gather.pass_on(s, step)
        for gather in gathers:
            gather.finish(s, num_tiles=gather.num_steps)

    @pl.when(s + 1 < num_slices)
    def _() -> None:
        for gather in gathers:
            gather.start(s + 1)

    def between_tiles(tile: Any) -> None:
        @pl.when(s + 1 < num_slices)
        def _() -> None:
            for gather in gathers:
                gather.pass_on_between(s + 1, tile, num_tiles=tiles.num_tiles)

    _multiply_slice(lhs_gather.gathered(s), rhs_gather.gathered(s), out, tiles, is_first=s == 0, between=between_tiles)

    @pl.when(s + 1 < num_slices)
    def _() -> None:
        for gather in gathers:
            gather.finish(s + 1, num_tiles=tiles.num_tiles)

    @pl.when(s + 2 < num_slices)
    def _() -> None:
        for gather in gathers:
            gather.release()


def _multiply_slice(lhs_Mk: Any, rhs_kN: Any, out_MN: Any, tiles: Tiles, *, is_first: Any, between: Any) -> None:
    """Adds the product of a slice to the sums in HBM; `between` is called with the number of each tile before it."""
    tile_m, tile_k, tile_n = tiles.tile
    _, num_n, num_k = tiles.grid

    def multiply_tile(lhs: Any, rhs: Any, before: Any, after: Any) -> None:
        i, j, depth = (pl.program_id(axis) for axis in range(3))
        between((i * num_n + j) * num_k + depth)
        product = lax.dot(lhs[...], rhs[...], preferred_element_type=jnp.float32)

        @pl.when((depth == 0) & is_first)
        def _() -> None:
            after[...] = product

        @pl.when((depth == 0) & ~is_first)
        def _() -> None:
            after[...] = before[...] + product

        @pl.when(depth > 0)
        def _() -> None:
            after[...] += product

    sums = pl.BlockSpec((tile_m, tile_n), lambda i, j, depth: (i, j))
    pltpu.emit_pipeline(
        multiply_tile,
        grid=tiles.grid,
        in_specs=[
            pl.BlockSpec((tile_m, tile_k), lambda i, j, depth: (i, depth)),
            pl.BlockSpec((tile_k, tile_n), lambda i, j, depth: (depth, j)),
            sums,
        ],
        out_specs=[sums],
    )(lhs_Mk, rhs_kN, out_MN, out_MN)
