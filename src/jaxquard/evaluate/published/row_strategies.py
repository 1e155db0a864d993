"""The strategies that a published row may mean: one, unless it leaves out the recomputation, microbatch or chunks."""

import re
from dataclasses import replace

from jaxquard.errors import StepPriceError
from jaxquard.evaluate.published.row_values import RowValues
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer

_DTYPES = {"fp4": "fp4", "fp8": "fp8", "float8": "fp8", "int8": "fp8", "fp16": "fp16", "half": "fp16", "bf16": "bf16"}
_MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
# A framework that tunes recomputes as few layers as fit: all, in quarters, or none.
_RECOMPUTES = (("selective", 1.0), ("full", 0.25), ("full", 0.5), ("full", 0.75), ("full", 1.0))
# Of what a whole layer recomputes, the part of its MLP: two of its three products, beside those of attention.
_MLP_SHARE = 0.65


def row_strategies(
    values: RowValues, system: SystemProfile, transformer: Transformer, num_devices: int
) -> list[Parallelism]:
    """Returns all strategies that a row may mean.

    Raises:
        StepPriceError: if its degrees do not divide its devices.
    """
    base = _base(values, system, num_devices)
    batch = _stated_batch(values)
    # Throughput alone may be published. Then a replica has one microbatch, and a pipeline as many as keep it busy: 4
    # for each of its actors (GPipe, arXiv 1811.06965, section 2.3).
    count = values.degree("num_microbatches") or (4 * base.pipeline if base.pipeline > 1 else 1)
    return [
        replace(
            base,
            microbatch=microbatch,
            global_batch=base.global_batch if batch else base.data * microbatch * count,
            num_chunks=chunks,
            recompute=recompute,
            recompute_share=share,
            schedule="interleaved" if chunks > 1 else base.schedule,
        )
        for microbatch in _microbatches(values, base)
        for chunks in _chunks(values, base, transformer)
        for recompute, share in _recomputes(values, system)
    ]


def _base(values: RowValues, system: SystemProfile, num_devices: int) -> Parallelism:
    """The degrees; replicas are what the other degrees leave of the devices."""
    tensor, pipeline, context, expert = (values.degree(column) or 1 for column in ("tp", "pp", "cp", "ep"))
    rest = tensor * pipeline * context
    if num_devices % rest:
        raise StepPriceError(
            f"tp {tensor} x pp {pipeline} x cp {context} is {rest}, which does not divide {num_devices} devices."
        )
    data = num_devices // rest
    zero, shard_group = _sharding(values, system, data, pipeline)
    names_sequence = re.search(r"\bsp\b|sequence", values.text("system").lower())
    return Parallelism(
        tensor=tensor,
        sequence=tensor > 1 and (system.sequence or bool(names_sequence)),
        context=context,
        pipeline=pipeline,
        data=data,
        zero=zero,
        shard_group=shard_group,
        expert=expert,
        expert_tensor=1 if expert > 1 else 0,
        global_batch=max(_stated_batch(values) or data, data),
        schedule=_schedule(values, pipeline),
        dtype=_dtype(values),
    )


def _stated_batch(values: RowValues) -> int | None:
    """Returns the sequences of a step; a batch may be stated in tokens ("4M tokens")."""
    batch = values.number("gbs")
    if batch is not None and "tok" in values.text("gbs").lower():
        batch /= values.size("seq")
    return None if batch is None else max(1, round(batch))


def _sharding(values: RowValues, system: SystemProfile, data: int, pipeline: int) -> tuple[int, int]:
    """Returns the degree of ZeRO and the devices that share state."""
    if data == 1:
        return 0, 0
    text, name = values.text("fsdp").lower(), values.text("system").lower()
    stage = re.search(r"zero[-_ ]?([123])", f"{text} {name}")
    if stage:
        return int(stage[1]), 0
    group = values.whole("fsdp")
    if group is not None and group > 1:
        return 3, 0 if group >= data or data % group else group
    if text in ("true", "yes", "full", "full_shard") or (group is None and system.zero == 3 and pipeline == 1):
        return 3, 0
    return min(system.zero, 1), 0


def _schedule(values: RowValues, pipeline: int) -> str:
    text = values.text("schedule").lower()
    if pipeline == 1:
        return "none"
    if "gpipe" in text:
        return "gpipe"
    return "zero-bubble" if re.search(r"zb|zero|dualpipe", text) else "1f1b"


def _dtype(values: RowValues) -> str:
    text = f"{values.text('precision')} {values.text('system')}".lower()
    return next((dtype for word, dtype in _DTYPES.items() if word in text), "bf16")


def _microbatches(values: RowValues, base: Parallelism) -> list[int]:
    stated, count = values.whole("mbs"), values.whole("num_microbatches")
    share = base.global_batch / base.data
    if stated and base.pipeline > 1 and stated >= share >= base.pipeline:
        # The batch of a replica is stated, of which a pipeline makes microbatches: one for each of its actors.
        return [max(1, round(share / (count or base.pipeline)))]
    if stated:
        return [stated]
    if count:
        return [max(1, round(share / count))]
    if values.number("gbs") is None:
        return list(_MICROBATCHES)
    return [size for size in _MICROBATCHES if size <= share and (share / size) % 1 == 0] or [1]


def _chunks(values: RowValues, base: Parallelism, transformer: Transformer) -> list[int]:
    if base.pipeline == 1:
        return [1]
    layers = max(1, transformer.num_layers // base.pipeline)
    stated = values.whole("vpp")
    if stated:
        return [min(stated, layers)]
    if "inter" not in values.text("schedule").lower():
        return [1]
    return [size for size in range(2, layers + 1) if layers % size == 0] or [1]


def _share(count: str, total: str | None) -> float:
    """Returns the share of the layers that "1/4" or "every 4" means."""
    return min(1.0, int(count) / max(1, int(total))) if total else 1 / max(1, int(count))


def _recomputes(values: RowValues, system: SystemProfile) -> list[tuple[str, float]]:
    """Returns what a row may recompute, and of which share of the layers."""
    text = values.text("recompute").lower()
    if not text:
        return list(_RECOMPUTES)
    if text.startswith(("none", "no", "false", "off", "0")):
        return [("none", 1.0)]
    stated = re.search(r"\((?:every )?(\d+)(?:/(\d+))?\)", text)
    share = _share(stated[1], stated[2]) if stated else None
    if text.startswith(("custom", "offload", "save")):
        # The projections of attention are kept, on the host or here, and the MLP runs again.
        return [("full", _MLP_SHARE)]
    if text.startswith(("partial", "block")):
        return [("full", share if share and stated and stated[2] else 0.5)]
    if text.startswith(("selective", "sac", "minimal", "attn")):
        if share:
            return [("full", share)]
        return [("full", system.selective_share)] if system.selective_share else [("selective", 1.0)]
    return [("full", 1.0)]
