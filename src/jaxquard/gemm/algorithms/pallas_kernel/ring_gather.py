"""The all-gather of one matrix's slices round a ring of chips, by remote DMA inside a Pallas kernel.

A chip holds its shard slice by slice, and two buffers for gathered slices: one is multiplied while the next one fills.
In step t each chip passes on to its neighbour the chunk that came from t places away, so that after P - 1 steps all
have all. One half of each chunk goes round each way: both directions of a link carry data.

    start     the chip's own chunk of the slice goes to both neighbours, and into the buffer
    pass_on   waits for step t - 1, and sends what came in it: issued between tiles of a product
    finish    waits for the last step, and for what was sent
    release   lets both neighbours write the buffer again, when the product that reads it is done

Each step of each buffer has its own semaphore for what arrives: a neighbour may be a step ahead, or send slice 1 while
slice 0 is still on its way to us, and DMAs may overtake each other. A neighbour cannot be two slices ahead: it sends
slice s + 2 when we release the buffer of slice s, after all of s + 1 has arrived.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxquard.gemm.algorithms.pallas_kernel.tiles import MemoryTile
from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.transfers.rings import axes_size, ring_index

Ref = Any
Place = dict[Any, Any]
"""The place of a chip along some axes of the mesh, by name; along the others it is that of this chip."""
Semaphores = tuple[Ref, Ref, Ref, Ref]
"""Of DMAs within a chip, of those sent, of those that arrive, and of a neighbour's room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """The part of each chunk, across the dim that is gathered, that goes round one way.

    Attributes:
        number: that of its semaphores.
        step: 1: to the next chip; -1: to the one before.
    """

    number: int
    step: int
    start: int
    width: int


def directions(chunk_shape: tuple[int, int], *, dim: int, unit: MemoryTile) -> tuple[Direction, ...]:
    """Returns both ways round, each with a half that memory tiles divide; or one, for a chunk of one memory tile."""
    width, step = chunk_shape[1 - dim], unit[1 - dim]
    half = width // 2 // step * step
    if half == 0:
        return (Direction(number=0, step=1, start=0, width=width),)
    return (
        Direction(number=0, step=1, start=0, width=half),
        Direction(number=1, step=-1, start=half, width=width - half),
    )


def gather_semaphores(num_chips: int) -> tuple[Any, ...]:
    """Returns the semaphores of a gather, as scratch of the kernel."""
    dma = pltpu.SemaphoreType.DMA
    return dma, dma((2,)), dma((2, 2, max(num_chips - 1, 1))), pltpu.SemaphoreType.REGULAR((2,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RingGather:
    """The gather of one matrix.

    Attributes:
        axes: of the ring.
        dim: along which chunks lie side by side: 0 or 1.
        slices: [S, ...]: this chip's shard, slice by slice.
        buffers: [2, ...]: gathered slices; slice s is in buffer s mod 2.
        semaphores: see `gather_semaphores`.
        unit: the tile of the memory: DMAs move whole ones.
    """

    axes: Axes
    dim: int
    slices: Ref
    buffers: Ref
    semaphores: Semaphores
    unit: MemoryTile

    @property
    def num_chips(self) -> int:
        return axes_size(self.axes)

    @property
    def num_steps(self) -> int:
        return self.num_chips - 1

    @property
    def neighbours(self) -> tuple[Place, ...]:
        """The chips before and after this one; in a ring of two, the other one twice."""
        return (self._neighbour(-1), self._neighbour(1)) if self.num_steps else ()

    def gathered(self, s: Any) -> Ref:
        """Returns the whole of slice s, once it is there: in a ring of one chip, the shard's own."""
        return self.buffers.at[lax.rem(s, 2)] if self.num_steps else self.slices.at[s]

    def start(self, s: Any) -> None:
        """Sends this chip's chunk of slice s; from the third slice on, once the neighbours have room for it."""
        if not self.num_steps:
            return
        for way in self._directions():

            @pl.when(s >= 2)
            def _(way: Direction = way) -> None:
                pl.semaphore_wait(self.semaphores[3].at[way.number], 1)

            self._sent(way, s, 0, self.slices.at[(s, *self._part(way))]).start()
        self._own(s).start()

    def pass_on(self, s: Any, step: Any) -> None:
        """Sends on what came in the step before; `step` is from 1 on."""
        for way in self._directions():
            self._arrived(way, s, step - 1).wait_recv()
            self._sent(way, s, step, self._chunk(way, s, step)).start()

    def pass_on_between(self, s: Any, tile: Any, *, num_tiles: int) -> None:
        """Passes on before this tile of a product if a step is due: the steps are spread over the tiles."""
        stride = self._stride(num_tiles)
        step = tile // stride + 1

        @pl.when((lax.rem(tile, stride) == 0) & (step < self.num_steps))
        def _() -> None:
            self.pass_on(s, step)

    def finish(self, s: Any, *, num_tiles: int = 0) -> None:
        """Passes on in the steps for which a product had too few tiles, and waits until all is done."""
        if not self.num_steps:
            return
        done = -(-num_tiles // self._stride(num_tiles)) + 1
        lax.fori_loop(min(done, self.num_steps), self.num_steps, lambda step, _: self.pass_on(s, step), None)
        for way in self._directions():
            self._arrived(way, s, self.num_steps - 1).wait_recv()
            wait = self._sent(way, s, 0, self.slices.at[(s, *self._part(way))]).wait_send
            lax.fori_loop(0, self.num_steps, lambda step, _, wait=wait: wait(), None)
        self._own(s).wait()

    def release(self) -> None:
        """Signals to both neighbours that they may write the buffer whose product is done."""
        for way in self._directions() if self.num_steps else ():
            pl.semaphore_signal(self.semaphores[3].at[way.number], 1, device_id=self._neighbour(-way.step))

    def _stride(self, num_tiles: int) -> int:
        """Returns the number of tiles from one step to the next."""
        return max(num_tiles // max(self.num_steps - 1, 1), 1)

    def _directions(self) -> tuple[Direction, ...]:
        _, *chunk = self.slices.shape
        return directions((chunk[0], chunk[1]), dim=self.dim, unit=self.unit)

    def _neighbour(self, step: int) -> Place:
        """Returns the place in the mesh of the chip so many places on."""
        index, place = lax.rem(ring_index(self.axes) + step + self.num_chips, self.num_chips), {}
        for axis in reversed(self.axes):
            place[axis] = lax.rem(index, lax.axis_size(axis))
            index = index // lax.axis_size(axis)
        return place

    def _part(self, way: Direction, chunk: Any = slice(None)) -> tuple[Any, Any]:
        """Returns the indices of a direction's part of a chunk."""
        part = pl.ds(way.start, way.width)
        return (part, chunk) if self.dim == 1 else (chunk, part)

    def _chunk(self, way: Direction, s: Any, places: Any) -> Ref:
        """Returns, in the buffer of slice s, the part of the chunk of the chip so many places back along the way."""
        width = self.slices.shape[1 + self.dim]
        chip = lax.rem(ring_index(self.axes) - way.step * places + self.num_chips, self.num_chips)
        chunk = pl.ds(pl.multiple_of(chip * width, width), width)
        return self.buffers.at[(lax.rem(s, 2), *self._part(way, chunk))]

    def _own(self, s: Any) -> Any:
        """Describes the copy of this chip's chunk into its own buffer."""
        width = self.slices.shape[1 + self.dim]
        chunk = pl.ds(pl.multiple_of(ring_index(self.axes) * width, width), width)
        index = (slice(None), chunk) if self.dim == 1 else (chunk, slice(None))
        return pltpu.make_async_copy(self.slices.at[s], self.buffers.at[(lax.rem(s, 2), *index)], self.semaphores[0])

    def _sent(self, way: Direction, s: Any, step: Any, source: Ref) -> Any:
        """Describes what this chip sends in a step: it lies in the same place in every chip's buffer."""
        _, sent, arrived, _ = self.semaphores
        return pltpu.make_async_remote_copy(
            src_ref=source,
            dst_ref=self._chunk(way, s, step),
            send_sem=sent.at[way.number],
            recv_sem=arrived.at[lax.rem(s, 2), way.number, step],
            device_id=self._neighbour(way.step),
        )

    def _arrived(self, way: Direction, s: Any, step: Any) -> Any:
        """Describes what this chip receives in a step."""
        _, sent, arrived, _ = self.semaphores
        here = self._chunk(way, s, step + 1)
        return pltpu.make_async_remote_copy(
            src_ref=here,
            dst_ref=here,
            send_sem=sent.at[way.number],
            recv_sem=arrived.at[lax.rem(s, 2), way.number, step],
            device_id=self._neighbour(way.step),
        )


def meet_neighbours(gathers: tuple[RingGather, ...]) -> None:
    """Waits until all neighbours run this kernel, so that their buffers and semaphores are there."""
    neighbours = [place for gather in gathers for place in gather.neighbours]
    if not neighbours:
        return
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in neighbours:
        pl.semaphore_signal(barrier, 1, device_id=neighbour)
    pl.semaphore_wait(barrier, len(neighbours))


def in_step(gathers: tuple[RingGather, ...]) -> Iterator[tuple[RingGather, int]]:
    """Yields the gathers with their steps from 1 on, all gathers' step 1 first."""
    for step in range(1, max(gather.num_steps for gather in gathers)):
        yield from ((gather, step) for gather in gathers if step < gather.num_steps)
