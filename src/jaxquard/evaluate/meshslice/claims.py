"""The claims that section 5 of MeshSlice makes in words, held against our numbers."""

from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import TypeVar

from jaxquard.evaluate.common.claims import Claim, make_claim
from jaxquard.evaluate.common.numbers import mesh_label, percent
from jaxquard.evaluate.meshslice.figures.communication import Breakdown
from jaxquard.evaluate.meshslice.figures.mesh_shapes import MeshPoint
from jaxquard.evaluate.meshslice.figures.product_shapes import ProductPoint
from jaxquard.evaluate.meshslice.figures.scaling import ScalingPoint
from jaxquard.evaluate.meshslice.figures.slice_counts import SlicePoint
from jaxquard.evaluate.meshslice.reproduce import Reproduction, SendRecvFigures
from jaxquard.evaluate.meshslice.setup.labels import ALGORITHM_LABELS, MODEL_LABELS

# In strong scaling at 256 chips MeshSlice is to be "similar" to Collective and Wang: we take a fifth.
_SIMILAR = 1.2
_OURS = "meshslice"
_Point = TypeVar("_Point")


def check_claims(results: Reproduction, figures: SendRecvFigures | None = None) -> tuple[Claim, ...]:
    """All that can be read off the figures, and the same question beyond the paper.

    Args:
        figures: those under another assumption about SendRecv.
    """
    shown = results if figures is None else figures
    large = [point for point in shown.weak_scaling if point.num_chips == 256]
    return (
        _claim("5.1.1", "MeshSlice is the fastest in weak scaling, always.", shown.weak_scaling, _faster),
        _claim("5.1.1", "Wang lies between MeshSlice and Collective in weak scaling.", shown.weak_scaling, _between),
        _claim(
            "5.1.1",
            "SUMMA, Cannon, 1D TP and FSDP are slower than Collective in large clusters (256 chips).",
            large,
            _faster_than_collective,
        ),
        _claim("5.1.2", "Collective has the shortest communication time.", shown.communication, _talks_less),
        _claim("5.1.2", "SUMMA has more communication time than Cannon.", shown.communication, _talks_more),
        _claim(
            "5.1.3",
            "In strong scaling, MeshSlice is above 1D TP and SUMMA and similar to Collective and Wang at 256 chips.",
            shown.strong_scaling,
            _strong,
        ),
        _claim("5.1.4", "MeshSlice is the fastest in all 16 products.", shown.product_shapes, _faster_products),
        _claim(
            "5.1.4",
            "Over Collective and Wang, MeshSlice gains more in the products that take longer.",
            shown.product_shapes,
            _gains_less,
        ),
        _claim("5.2", "The cost model finds the mesh that is best in simulation.", results.mesh_shapes, _wrong_mesh),
        _claim(
            "5.2",
            "The cost model finds the slice count that is best in simulation.",
            results.slice_counts,
            _wrong_slices,
        ),
        _claim("beyond", "MeshSlice is the fastest at 1,024 and 4,096 chips too.", shown.beyond, _faster),
    )


def _claim(
    section: str, text: str, points: Sequence[_Point], find_exceptions: Callable[[Sequence[_Point]], Iterable[str]]
) -> Claim:
    return make_claim(section, text, len(points), find_exceptions(points))


def _faster(points: Sequence[ScalingPoint]) -> Iterable[str]:
    ours = {(point.model, point.num_chips): point for point in points if point.algorithm == "meshslice"}
    for point in points:
        best = ours[point.model, point.num_chips]
        if point.utilisation > best.utilisation:
            yield f"{_name(point)}: {percent(point.utilisation)} against {percent(best.utilisation)}"


def _between(points: Sequence[ScalingPoint]) -> Iterable[str]:
    found = {(point.algorithm, point.model, point.num_chips): point.utilisation for point in points}
    for point in points:
        place = point.model, point.num_chips
        if point.algorithm == "wang" and not (
            found["collective", *place] <= point.utilisation <= found["meshslice", *place]
        ):
            yield f"{_name(point)}: {percent(point.utilisation)}"


