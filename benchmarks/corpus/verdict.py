"""The comparison of a recorded plan and a new one, both priced by the frozen code."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# By how much new plans may be slower, in the mean and each.
MOST_MEAN, MOST_WORST = 1.01, 1.05
# The seconds of a search, whatever it took when it was recorded.
MOST_SEARCH_S = {"llama3:405b on h100-8x2048": 5.0}
# The frozen code gives the same numbers again, up to rounding.
_SAME = 1e-6

# What a worker says of a plan, or of its price.
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A problem as it was recorded and as it is planned now; seconds and bytes of steps are the frozen code's.

    Attributes:
        then_s: of the recorded plan's step; None if no plan fitted.
        now_s: of the new plan's step; None if there is none, or it has no price.
        peak_bytes: of the new plan.
        search_then_s: of the processor, when it was recorded, or by the frozen code now.
        search_now_s: the same; None if nothing was planned.
        is_simpler_of_tie: the new plan is as fast as another by its own pricer, and simpler.
        faults: what is against the new plan, or against the record.
    """

    name: str
    then_s: float | None
    now_s: float | None
    peak_bytes: float | None
    limit_bytes: float | None
    search_then_s: float
    search_now_s: float | None
    is_simpler_of_tie: bool = False
    faults: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The new plan's seconds over the recorded one's."""
        return None if self.now_s is None or self.then_s is None else self.now_s / self.then_s

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table."""
        search = None if self.search_now_s is None else self.search_now_s / max(self.search_then_s, 1e-3)
        used = None if self.peak_bytes is None or not self.limit_bytes else self.peak_bytes / self.limit_bytes
        numbers = {
            "{:.5g}": (self.then_s, self.now_s),
            "{:.4f}": (self.ratio,),
            "{:.2f}": (search,),
            "{:.3f}": (used,),
        }
        texts = ["-" if number is None else form.format(number) for form, found in numbers.items() for number in found]
        return self.name, *texts, "yes" if self.is_simpler_of_tie else "", "; ".join(self.faults)


HEADS = ("problem", "then, s", "now, s", "ratio", "search", "of memory", "simpler of a tie", "faults")


def compare(then: Answer, now: Answer | None, *, then_price: Answer | None, now_price: Answer | None) -> Verdict:
    """Returns the verdict on one problem.

    Args:
        then: the recorded answer.
        now: the new one; None to check the record alone.
        then_price: of the recorded plan, by the frozen code; None if there was no plan.
        now_price: of the new plan.
    """
    faults = [*_faults_of_record(then, then_price), *_faults_of_plan(then, now, then_price, now_price)]
    priced = now_price if now_price is not None and "failure" not in now_price else {}
    return Verdict(
        name=then["name"],
        then_s=None if then_price is None else then_price.get("time_s"),
        now_s=priced.get("time_s"),
        peak_bytes=priced.get("peak_bytes"),
        limit_bytes=priced.get("limit_bytes"),
        search_then_s=then["search_cpu_s"],
        search_now_s=None if now is None else now["search_cpu_s"],
        is_simpler_of_tie=bool(now and now.get("is_simpler_of_tie")),
        faults=tuple(faults),
    )


def _faults_of_record(then: Answer, price: Answer | None) -> list[str]:
    """Returns the differences between the recorded numbers and those of the frozen code for the same plan."""
    if price is None:
        return []
    if "failure" in price:
        return [f"the recorded plan has no price: {price['failure']}"]
    return [
        f"the recorded {key} is {then[key]:.7g}, the frozen code says {price[key]:.7g}"
        for key in ("time_s", "peak_bytes", "limit_bytes")
        if abs(price[key] - then[key]) > _SAME * abs(then[key])
    ]


def _faults_of_plan(then: Answer, now: Answer | None, then_price: Answer | None, now_price: Answer | None) -> list[str]:
    if now is None:
        return []
    faults = []
    if "refusal" in now and "refusal" not in then:
        faults.append(f"no plan: {now['refusal']}")
    if now_price is not None and "failure" in now_price:
        faults.append(f"the new plan has no price: {now_price['failure']}")
    elif now_price is not None:
        if now_price["peak_bytes"] > now_price["limit_bytes"]:
            faults.append("too large")
        then_s = (then_price or {}).get("time_s")
        if then_s is not None and now_price["time_s"] > MOST_WORST * then_s:
            faults.append(f"slower by more than {MOST_WORST - 1:.0%}")
    most_s = MOST_SEARCH_S.get(then["name"])
    if most_s is not None and now["search_cpu_s"] > most_s:
        faults.append(f"its search took {now['search_cpu_s']:.1f} s, wanted {most_s:g}")
    return faults


def summarise(verdicts: Sequence[Verdict]) -> tuple[list[str], bool]:
    """Returns the summary in lines, and whether all limits are met."""
    ratios = {one: one.ratio for one in verdicts if one.ratio is not None}
    in_mean = [ratio for one, ratio in ratios.items() if not one.is_simpler_of_tie]
    mean = statistics.fmean(in_mean) if in_mean else 1.0
    simpler = [one.name for one in ratios if one.is_simpler_of_tie]
    faults = [one.name for one in verdicts if one.faults]
    lines = []
    if ratios:
        lines.append(f"mean of {len(in_mean)} ratios: {mean:.4f}, at most {MOST_MEAN}: {_word(mean <= MOST_MEAN)}")
        worst = max(ratios, key=lambda one: ratios[one])
        is_met = ratios[worst] <= MOST_WORST
        lines.append(f"worst: {ratios[worst]:.4f} ({worst.name}), at most {MOST_WORST}: {_word(is_met)}")
    planned = [(one.search_then_s, one.search_now_s) for one in verdicts if one.search_now_s is not None]
    then_s, now_s = (sum(spent) for spent in zip(*planned, strict=True)) if planned else (0.0, 0.0)
    if planned:
        lines.append(f"all searches: {now_s:.1f} s, before {then_s:.1f} s: {_word(now_s <= then_s)}")
        lines.append(f"simpler of a tie, not in the mean: {', '.join(simpler) or 'none'}")
    lines.append(f"with faults: {', '.join(faults) or 'none'}")
    return lines, mean <= MOST_MEAN and now_s <= then_s and not faults


def _word(is_met: bool) -> str:
    return "met" if is_met else "MISSED"
