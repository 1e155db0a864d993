"""Boxes in an array: that of a piece, that of a device, and their overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A box: its start in each dim, and its shape."""

    starts: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Region":
        return cls(starts=(0,) * len(shape), shape=tuple(shape))

    @classmethod
    def of_index(cls, index: Sequence[slice], shape: Sequence[int]) -> "Region":
        """The box that one slice per dim selects of an array; dims beyond the last slice are whole."""
        slices = (*index, *(slice(None),) * (len(shape) - len(index)))
        bounds = [part.indices(size)[:2] for part, size in zip(slices, shape, strict=True)]
        return cls(starts=tuple(start for start, _ in bounds), shape=tuple(stop - start for start, stop in bounds))

    @property
    def size(self) -> int:
        return prod(self.shape)

    def shifted(self, rows: int) -> "Region":
        """The same box, so many rows further along the first dim; without dims it stays."""
        if not self.starts:
            return self
        return Region(starts=(self.starts[0] + rows, *self.starts[1:]), shape=self.shape)

    def extended(self, tail: Sequence[int]) -> "Region":
        """The same box of an array with more dims at its end, which are taken whole."""
        return Region(starts=(*self.starts, *(0 for _ in tail)), shape=(*self.shape, *tail))

    def overlap(self, other: "Region") -> "Region | None":
        """Returns the box that both cover; None if they are disjoint."""
        starts = tuple(map(max, self.starts, other.starts))
        stops = map(min, self._stops, other._stops)
        shape = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        return Region(starts=starts, shape=shape) if all(size > 0 for size in shape) else None

    def slices_in(self, outer: "Region") -> tuple[slice, ...]:
        """The index of this box in an array that holds just the box `outer`."""
        return tuple(
            slice(start - origin, start - origin + size)
            for start, origin, size in zip(self.starts, outer.starts, self.shape, strict=True)
        )

    @property
    def _stops(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.starts, self.shape, strict=True))
