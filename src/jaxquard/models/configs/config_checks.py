"""Refuses the config of a model that cannot be built, in the words of its fields."""

import dataclasses
from typing import Any


def check_config(config: Any) -> None:
    """Holds what every model needs: counts and sizes of at least 1, even heads, a rate below 1.

    Args:
        config: a dataclass with at least `model_dim`, `num_heads` and `dropout_rate`.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type is int and value < 1:
            raise ValueError(f"{field.name}={value}, but a {type(config).__name__} needs at least 1.")
    check_multiple(config, "model_dim", "num_heads", "Choose a model_dim that the heads can share evenly.")
    if not 0 <= config.dropout_rate < 1:
        raise ValueError(f"dropout_rate={config.dropout_rate} is not a rate. Choose one from 0 up to, but not, 1.")


def check_multiple(config: Any, whole: str, part: str, advice: str) -> None:
    """Refuses a field `whole` that is not a multiple of the field `part`."""
    if getattr(config, whole) % getattr(config, part):
        raise ValueError(
            f"{whole}={getattr(config, whole)} is not a multiple of {part}={getattr(config, part)}. {advice}"
        )
