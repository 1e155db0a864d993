"""The tiles in which a chip multiplies one slice, and the VMEM that they take.

The product of a slice, C[M,N] += A[M,k] B[k,N], runs tile by tile, `k` innermost, then `N`. A tile of A is kept while
the tiles of N pass by if it holds the whole of `k`, and so is a tile of B if it also holds the whole of `N`. Of the
tiles that fit in VMEM we take those that read the fewest bytes of A and B from HBM; C is read and written once a slice
whatever they are.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp

SUM_BYTES = 4
"""Bytes of an element of C, which is summed in float32."""
MemoryTile = tuple[int, int]
"""Rows and columns of the tiles in which a memory is laid out."""
_LARGEST = 2048
_MIN_DEPTH = 512
"""A tile sums over so much of k at least, where k has it: less, and adding to the sums in VMEM takes the time."""


def memory_tile(dtype: jnp.dtype) -> MemoryTile:
    """Returns the tile of a TPU's memory: (8, 128) for float32, (16, 128) for bfloat16."""
    return 8 * 4 // dtype.itemsize, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """A slice's product of one chip, with the sizes of its tiles."""

    sizes: tuple[int, int, int]
    """M, k and N of the slice's product."""
    tile: tuple[int, int, int]
    """M, k and N of a tile."""
    item_bytes: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """The number of tiles along M, N and k, in the order in which they run."""
        m, k, n = (size // tile for size, tile in zip(self.sizes, self.tile, strict=True))
        return m, n, k

    @property
    def num_tiles(self) -> int:
        return math.prod(self.grid)

    @property
    def vmem_bytes(self) -> int:
        """The VMEM of the tiles: two buffers each of A, B, the sums read and the sums written, and one product.

        A matrix that is one tile has one buffer.
        """
        (m, k, n), (num_m, num_n, num_k) = self.tile, self.grid
        lhs = m * k * min(num_m * num_k, 2)
        rhs = k * n * min(num_n * num_k, 2)
        sums = m * n * min(num_m * num_n, 2)
        return (lhs + rhs) * self.item_bytes + (2 * sums + m * n) * SUM_BYTES

    @property
    def hbm_bytes(self) -> int:
        """The bytes of A and B that a slice's product reads."""
        m, k, n = self.sizes
        num_m, num_n, num_k = self.grid
        lhs = m * k * (1 if num_k == 1 else num_n)
        rhs = k * n * (1 if num_k == 1 and num_n == 1 else num_m)
        return (lhs + rhs) * self.item_bytes


def choose_tiles(
    sizes: tuple[int, int, int], *, item_bytes: int, unit: MemoryTile, vmem_bytes: int, min_tiles: int
) -> Tiles:
    """Returns the tiles that read the fewest bytes from HBM.

    Args:
        sizes: M, k and N of a chip's product of one slice.
        unit: the tile of the memory, which divides the shapes of A, B and C.
        vmem_bytes: the VMEM that the tiles may take.
        min_tiles: so many tiles at least, where they can be made: the steps of the gathers run between tiles.
    """
    candidates = [
        tiles
        for tile in _possible_tiles(sizes, unit)
        if (tiles := Tiles(sizes=sizes, tile=tile, item_bytes=item_bytes)).vmem_bytes <= vmem_bytes
    ]
    assert candidates, (sizes, vmem_bytes)
    enough = [tiles for tiles in candidates if tiles.num_tiles >= min_tiles]
    most = max(tiles.num_tiles for tiles in candidates)
    chosen = enough or [tiles for tiles in candidates if tiles.num_tiles == most]
    return min(chosen, key=lambda tiles: (tiles.hbm_bytes, tiles.num_tiles, tiles.vmem_bytes))


def _possible_tiles(sizes: tuple[int, int, int], unit: MemoryTile) -> Iterator[tuple[int, int, int]]:
    """Yields M, k and N of the tiles that divide the sizes and are divided by the memory's."""
    rows, columns = unit
    m, k, n = (
        [tile for tile in range(step, min(size, _LARGEST) + 1, step) if size % tile == 0]
        for size, step in zip(sizes, (rows, columns, columns), strict=True)
    )
    return itertools.product(m, [depth for depth in k if depth >= min(_MIN_DEPTH, k[-1])], n)
