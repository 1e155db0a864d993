"""Models in plain JAX with their published sizes; marks are passed in, so they stand alone."""

from . import bert as bert
from . import gpt as gpt
from . import llama as llama
from . import moe as moe
from . import zoo as zoo
