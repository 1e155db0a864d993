"""The evaluation of CFP (arXiv 2504.00598, section 5), redone on virtual devices."""

from jaxquard.evaluate.cfp.cells.results_file import Results as Results
from jaxquard.evaluate.cfp.cells.results_file import read_results as read_results
from jaxquard.evaluate.cfp.cells.results_file import results_text as results_text
from jaxquard.evaluate.cfp.cells.results_file import without_quick_cells as without_quick_cells
from jaxquard.evaluate.cfp.page.page import cfp_page as cfp_page
from jaxquard.evaluate.cfp.reproduce import reproduce_cfp as reproduce_cfp
