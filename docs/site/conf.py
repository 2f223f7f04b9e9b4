"""The site, for Sphinx; build.sh prepares its pages and says in the environment where things are."""

import os
import re
import sys

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

sys.path.insert(0, os.path.join(os.environ["XFER_SOURCE"], "python"))

project = "xfer"
html_title = "xfer"
html_theme = "sphinx_rtd_theme"
html_theme_options = {"navigation_depth": 3}
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = html_show_sphinx = html_show_copyright = False
extensions = ["breathe", "myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
breathe_projects = {"xfer": os.path.join(os.environ["XFER_OUT"], "xml")}
breathe_default_project = "xfer"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
default_role = "code"
smartquotes = False
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
autodoc_mock_imports = ["accelerate", "megatron", "nemo_rl", "openrlhf", "ray", "torch", "trl", "verl", "vllm"]


class FunctionsLead(SphinxTransform):
    """`xfer_plan_run()` in any page leads to its reference; one that there is not is an error."""

    default_priority = 200

    def apply(self, **_):
        for literal in list(self.document.findall(nodes.literal)):
            name = re.fullmatch(r"(xfer_\w+)\(\)", literal.astext())
            if name and not isinstance(literal.parent, (nodes.reference, addnodes.pending_xref)):
                xref = addnodes.pending_xref(
                    "", refdomain="c", reftype="func", reftarget=name[1], refdoc=self.env.docname, refwarn=True
                )
                literal.replace_self(xref)
                xref += literal


def blocks_are_code(_app, _what, _name, _object, _options, lines):
    """Of docstrings: what is indented below a paragraph is code."""
    for at in range(len(lines) - 2, 0, -1):
        if not lines[at] and lines[at - 1][:1].strip() and lines[at + 1].startswith("    "):
            lines[at:at] = ["", "::"]


def setup(app):
    app.add_transform(FunctionsLead)
    app.connect("autodoc-process-docstring", blocks_are_code)
