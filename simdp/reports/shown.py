"""Results as notebooks and Python show them: the summary that ``run`` prints, as text and as HTML.

`simdp.results` knows no report: a result asks for these through the package's root.
"""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from simdp.reports import table
from simdp.results.result import Study

WIDTH = 80

HTML = '<pre style="line-height: normal; white-space: pre">{code}</pre>'
"""Without colours of its own, so that dark notebooks stay dark."""


def as_text(study: Study) -> str:
    """The summary as ``run`` prints it where nobody looks at a terminal: 80 columns, no colours.

    What ``run`` tries besides, to say what would make it faster, is left to it.
    """
    return _printed(study).export_text().rstrip("\n")


def as_html(study: Study) -> str:
    """The same as HTML."""
    return _printed(study).export_html(inline_styles=True, code_format=HTML)


def _printed(study: Study) -> Console:
    console = Console(
        file=StringIO(), record=True, width=WIDTH, highlight=False, force_jupyter=False
    )
    console.print(table.summary(study), soft_wrap=True)
    return console
