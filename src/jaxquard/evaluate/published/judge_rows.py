"""Judges the rows of a file of published figures: our figure beside each. Steps are judged by the model pricer."""

from collections.abc import Callable, Mapping

from jaxquard.errors import JaxquardError
from jaxquard.evaluate.published.judge_bubble import judge_bubble
from jaxquard.evaluate.published.judge_memory import judge_memory
from jaxquard.evaluate.published.read_step import StepCase, read_step
from jaxquard.evaluate.published.results import PublishedResult, PublishedResults, SkippedRow
from jaxquard.evaluate.published.rows import DataKind, PublishedFile


def judge_file(file: PublishedFile, *, on_progress: Callable[[int, int, str], None] | None = None) -> PublishedResults:
    """Judges all rows of a file; one that cannot be priced is skipped with the reason.

    Args:
        on_progress: called with the rows done, their number, and the next one's name.
    """
    judge = {
        DataKind.STEPS: _judge_step,
        DataKind.BUBBLES: lambda _, row: judge_bubble(row, file.rows),
        DataKind.MEMORY: lambda _, row: judge_memory(row),
    }[file.kind]
    rows, skipped = [], []
    for index, row in enumerate(file.rows):
        name = row.get("id") or f"row {index + 1}"
        if on_progress:
            on_progress(index, len(file.rows), name)
        try:
            rows.append(judge(name, row))
        except JaxquardError as error:
            skipped.append(SkippedRow(name=name, reason=str(error)))
    if on_progress:
        on_progress(len(file.rows), len(file.rows), file.kind.value)
    return PublishedResults(kind=file.kind, file=file.name, rows=tuple(rows), skipped=tuple(skipped))


def _judge_step(name: str, row: Mapping[str, str]) -> PublishedResult:
    case = read_step(row)
    price = case.price()
    return PublishedResult(
        name=name,
        group=row.get("system") or "",
        model=row.get("model") or "",
        published=case.measured_s,
        ours=price.time_s,
        signed=price.time_s / case.measured_s - 1,
        strategy=strategy_words(case),
        parts={
            "compute": price.compute_s,
            "collectives": price.communication_s,
            "bubble": price.bubble_s,
            "gradient sums": price.gradient_s,
            "optimizer": price.optimizer_s,
            "other": price.other_s,
        },
    )


def strategy_words(case: StepCase) -> str:
    """Returns the strategy that was priced, with what was inferred of it."""
    par = case.parallelism
    degrees = {"tp": par.tensor, "cp": par.context, "pp": par.pipeline, "v": par.num_chunks, "ep": par.expert}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    words.append(f"{'fsdp' if par.zero == 3 else 'dp'}{par.data}")
    recompute = par.recompute if par.recompute_share == 1 else f"{par.recompute} {par.recompute_share:g}"
    return f"{' '.join(words)}, microbatch {par.microbatch}, recompute {recompute}"
