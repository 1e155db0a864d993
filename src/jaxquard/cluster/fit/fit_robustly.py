"""Least squares for measured times: relative, without negative constants, robust to outliers.

Times span many orders of magnitude, so residuals are relative to the time. A rare slow sample (another process, a
clock that stepped down) weighs little: Huber's weights, found by repeated weighted least squares. Constants of
hardware are not negative: with so few of them every set of constants held at 0 is tried (the best one is the answer
of non-negative least squares).
"""

from itertools import combinations

import numpy as np
from jaxtyping import Float64

from jaxquard.errors import ClusterError

_ROUNDS = 30
_HUBER = 1.5
# Constants that change by less, as a part of them, are found.
_SAME = 1e-6


def fit_robustly(
    columns: Float64[np.ndarray, "samples constants"],
    times_s: Float64[np.ndarray, " samples"],
    *,
    known_s: Float64[np.ndarray, " samples"] | float = 0.0,
) -> tuple[Float64[np.ndarray, " constants"], Float64[np.ndarray, " samples"]]:
    """The constants with `columns @ constants + known_s` near `times_s`, and the relative residuals.

    Raises:
        ClusterError: a time is not above 0.
    """
    if not (np.isfinite(times_s).all() and (times_s > 0).all()):
        raise ClusterError(f"a sample took {np.min(times_s)} s; times are above 0. Measure longer runs.")
    scaled = columns / times_s[:, None]
    wanted = 1 - known_s / times_s
    weights = np.ones(len(times_s))
    constants = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        before, constants = constants, _fit_nonnegative(scaled, wanted, weights)
        if np.allclose(constants, before, rtol=_SAME, atol=0.0):
            break
        residuals = np.abs(scaled @ constants - wanted)
        spread = max(1.4826 * float(np.median(residuals)), 1e-12)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(residuals, 1e-300))
    return constants, scaled @ constants - wanted


def _fit_nonnegative(
    scaled: Float64[np.ndarray, "samples constants"],
    wanted: Float64[np.ndarray, " samples"],
    weights: Float64[np.ndarray, " samples"],
) -> Float64[np.ndarray, " constants"]:
    """The constants, none below 0, that minimise the weighted squares of `scaled @ constants - wanted`."""
    root = np.sqrt(weights)
    size = np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    best, best_loss = np.zeros(scaled.shape[1]), np.inf
    for count in range(1, scaled.shape[1] + 1):
        for kept in combinations(range(scaled.shape[1]), count):
            part = scaled[:, kept] / size[list(kept)]
            answer, *_ = np.linalg.lstsq(part * root[:, None], wanted * root, rcond=None)
            loss = float(np.sum(weights * (part @ answer - wanted) ** 2))
            if (answer >= 0).all() and loss < best_loss - 1e-15:
                best_loss = loss
                best = np.zeros(scaled.shape[1])
                best[list(kept)] = answer / size[list(kept)]
    return best
