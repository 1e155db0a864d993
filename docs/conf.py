"""Settings of Sphinx for the docs; pages with code cells are run anew each time."""

import importlib.metadata
import json
import logging
import os
import re
from pathlib import Path

project = "jaxquard"
author = "the jaxquard authors"
copyright = "the jaxquard authors"
release = version = importlib.metadata.version("jaxquard")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "jupyter_execute"]
html_theme = "furo"
html_title = "jaxquard"
html_static_path = ["_static"]
html_css_files = ["jaxquard.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# A cached run would show what an older version of the library did.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
logging.getLogger("traitlets").setLevel(logging.WARNING)

# A profile of the docs' own: kernels keep quiet about their transport, and take no one's startup files.
PROFILE = Path(__file__).parent / "_build" / "ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
(PROFILE / "ipython_kernel_config.json").write_text(json.dumps({"IPKernelApp": {"log_level": logging.ERROR}}))
os.environ["IPYTHONDIR"] = str(PROFILE.parent)

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
# "Attributes" describes fields that autodoc may list as members too.
napoleon_use_ivar = True

# In the text of a page, a dotted name of ours.
NAME = re.compile(r'(?<=<span class="pre">)(?:jaxquard|benchmarks)\.[\w.]+(?=</span>)')
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)")


def quote_code(app, what, name, obj, options, lines):
    """Turns the `code` of our docstrings into reST's ``code``, with a plural s after it or not."""
    lines[:] = [CODE.sub(lambda match: f"``{match[1]}``" + ("\\ " if match[2] else ""), line) for line in lines]


def break_names(app, pagename, templatename, context, doctree):
    """Lets long names wrap after their dots, so that tables fit the page."""
    if "body" in context:
        context["body"] = NAME.sub(lambda match: match[0].replace(".", ".<wbr>"), context["body"])


def setup(app):
    app.connect("autodoc-process-docstring", quote_code, priority=900)
    app.connect("html-page-context", break_names)
