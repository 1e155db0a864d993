"""Measurements on the devices at hand (MeshSlice, section 4.5).

In: JAX devices, and a preset for what is not measured.
Out: a `Calibration`: a `Cluster` with fitted costs of collectives and kernels, its samples and its notes; or
`Comparison`s: the algorithms of `gemm` timed against each other and against XLA's plain product.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.calibrate.calibrate import Calibration as Calibration
    from jaxquard.calibrate.calibrate import calibrate as calibrate
    from jaxquard.calibrate.calibrate import calibration_text as calibration_text
    from jaxquard.calibrate.compare_algorithms import Comparison as Comparison
    from jaxquard.calibrate.compare_algorithms import compare_algorithms as compare_algorithms
else:
    __all__ = export_lazily(
        __name__,
        {
            "calibrate": ["Calibration", "calibrate", "calibration_text"],
            "compare_algorithms": ["Comparison", "compare_algorithms"],
        },
    )
