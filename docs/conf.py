"""How Sphinx builds the documentation: ``make docs``, then open docs/build/index.html."""

import bnn_ppl

project = "bnn_ppl"
author = "the authors of bnn_ppl"
version = release = bnn_ppl.__version__

extensions = [
    "myst_nb",  # pages are Markdown, or notebooks
    "sphinx.ext.autodoc",  # docstrings
    "sphinx.ext.mathjax",
    "numpydoc",
]
exclude_patterns = ["build", "jupyter_execute"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # a notebook that does not run fails the build
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds a cell
numpydoc_show_class_members = False
autodoc_typehints = "none"  # the docstrings say them in words

html_theme = "pydata_sphinx_theme"
html_title = "bnn_ppl"
html_sidebars = {"**": []}
html_theme_options = {
    "navbar_align": "left",
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
}
