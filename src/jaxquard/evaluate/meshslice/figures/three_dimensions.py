"""Section 7: what a chip sends for an FC layer of GPT-3 on 1,024 chips, by 2.5D and by MeshSlice with data parallelism.

A[M,K] B[K,N] with M = 1024K, N = 12K, K = 48K. The paper counts P shards for a ring of P chips; a ring sends P - 1.

    2.5D, 16x16x4            P/c = 4 shifts of A and B       4 (384 + 4.5) MiB
    2.5D keeping A           P/c = 4 shifts of B and C       4 (4.5 + 96) MiB, which the paper leaves out
    MeshSlice + DP, 32x8x4   C along 8 columns, B along 32   8 x 24 + 32 x 4.5 MiB

None of them counts the skew and the copies of 2.5D, nor the sum of the weight's gradients over data parallelism.
A 3D algorithm needs a cube of chips, which 1,024 are not.
"""

from dataclasses import dataclass

M, N, K = 1024 * 1024, 12 * 1024, 48 * 1024
ITEM_BYTES = 2
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that one chip sends and holds.

    Attributes:
        traffic_bytes: counting P shards for a ring of P, as the paper does.
        minimum_traffic_bytes: counting P - 1.
        memory_bytes: of its shards of A, B and C, with the copies that the algorithm makes.
    """

    name: str
    mesh_shape: tuple[int, int, int]
    traffic_bytes: float
    minimum_traffic_bytes: float
    memory_bytes: float


def three_dimensions() -> tuple[Traffic, ...]:
    """The paper's two, and the 2.5D that it leaves out."""
    return (_two_and_a_half(keeps_a=False), _two_and_a_half(keeps_a=True), _meshslice())


def _two_and_a_half(*, keeps_a: bool) -> Traffic:
    """Cannon's shifts, shared out over `layers` copies of a square mesh (reference 28)."""
    side, layers = 16, 4
    a, b, c = (size * ITEM_BYTES / side**2 for size in (M * K, K * N, M * N))
    shifts = side // layers
    moving = b + c if keeps_a else a + b
    return Traffic(
        name="2.5D, A kept in place" if keeps_a else "2.5D",
        mesh_shape=(side, side, layers),
        traffic_bytes=shifts * moving,
        minimum_traffic_bytes=(shifts - 1) * moving,
        memory_bytes=a + b + c,
    )


def _meshslice() -> Traffic:
    """Left-stationary on each of `layers` meshes, which share out the rows of A."""
    rows, columns, layers = 32, 8, 4
    a, b, c = (size * ITEM_BYTES / (rows * columns) for size in (M // layers * K, K * N, M // layers * N))
    return Traffic(
        name="MeshSlice with data parallelism",
        mesh_shape=(rows, columns, layers),
        traffic_bytes=columns * c + rows * b,
        minimum_traffic_bytes=(columns - 1) * c + (rows - 1) * b,
        memory_bytes=a + b + c,
    )
