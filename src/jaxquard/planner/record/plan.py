"""Plans of training steps: saved, loaded, printed and explained."""

import os
from dataclasses import dataclass, fields

from jaxquard.planner.record.explain_plan import PlanExplanation, explain_part
from jaxquard.planner.record.plan_data import MemoryTerms as MemoryTerms
from jaxquard.planner.record.plan_data import PlanAlternative as PlanAlternative
from jaxquard.planner.record.plan_data import PlanBaseline as PlanBaseline
from jaxquard.planner.record.plan_data import PlanData
from jaxquard.planner.record.plan_data import PlanSearchLog as PlanSearchLog
from jaxquard.planner.record.plan_data import Recompute as Recompute
from jaxquard.planner.record.plan_data import StagePlan as StagePlan
from jaxquard.planner.record.plan_data import TimeTerms as TimeTerms
from jaxquard.planner.record.plan_file import read_plan_file, write_plan_file
from jaxquard.planner.record.summarise_plan import summarise_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanData):
    """A plan of a training step: stages, shardings, schedule, microbatches and recomputation on a cluster.

    Its fields are those of `PlanData`. `print(plan)` shows it beside the usual plans; `jq.diff` compares two.

    Example:
        >>> from jaxquard.planner.record.plan_data import StagePlan
        >>> stage = StagePlan(
        ...     name="all", actor=0, blocks=(0, 1), strategies=(("rows",),), forward_s=0.1, backward_s=0.2
        ... )
        >>> plan = jq.Plan(
        ...     model="train:loss",
        ...     cluster="cpu",
        ...     num_devices=2,
        ...     num_actors=1,
        ...     axes={"data": 2},
        ...     schedule="none",
        ...     num_microbatches=4,
        ...     microbatch_size=8,
        ...     global_batch=32,
        ...     stages=(stage,),
        ...     time_s=1.2,
        ... )
        >>> print(plan.explain("microbatches"))
        microbatches: 4 of 8 rows
          no other was priced
    """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, for `load_plan`; whoever reads the file meanwhile sees the old one or the new one.

        Raises:
            PlanError: if the file cannot be written.
        """
        write_plan_file(self, path)

    def explain(self, part: str = "") -> PlanExplanation:
        """Explains what was chosen, what the next best would cost, and which term decides.

        Args:
            part: "schedule", "stages", "mesh", "microbatches", "recompute", "storage", "memory", "time" or
                "baselines"; a stage, a layer or a block by its number, as "stage 2" or "layer 3"; the path of
                parameters, as "layers.*.mlp"; or a line of the model, as "model.py:41". By default the main decisions.

        Raises:
            PlanError: if the plan has no such part.
        """
        return explain_part(self, part)

    def __str__(self) -> str:
        return summarise_plan(self)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan that `Plan.save` or `jaxquard plan --out` wrote.

    Raises:
        PlanError: if the file is no such plan, or contradicts itself.

    Example:
        >>> import tempfile
        >>> from jaxquard.planner.record.plan_data import StagePlan
        >>> stage = StagePlan(
        ...     name="all", actor=0, blocks=(0, 1), strategies=(("rows",),), forward_s=0.1, backward_s=0.2
        ... )
        >>> plan = jq.Plan(
        ...     model="train:loss",
        ...     cluster="cpu",
        ...     num_devices=2,
        ...     num_actors=1,
        ...     axes={"data": 2},
        ...     schedule="none",
        ...     num_microbatches=4,
        ...     microbatch_size=8,
        ...     global_batch=32,
        ...     stages=(stage,),
        ...     time_s=1.2,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plan.save(f"{folder}/plan.json")
        ...     jq.load_plan(f"{folder}/plan.json") == plan
        True
    """
    data = read_plan_file(path)
    return Plan(**{entry.name: getattr(data, entry.name) for entry in fields(data)})
