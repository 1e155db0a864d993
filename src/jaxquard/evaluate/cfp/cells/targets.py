"""Targets of the project for a search, cell by cell and over all cells."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.cell import Cell, PlanRun, Role

MOST_BEHIND_BEST = 0.05
MIN_SPEEDUP_OVER_VOLUME = 1.3
MOST_ERROR = 0.08
VOLUME = "volume"
# Two standard errors of a comparison are chance. Where a cell does not say, as those of runs by hand: what 30 runs side
# by side on 2 busy cores have (`paired_times`).
NUM_ERRORS, USUAL_ERROR = 2.0, 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target, what was found, and the cells that miss it."""

    text: str
    found: str
    is_met: bool
    exceptions: tuple[str, ...] = ()


def behind_best(cell: Cell, *, time_s: Callable[[PlanRun], float | None] = lambda run: run.whole_s) -> float | None:
    """Returns how much longer the chosen plan takes than the fastest that was run and fits, as a part; at least 0."""
    chosen_s = None if cell.best is None else time_s(cell.best)
    times_s = [found_s for run in cell.runs if (found_s := time_s(run)) is not None and cell.fits(run)]
    return None if chosen_s is None or not times_s else max(0.0, chosen_s / min(times_s) - 1)


def faster_baselines(cell: Cell) -> list[PlanRun]:
    """Baselines that fit and are faster than the chosen plan by more than such a comparison errs."""
    best = cell.best
    if best is None or best.whole_s is None:
        return []
    found = []
    for run in cell.runs:
        if run.role is Role.BASELINE and run.whole_s is not None and cell.fits(run):
            margin = NUM_ERRORS * math.hypot(*(USUAL_ERROR if one.error is None else one.error for one in (run, best)))
            if run.whole_s * (1 + margin) < best.whole_s:
                found.append(run)
    return found


def over_volume(cell: Cell) -> float | None:
    """Returns the time of the plan of minimum volume over that of the chosen plan, if both fit."""
    chosen, volume = _chosen_s(cell), cell.run(VOLUME)
    if chosen is None or volume is None or volume.whole_s is None or not cell.fits(volume):
        return None
    return volume.whole_s / chosen


def errors(runs: Iterable[PlanRun], guess: Callable[[PlanRun], float | None]) -> list[float]:
    """Returns the errors of predictions, as a part of the time of the whole step, for those that have both."""
    pairs = [(guess(run), run.whole_s) for run in runs]
    return [abs(guessed / time_s - 1) for guessed, time_s in pairs if guessed is not None and time_s is not None]


def ratio_errors(cell: Cell) -> list[float]:
    """The same for predictions relative to those of the cell's other plans: a faster or slower machine does not count.

    Empty for fewer than three plans, of which there is no ratio to speak of.
    """
    pairs = [(run.predicted_s, run.whole_s) for run in cell.runs]
    ratios = [guessed / time_s for guessed, time_s in pairs if guessed is not None and time_s is not None]
    return [abs(ratio / geometric_mean(ratios) - 1) for ratio in ratios] if len(ratios) >= 3 else []


