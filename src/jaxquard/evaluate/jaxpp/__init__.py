"""The evaluation of JaxPP (MLSys 2025, section 5), redone by simulation.

In: the configurations and numbers of the paper (`paper.toml`), and the constants of its systems and of its cluster.
Out: a `JaxppReproduction` (`reproduce_jaxpp`), and the page and the JSON made of it. `setup` simulates one step,
`figures` and `headlines` take the numbers, `claims` compares them with the paper's words, `page` shows them.
"""

from jaxquard.evaluate.jaxpp.page.page import jaxpp_page as jaxpp_page
from jaxquard.evaluate.jaxpp.page.results_file import results_text as results_text
from jaxquard.evaluate.jaxpp.reproduce import JaxppReproduction as JaxppReproduction
from jaxquard.evaluate.jaxpp.reproduce import reproduce_jaxpp as reproduce_jaxpp
