"""Documents in notebooks and in Python: the command line's text, and the page.

`simdp.results` knows no report: a result asks for these through the package's root.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from io import BytesIO, StringIO
from typing import Any

from rich.console import Console, RenderableType

from simdp.reports import (
    diagnosis_table,
    difference_table,
    job_table,
    plan_table,
    sweep_table,
    table,
    validation_table,
)
from simdp.results.comparison import Comparison, Difference
from simdp.results.diagnosis import Diagnosis
from simdp.results.job import JobStudy
from simdp.results.plan import PlanResult
from simdp.results.result import Study
from simdp.results.validation import Validation

WIDTH = 80

TABLES: dict[type, Callable[[Any], RenderableType]] = {
    Comparison: sweep_table.table,
    Diagnosis: diagnosis_table.page,
    Difference: difference_table.table,
    JobStudy: job_table.table,
    PlanResult: plan_table.table,
    Study: table.summary,
    Validation: validation_table.validation_tables,
}
"""What the terminal shows of each kind of document; this table is the one place of registration."""

FRAME = (
    '<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts allow-modals allow-downloads" '
    'style="width: 100%; height: 40rem; border: 1px solid #8888; resize: vertical"></iframe>'
)
"""The page by itself: its styles and scripts touch nothing of the notebook, and it has its own."""

TEXT = (
    "<details><summary>As text</summary>"
    '<pre style="line-height: normal; white-space: pre">{code}</pre></details>'
)
"""Without colours of its own, so that dark notebooks stay dark; what is left where frames are
taken out of a notebook, as of one that nobody trusts."""


def as_text(document: Any) -> str:
    """What the command line prints where nobody looks at a terminal: 80 columns, no colours.

    What ``run`` tries besides, to say what would make it faster, is left to it.

    Parameters
    ----------
    document : Study
        Or another kind of `TABLES`.
    """
    console = Console(
        file=StringIO(), record=True, width=WIDTH, highlight=False, force_jupyter=False
    )
    console.print(TABLES[type(document)](document), soft_wrap=True)
    return console.export_text().rstrip("\n")


def as_html(document: Any) -> str:
    """The page as a frame that needs no network and no file, and the text below it.

    Parameters
    ----------
    document : Study
        Or another kind of `TABLES`.
    """
    from simdp.reports.page import page_of, render  # as above

    made = page_of(document)
    stream = BytesIO()
    render(made, stream)
    frame = FRAME.format(title=escape(made.title), page=escape(stream.getvalue().decode()))
    return frame + TEXT.format(code=escape(as_text(document)))
