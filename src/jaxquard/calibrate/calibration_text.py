"""A calibration as a cluster file: TOML, with where its numbers come from as comments."""

import datetime

import jax

from jaxquard.calibrate.calibrate import Calibration
from jaxquard.cluster import cluster_text


def calibration_text(calibration: Calibration, *, date: datetime.date | None = None) -> str:
    """The text of a file that `load_cluster` reads."""
    day = date or datetime.date.today()
    lines = [f"# Measured on {calibration.device}, {day}, JAX {jax.__version__}, by `jaxquard cluster calibrate`."]
    for fit in calibration.link_fits:
        lines.append(
            f"# {fit.kind.value}: {fit.num_samples} samples, median error {fit.median_error:.1%}, "
            f"worst {fit.worst_error:.1%}."
        )
    products = calibration.product_fit
    if products is not None:
        lines.append(
            f"# products: {products.num_samples} samples, median error {products.median_error:.1%}, "
            f"worst {products.worst_error:.1%}."
        )
    lines += [f"# Note: {note}." for note in calibration.notes]
    return "\n".join(lines) + "\n" + cluster_text(calibration.cluster)
