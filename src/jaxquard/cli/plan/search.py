"""`jaxquard plan`: the fastest plan of a training step on a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from jaxquard.cli.console import check_writable, print_json, print_text, say_written
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import MOST_DEVICES, CpuOption, JsonOption, MemoryLimitOption, choose_name, parse_size
from jaxquard.cli.plan.options import (
    LOSS_REDUCTIONS,
    PRICERS,
    FixOption,
    ForbidOption,
    GlobalBatchOption,
    IgnoreMarksOption,
    LossReductionOption,
    MaxMicrobatchOption,
    PlanClusterOption,
    PlanModelArgument,
    PlanPricerOption,
    ScaleOption,
    SequenceOption,
    TimeBudgetOption,
    WholeTasksOption,
    parse_fixed,
    parse_forbidden,
)


def search_plan(
    model: PlanModelArgument,
    cluster: PlanClusterOption = None,
    global_batch: GlobalBatchOption = None,
    sequence_length: SequenceOption = None,
    scale: ScaleOption = 1,
    fix: FixOption = None,
    forbid: ForbidOption = None,
    memory_limit: MemoryLimitOption = None,
    max_microbatch: MaxMicrobatchOption = None,
    loss_reduction: LossReductionOption = None,
    ignore_marks: IgnoreMarksOption = False,
    time_budget: TimeBudgetOption = None,
    pricer: PlanPricerOption = None,
    whole_tasks: WholeTasksOption = None,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_DEVICES,
            help="Without --cluster: how many virtual CPU devices there are, or how many GPUs or TPUs are used.",
            show_default="8, or all",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the plan to this file.")] = None,
    as_json: JsonOption = False,
    cpu: CpuOption = False,
) -> None:
    """Plans a training step: stages, shardings, schedule, microbatches and recomputation, beside the usual plans.

    Example: jaxquard plan search llama3:405b --cluster h100-8x2048

    Example: jaxquard plan train.py:make_loss --cluster h100-8x4 --out plan.json
    """
    fixed, forbidden, limit_bytes = parse_fixed(fix), parse_forbidden(forbid), parse_size(memory_limit)
    if pricer is not None:
        pricer = choose_name(pricer, PRICERS, kind="pricer")
    if loss_reduction is not None:
        loss_reduction = choose_name(loss_reduction, LOSS_REDUCTIONS, kind="loss reduction")
    if cluster is None and pricer is None and scale == 1 and _is_size(model):
        raise UsageError(f"{model} needs --cluster, the hardware that it runs on. Add, say, --cluster h100-8x16.")
    _check_devices(cluster, pricer, devices=devices, cpu=cpu)
    check_writable(out)
    from jaxquard.cli.plan.answer import plan_answer
    from jaxquard.cli.plan.make_plan import PlanRequest, make_plan

    plan = make_plan(
        PlanRequest(
            model=model,
            cluster=cluster,
            global_batch=global_batch,
            sequence_length=sequence_length,
            scale=scale,
            fix=fixed,
            forbid=forbidden,
            memory_limit_bytes=limit_bytes,
            max_microbatch_size=max_microbatch,
            loss_reduction=loss_reduction,
            ignores_marks=ignore_marks,
            time_budget_s=time_budget,
            pricer=pricer,
            num_whole=whole_tasks,
            num_devices=devices,
            cpu=cpu,
        )
    )
    if out is not None:
        plan.save(out)
        say_written(out)
    if as_json:
        print_json(plan_answer(plan))
    else:
        print_text(str(plan))


def _is_size(model: str) -> bool:
    """Says whether a model is one by name, as its size is no name in Python: `llama3:405b`."""
    _, colon, size = model.partition(":")
    return bool(colon) and not size.isidentifier()


def _check_devices(cluster: str | None, pricer: str | None, *, devices: int | None, cpu: bool) -> None:
    if cluster is None and pricer not in (None, "measure", "model"):
        raise UsageError(f"--pricer {pricer} prices for the chips of --cluster, but none is given. Add --cluster.")
    if cluster is not None and pricer != "measure" and (devices is not None or cpu):
        given = "--cpu" if cpu else "--devices"
        raise UsageError(f"{given} is for a plan on the devices here, but --cluster {cluster} is given. Leave one out.")
