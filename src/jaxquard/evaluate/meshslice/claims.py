"""What section 5 claims in words, held against our numbers: does it hold, and where not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from jaxquard.evaluate.meshslice.communication import Breakdown
from jaxquard.evaluate.meshslice.labels import ALGORITHM_LABELS, MODEL_LABELS, mesh, percent
from jaxquard.evaluate.meshslice.mesh_shapes import MeshPoint
from jaxquard.evaluate.meshslice.product_shapes import ProductPoint
from jaxquard.evaluate.meshslice.reproduce import Reproduction
from jaxquard.evaluate.meshslice.scaling import ScalingPoint
from jaxquard.evaluate.meshslice.slice_counts import SlicePoint

# In strong scaling at 256 chips MeshSlice is to be "similar" to Collective and Wang: we take a fifth.
_SIMILAR = 1.2
_OURS = "meshslice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper, shortened, and where it does not hold; nowhere if empty."""

    section: str
    text: str
    exceptions: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.exceptions


def check_claims(results: Reproduction) -> tuple[Claim, ...]:
    """All that can be read off the figures, and the same question beyond the paper."""
    large = [point for point in results.weak_scaling if point.num_chips == 256]
    return (
        _claim("5.1.1", "MeshSlice is the fastest in weak scaling, always.", _faster(results.weak_scaling)),
        _claim("5.1.1", "Wang lies between MeshSlice and Collective in weak scaling.", _between(results.weak_scaling)),
        _claim(
            "5.1.1",
            "SUMMA, Cannon, 1D TP and FSDP are slower than Collective in large clusters (256 chips).",
            _faster_than_collective(large),
        ),
        _claim("5.1.2", "Collective has the least communication time.", _talks_less(results.communication)),
        _claim("5.1.2", "SUMMA has more communication time than Cannon.", _talks_more(results.communication)),
        _claim(
            "5.1.3",
            "In strong scaling, MeshSlice is above 1D TP and SUMMA and similar to Collective and Wang at 256 chips.",
            _strong(results.strong_scaling),
        ),
        _claim("5.1.4", "MeshSlice is the fastest in all 16 products.", _faster_products(results.product_shapes)),
        _claim(
            "5.1.4",
            "Over Collective and Wang, MeshSlice gains more in the products that take longer.",
            _gains_less(results.product_shapes),
        ),
        _claim("5.2", "The cost model finds the mesh that is best in simulation.", _wrong_mesh(results.mesh_shapes)),
        _claim(
            "5.2",
            "The cost model finds the slice count that is best in simulation.",
            _wrong_slices(results.slice_counts),
        ),
        _claim("beyond", "MeshSlice is the fastest at 1,024 and 4,096 chips too.", _faster(results.beyond)),
    )


def _claim(section: str, text: str, exceptions: Iterable[str]) -> Claim:
    return Claim(section=section, text=text, exceptions=tuple(exceptions))


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
        is_rival = point.algorithm in ("collective", "wang")
        if (is_rival and not 1 / _SIMILAR < ratio < _SIMILAR) or (point.algorithm in ("summa", "1d_tp") and ratio < 1):
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
        for rival in ("collective", "wang"):
            gains = [times[model, name, rival] / ours[name] - 1 for name in ordered]
            middle = len(gains) // 2
            short, long = mean(gains[:middle]), mean(gains[middle:])
            if long <= short:
                yield (
                    f"over {ALGORITHM_LABELS[rival]}, {label}: {percent(long)} in the longer half of the products, "
                    f"{percent(short)} in the shorter"
                )


def _wrong_mesh(points: Sequence[MeshPoint]) -> Iterable[str]:
    for model, label in MODEL_LABELS.items():
        meshes = [point for point in points if point.model == model]
        estimated = max(meshes, key=lambda point: point.estimated)
        simulated = max(meshes, key=lambda point: point.simulated)
        if estimated is not simulated:
            yield f"{label}: {mesh(estimated.mesh_shape)} estimated, {mesh(simulated.mesh_shape)} simulated"


def _wrong_slices(points: Sequence[SlicePoint]) -> Iterable[str]:
    for model, label in MODEL_LABELS.items():
        counts = [point for point in points if point.model == model]
        estimated = max(counts, key=lambda point: point.estimated)
        simulated = max(counts, key=lambda point: point.simulated)
        if estimated is not simulated:
            yield f"{label}: {estimated.num_slices} estimated, {simulated.num_slices} simulated"


def _name(point: ScalingPoint) -> str:
    return f"{ALGORITHM_LABELS[point.algorithm]}, {MODEL_LABELS[point.model]} on {point.num_chips:,} chips"
