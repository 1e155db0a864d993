"""Names and colours of algorithms and models on the page; the hues follow Paul Tol's "bright" set."""

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
