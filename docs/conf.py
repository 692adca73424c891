"""How Sphinx builds the documentation: ``make docs``, then open docs/build/index.html."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import bnn_ppl
from bnn_ppl.methods.method import table

project = "bnn_ppl"
author = "The bnn_ppl developers"
version = release = bnn_ppl.__version__

extensions = [
    "myst_nb",  # pages are Markdown, or notebooks
    "sphinx.ext.autodoc",  # docstrings
    "numpydoc",
]
exclude_patterns = ["build", "jupyter_execute"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # a notebook that fails to run fails the build
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds a cell
numpydoc_show_class_members = False
numpydoc_class_members_toctree = (
    False  # methods are shown with their class, not on pages of their own
)
autodoc_typehints = "none"  # the docstrings describe types in words

# Methods describe themselves; their table is included in the page of methods.
built = Path(__file__).parent / "build"
built.mkdir(exist_ok=True)
(built / "methods.md").write_text(table())

html_theme = "pydata_sphinx_theme"
html_title = "bnn_ppl"
html_static_path = ["_static"]
html_css_files = ["own.css"]
templates_path = ["_templates"]
html_sidebars = {"**": ["all_pages"]}
html_theme_options = {
    "navbar_center": [],  # all pages are in the sidebar
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
}
html_math_renderer = "mathml"


def setup(app: Any) -> None:
    """Write formulae as MathML, which browsers show without a script from elsewhere."""

    def write(translator: Any, node: nodes.Element) -> None:
        block = isinstance(node, nodes.math_block)
        translator.body.append(tex2mathml(node.astext(), as_block=block))
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (write, None), (write, None))


# The files of public modules are in rooms. Documented by their public names, they must list their
# members, or autodoc takes all of them for imported ones and leaves them out.
for public_name, module in list(sys.modules.items()):
    renamed = public_name.startswith("bnn_ppl.") and module.__name__ != public_name
    if renamed and not hasattr(module, "__all__"):
        module.__all__ = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
