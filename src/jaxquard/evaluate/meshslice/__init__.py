"""The evaluation of MeshSlice (ISCA '25, sections 5 and 7), redone."""

from jaxquard.evaluate.meshslice.page.page import meshslice_page as meshslice_page
from jaxquard.evaluate.meshslice.page.results_file import results_text as results_text
from jaxquard.evaluate.meshslice.reproduce import Reproduction as Reproduction
from jaxquard.evaluate.meshslice.reproduce import reproduce_meshslice as reproduce_meshslice
