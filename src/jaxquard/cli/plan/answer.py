"""The answer of `jaxquard plan --json`."""

from typing import Any

from jaxquard.planner.record.plan import Plan
from jaxquard.planner.record.plan_file import plan_as_json


def plan_answer(plan: Plan) -> dict[str, Any]:
    """Returns the answer as plain data; `plan` is the content of a plan's file."""
    content = plan_as_json(plan)
    return {
        "time_s": plan.time_s,
        "mfu": plan.mfu,
        "memory_bytes": plan.memory_bytes,
        "stages": plan.num_stages,
        "schedule": plan.schedule,
        "microbatches": plan.num_microbatches,
        "mesh": dict(plan.axes),
        "baselines": [
            {**entry, "ratio": None if entry["time_s"] is None else entry["time_s"] / plan.time_s}
            for entry in content["baselines"]
        ],
        "plan": content,
    }
