"""Plans for the command line: a model by name in closed form, anything else by its loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxquard.cli.cluster.show import find_cluster
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.interrupt import ends_with
from jaxquard.models import zoo
from jaxquard.planner.record.plan import Plan

_BATCH = 256
_CHIPS_A_ROW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The words of `jaxquard plan`, as they were read."""

    model: str
    cluster: str | None
    global_batch: int | None
    sequence_length: int | None
    scale: int
    fix: Mapping[str, Any]
    forbid: Mapping[str, Any]
    memory_limit_bytes: int | None
    max_microbatch_size: int | None
    loss_reduction: str | None
    ignores_marks: bool
    time_budget_s: float | None
    pricer: str | None
    num_whole: int | None
    num_devices: int | None
    cpu: bool


def make_plan(request: PlanRequest) -> Plan:
    """Searches and shows progress; does not catch errors of the user's code."""
    with ends_with("Nothing is kept."):
        return _plan_loss(request) if _is_traced(request) else _plan_by_name(request)


def _is_traced(request: PlanRequest) -> bool:
    """Says whether a model is traced: a loss, one of the zoo, or one by name for these devices or another pricer.

    `llama3:405b` is no loss: its size is no name in Python.
    """
    from jaxquard.planner.named.models import named_models

    if request.model.strip().lower() in named_models():
        return request.pricer not in (None, "model") or (request.cluster is None and request.scale > 1)
    _, colon, function = request.model.partition(":")
    return function.isidentifier() if colon else request.model in zoo.model_names()


def _plan_by_name(request: PlanRequest) -> Plan:
    from jaxquard.planner.named.models import find_named_model
    from jaxquard.planner.named.plan_named import plan_named

    find_named_model(request.model)
    of_losses = {
        "--loss-reduction": request.loss_reduction is not None,
        "--ignore-marks": request.ignores_marks,
        "--whole-tasks": request.num_whole is not None,
    }
    given = next((name for name, is_given in of_losses.items() if is_given), None)
    if given is not None:
        raise UsageError(
            f"{given} is for a loss that is traced, and {request.model} is priced by its name. Leave it out."
        )
    if request.cluster is None:
        raise UsageError(
            f"{request.model} needs --cluster, the hardware that it runs on. Add, say, --cluster h100-8x16."
        )
    cluster = find_cluster(request.cluster)
    global_batch = request.global_batch or max(_BATCH, 2 ** math.ceil(math.log2(cluster.num_chips / _CHIPS_A_ROW)))
    return plan_named(
        request.model,
        cluster,
        global_batch=global_batch,
        seq=request.sequence_length,
        scale=request.scale,
        fix={**request.fix, **_at_most(request, global_batch)},
        forbid=request.forbid,
        memory_limit_bytes=request.memory_limit_bytes,
        time_budget_s=request.time_budget_s or None,
    )


def _at_most(request: PlanRequest, global_batch: int) -> dict[str, list[int]]:
    """Returns the sizes of microbatches that --max-microbatch leaves."""
    most = request.max_microbatch_size
    if most is None:
        return {}
    fixed = str(request.fix.get("microbatch_size", ""))
    if fixed:
        if fixed.isdecimal() and int(fixed) > most:
            raise UsageError(f"--fix microbatch_size={fixed} is more than --max-microbatch {most}. Leave one out.")
        return {}
    return {"microbatch_size": [size for size in range(1, min(most, global_batch) + 1) if global_batch % size == 0]}


def _plan_loss(request: PlanRequest) -> Plan:
    if request.sequence_length is not None:
        raise UsageError(
            f"--sequence-length is for a model priced by its name, and {request.model} is traced. Leave it out."
        )
    cluster = None if request.cluster is None else find_cluster(request.cluster)
    from jaxquard.cli.devices import prepare_devices
    from jaxquard.cli.plan.find_loss import find_loss
    from jaxquard.cli.shard.target_mesh import start_for_target
    from jaxquard.planner.plan_step import plan_loss

    pricer = request.pricer or "model"
    if cluster is not None and pricer in ("model", "compile"):
        start_for_target()
    else:
        prepare_devices(cpu=request.cpu, num_devices=request.num_devices, sizes=None)
    found = find_loss(request.model, batch_size=request.global_batch, scale=request.scale)
    return plan_loss(
        found.loss,
        found.optimizer,
        found.args,
        rng=found.rng,
        name=found.name,
        cluster=cluster,
        num_devices=request.num_devices,
        pricer=pricer,
        fix=request.fix,
        forbid=request.forbid,
        memory_limit_bytes=request.memory_limit_bytes,
        max_microbatch_size=request.max_microbatch_size,
        loss_reduction=request.loss_reduction,
        ignores_marks=request.ignores_marks,
        time_budget_s="default" if request.time_budget_s is None else request.time_budget_s or None,
        num_whole=request.num_whole,
    )
