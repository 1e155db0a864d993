"""Runs the candidates of a search on the devices at hand, and compares what they took."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxquard.errors import PlanError
from jaxquard.planner.record.plan import Plan, PlanAlternative
from jaxquard.planner.search.candidates import Candidate, finest_first, scale_others
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.measure_plans import MeasuredPlan, describe_shape, measure_plans
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.stages.configurations.alternatives import PART_VALUES, largest_rise
from jaxquard.runtime.remote_mesh import RemoteMesh

# A note names so many plans.
_MOST_NAMED = 3


def run_candidates(
    problem: PlanProblem,
    candidates: Sequence[Candidate],
    usual: Sequence[Candidate],
    *,
    allowed: Sequence[Candidate],
    make_mesh: Callable[[Plan], RemoteMesh],
    deadline: Deadline,
    on_progress: Callable[[int, int, str], None] | None,
) -> tuple[list[Candidate], list[Candidate]]:
    """Runs candidates and usual plans until the deadline; returns the candidates that it tried, and all usual plans.

    A usual plan for which no time is left has its price, scaled as the prices of those that ran. Without any time left
    all of them are returned as they are.

    Args:
        allowed: the usual plans that may be chosen: the best of them runs first, so that the answer is no worse.

    Raises:
        PlanError: if none of the candidates runs.
    """
    first = sorted(allowed, key=lambda one: one.time_s)[:1]
    # Then the best by prices, then what else people would run, then the others.
    others = [one for one in usual if not any(one is other for other in first)]
    ordered = finest_first([*first, *candidates[:1], *others, *candidates[1:]])
    measured = measure_plans(
        problem,
        [one.plan for one in ordered],
        make_mesh=make_mesh,
        end_s=deadline.end_s,
        on_progress=on_progress,
    )
    if len(measured) < len(ordered):
        deadline.left_out.append(f"the time budget left out runs of {len(ordered) - len(measured)} plans")
    if not measured:
        return [*candidates], [*usual]
    ran = [_as_measured(one, result) for one, result in zip(ordered, measured, strict=False)]
    if all(one.failure for one in ran):
        raise PlanError(f"none of {len(ran)} plans runs on the devices here; the first: {ran[0].failure}")
    missing = scale_others(
        [one for one in ordered[len(ran) :] if one.name],
        [one.time_s / one.price_s for one in ran if not one.failure],
        note="not run; its price x {factor}, as of those that ran",
    )
    tried = [one for one in ran if not one.name]
    return tried or [*candidates], [*(one for one in ran if one.name), *missing]


def compare_candidates(chosen: Candidate, candidates: Sequence[Candidate]) -> tuple[PlanAlternative, ...]:
    """Returns, for each part of a plan, the fastest candidate that differs in it, whatever else it has."""
    found = []
    ours = chosen.finalist.configuration
    for part, value in PART_VALUES.items():
        others = [one for one in candidates if value(one.finalist.configuration) != value(ours) and not one.failure]
        if not others:
            continue
        other = min(others, key=lambda one: one.time_s)
        theirs = other.finalist.configuration
        changed = [name for name, find in PART_VALUES.items() if name != part and find(theirs) != find(ours)]
        more = f" (with {', '.join(f'{name} {PART_VALUES[name](theirs)}' for name in changed)})" if changed else ""
        found.append(
            PlanAlternative(
                part=part,
                chosen=str(value(ours)),
                alternative=f"{value(theirs)}{more}",
                added_s=other.time_s - chosen.time_s,
                added_bytes=other.plan.memory_bytes - chosen.plan.memory_bytes,
                deciding=largest_rise(chosen.plan.times, other.plan.times),
            )
        )
    return tuple(found)


def rematerialized_notes(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Returns a note on the plans of which the compiler gathered values whole as they ran; none if there are none."""
    worst = sorted((one for one in candidates if one.num_rematerialized), key=lambda one: -one.num_rematerialized)
    if not worst:
        return ()
    named = "; ".join(f"{_describe(one)} ({one.num_rematerialized})" for one in worst[:_MOST_NAMED])
    return (
        f"of {len(worst)} of {sum(one.is_measured for one in candidates)} plans that ran the compiler gathers values "
        "whole, as it finds no better way between two shardings (involuntary full rematerialization): "
        f"{named}{'; ...' if len(worst) > _MOST_NAMED else ''}. Their times count that",
    )


def _describe(one: Candidate) -> str:
    return f"{one.name}, {describe_shape(one.plan)}" if one.name else describe_shape(one.plan)


def _as_measured(one: Candidate, measured: MeasuredPlan) -> Candidate:
    """Returns a candidate with the time that it took; its parts keep their proportions."""
    plan, count = one.plan, measured.num_rematerialized
    if measured.failure:
        failed = f"{one.name or 'a plan'} did not run: {measured.failure}"
        failing = replace(one.with_plan(replace(plan, time_s=math.inf)), is_measured=True, failure=failed)
        return replace(failing, num_rematerialized=count)
    timed = one.with_time(
        measured.time_s, source=f"measured on {plan.num_devices} devices, spread {measured.spread:.0%}"
    )
    return replace(timed, is_measured=True, note="measured", num_rematerialized=count)
