"""The documentation site, made by `make site`: Sphinx over this folder and the pages at the root."""

project = "Millrace"
author = "the Millrace contributors"
copyright = "the Millrace contributors"  # noqa: A001  the name that Sphinx reads

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "emulators/*/README.md",
    "tests/benchmarks/README.md",
    "tests/clients/README.md",
    "samples/subscribers/README.md",
]
exclude_patterns = [".*", "build", "deploy", "services", "shared", "requirements"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = "Millrace"
html_favicon = "../services/dead_letter/web/console/assets/icon.svg"  # the same as of the console
html_additional_pages = {"index": "home.html"}
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
myst_heading_anchors = 4
pygments_style = "sphinx"
pygments_dark_style = "monokai"
