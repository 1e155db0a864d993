"""The paper's headlines beside ours, with a band over the constants, and a verdict.

Ours is what the authors' own constants give: the simulation set with SendRecv both ways for sections 5.1 and 5.2, the
main set with SendRecv one way for the real mesh of 5.3, each SendRecv with a launch. The band is over both measured
sets, each with SendRecv one way and both, and with a launch for each or one for a chain. Verdicts:

    reproduces           ours is within 10 % of the paper's number, as near as the authors bring their simulator to the
                         hardware (section 4.1)
    within band          it is not, but the paper's number lies in the band
    does not reproduce   neither
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxquard.evaluate.common.headlines import Headline
from jaxquard.evaluate.common.paper import PaperHeadline
from jaxquard.evaluate.common.verdicts import Grade, Verdict
from jaxquard.evaluate.meshslice.figures.dataflow_table import dataflow_table
from jaxquard.evaluate.meshslice.figures.mesh_shapes import compare_mesh_shapes, gain_over_mirror
from jaxquard.evaluate.meshslice.figures.product_shapes import mean_gain, product_shapes
from jaxquard.evaluate.meshslice.figures.real_mesh import mean_overhead, mean_slicing, real_mesh
from jaxquard.evaluate.meshslice.figures.scaling import scaling_point
from jaxquard.evaluate.meshslice.paper import Paper
from jaxquard.evaluate.meshslice.setup.constant_sets import MAIN, SIMULATION, ConstantSet, constant_sets
from jaxquard.evaluate.meshslice.setup.models import GPT3, MODELS
from jaxquard.evaluate.meshslice.setup.other_layers import other_layers_time_s
from jaxquard.evaluate.meshslice.setup.tuner import Tuner

TOLERANCE = 0.1
_REAL_MESH_SECTION = "5.3"


REPRODUCES = Verdict("reproduces", "reproduce", Grade.GOOD)
WITHIN_BAND = Verdict("within band", "lie within the band", Grade.FAIR)
DOES_NOT = Verdict("does not reproduce", "do not reproduce", Grade.POOR)
VERDICTS = (REPRODUCES, WITHIN_BAND, DOES_NOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandedHeadline(Headline):
    """A headline with a band over the constants.

    Attributes:
        by_set: ours, for each set of constants by its label.
        band: the minimum and the maximum over the measured sets.
        band_sets: in words, the sets that give the minimum and those that give the maximum.
        fitted: the minimum and the maximum with the constants that are fitted to the headlines.
    """

    ours: float
    by_set: dict[str, float]
    band: tuple[float, float]
    band_sets: tuple[str, str]
    fitted: tuple[float, float]

    @property
    def verdict(self) -> Verdict:
        if is_near(self.ours, self.paper.value):
            return REPRODUCES
        low, high = self.band
        return WITHIN_BAND if low <= self.paper.value <= high else DOES_NOT


def headlines(
    tuner: Tuner,
    paper: Paper,
    *,
    sets: Sequence[ConstantSet] | None = None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> tuple[BandedHeadline, ...]:
    """All of the paper's, in its order."""
    chosen = constant_sets() if sets is None else tuple(sets)
    values = []
    for position, one in enumerate(chosen):
        on_progress(position, len(chosen), one.label)
        values.append(headline_values(tuner, one))
    on_progress(len(chosen), len(chosen), "")
    return tuple(_headline(claim, chosen, values) for claim in paper.headlines)


def headline_values(tuner: Tuner, one: ConstantSet) -> dict[str, float]:
    """Every headline with one set of constants, by its key."""
    rows = real_mesh(tuner, one.cluster)
    products = product_shapes(one.cluster, algorithms=("meshslice", "collective", "wang"))
    found = {
        "mesh_shape_gpt3": gain_over_mirror(compare_mesh_shapes(tuner, one.cluster, models=(GPT3,))),
        "over_collective_shapes": 100 * mean_gain(products, "collective"),
        "over_wang_shapes": 100 * mean_gain(products, "wang"),
        "overhead": 100 * mean_overhead(rows),
        "slicing": 100 * mean_slicing(rows),
    }
    found |= {f"overlap_{row.model}": 100 * row.overlap_gain for row in rows}
    found |= {f"dataflow_{row.model}": 100 * row.gain for row in dataflow_table(tuner, one.cluster)}
    return found | _scaling_values(tuner, one)


def _scaling_values(tuner: Tuner, one: ConstantSet) -> dict[str, float]:
    """Returns the headlines of Figure 9, by key."""
    found = {}
    for model in MODELS:
        small = scaling_point(tuner, one.cluster, model, "meshslice", 16, batch=8)
        large = scaling_point(tuner, one.cluster, model, "meshslice", 256, batch=128)
        wang = scaling_point(tuner, one.cluster, model, "wang", 256, batch=128)
        others_s = other_layers_time_s(model, one.cluster, batch=128, num_chips=256)
        found |= {
            f"utilisation_{model.key}": 100 * large.utilisation,
            f"loss_{model.key}": 100 * (1 - large.utilisation / small.utilisation),
            f"over_wang_{model.key}": 100 * (wang.time_s / large.time_s - 1),
            f"end_to_end_{model.key}": 100 * ((wang.time_s + others_s) / (large.time_s + others_s) - 1),
        }
    return found


def is_near(ours: float, paper: float) -> bool:
    """Within the tolerance of the paper's number."""
    return abs(ours - paper) <= TOLERANCE * paper


def is_nominal(one: ConstantSet, section: str) -> bool:
    """Returns whether the authors' results of a section are those of this set."""
    if not one.launches_each_permute:
        return False
    if section.startswith(_REAL_MESH_SECTION):
        return one.name == MAIN and not one.is_bidirectional
    return one.name == SIMULATION and one.is_bidirectional


def _headline(claim: PaperHeadline, sets: Sequence[ConstantSet], values: Sequence[dict[str, float]]) -> BandedHeadline:
    by_set = {one.label: found[claim.key] for one, found in zip(sets, values, strict=True)}
    (ours,) = (by_set[one.label] for one in sets if is_nominal(one, claim.section))
    measured = [one for one in sets if not one.is_fitted]
    fitted = [by_set[one.label] for one in sets if one.is_fitted]
    low, high = (end(by_set[one.label] for one in measured) for end in (min, max))
    return BandedHeadline(
        paper=claim,
        ours=ours,
        by_set=by_set,
        band=(low, high),
        band_sets=(_sets_at(low, measured, by_set), _sets_at(high, measured, by_set)),
        fitted=(min(fitted), max(fitted)),
    )


def _sets_at(value: float, sets: Sequence[ConstantSet], by_set: dict[str, float]) -> str:
    """The sets that give a value: `main, one way`, or `main` where SendRecv makes no difference to it."""
    found: dict[str, list[ConstantSet]] = {}
    for one in sets:
        if math.isclose(by_set[one.label], value, rel_tol=1e-9):
            found.setdefault(one.name, []).append(one)
    return " and ".join(", ".join((name, *_common_words(of_name))) for name, of_name in found.items())


def _common_words(sets: Sequence[ConstantSet]) -> list[str]:
    """The assumptions about SendRecv that some sets of one name share; none that makes no difference among them."""
    ways, launches = ({getattr(one, of) for one in sets} for of in ("ways", "launches"))
    if len(sets) != len(ways) * len(launches):
        return [" or ".join(one.sendrecv for one in sets)]
    return [words.pop() for words in (ways, launches) if len(words) == 1]
