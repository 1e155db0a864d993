"""The problems of the corpus: 60 models by name and 24 traced losses, each on a cluster.

A problem is data, so that the code of today and that of another day plan the same. `prepare` is the one place that
calls the planner. It asks for prices in closed form: a search needs no accelerator and gives the same plan each time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.corpus import losses
from benchmarks.corpus.losses import TracedLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedProblem:
    """A model that is planned by its name, with the sequence that it was trained on.

    Attributes:
        global_batch: sequences of a step.
    """

    model: str
    cluster: str
    global_batch: int

    @property
    def name(self) -> str:
        return f"{self.model} on {self.cluster}"

    def prepare(self) -> Callable[[], Any]:
        """Returns the search for a plan; what comes before it is not on the clock."""
        from jaxquard.planner.named.plan_named import plan_named

        return lambda: plan_named(self.model, self.cluster, global_batch=self.global_batch, progress=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProblem:
    """A loss that is traced, with AdamW.

    Attributes:
        make: builds it.
    """

    model: str
    cluster: str
    make: Callable[[], TracedLoss] = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.model} on {self.cluster}"

    def prepare(self) -> Callable[[], Any]:
        """Returns the search for a plan; what comes before it is not on the clock."""
        import jaxquard

        arguments = self.arguments()
        options = {"pricer": "model", "num_measured": 0, "cache": None, "progress": False}
        parallelize = jaxquard.parallelize
        return lambda: parallelize(*arguments, cluster=self.cluster, name=self.model, **options).plan

    def arguments(self) -> tuple[Any, Any, Any]:
        """Returns the loss, the optimizer, and the types of the parameters and a batch."""
        import optax

        loss, params, batch = self.make()
        return loss, optax.adamw(1e-4), (params, batch)


CorpusProblem = NamedProblem | TracedProblem

# For each model, the clusters and the sequences of a step.
_NAMED: dict[str, dict[str, int]] = {
    "gpt3:1.3b": {"a100-8": 256, "h100-8x2": 512, "v5e-4x4": 256, "v5e-16x16": 1024, "tpu-v4-4x4x4": 512},
    "gpt3:13b": {"a100-8x4": 512, "h100-8x8": 512, "h200-8x2": 256, "v5e-16x16": 1024, "v5p-4x4x4": 512},
    "gpt3:175b": {"a100-8x64": 1024, "h100-8x16": 256, "h100-8x128": 1536, "b200-8x16": 512, "v5p-8x8x8": 1024},
    "llama2:7b": {"a100-8": 128, "h100-8": 128, "h100-8x32": 1024, "v5e-4x4": 64, "v5p-4x4x4": 512},
    "llama2:13b": {"a100-8x2": 128, "h100-8x4": 256, "h200-8": 128, "v6e-16x16": 1024, "tpu-v4-4x4x8": 512},
    "llama2:70b": {"a100-8x32": 1024, "h100-8x8": 128, "h100-8x64": 1024, "v5e-16x16": 512, "v5p-4x4x8": 512},
    "llama3:8b": {"h100-8": 64, "h100-8x2": 128, "h100-8x128": 2048, "v5e-8x8": 256, "v6e-8x8": 256},
    "llama3:70b": {"h100-8": 64, "a100-8x16": 256, "h100-8x16": 256, "h100-8x128": 1024, "v5p-8x8x4": 512},
    "llama3:405b": {"h100-8x128": 512, "h100-8x2048": 2048, "a100-8x128": 512, "b200-8x64": 512, "v5p-8x16x16": 2048},
    "mixtral:8x7b": {"a100-8x8": 256, "h100-8x4": 256, "h100-8x64": 1024, "v5e-16x16": 1024, "v5p-4x4x4": 512},
    "deepseek:16b": {"a100-8x2": 256, "h100-8": 256, "h100-8x16": 1024, "v5e-8x8": 512, "v5p-4x4x4": 1024},
    "deepseek:v3": {"h100-8x64": 2048, "h100-8x256": 8192, "h200-8x32": 2048, "b200-8x32": 2048, "v5p-8x8x8": 4096},
}


def _zoo(size: str, rows: int, **changes: Any) -> Callable[[], TracedLoss]:
    return lambda: losses.zoo_model(size, rows, **changes)


def _own(build: Callable[..., TracedLoss], rows: int, **sizes: Any) -> Callable[[], TracedLoss]:
    return lambda: build(rows, **sizes)


# For each model, the clusters and what builds the loss.
_TRACED: dict[str, dict[str, Callable[[], TracedLoss]]] = {
    "gpt": {"h100-8": _zoo("gpt3-1.3b", 64, num_layers=4), "h100-8x4": _zoo("gpt3-6.7b", 32, num_layers=8)},
    "bert": {"cpu-8": _zoo("bert-large", 32, num_layers=4), "h100-8": _zoo("bert-large", 256, num_layers=4)},
    "llama": {
        "h100-8": _zoo("llama-3-8b", 8, num_layers=4, sequence_length=32768),
        "h100-8x4": _zoo("llama-3-8b", 32, num_layers=8),
    },
    "mixtral": {"h100-8": _zoo("mixtral-8x7b", 32, num_layers=2), "h100-8x4": _zoo("mixtral-8x7b", 32, num_layers=4)},
    "moe": {"cpu-8": _zoo("moe-380m", 32, num_layers=4), "v5e-4x4": _zoo("moe-1.3b", 64, num_layers=4)},
    "deepseek": {"h100-8x4": _zoo("deepseek-16b", 64, num_layers=2), "v5e-4x4": _zoo("deepseek-16b", 16, num_layers=2)},
    "mixer": {"cpu-8": _own(losses.mixer, 64, num_layers=4, width=512), "v5e-4x4": _own(losses.mixer, 1024)},
    "conv net": {
        "cpu-8": _own(losses.conv_net, 64),
        "v5e-4x4": _own(losses.conv_net, 1024, image=128, has_batch_norm=True),
    },
    "recurrent": {"cpu-8": _own(losses.recurrent, 64, width=1024), "h100-8x4": _own(losses.recurrent, 512)},
    "vision transformer": {
        "h100-8x4": _own(losses.vision_transformer, 1024),
        "v5e-4x4": _own(losses.vision_transformer, 4096, num_layers=12, width=1664),
    },
    "encoder and decoder": {
        "h100-8": _own(losses.encoder_decoder, 8, tokens=8192, width=4096),
        "v5e-4x4": _own(losses.encoder_decoder, 64, num_layers=2),
    },
    "scanned gpt": {
        "cpu-8": _own(losses.scanned_gpt, 32, num_layers=6, width=768),
        "h100-8x4": _own(losses.scanned_gpt, 64, num_layers=12, width=4096),
    },
}

NAMED = tuple(
    NamedProblem(model=model, cluster=cluster, global_batch=batch)
    for model, clusters in _NAMED.items()
    for cluster, batch in clusters.items()
)
TRACED = tuple(
    TracedProblem(model=model, cluster=cluster, make=make)
    for model, clusters in _TRACED.items()
    for cluster, make in clusters.items()
)
CORPUS: tuple[CorpusProblem, ...] = (*NAMED, *TRACED)
# Planned in a second or so, for tests.
SMALL: tuple[CorpusProblem, ...] = (
    NamedProblem(model="bert:base", cluster="h100-2", global_batch=16),
    TracedProblem(model="residual mlp", cluster="cpu-2", make=_own(losses.residual_mlp, 8)),
)


def find_problem(name: str) -> CorpusProblem:
    """Returns a problem of the corpus, or a small one, by its name."""
    return next(problem for problem in (*CORPUS, *SMALL) if problem.name == name)
