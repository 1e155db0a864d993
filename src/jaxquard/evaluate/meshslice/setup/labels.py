"""Names and colours of algorithms and models on the page; the hues follow Paul Tol's "bright" set."""

from jaxquard.evaluate.common.numbers import ratio
from jaxquard.evaluate.meshslice.setup.models import MODELS

ALGORITHM_LABELS = {
    "meshslice": "MeshSlice",
    "wang": "Wang",
    "collective": "Collective",
    "cannon": "Cannon",
    "summa": "SUMMA",
    "1d_tp": "1D TP",
    "fsdp": "FSDP",
}
ALGORITHM_COLORS = {
    "meshslice": "#2f62b5",
    "wang": "#2a9d8f",
    "collective": "#e0a93b",
    "cannon": "#a05195",
    "summa": "#d1495b",
    "1d_tp": "#7d8597",
    "fsdp": "#b7bfca",
}
MODEL_LABELS = {model.key: model.label for model in MODELS}
ESTIMATED_COLOR, SIMULATED_COLOR = "#9db9e3", "#2f62b5"


def in_unit(value: float, unit: str) -> str:
    """A headline's number: `13.8 %` or `2.40x`."""
    return ratio(value) if unit == "x" else f"{value:.1f} %"


def span_in_unit(ends: tuple[float, float], unit: str) -> str:
    """A band: `10.8 to 42.0 %`, or one number where its ends are written alike."""
    low, high = (in_unit(end, unit) for end in ends)
    return high if low == high else f"{low.removesuffix(' %')} to {high}"
