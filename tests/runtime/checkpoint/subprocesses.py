"""Processes of their own, for what ends one."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROLOGUE = """
import os
import jax
import numpy as np
jax.config.update("jax_platforms", "cpu")
import jaxquard
from jaxquard.runtime.checkpoint.save import save
"""


def environment():
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
