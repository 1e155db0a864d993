"""Every model and size by its name, for the command line and the benchmarks."""

from dataclasses import dataclass
from typing import Any

from jaxquard.models import bert, gpt, llama, moe
from jaxquard.models.training import ModelModule
from jaxquard.models.training import TrainingStep as TrainingStep
from jaxquard.models.training import training_step as training_step

MODELS: dict[str, ModelModule] = {"gpt": gpt, "bert": bert, "llama": llama, "moe": moe}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of one size.

    Attributes:
        name: such as "llama-2-7b".
        module: `gpt`, `bert`, `llama` or `moe`.
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
    """Returns the name that `gpt:6.7b` is short for; any other text comes back.

    Example:
        >>> jq.models.zoo.full_name("llama:7b"), jq.models.zoo.full_name("train:make_step")
        ('llama-2-7b', 'train:make_step')
    """
    family, _, size = name.lower().partition(":")
    sizes = MODELS[family].SIZES if size and family in MODELS else ()
    found = [known for known in sizes if known.endswith(f"-{size}")]
    return found[0] if len(found) == 1 else name