def _faster_than_collective(points: Sequence[ScalingPoint]) -> Iterable[str]:
    collective = {point.model: point.utilisation for point in points if point.algorithm == "collective"}
    for point in points:
        if point.algorithm in ("summa", "cannon", "1d_tp", "fsdp") and point.utilisation > collective[point.model]:
            yield f"{_name(point)}: {percent(point.utilisation)} against {percent(collective[point.model])}"


def _talks_less(bars: Sequence[Breakdown]) -> Iterable[str]:
    collective = {bar.model: bar.total for bar in bars if bar.algorithm == "collective"}
    for bar in bars:
        if bar.total < collective[bar.model]:
            yield (
                f"{ALGORITHM_LABELS[bar.algorithm]}, {MODEL_LABELS[bar.model]}: {bar.total:.2f} "
                f"against {collective[bar.model]:.2f} of the products' time"
            )


def _talks_more(bars: Sequence[Breakdown]) -> Iterable[str]:
    found = {(bar.model, bar.algorithm): bar.total for bar in bars}
    for model, label in MODEL_LABELS.items():
        summa, cannon = found[model, "summa"], found[model, "cannon"]
        if summa <= cannon:
            yield f"{label}: {summa:.2f} against {cannon:.2f} of the products' time"


def _strong(points: Sequence[ScalingPoint]) -> Iterable[str]:
    large = [point for point in points if point.num_chips == 256]
    ours = {point.model: point.utilisation for point in large if point.algorithm == "meshslice"}
    for point in large:
        ratio = ours[point.model] / point.utilisation
        is_similar = point.algorithm in ("collective", "wang")
        is_slower = point.algorithm in ("summa", "1d_tp")
        if (is_similar and not 1 / _SIMILAR < ratio < _SIMILAR) or (is_slower and ratio < 1):
            yield f"MeshSlice is {ratio:.2f} times as fast as {_name(point)}"


def _faster_products(points: Sequence[ProductPoint]) -> Iterable[str]:
    ours = {(point.model, point.product): point for point in points if point.algorithm == "meshslice"}
    for point in points:
        best = ours[point.model, point.product]
        if point.utilisation > best.utilisation:
            yield (
                f"{ALGORITHM_LABELS[point.algorithm]}, {MODEL_LABELS[point.model]} {point.product}: "
                f"{percent(point.utilisation)} against {percent(best.utilisation)}"
            )


def _gains_less(points: Sequence[ProductPoint]) -> Iterable[str]:
    """The mean gain in the four products of a model that take longest is to be above that in the other four."""
    times = {(point.model, point.product, point.algorithm): point.time_s for point in points}
    for model, label in MODEL_LABELS.items():
        ours = {name: time_s for (of, name, algorithm), time_s in times.items() if (of, algorithm) == (model, _OURS)}
        ordered = sorted(ours, key=lambda name: ours[name])
        for other in ("collective", "wang"):
            gains = [times[model, name, other] / ours[name] - 1 for name in ordered]
            middle = len(gains) // 2
            short, long = mean(gains[:middle]), mean(gains[middle:])
            if long <= short:
                yield (
                    f"over {ALGORITHM_LABELS[other]}, {label}: {percent(long)} in the longer half of the products, "
                    f"{percent(short)} in the shorter"
                )


def _wrong_mesh(points: Sequence[MeshPoint]) -> Iterable[str]:
    for model, label in MODEL_LABELS.items():
        meshes = [point for point in points if point.model == model]
        estimated = max(meshes, key=lambda point: point.estimated)
        simulated = max(meshes, key=lambda point: point.simulated)
        if estimated is not simulated:
            yield f"{label}: {mesh_label(estimated.mesh_shape)} estimated, {mesh_label(simulated.mesh_shape)} simulated"


def _wrong_slices(points: Sequence[SlicePoint]) -> Iterable[str]:
    for model, label in MODEL_LABELS.items():
        counts = [point for point in points if point.model == model]
        estimated = max(counts, key=lambda point: point.estimated)
        simulated = max(counts, key=lambda point: point.simulated)
        if estimated is not simulated:
            yield f"{label}: {estimated.num_slices} estimated, {simulated.num_slices} simulated"


def _name(point: ScalingPoint) -> str:
    return f"{ALGORITHM_LABELS[point.algorithm]}, {MODEL_LABELS[point.model]} on {point.num_chips:,} chips"
