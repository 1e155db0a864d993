"""The evaluation of MeshSlice (ISCA '25, sections 5 and 7), redone."""

from .page import meshslice_page as meshslice_page
from .page import verdict_counts as verdict_counts
from .reproduce import Reproduction as Reproduction
from .reproduce import reproduce_meshslice as reproduce_meshslice
from .results_text import results_text as results_text
