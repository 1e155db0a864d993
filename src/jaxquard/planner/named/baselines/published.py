"""Published configurations of models by name, with replicas for all chips of the cluster.

published.toml has each with its source. A configuration whose tensor, context and pipeline degrees do not divide the
chips, or whose replicas do not divide the batch, is listed with the reason.
"""

import functools
import tomllib
from pathlib import Path
from typing import Any

from jaxquard.errors import StepPriceError
from jaxquard.planner.named.baselines.usual import UsualStrategy, fastest_that_fits
from jaxquard.planner.named.choices import mesh_text
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.pricing.model.check_parallelism import check_parallelism
from jaxquard.pricing.model.parallelism import Parallelism


def published_strategies(step: ModelStep, model: str) -> tuple[tuple[UsualStrategy, str], ...]:
    """Returns the published configurations of a model, each with its source."""
    return tuple(
        (_strategy(step, entry), entry["source"]) for entry in _table() if entry["model"] == model.strip().lower()
    )


@functools.cache
def _table() -> tuple[dict[str, Any], ...]:
    text = (Path(__file__).parent / "published.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["configurations"])


def _strategy(step: ModelStep, entry: dict[str, Any]) -> UsualStrategy:
    degrees = entry["degrees"]
    model_parallel = degrees.get("tensor", 1) * degrees.get("context", 1) * degrees.get("pipeline", 1)
    name = f"{entry['system']} ({entry['hardware']})"
    if step.num_devices % model_parallel:
        reason = f"its {model_parallel} chips of a replica do not divide {step.num_devices}"
        return UsualStrategy(name=name, reason=reason)
    data = step.num_devices // model_parallel
    if step.global_batch % data:
        reason = f"a batch of {step.global_batch} does not divide among its {data} replicas"
        return UsualStrategy(name=name, reason=reason)
    strategies = _readings(step, entry, data)
    try:
        for strategy in strategies:
            check_parallelism(step.transformer, strategy)
    except StepPriceError as error:
        return UsualStrategy(name=name, reason=str(error))
    priced = fastest_that_fits(step, strategies)
    assert priced is not None, entry
    return UsualStrategy(name=f"{name}: {mesh_text(priced.parallelism)}", priced=priced)


def _readings(step: ModelStep, entry: dict[str, Any], data: int) -> list[Parallelism]:
    """Returns the strategies that a configuration may mean: what it does not state is tuned."""
    degrees = {**entry["degrees"]}
    pipeline, chunks = degrees.get("pipeline", 1), degrees.get("num_chunks", 1)
    share = step.global_batch // data
    microbatches = [degrees.pop("microbatch")] if "microbatch" in degrees else [1, 2, 4, 8]
    fitting = [size for size in microbatches if share % size == 0] or [1]
    recomputes = [entry["recompute"]] if "recompute" in entry else ["selective", "full"]
    schedule = "interleaved" if chunks > 1 else "1f1b" if pipeline > 1 else "none"
    return [
        Parallelism(
            **{"zero": 1 if data > 1 else 0, **degrees},
            sequence=degrees.get("tensor", 1) > 1,
            data=data,
            expert_tensor=1 if degrees.get("expert", 1) > 1 else 0,
            microbatch=microbatch,
            global_batch=step.global_batch,
            schedule=entry.get("schedule", schedule),
            recompute=recompute,
            dtype=step.dtype,
        )
        for microbatch in fitting
        for recompute in recomputes
    ]
