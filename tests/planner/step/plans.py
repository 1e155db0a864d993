"""Plans made by hand, and the steps under them beside one jit."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.step.fingerprint import fingerprint_step
from jaxquard.planner.record.plan import Plan, Recompute, StagePlan
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.planner.step.one_microbatch import OneMicrobatch
from jaxquard.runtime.remote_mesh import RemoteMesh
from jaxquard.schedules import make_schedule


def first_choices(analysis: Analysis) -> dict[int, tuple[str, ...]]:
    """The first way to shard each block."""
    return {block.number: block_choices(block, analysis.axes, batch_axis=None)[0] for block in analysis.blocks}


def make_plan(
    one: OneMicrobatch,
    analysis: Analysis,
    *,
    stops: Sequence[int],
    schedule: str = "1f1b",
    num_actors: int | None = None,
    assignment: Mapping[int, tuple[str, ...]] | None = None,
    storage: str = "as used",
    recompute: Recompute = Recompute.NONE,
) -> Plan:
    """A plan whose stages stop at these segments."""
    assignment = assignment or first_choices(analysis)
    starts = [0, *stops[:-1]]
    blocks = [
        (analysis.segments[start].blocks[0], analysis.segments[stop - 1].blocks[-1] + 1)
        for start, stop in zip(starts, stops, strict=True)
    ]
    if num_actors is None:
        num_actors = 1 if schedule == "none" else make_schedule(schedule, num_stages=len(stops)).num_actors
    stages = tuple(
        StagePlan(
            name=f"stage {stage}",
            actor=stage % num_actors,
            blocks=found,
            strategies=tuple(tuple(assignment[block]) for block in range(*found)),
            forward_s=0.0,
            backward_s=0.0,
        )
        for stage, found in enumerate(blocks)
    )
    count = one.loop.num_microbatches
    rows = one.traced.arg_types[-1].shape[0]
    return Plan(
        model="test",
        fingerprint=fingerprint_step(one.traced),
        cluster="cpu",
        num_devices=num_actors,
        num_actors=num_actors,
        axes=dict(analysis.axes),
        schedule=schedule,
        num_microbatches=count,
        microbatch_size=rows,
        global_batch=rows * count,
        recompute=recompute,
        storage=storage,
        segments=tuple(len(segment.blocks) for segment in analysis.segments),
        stages=stages,
        time_s=1.0,
    )


def run_applied(applied: AppliedStep, args: Sequence[Any], *, num_steps: int = 1, mesh: Any = None) -> Any:
    """The results of some steps, by default in process; the state is the first argument and the first result."""
    if mesh is None:
        sizes, names = tuple(applied.axes.values()), tuple(applied.axes)
        with RemoteMesh((applied.num_actors,), sizes, names, share_devices=True) as own:
            return run_applied(applied, args, num_steps=num_steps, mesh=own)
    step = mesh.distributed(
        applied.fn, in_shardings=applied.in_shardings, donate_argnums=applied.donate_argnums if num_steps > 1 else ()
    )
    state, rest = args[0], args[1:]
    results: list[Any] = []
    for _ in range(num_steps):
        state, *results = step(state, *rest)
    return jax.tree.map(lambda leaf: np.asarray(leaf.fetch()), (state, *results))
