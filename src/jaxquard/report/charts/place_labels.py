"""Places the names of dots in a drawing, so that they cover neither each other nor other dots."""

from collections.abc import Sequence

Point = tuple[float, float]
# Left, top, right, bottom; y grows downwards.
Box = tuple[float, float, float, float]

_DOT = 6.0
_LETTER = 0.6
_STEPS = (0.0, 14.0, 28.0, 42.0)


def place_labels(
    points: Sequence[Point], names: Sequence[str], *, size: float, within: Box, lines: Sequence[Box] = ()
) -> list[tuple[Point, str]]:
    """For each dot the place of its name, on the baseline, and the end that stands there (SVG's text-anchor).

    Right of the dot if there is room, else left, above, below, or further off; the first dots choose first. Names keep
    off lines as well, unless there is no other place.
    """
    taken: list[Box] = [_around(point) for point in points]
    placed = []
    for point, name in zip(points, names, strict=True):
        width = _LETTER * size * len(name)
        ways = [(at, anchor, _box(at, anchor, width, size)) for at, anchor in _ways(point, size)]
        fitting = [way for way in ways if _is_inside(way[2], within) and not any(_meet(way[2], box) for box in taken)]
        clear = [way for way in fitting if not any(_meet(way[2], line) for line in lines)]
        at, anchor, box = (clear or fitting or ways)[0]
        taken.append(box)
        placed.append((at, anchor))
    return placed


def _ways(point: Point, size: float) -> list[tuple[Point, str]]:
    x, y = point
    middle = 0.35 * size
    ways = []
    for step in _STEPS:
        ways += [
            ((x + _DOT + 3, y + middle - step), "start"),
            ((x + _DOT + 3, y + middle + step), "start"),
            ((x - _DOT - 3, y + middle - step), "end"),
            ((x - _DOT - 3, y + middle + step), "end"),
            ((x, y - _DOT - 4 - step), "middle"),
            ((x, y + _DOT + size + step), "middle"),
        ]
    return ways


def _around(point: Point) -> Box:
    x, y = point
    return x - _DOT, y - _DOT, x + _DOT, y + _DOT


def _box(at: Point, anchor: str, width: float, size: float) -> Box:
    left = at[0] - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, at[1] - 0.8 * size, left + width, at[1] + 0.25 * size


def _is_inside(box: Box, within: Box) -> bool:
    return box[0] >= within[0] and box[1] >= within[1] and box[2] <= within[2] and box[3] <= within[3]


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