def geometric_mean(values: Sequence[float]) -> float:
    """Returns the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def targets(cells: Sequence[Cell]) -> tuple[Target, ...]:
    """All of them; cells in which nothing was chosen, or what was did not run, count for memory and programs alone."""
    if not cells:
        return ()
    chosen = [cell for cell in cells if _chosen_s(cell) is not None]
    predicted = [cell for cell in chosen if not _is_priced_whole(cell)]
    of_times = (*_speeds(chosen), *_errors(predicted)) if chosen else ()
    return (*of_times, _programs(cells), _limits(cells))


def _speeds(cells: Sequence[Cell]) -> Iterator[Target]:
    # Beside baselines alone, the best is no news.
    full = [cell for cell in cells if cell.spec.num_strategies != 0] or cells
    behind = [(cell, part) for cell in full if (part := behind_best(cell)) is not None]
    # The fastest run of each is what many report; who has it is chance (`paired_times`).
    by_minimum = [part for cell in full if (part := behind_best(cell, time_s=lambda run: run.minimum_s)) is not None]
    if behind:
        found = f"{_worst_and_mean([part for _, part in behind])} of {len(behind)} cells"
        yield Target(
            text=f"within {MOST_BEHIND_BEST:.0%} of the best of all that were run",
            found=f"{found}; by the fastest run of each {_worst_and_mean(by_minimum)}" if by_minimum else found,
            is_met=all(part <= MOST_BEHIND_BEST for _, part in behind),
            exceptions=tuple(f"{cell.spec.name}: {part:.1%}" for cell, part in behind if part > MOST_BEHIND_BEST),
        )
    faster = [
        f"{cell.spec.name}: {run.name}, {(_chosen_s(cell) or 0.0) / (run.whole_s or 1.0) - 1:.1%}"
        for cell in cells
        for run in faster_baselines(cell)
    ]
    yield Target(
        text=f"never slower than a baseline by more than {NUM_ERRORS:g} standard errors of the comparison",
        found=f"{len(faster)} times in {len(cells)} cells",
        is_met=not faster,
        exceptions=tuple(faster),
    )
    ratios = [ratio for cell in cells if (ratio := over_volume(cell)) is not None]
    if ratios:
        mean = geometric_mean(ratios)
        yield Target(
            text=f"geometric mean at least {MIN_SPEEDUP_OVER_VOLUME:g} times as fast as the plan of minimum volume",
            found=f"{mean:.2f}, from {min(ratios):.2f} to {max(ratios):.2f}",
            is_met=mean >= MIN_SPEEDUP_OVER_VOLUME,
        )


def _worst_and_mean(parts: Sequence[float]) -> str:
    return f"worst {max(parts):.1%}, mean {sum(parts) / len(parts):.1%}"


def _errors(cells: Sequence[Cell]) -> Iterator[Target]:
    best = [cell.best for cell in cells if cell.best is not None]
    everyone = [run for cell in cells for run in cell.runs]
    of_best = errors(best, lambda run: run.predicted_s)
    if of_best:
        mean = sum(of_best) / len(of_best)
        texts = [f"{mean:.1%} for the chosen plans"]
        for text, found in (
            ("for all plans with a prediction", errors(everyone, lambda run: run.predicted_s)),
            ("for their ratios in a cell", [error for cell in cells for error in ratio_errors(cell)]),
            ("by equation (8) for all", errors(everyone, lambda run: run.sum_s)),
        ):
            texts.append(f"{sum(found) / len(found):.1%} {text}" if found else "")
        yield Target(
            text=f"mean error of the prediction at most {MOST_ERROR:.0%}",
            found=", ".join(filter(None, texts)),
            is_met=mean <= MOST_ERROR,
        )


def _is_priced_whole(cell: Cell) -> bool:
    """Returns whether all predictions are the prices of whole steps themselves, which is no test of them."""
    pairs = [(run.predicted_s, run.priced_s) for run in cell.runs if run.predicted_s is not None]
    return all(priced_s is not None and math.isclose(guess_s, priced_s) for guess_s, priced_s in pairs)


def _programs(cells: Sequence[Cell]) -> Target:
    pairs = {(cell.spec.model, cell.num_programs, cell.equation_7) for cell in cells}
    return Target(
        text="programs priced at most as equation (7) gives, with one block on each side of a boundary",
        found=", ".join(f"{model} {found} of {given}" for model, found, given in sorted(pairs)),
        is_met=all(found <= given for _, found, given in pairs),
    )


def _limits(cells: Sequence[Cell]) -> Target:
    missed = [f"{cell.spec.name}: {why}" for cell in cells if (why := _misses_limit(cell)) is not None]
    return Target(
        text="the chosen plan keeps its limit",
        found=f"{len(cells) - len(missed)} of {len(cells)} cells, {sum(cell.spec.has_limit for cell in cells)} limited",
        is_met=not missed,
        exceptions=tuple(missed),
    )


def _misses_limit(cell: Cell) -> str | None:
    """Returns the reason why a cell has no plan that ran within its limit; None if it has one."""
    best = cell.best
    if best is None:
        return "no plan"
    if cell.fits(best):
        return None
    if best.time_s is None or best.peak_bytes is None or cell.limit_bytes is None:
        return "the chosen plan did not run"
    return f"{best.peak_bytes / 2**20:.4g} of {cell.limit_bytes / 2**20:.4g} MiB"


def _chosen_s(cell: Cell) -> float | None:
    return None if cell.best is None else cell.best.whole_s
