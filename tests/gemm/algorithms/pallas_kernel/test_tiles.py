"""Tiles fit in VMEM and read the fewest bytes; by brute force over what the sizes allow."""

import itertools

import jax.numpy as jnp
import pytest

from jaxquard.gemm.algorithms.pallas_kernel.tiles import Tiles, choose_tiles, memory_tile

MIB = 2**20


def test_the_tiles_of_a_tpus_memory():
    assert memory_tile(jnp.dtype(jnp.float32)) == (8, 128)
    assert memory_tile(jnp.dtype(jnp.bfloat16)) == (16, 128)


def test_a_layer_of_gpt3_on_16_by_16_chips():
    """The first layer of the MLP, 12288 by 49152, on 128 sequences of 2,048 in 3 slices: as in the docs."""
    tiles = choose_tiles((16384, 4096, 3072), item_bytes=2, unit=(16, 128), vmem_bytes=32 * MIB, min_tiles=30)
    assert (tiles.tile, tiles.grid) == ((1024, 1024, 1024), (16, 3, 4))
    assert tiles.vmem_bytes == 28 * MIB


@pytest.mark.parametrize("vmem_bytes", [MIB // 2, 2 * MIB, 8 * MIB])
@pytest.mark.parametrize("min_tiles", [1, 6])
def test_the_fewest_bytes_of_all_tiles_that_fit(vmem_bytes, min_tiles):
    sizes = (256, 1024, 384)
    chosen = choose_tiles(sizes, item_bytes=2, unit=(16, 128), vmem_bytes=vmem_bytes, min_tiles=min_tiles)
    steps = zip(sizes, (16, 128, 128), strict=True)
    fitting = [
        tiles
        for tile in itertools.product(*([t for t in range(u, size + 1, u) if size % t == 0] for size, u in steps))
        if (tiles := Tiles(sizes=sizes, tile=tile, item_bytes=2)).vmem_bytes <= vmem_bytes
        and tiles.num_tiles >= min_tiles
        and tile[1] >= 512
    ]
    assert chosen.hbm_bytes == min(bytes_read(sizes, tiles.tile) for tiles in fitting)
    assert chosen.hbm_bytes == bytes_read(sizes, chosen.tile)


def bytes_read(sizes, tile):
    """Counts the tiles of A and B that change from one tile of the product to the next, in bf16."""
    (m, k, n), (tile_m, tile_k, tile_n) = sizes, tile
    total, before = 0, (None, None)
    for i, j, depth in itertools.product(range(m // tile_m), range(n // tile_n), range(k // tile_k)):
        now = (i, depth), (depth, j)
        total += (now[0] != before[0]) * tile_m * tile_k * 2 + (now[1] != before[1]) * tile_k * tile_n * 2
        before = now
    return total


def test_as_many_tiles_as_there_can_be_where_there_are_too_few():
    tiles = choose_tiles((16, 128, 256), item_bytes=2, unit=(16, 128), vmem_bytes=8 * MIB, min_tiles=30)
    assert tiles.num_tiles == 2
