"""Measures the devices at hand: collectives and products for a cluster file, and algorithms against each other."""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.calibrate.calibrate import Calibration as Calibration
    from jaxquard.calibrate.calibrate import calibrate as calibrate
    from jaxquard.calibrate.calibration_text import calibration_text as calibration_text
    from jaxquard.calibrate.compare_algorithms import Comparison as Comparison
    from jaxquard.calibrate.compare_algorithms import compare_algorithms as compare_algorithms
else:
    __all__ = export_lazily(
        __name__,
        {
            "calibrate": ["Calibration", "calibrate"],
            "calibration_text": ["calibration_text"],
            "compare_algorithms": ["Comparison", "compare_algorithms"],
        },
    )
