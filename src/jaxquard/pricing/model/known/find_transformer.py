"""Published transformers by name, and sizes of unknown ones from their number of parameters.

The table is transformers.toml, with its sources. A name in a publication is written in many ways ("Llama3-70B",
"LLAMA 3.1 70B", "llama3_70b"), so a name matches by words.
"""

import functools
import math
import re
import tomllib
from pathlib import Path
from typing import Any

from jaxquard.errors import StepPriceError
from jaxquard.pricing.model.transformer import Transformer

_GATED = (
    "llama",
    "mistral",
    "mixtral",
    "qwen",
    "gemma",
    "palm",
    "deepseek",
    "maxtext",
    "olmo",
    "yi",
    "phi",
    "baichuan",
)


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "transformers.toml").read_text(encoding="utf-8"))


def _key(name: str) -> str:
    """Returns a name in lower case with one spelling for its family and its version."""
    text = name.lower().replace("gpt-oss", "gpt oss").replace("gpt-3", "gpt3").replace("gpt_3", "gpt3")
    text = re.sub(r"(llama|qwen|gemma|nemotron|deepseek)[-_ ]?v?(\d(?:\.\d)?)(?=[^\d.b]|$)", r"\1\2", text)
    text = text.replace("llama3.1", "llama3").replace("llama3.3", "llama3")
    text = re.sub(r"nemotron[34]", "nemotron", text)
    return " ".join(re.split(r"[\s_/()\-]+", text))


def _matches(words: str, key: str) -> bool:
    """Each word must stand in the name, a number of parameters as a whole."""
    present = set(key.split())
    return all(
        part in present if re.fullmatch(r"[\d.x]+[bmt]", part) else any(part in word for word in present)
        for part in re.split(r"[\s\-]+", words)
    )


def known_sizes(name: str) -> dict[str, Any] | None:
    """Returns the sizes of a published transformer, or None.

    Example:
        >>> jq.pricing.known_sizes("LLAMA 3.1 405B")["num_layers"]
        126
    """
    known = _find(_key(name))
    return None if known is None else dict(known)


@functools.cache
def _find(key: str) -> dict[str, Any] | None:
    for entry in _table()["transformers"]:
        if any(_matches(_key(words), key) for words in entry["words"]):
            return {**_table()["defaults"][entry["kind"]], **entry["sizes"]}
    return None


def find_transformer(name: str, *, seq: int, **sizes: Any) -> Transformer:
    """Returns a published transformer by name.

    Args:
        sizes: instead of the published ones.

    Raises:
        StepPriceError: if the name is unknown.

    Example:
        >>> llama = jq.pricing.find_transformer("Llama3-8B", seq=8192)
        >>> llama.num_kv_heads, f"{llama.num_parameters / 1e9:.2f} billion"
        (8, '8.03 billion')
    """
    known = known_sizes(name)
    if known is None:
        raise StepPriceError(
            f"no transformer is known as {name!r}. Give its sizes as a Transformer, or a name such as Llama3-70B, "
            "GPT3-175B, Mixtral-8x7B."
        )
    values: dict[str, Any] = {**known, "seq": seq, **sizes}
    return Transformer(**values)


def guess_sizes(name: str, num_parameters: float) -> dict[str, Any]:
    """Returns sizes of an unknown transformer with about so many parameters, as deep and wide as published ones are.

    Published GPTs keep hidden / layers near 128 from 7 billion parameters up, and heads of 128.

    Example:
        >>> sizes = jq.pricing.guess_sizes("some GPT", 30e9)
        >>> sizes["num_layers"], sizes["hidden"]
        (54, 6784)
    """
    is_gated = any(family in name.lower() for family in _GATED)
    ratio = 100 if num_parameters < 3e9 else 128
    hidden = round((num_parameters * ratio / 12) ** (1 / 3) / 128) * 128 or 128
    num_layers = max(1, round(num_parameters / 12 / hidden**2))
    sizes = {"num_layers": num_layers, "hidden": hidden, "num_heads": max(1, hidden // 128), "vocab": 51200}
    if is_gated:
        sizes |= {"is_gated": True, "ffn": math.ceil(8 * hidden / 3 / 256) * 256, "vocab": 32000}
        sizes |= {"has_learned_positions": False, "has_biases": False, "is_tied": False}
    return sizes
