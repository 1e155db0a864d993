"""Published bubbles beside ours: the player of schedules with the published times of a stage's tasks and of a transfer.

A row without a bubble rate may give samples a second, and no times. It is judged by the samples a second that follow
from the times of another row of the same model, on as many actors and with the same microbatch.
"""

from collections.abc import Mapping, Sequence

from jaxquard.errors import PublishedDataError
from jaxquard.evaluate.published.results import PublishedResult
from jaxquard.evaluate.published.row_values import RowValues
from jaxquard.schedules import Interleaved, OneFOneB, Rows, TaskTimes, ZeroBubbleH1, ZeroBubbleH2, play_rows

_MOST_TASKS = 1_000_000
_TIMES = ("TF_ms", "TB_ms", "TW_ms")


def judge_bubble(row: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> PublishedResult:
    """Returns a published bubble, or samples a second, beside ours.

    Args:
        others: the rows of the file, where a row without times finds those of the same stages.
    """
    values = RowValues(row)
    rate, throughput = values.number("bubble_rate"), values.number("samples_per_gpu_s")
    if rate is None and throughput is None:
        raise PublishedDataError("bubble_rate and samples_per_gpu_s of the row are empty.")
    chunks = _num_chunks(values)
    played = play_rows(_schedule_rows(values, chunks), _task_times(_with_times(values, others), chunks))
    schedule, count, actors = values.text("schedule"), values.size("m"), values.size("p")
    if rate is not None:
        published, ours, signed, group = rate, played.bubble, played.bubble - rate, schedule
    else:
        published = throughput or 0.0
        ours = count * (values.whole("mbs") or 1) / (played.makespan_s * actors)
        signed, group = ours / published - 1, f"{schedule}, samples a second"
    return PublishedResult(
        name=f"{schedule}, {count} microbatches",
        group=group,
        model=values.text("model"),
        published=published,
        ours=ours,
        signed=signed,
        strategy=f"{actors} actors, {count} microbatches, {chunks} stages an actor",
    )


def _with_times(values: RowValues, others: Sequence[Mapping[str, str]]) -> RowValues:
    """Returns the row itself if it has times, or one of the same stages that has."""
    same = ("model", "hw", "p", "mbs")
    candidates = [values, *(other for other in map(RowValues, others) if _agree(values, other, same))]
    for candidate in candidates:
        if all(candidate.number(column) is not None for column in _TIMES):
            return candidate
    raise PublishedDataError(f"{', '.join(_TIMES)} are empty, and no row of the same stages has them.")


def _agree(values: RowValues, other: RowValues, columns: Sequence[str]) -> bool:
    return all(values.text(column) == other.text(column) for column in columns)


def _task_times(values: RowValues, chunks: int) -> TaskTimes:
    forward, inputs, weights = (1e-3 * (values.number(column) or 0.0) / chunks for column in _TIMES)
    transfer = 1e-3 * (values.number("Tcomm_ms") or 0.0)
    return TaskTimes(forward_s=forward, input_gradient_s=inputs, weight_gradient_s=weights, transfer_s=transfer)


def _num_chunks(values: RowValues) -> int:
    """Returns the stages an actor: one for each layer where a row says so.

    The zero-bubble papers take one layer from the first and the last stage, so that L + 2 divides among the actors.
    """
    if values.text("chunks") == "layer-per-chunk":
        return max(1, round((values.size("layers") + 2) / values.size("p")))
    chunks, layers = values.degree("chunks") or 1, values.degree("layers")
    if layers and chunks > layers:
        raise PublishedDataError(f"chunks is {chunks}, but there are {layers} layers.")
    return chunks


def _schedule_rows(values: RowValues, chunks: int) -> Rows:
    name, actors, count = values.text("schedule").upper(), values.size("p"), values.size("m")
    if actors * chunks * count > _MOST_TASKS:
        raise PublishedDataError(
            f"p {actors} x chunks {chunks} x m {count} is more than the {_MOST_TASKS} tasks that are played."
        )
    if chunks > 1 or name in ("1F1B-I", "INTERLEAVED"):
        return Interleaved(actors * chunks, actors).rows(count)
    kinds = {"1F1B": OneFOneB, "ZB-H1": ZeroBubbleH1, "ZB-H2": ZeroBubbleH2}
    if name not in kinds:
        raise PublishedDataError(f"schedule {name} is not played here: {', '.join(kinds)} and 1F1B-I are.")
    return kinds[name](actors).rows(count)
