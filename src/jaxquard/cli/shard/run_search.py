"""Runs the search for a command: with progress, and with a sentence when it is interrupted."""

import sys
from contextlib import AbstractContextManager

from jax.sharding import AbstractMesh, Mesh
from rich.console import Console

from jaxquard.cli.interrupt import ends_with
from jaxquard.cli.progress import ProgressBars, shorten
from jaxquard.cli.shard.find_step import NamedStep
from jaxquard.cluster import Cluster
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.pricing import OnProgress, PriceCache, Pricer, Progress

# The columns before the words beside a bar; with more words, rich would leave out the bar.
_BAR_WIDTH = 70


def run_search(
    step: NamedStep,
    *,
    mesh: Mesh | AbstractMesh,
    memory_limit_bytes: int | None,
    every_combination: bool,
    cluster: Cluster | None = None,
    loop_budget_s: float = 300.0,
    time_budget_s: float | None = None,
    cache: PriceCache | None,
    pricer: Pricer | None = None,
) -> ShardingPlan:
    """Searches; the bar says what is left."""
    with interruptible(cache), ProgressBars() as bars:
        return search_sharding(
            step.train_step,
            step.args,
            mesh=mesh,
            memory_limit_bytes=memory_limit_bytes,
            every_combination=every_combination,
            cluster=cluster,
            loop_budget_s=loop_budget_s,
            time_budget_s=time_budget_s,
            cache=cache,
            pricer=pricer,
            on_progress=move_bars(
                bars, "pricing segments", "pricing finalists", "comparing the best", "running the best"
            ),
        )


def move_bars(bars: ProgressBars, *labels: str, width: int | None = None) -> OnProgress:
    """Returns a callback for the progress of a pricer: a bar for each of its calls, as they come.

    What a search announces before it starts is a line above the bars.

    Args:
        width: of the terminal; found out by default. Without a terminal words have all the room they need.
    """
    waiting = list(labels)
    move = bars.add(waiting.pop(0), name="tracing")
    last: Progress | None = None
    console = Console(stderr=True)
    room = max((width or console.width) - _BAR_WIDTH, 10) if width or console.is_terminal else sys.maxsize

    def on_progress(progress: Progress) -> None:
        nonlocal move, last
        if progress.announcement:
            bars.say(progress.announcement)
            return
        is_over = last is not None and (last.done == last.total or progress.done < last.done)
        if is_over and waiting:
            move = bars.add(waiting.pop(0))
        last = progress
        move(progress.done, progress.total, shorten(_in_words(progress), room))

    return on_progress


def interruptible(cache: PriceCache | None) -> AbstractContextManager[None]:
    """Ends the command on Ctrl-C with a sentence that says where its prices are."""
    if cache is None:
        return ends_with("Nothing is kept (--no-cache).")
    return ends_with(f"What was measured is kept in {cache.folder}, and the same command goes on from there.")


def _in_words(progress: Progress) -> str:
    """The time left, then the number of known prices, then the last program."""
    known = f"{progress.num_cached} known; " if progress.num_cached else ""
    if progress.left_s is None:
        return f"{known}{progress.name}"
    time = f"{progress.left_s:.0f} s" if progress.left_s < 90 else f"{progress.left_s / 60:.0f} min"
    return f"{time} left; {known}{progress.name}"
