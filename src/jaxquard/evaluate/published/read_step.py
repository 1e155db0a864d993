"""A published row as a step that the model prices: sizes, strategy, hardware, framework, and the seconds measured.

Publications leave much unsaid. What a row lacks is inferred, by the same rules for all rows:

- sizes of the model: from the table of published transformers by its name, or from its number of parameters;
- replicas: devices over the product of the other degrees;
- recomputation, microbatch and chunks: the fastest of those that fit the memory, since published runs are tuned;
- seconds: from tokens a second, from utilisation, or from FLOP/s in the convention that the row states.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from jaxquard.errors import JaxquardError, PublishedDataError, StepPriceError
from jaxquard.evaluate.published.hardware import Hardware, find_hardware
from jaxquard.pricing.model.known.find_transformer import guess_sizes, known_sizes
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import RESERVED_SHARE, StepPrice, price_step
from jaxquard.pricing.model.system import SystemProfile, find_system
from jaxquard.pricing.model.transformer import Transformer

_DTYPES = (("fp4", "fp4"), ("fp8", "fp8"), ("float8", "fp8"), ("fp16", "fp16"), ("half", "fp16"), ("int8", "fp8"), ("bf16", "bf16"))
_MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A published step, ready to be priced."""

    name: str
    system: SystemProfile
    transformer: Transformer
    parallelism: Parallelism
    hardware: Hardware
    measured_s: float

    def price(self) -> StepPrice:
        """Prices it."""
        return price_step(
            self.transformer, self.parallelism, self.hardware.cluster, self.system, chip=self.hardware.chip
        )


def read_step(row: dict[str, str]) -> StepCase:
    """Returns the step that a row describes.

    Raises:
        JaxquardError: if the row lacks what cannot be inferred, or describes what cannot run; the message says which.
    """
    reader = _Row(row)
    system = find_system(f"{row.get('system', '')} {row.get('precision', '')}")
    transformer = _transformer(reader)
    count = reader.whole("n_dev")
    if count is None:
        raise PublishedDataError("n_dev is empty, and no other column gives the number of devices.")
    hardware = find_hardware(row["hardware"], count)
    candidates = _candidates(reader, system, transformer, count)
    parallelism = _fastest(candidates, transformer, hardware, system)
    if reader.number("gbs") is None:
        # Throughput alone is published: the step is that of one microbatch a replica.
        parallelism = replace(parallelism, global_batch=parallelism.microbatch * parallelism.data)
    return StepCase(
        name=row.get("id") or f"{row.get('system')} {row.get('model')}",
        system=system,
        transformer=transformer,
        parallelism=parallelism,
        hardware=hardware,
        measured_s=_measured_s(reader, transformer, parallelism, hardware, count),
    )


class _Row:
    """The columns of a row, as numbers where they are numbers."""

    def __init__(self, row: dict[str, str]):
        self.row = row

    def text(self, column: str) -> str:
        value = self.row.get(column, "").strip()
        return "" if value.lower() in ("n/a", "na", "-", "none given", "?", "nan") else value

    def number(self, column: str) -> float | None:
        found = re.match(r"[~>]?\s*(\d[\d_]*\.?\d*(?:e[+-]?\d+)?)\s*([kKmM]?)", self.text(column).replace(",", ""))
        if not found:
            return None
        return float(found[1]) * {"": 1, "k": 1e3, "m": 1e6}[found[2].lower()]

    def whole(self, column: str) -> int | None:
        value = self.number(column)
        return None if value is None else max(1, round(value))


