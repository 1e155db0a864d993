"""Measures the devices at hand: collectives and products for a cluster file, and algorithms against each other."""

from .calibrate import Calibration as Calibration
from .calibrate import calibrate as calibrate
from .calibration_text import calibration_text as calibration_text
from .compare_algorithms import Comparison as Comparison
from .compare_algorithms import compare_algorithms as compare_algorithms
