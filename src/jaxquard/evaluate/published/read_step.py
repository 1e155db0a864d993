"""A published row as a step that the model prices: sizes, strategy, hardware, framework, and the seconds measured.

Publications leave much unsaid. What a row lacks is inferred, by the same rules for all rows:

- sizes of the model: from the table of published transformers by its name, or from its number of parameters;
- replicas: devices over the product of the other degrees;
- recomputation, microbatch and chunks: the fastest of those that fit the memory, since published runs are tuned;
- seconds: from tokens a second, from utilisation, or from FLOP/s in the convention that the row states.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxquard.errors import JaxquardError, PublishedDataError, StepPriceError
from jaxquard.evaluate.published.hardware import Hardware, find_hardware, peak_flops_per_s
from jaxquard.evaluate.published.row_strategies import row_strategies
from jaxquard.evaluate.published.row_transformer import row_transformer
from jaxquard.evaluate.published.row_values import RowValues
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import StepPrice, price_step
from jaxquard.pricing.model.system import SystemProfile, find_system
from jaxquard.pricing.model.transformer import Transformer

# Published runs fill the memory to its edge, and the model's bytes are not exact: what exceeds by less is taken to fit.
_MEMORY_SLACK = 1.05


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


def read_step(row: Mapping[str, str], system: SystemProfile | None = None) -> StepCase:
    """Returns the step that a row describes.

    Args:
        system: instead of the one that the row names.

    Raises:
        JaxquardError: if the row lacks what cannot be inferred, or describes what cannot run; the message says which.
    """
    values = RowValues(row)
    system = system or find_system(f"{values.text('system')} {values.text('precision')}")
    count = values.size("n_dev")
    _check_training(values)
    transformer = row_transformer(values)
    hardware = find_hardware(values.text("hardware"), count)
    if system.name.startswith("any") and hardware.chip.compute.systolic_dim > 0:
        system = find_system("some framework on TPU")
    candidates = row_strategies(values, system, transformer, count)
    parallelism = _fastest(candidates, transformer, hardware, system)
    return StepCase(
        name=values.text("id") or f"{values.text('system')} {values.text('model')}",
        system=system,
        transformer=transformer,
        parallelism=parallelism,
        hardware=hardware,
        measured_s=_measured_s(values, transformer, parallelism, hardware),
    )


def _check_training(values: RowValues) -> None:
    """Refuses rows that train a few parameters beside frozen ones: these have hardly any gradients or state."""
    named = f"{values.text('system')} {values.text('model')} {values.text('precision')}".lower()
    found = re.search(r"q?lora|peft", named)
    if found:
        raise PublishedDataError(f"{found[0]} trains few of the parameters; the model prices steps that train all.")


def _fastest(
    candidates: Sequence[Parallelism], transformer: Transformer, hardware: Hardware, system: SystemProfile
) -> Parallelism:
    """Returns the candidate with the most tokens a second that fits; the one with the smallest excess if none does."""
    if len(candidates) == 1:
        return candidates[0]
    available = hardware.cluster.memory.size_bytes * _MEMORY_SLACK
    ranked: list[tuple[float, float, int]] = []
    failure: JaxquardError | None = None
    for index, candidate in enumerate(candidates):
        try:
            price = price_step(transformer, candidate, hardware.cluster, system, chip=hardware.chip)
        except JaxquardError as error:
            failure = error
            continue
        sequences = candidate.num_microbatches * candidate.microbatch
        ranked.append((max(0.0, price.peak_bytes - available), price.time_s / sequences, index))
    if not ranked:
        raise failure or StepPriceError("no strategy is left to price.")
    return candidates[min(ranked)[2]]


def _measured_s(values: RowValues, transformer: Transformer, par: Parallelism, hardware: Hardware) -> float:
    """Returns the measured seconds of a step."""
    stated = values.number("step_time_s")
    if stated:
        return stated
    tokens = par.global_batch * transformer.seq / par.num_devices
    throughput = values.number("tok_s_dev")
    if throughput:
        return tokens / throughput
    teraflops, utilisation = values.number("tflops_per_dev"), values.number("mfu_pct")
    if teraflops is None and utilisation is not None:
        teraflops = utilisation / 100 * peak_flops_per_s(hardware, par.dtype) / 1e12
    if not teraflops:
        raise PublishedDataError("none of step_time_s, tok_s_dev, tflops_per_dev and mfu_pct is given.")
    return tokens * _counted_flops(values, transformer, par) / (teraflops * 1e12)


def _counted_flops(values: RowValues, transformer: Transformer, par: Parallelism) -> float:
    """Returns the FLOPs of a token in the convention that a row states; by default without recomputation."""
    convention = values.text("flops_convention").lower()
    if re.search(r"\b6 ?\*? ?n", convention):
        return 6 * transformer.num_parameters
    has_recomputation = "hardware" in convention and par.recompute == "full"
    return transformer.flops_per_token(is_causal="causal" in convention, has_recomputation=has_recomputation)
