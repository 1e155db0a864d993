"""The evaluation of CFP (arXiv 2504.00598, section 5), redone on virtual devices, or priced for the paper's clusters.

In: models, sizes and meshes of the paper, or small ones of ours, and its published numbers (`paper.toml`).
Out: `Results` (`reproduce_cfp`), and the page and the JSON made of them. `cells` says what is run, `run` runs it,
`figures` and `headlines` take the numbers, `claims` compares them with the paper's words, `page` shows them.
"""

from jaxquard.evaluate.cfp.cells.results_file import Results as Results
from jaxquard.evaluate.cfp.cells.results_file import read_results as read_results
from jaxquard.evaluate.cfp.cells.results_file import results_text as results_text
from jaxquard.evaluate.cfp.cells.results_file import without_quick_cells as without_quick_cells
from jaxquard.evaluate.cfp.page.page import cfp_page as cfp_page
from jaxquard.evaluate.cfp.reproduce import reproduce_cfp as reproduce_cfp
