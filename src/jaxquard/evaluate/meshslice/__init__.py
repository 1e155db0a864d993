"""The evaluation of MeshSlice (ISCA '25, sections 5 and 7), redone with its cost model and the simulator.

In: the models and constants of the paper, and its published numbers (`paper.toml`).
Out: a `Reproduction` (`reproduce_meshslice`), and the page and the JSON made of it. `setup` holds the problems and the
tuner, `figures` and `headlines` take the numbers, `claims` compares them with the paper's words, `page` shows them.
"""

from jaxquard.evaluate.meshslice.page.page import meshslice_page as meshslice_page
from jaxquard.evaluate.meshslice.page.results_file import results_text as results_text
from jaxquard.evaluate.meshslice.reproduce import Reproduction as Reproduction
from jaxquard.evaluate.meshslice.reproduce import reproduce_meshslice as reproduce_meshslice
