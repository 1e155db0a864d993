"""Every model and size by its name, for the command line and the benchmarks."""

from dataclasses import dataclass, replace
from typing import Any

from jaxquard.models import bert, gpt, llama, mixtral, moe
from jaxquard.models.scale_config import scale_config
from jaxquard.models.training import ModelModule
from jaxquard.models.training import TrainingStep as TrainingStep
from jaxquard.models.training import training_step as training_step

MODELS: dict[str, ModelModule] = {"gpt": gpt, "bert": bert, "llama": llama, "mixtral": mixtral, "moe": moe}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of one size.

    Attributes:
        name: such as "llama-2-7b".
        module: `gpt`, `bert`, `llama`, `mixtral` or `moe`.
        config: its shape; `dataclasses.replace` makes another, say with fewer layers or another dtype.
    """

    name: str
    module: ModelModule
    config: Any


def model_names() -> tuple[str, ...]:
    """All names that `find_model` knows, model by model.

    Example:
        >>> "llama-2-7b" in jq.models.zoo.model_names()
        True
    """
    return tuple(name for module in MODELS.values() for name in module.SIZES)


def find_model(name: str) -> Model:
    """Finds a model by the name of its size, such as "bert-base" or "moe-7.1b"; "gpt:6.7b" is the GPT of that size.

    Example:
        >>> jq.models.zoo.find_model("bert-base").config.num_layers
        12
        >>> jq.models.zoo.find_model("gpt:6.7b").name
        'gpt3-6.7b'
    """
    name = full_name(name)
    for module in MODELS.values():
        if name in module.SIZES:
            return Model(name=name, module=module, config=module.SIZES[name])
    raise ValueError(f"there is no model {name!r}. Choose one of {', '.join(model_names())}.")


def full_name(name: str) -> str:
    """Returns the name that `gpt:6.7b` or `llama3:405b` is short for; any other text comes back.

    Without a version it is the first of that size: `llama:70b` is LLAMA-2's.

    Example:
        >>> jq.models.zoo.full_name("llama:7b"), jq.models.zoo.full_name("train:make_step")
        ('llama-2-7b', 'train:make_step')
        >>> jq.models.zoo.full_name("llama3:405b"), jq.models.zoo.full_name("mixtral:8x7b")
        ('llama-3-405b', 'mixtral-8x7b')
    """
    family, _, size = name.lower().partition(":")
    if not size:
        return name
    exact = [known for known in model_names() if known.replace("-", "") == f"{family}{size}".replace("-", "")]
    sizes = MODELS[family].SIZES if family in MODELS else ()
    return next(iter([*exact, *(known for known in sizes if known.endswith(f"-{size}"))]), name)


def scale_model(model: Model, scale: int) -> Model:
    """Returns a smaller model of the same shape, which runs on a few CPU devices.

    Raises:
        ValueError: if the scale is no whole number of 1 or more.

    Example:
        >>> small = jq.models.zoo.scale_model(jq.models.zoo.find_model("llama3:405b"), 64)
        >>> small.name, small.config.num_layers, small.config.model_dim, small.config.num_kv_heads
        ('llama-3-405b / 64', 4, 256, 2)
    """
    return replace(model, name=f"{model.name} / {scale}", config=scale_config(model.config, scale))
