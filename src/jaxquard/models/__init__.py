"""Models in plain JAX with their published sizes; marks are passed in, so they stand alone."""

from jaxquard.models import bert as bert
from jaxquard.models import gpt as gpt
from jaxquard.models import llama as llama
from jaxquard.models import moe as moe
from jaxquard.models import zoo as zoo
