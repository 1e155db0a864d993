"""A plan in the words of the frozen code: all that it needs to price the plan.

This is the one place that reads a plan of today's code. Where a redesign renames a field, or has settings that the
frozen code lacks, translate them here; what it returns stays as it is, as the recorded plans have it.
"""

import itertools
from typing import Any

_SCHEDULES_BY_NAME = {"zero-bubble-h1": "zero-bubble"}
_STORAGES = ("as used", "zero 1", "zero 2", "zero 3")


def frozen_words(plan: Any) -> dict[str, Any]:
    """Returns the words of a plan, as plain data for JSON."""
    return _named_words(plan) if "dtype" in plan.settings else _traced_words(plan)


def is_simpler_of_tie(plan: Any) -> bool:
    """Returns true for a plan that was taken because it is simpler than another that is as fast.

    Its notes say so. `judge` lists such plans and leaves them out of the mean.
    """
    return any(note.startswith("the simplest of ") for note in plan.notes)


def _named_words(plan: Any) -> dict[str, Any]:
    """Returns the fields of the frozen `pricing.Parallelism`."""
    settings = plan.settings
    shards = settings.get("state shared by", "0 of").split()[0]
    share = settings.get("layers recomputed", "100%").removesuffix("%")
    return {
        "tensor": plan.axes.get("tensor", 1),
        "sequence": settings.get("sequence parallel") == "yes",
        "context": plan.axes.get("context", 1),
        "pipeline": plan.num_actors,
        "num_chunks": plan.num_stages // plan.num_actors,
        "data": plan.axes.get("data", 1),
        "zero": _STORAGES.index(plan.storage),
        "shard_group": int(shards),
        "expert": int(settings.get("expert parallel", 1)),
        "expert_tensor": int(settings.get("tensor parallel in experts", 0)),
        "microbatch": int(settings["microbatch of a replica"]),
        "global_batch": plan.global_batch,
        "recompute": plan.recompute.value,
        "recompute_share": int(share) / 100,
        "schedule": _SCHEDULES_BY_NAME.get(plan.schedule, plan.schedule),
        "dtype": settings["dtype"],
    }


def _traced_words(plan: Any) -> dict[str, Any]:
    """Returns the configuration, where each stage ends, and the sharding of each block."""
    strategies = ["/".join(names) for stage in plan.stages for names in stage.strategies]
    return {
        "axes": dict(plan.axes),
        "actors": plan.num_actors,
        "schedule": plan.schedule,
        "microbatches": plan.num_microbatches,
        "recompute": plan.recompute.value,
        "storage": plan.storage,
        "stage_stops": [stage.blocks[1] for stage in plan.stages],
        # Runs of blocks with the same sharding, and how many.
        "strategies": [[names, len(list(run))] for names, run in itertools.groupby(strategies)],
        # Of each block the first parameter, by which the frozen code knows that its blocks are the same.
        "parameters": [next(iter(paths), "") for stage in plan.stages for paths in stage.parameters],
    }
