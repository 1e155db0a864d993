"""The error for a step without a plan: which programs failed, or how much memory would do.

The names of finalists are internal, so the message describes a plan of the search by its storage of state.
"""

from collections.abc import Iterable, Sequence

from jaxquard.errors import InfeasibleShardingError, ShardingError
from jaxquard.intraop.plan.predict import Prediction
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.search.chain import size_text
from jaxquard.intraop.search.frontier import Frontier
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.pricing import Failure, FailureReason

_MOST_REASONS = 3


def explain_mismatch(
    frontier: Frontier | ShardingError,
    prices: StepPrices,
    predicted: Sequence[tuple[CandidatePlan, Prediction]],
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    is_limit_given: bool,
) -> ShardingError:
    """Returns the error for a step of which no plan fits.

    Args:
        frontier: of a search without a limit; or why there is none.
        predicted: all candidate plans, finalists of the search first, with the smallest of the frontier.
        num_finalists: the number of finalists.
        is_limit_given: whether the limit is the user's, or else all that the devices have.
    """
    needs = [
        (found.size_bytes, _name(plan, is_finalist=place < num_finalists))
        for place, (plan, found) in enumerate(predicted)
        if found.fits(None)
    ]
    if needs:
        assert memory_limit_bytes is not None, "without a limit, what runs fits"
        fits_as_sum = isinstance(frontier, Frontier) and frontier.smallest.size_bytes <= memory_limit_bytes
        why = _why_not_together(len(prices.boundaries) + 1) if fits_as_sum else ""
        return _too_little(memory_limit_bytes, *min(needs), why=why, is_limit_given=is_limit_given)
    if isinstance(frontier, ShardingError):
        dead_ends = _dead_ends(prices)
        return InfeasibleShardingError(f"{frontier}{_reasons(dead_ends)}{_advice(dead_ends)}")
    failures = [failure for _, found in predicted for failure in found.failures]
    return InfeasibleShardingError(
        f"every segment runs alone, but none of the {len(predicted)} plans for all of them that were looked at does."
        f"{_reasons(failures)}{_advice(failures)}"
    )


def _why_not_together(num_segments: int) -> str:
    if num_segments == 1:
        return (
            " The layers alone fit, but not the step: it takes stacked weights apart and puts them together again. A "
            "larger num_finalists looks at more plans."
        )
    return (
        " By the sum of their segments some plans fit, but none with its segments together; a larger num_finalists "
        "looks at more of them."
    )


def _too_little(limit_bytes: int, minimum_bytes: int, how: str, *, why: str, is_limit_given: bool) -> ShardingError:
    limit = f"memory_limit_bytes={limit_bytes} ({size_text(limit_bytes)})"
    if not is_limit_given:
        limit = f"the {size_text(limit_bytes)} that each device has"
    advice = "Raise the limit to at least that, use more devices, or a smaller batch."
    return InfeasibleShardingError(
        f"{limit} {'is' if is_limit_given else 'are'} too little: the plans that were looked at need "
        f"{minimum_bytes} bytes ({size_text(minimum_bytes)}) or more; the smallest is {how}. "
        f"{advice if is_limit_given else 'Use more devices, or a smaller batch.'}{why}"
    )


def _name(plan: CandidatePlan, *, is_finalist: bool) -> str:
    if not is_finalist:
        return f"the baseline {plan.name!r}"
    kept = "" if plan.storage is Storage.AS_USED else f" with {plan.storage.value}'s storage"
    return f"a plan of the search{kept}"


def _dead_ends(prices: StepPrices) -> list[Failure]:
    """Returns the failures of segments that have no strategy left; else those of reshards."""
    found: list[Failure] = []
    for kind in prices.kinds.values():
        failed = [price for price in kind.prices if isinstance(price, Failure)]
        found += failed if len(failed) == len(kind.prices) else []
    return found or [price for price in prices.reshards.values() if isinstance(price, Failure)]


def _reasons(failures: Iterable[Failure]) -> str:
    """Returns the first few failures, each once, as a sentence after another; "" if there are none."""
    reasons = list(dict.fromkeys(f"{failure.reason.value} ({failure.message})" for failure in failures))
    more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return f" They failed with: {'; '.join(reasons[:_MOST_REASONS])}{more}." if reasons else ""


def _advice(failures: Iterable[Failure]) -> str:
    """Returns the advice against too little memory, if that is among the reasons."""
    is_memory = any(failure.reason is FailureReason.OUT_OF_MEMORY for failure in failures)
    return " Use more devices, or a smaller batch." if is_memory else ""