def _transformer(reader: _Row) -> Transformer:
    """The sizes that the columns state, over those known by name, over those that fit the number of parameters."""
    name = reader.text("model")
    stated: dict[str, Any] = {
        field: reader.whole(column)
        for field, column in (("num_layers", "layers"), ("hidden", "hidden"), ("num_heads", "heads"), ("vocab", "vocab"))
        if reader.whole(column)
    }
    seq = reader.whole("seq")
    if seq is None:
        raise PublishedDataError("seq is empty, so that the tokens of a step are unknown.")
    known = known_sizes(name)
    billions = reader.number("params_b") or _billions(name)
    if known and _differs(known, stated):
        known = None
    if known is None and billions:
        known = guess_sizes(name, billions * 1e9)
        # Heads that nobody states are taken to divide among the tensor group.
        tensor = reader.whole("tp") or 1
        known["num_heads"] = max(1, round(known["num_heads"] / tensor)) * tensor
        if {"num_layers", "hidden"} <= set(stated):
            known = _fit_widths(known, stated, billions * 1e9)
    if known is None and {"num_layers", "hidden"} <= set(stated):
        known = {"num_heads": max(1, stated["hidden"] // 128), "vocab": 51200}
    if known is None:
        raise PublishedDataError(f"the sizes of {name!r} are not in the row, and no published model has that name.")
    return Transformer(**{**known, **stated, "seq": seq})


def _differs(known: dict[str, Any], stated: dict[str, Any]) -> bool:
    return any(stated.get(field, known[field]) != known[field] for field in ("num_layers", "hidden"))


def _billions(name: str) -> float | None:
    found = re.search(r"(\d+(?:\.\d+)?)\s*([bmt])\b", name.lower())
    return float(found[1]) * {"b": 1.0, "m": 1e-3, "t": 1e3}[found[2]] if found else None


def _fit_widths(known: dict[str, Any], stated: dict[str, Any], num_parameters: float) -> dict[str, Any]:
    """Takes the width of the MLP for which layers and hidden as stated make up the number of parameters."""
    layers, hidden = stated["num_layers"], stated["hidden"]
    vocab = stated.get("vocab", known["vocab"])
    heads = stated.get("num_heads", max(1, hidden // 128))
    sizes = {**known, "num_heads": heads}
    sizes.pop("ffn", None)
    per_layer = (num_parameters - vocab * hidden * (1 if known.get("is_tied", True) else 2)) / layers
    matrices = 3 if known.get("is_gated") else 2
    width = (per_layer - 4 * hidden**2) / (matrices * hidden)
    if matrices == 3 and width > 0:
        sizes["ffn"] = max(256, round(width / 256) * 256)
    return sizes


def _candidates(reader: _Row, system: SystemProfile, transformer: Transformer, count: int) -> list[Parallelism]:
    """All strategies that a row may mean: one, unless it leaves out the recomputation, the microbatch or the chunks."""
    tensor, pipeline = reader.whole("tp") or 1, reader.whole("pp") or 1
    context, expert = reader.whole("cp") or 1, reader.whole("ep") or 1
    rest = tensor * pipeline * context
    if count % rest:
        raise StepPriceError(
            f"tp {tensor} x pp {pipeline} x cp {context} is {rest}, which does not divide {count} devices."
        )
    data = count // rest
    zero, shard_group = _sharding(reader, system, data, pipeline)
    name = reader.text("system").lower()
    batch = reader.whole("gbs") or data * (reader.whole("mbs") or 1) * (reader.whole("num_microbatches") or 1)
    base = Parallelism(
        tensor=tensor,
        sequence=tensor > 1 and (system.sequence or bool(re.search(r"\bsp\b|sequence", name))),
        context=context,
        pipeline=pipeline,
        data=data,
        zero=zero,
        shard_group=shard_group,
        expert=expert,
        expert_tensor=1 if expert > 1 else 0,
        global_batch=max(batch, data),
        schedule=_schedule(reader, pipeline),
        dtype=_dtype(reader),
    )
    return [
        replace(
            base,
            microbatch=microbatch,
            num_chunks=chunks,
            recompute=recompute,
            recompute_share=share,
            schedule="interleaved" if chunks > 1 else base.schedule,
        )
        for microbatch in _microbatches(reader, base)
        for chunks in _chunks(reader, base, transformer)
        for recompute, share in _recomputes(reader, system)
    ]


def _sharding(reader: _Row, system: SystemProfile, data: int, pipeline: int) -> tuple[int, int]:
    """Returns the degree of ZeRO and the devices that share state."""
    text, name = reader.text("fsdp").lower(), reader.text("system").lower()
    stage = re.search(r"zero[-_ ]?([123])", f"{text} {name}")
    if stage:
        return (int(stage[1]) if data > 1 else 0), 0
    group = reader.whole("fsdp")
    if text in ("true", "yes", "full", "full_shard") or (group is not None and group > 1):
        wide = group is None or group >= data or data % group
        return (3, 0 if wide else group or 0) if data > 1 else (0, 0)
    if group is None and system.zero == 3 and pipeline == 1 and data > 1:
        return 3, 0
    return (min(system.zero, 1), 0) if data > 1 else (0, 0)


def _schedule(reader: _Row, pipeline: int) -> str:
    text = reader.text("schedule").lower()
    if pipeline == 1:
        return "none"
    if "gpipe" in text:
        return "gpipe"
    if "zb" in text or "zero" in text or "dualpipe" in text:
        return "zero-bubble"
    return "1f1b"


def _dtype(reader: _Row) -> str:
    text = f"{reader.text('precision')} {reader.text('system')}".lower()
    return next((dtype for word, dtype in _DTYPES if word in text), "bf16")


def _microbatches(reader: _Row, base: Parallelism) -> list[int]:
    stated, count = reader.whole("mbs"), reader.whole("num_microbatches")
    share = base.global_batch / base.data
    if stated and base.pipeline > 1 and stated >= share >= base.pipeline:
        # The batch of a replica is stated, of which a pipeline makes microbatches: one for each of its actors.
        return [max(1, round(share / (count or base.pipeline)))]
    if stated:
        return [stated]
    if count:
        return [max(1, round(share / count))]
    if reader.number("gbs") is None:
        return list(_MICROBATCHES)
    return [size for size in _MICROBATCHES if size <= share and (share / size) % 1 == 0] or [1]


def _chunks(reader: _Row, base: Parallelism, transformer: Transformer) -> list[int]:
    stated = reader.whole("vpp")
    if base.pipeline == 1:
        return [1]
    if stated:
        return [min(stated, max(1, transformer.num_layers // base.pipeline))]
    if "inter" not in reader.text("schedule").lower():
        return [1]
    layers = max(1, transformer.num_layers // base.pipeline)
    return [size for size in range(2, layers + 1) if layers % size == 0] or [1]


def _recomputes(reader: _Row, system: SystemProfile) -> list[tuple[str, float]]:
    """Returns what a row may recompute, and for which share of the layers."""
    text = reader.text("recompute").lower()
    if not text:
        return [("selective", 1.0), ("full", 0.25), ("full", 0.5), ("full", 0.75), ("full", 1.0)]
    if text.startswith(("none", "no", "false", "off", "0")):
        return [("none", 1.0)]
    share = re.search(r"\((?:every )?(\d+)(?:/(\d+))?\)", text)
    if "partial" in text or "block" in text:
        return [("full", float(share[1]) / float(share[2]) if share and share[2] else 0.5)]
    if text.startswith(("selective", "sac", "minimal", "attn", "save")):
        if share and not share[2]:
            return [("full", 1 / max(1, int(share[1])))]
        return [("full", system.selective_share)] if system.selective_share else [("selective", 1.0)]
    return [("full", 1.0)]


def _fastest(
    candidates: list[Parallelism], transformer: Transformer, hardware: Hardware, system: SystemProfile
) -> Parallelism:
    """Returns the candidate with the most tokens a second that fits; the smallest if none does."""
    if len(candidates) == 1:
        return candidates[0]
    available = hardware.cluster.memory.size_bytes * (1 - RESERVED_SHARE)
    best: tuple[float, float, Parallelism] | None = None
    failure: JaxquardError | None = None
    for candidate in candidates:
        try:
            price = price_step(transformer, candidate, hardware.cluster, system, chip=hardware.chip)
        except JaxquardError as error:
            failure = error
            continue
        excess = max(0.0, price.peak_bytes - available)
        tokens = candidate.num_microbatches * candidate.microbatch
        rank = (excess, price.time_s / tokens, candidate)
        if best is None or rank[:2] < best[:2]:
            best = rank
    if best is None:
        raise failure or StepPriceError("no strategy is left to price.")
    return best[2]


def _measured_s(
    reader: _Row, transformer: Transformer, par: Parallelism, hardware: Hardware, count: int
) -> float:
    """Returns the measured seconds of a step."""
    stated = reader.number("step_time_s")
    if stated:
        return stated
    tokens = par.global_batch * transformer.seq / count
    throughput = reader.number("tok_s_dev")
    if throughput:
        return tokens / throughput
    flops = reader.number("tflops_per_dev")
    utilisation = reader.number("mfu_pct")
    if flops is None and utilisation is not None:
        flops = utilisation / 100 * _peak_tflops(hardware, par)
    if not flops:
        raise PublishedDataError("none of step_time_s, tok_s_dev, tflops_per_dev and mfu_pct is given.")
    convention = reader.text("flops_convention").lower()
    has_recomputation = "hardware" in convention and par.recompute == "full"
    counted = transformer.flops_per_token(is_causal="causal" in convention, has_recomputation=has_recomputation)
    if re.search(r"\b6 ?\*? ?n", convention):
        counted = 6 * transformer.num_parameters
    return tokens * counted / (flops * 1e12)


def _peak_tflops(hardware: Hardware, par: Parallelism) -> float:
    """The data sheet's peak, in TFLOP/s, which utilisation is a share of."""
    peak = hardware.cluster.compute.peak_flops_per_s / 1e12
    if hardware.chip.name == "gb200":
        peak = 2500
    if hardware.chip.name == "mi300x":
        peak = 1307
    return peak * (2 if par.dtype == "fp8" and not math.isclose(peak, 312) else 1)
