"""Models by the names in which people plan them ("llama3:405b"), and smaller ones of the same shape.

The sizes are those of the published transformers (`pricing.model.known`) with the sequences that they were trained on,
each with its source in models.toml. BERT is priced as the others are, with causal attention, which is half of its own:
at 512 tokens that is 2 % of its FLOPs.
"""

import difflib
import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from jaxquard.errors import PlanError
from jaxquard.pricing.model.known.find_transformer import find_transformer
from jaxquard.pricing.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that is planned by its name.

    Attributes:
        name: such as "llama3:405b".
        published_parameters: as its authors state them.
        source: of its sizes.
    """

    name: str
    transformer: Transformer
    published_parameters: float
    source: str


@functools.cache
def named_models() -> dict[str, NamedModel]:
    """Returns all models that have a name, by it."""
    text = (Path(__file__).parent / "models.toml").read_text(encoding="utf-8")
    found = {}
    for entry in tomllib.loads(text)["models"]:
        sizes = entry.get("sizes", {})
        if "known" in entry:
            transformer = find_transformer(entry["known"], seq=entry["seq"], **sizes)
        else:
            transformer = Transformer(seq=entry["seq"], **sizes)
        found[entry["name"]] = NamedModel(
            name=entry["name"],
            transformer=transformer,
            published_parameters=entry["parameters"],
            source=entry["source"],
        )
    return found


def find_named_model(name: str) -> NamedModel:
    """Returns a model by its name.

    Raises:
        PlanError: if no model has it; the message has the nearest names.
    """
    known = named_models()
    key = name.strip().lower()
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    family = [known_name for known_name in known if known_name.partition(":")[0] == key.partition(":")[0]]
    nearest = family or near
    hint = f"The nearest are {', '.join(nearest)}. " if nearest else ""
    raise PlanError(f"no model is called {name!r}. {hint}Give one of {', '.join(known)}.")
