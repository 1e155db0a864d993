"""How Sphinx builds the docs; pages with code cells are run anew each time."""

import importlib.metadata
import logging
import re

project = "jaxquard"
author = "the jaxquard authors"
copyright = "the jaxquard authors"
release = version = importlib.metadata.version("jaxquard")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "jupyter_execute"]
html_theme = "furo"
html_title = "jaxquard"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# A cached run would show what an older version of the library did.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
logging.getLogger("traitlets").setLevel(logging.WARNING)

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
# "Attributes" describes fields that autodoc may list as members too.
napoleon_use_ivar = True

CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)")


def quote_code(app, what, name, obj, options, lines):
    """Turns the `code` of our docstrings into reST's ``code``, with a plural s after it or not."""
    lines[:] = [CODE.sub(lambda match: f"``{match[1]}``" + ("\\ " if match[2] else ""), line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", quote_code, priority=900)
