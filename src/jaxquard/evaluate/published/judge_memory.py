"""Published memory beside ours: the state of a stage, its activations, or these in percent of what all of them take."""

from collections.abc import Mapping

from jaxquard.cluster import load_cluster
from jaxquard.errors import PublishedDataError
from jaxquard.evaluate.published.results import PublishedResult
from jaxquard.evaluate.published.row_values import RowValues
from jaxquard.pricing.model.memory import layer_activation_bytes
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import microbatches_kept
from jaxquard.pricing.model.stage_prices import stage_prices
from jaxquard.pricing.model.system import find_system
from jaxquard.pricing.model.transformer import Transformer

_GIB = 2**30
# What a mode recomputes, and if it has sequence parallelism.
_MODES = {
    "none": ("none", False),
    "seq": ("none", True),
    "sel": ("selective", False),
    "seqsel": ("selective", True),
    "full": ("full", False),
}


def judge_memory(row: Mapping[str, str]) -> PublishedResult:
    """Returns a published quantity of memory beside ours."""
    values = RowValues(row)
    mode, metric, published = values.text("mode"), values.text("metric"), values.number("value")
    if mode not in _MODES:
        raise PublishedDataError(f"mode {mode} is unknown: {', '.join(_MODES)} are known.")
    if published is None:
        raise PublishedDataError("value of the row is empty.")
    transformer = Transformer(
        num_layers=values.size("layers"),
        hidden=values.size("hidden"),
        num_heads=values.size("heads"),
        vocab=51200,
        seq=values.size("seq"),
    )
    ours = _memory_figure(transformer, values, mode, metric)
    return PublishedResult(
        name=f"{values.text('model')}, {mode}, {metric}",
        group=metric,
        model=values.text("model"),
        published=published,
        ours=ours,
        signed=ours / published - 1,
        strategy=f"tp{values.text('tp')} pp{values.text('pp')} v{values.text('vpp')}, microbatch {values.text('mbs')}",
    )


def _memory_figure(transformer: Transformer, values: RowValues, mode: str, metric: str) -> float:
    """Returns a quantity of the paper's figures: per GPU, of a stage's layers without the embedding."""
    system = find_system("Megatron-LM 2022")
    par = _memory_strategy(values, mode)
    kept = layer_activation_bytes(transformer, par, system)
    if "%" in metric:
        return 100 * kept / layer_activation_bytes(transformer, _memory_strategy(values, "none"), system)
    if "activations" in metric:
        layers = transformer.num_layers / par.pipeline
        return kept * layers * microbatches_kept(par) / _GIB
    if "params" not in metric:
        raise PublishedDataError(f"metric {metric!r} is unknown: state, activations, or activations in percent.")
    stages = stage_prices(transformer, par, load_cluster("a100"), system).stages
    middle = (
        stages[len(stages) // 2 :: par.pipeline] if par.pipeline == 1 else stages[par.pipeline // 2 :: par.pipeline]
    )
    return sum(stage.memory.state_bytes for stage in middle) / _GIB


def _memory_strategy(values: RowValues, mode: str) -> Parallelism:
    recompute, sequence = _MODES[mode]
    pipeline, chunks, microbatch = (values.degree(column) or 1 for column in ("pp", "vpp", "mbs"))
    return Parallelism(
        tensor=values.degree("tp") or 1,
        sequence=sequence,
        pipeline=pipeline,
        num_chunks=chunks,
        microbatch=microbatch,
        # Enough microbatches to fill the pipeline, as the paper assumes.
        global_batch=8 * pipeline * microbatch,
        recompute=recompute,
        schedule="interleaved" if chunks > 1 else "1f1b",
        dtype="fp16",
    )
