"""Documents in notebooks and in Python: the command line's text, and the page.

`simdp.results` imports no report: a result calls these through the package's root.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from io import BytesIO, StringIO
from typing import Any

from rich.console import Console, RenderableType

from simdp.reports import (
    audit_table,
    diagnosis_table,
    difference_table,
    job_table,
    plan_table,
    sweep_table,
    table,
    validation_table,
)
from simdp.results.audit import AuditReport
from simdp.results.comparison import Comparison, Difference
from simdp.results.diagnosis import Diagnosis
from simdp.results.job import JobStudy
from simdp.results.plan import PlanResult
from simdp.results.result import Study
from simdp.results.validation import Validation

WIDTH = 80

# terminal output by type of document; this table is the one place of registration
TABLES: dict[type, Callable[[Any], RenderableType]] = {
    AuditReport: audit_table.page,
    Comparison: sweep_table.table,
    Diagnosis: diagnosis_table.page,
    Difference: difference_table.table,
    JobStudy: job_table.table,
    PlanResult: plan_table.table,
    Study: table.summary,
    Validation: validation_table.validation_tables,
}

# frame that isolates the page's styles and scripts from the notebook
FRAME = (
    '<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts allow-modals allow-downloads" '
    'style="width: 100%; height: 40rem; border: 1px solid #8888; resize: vertical"></iframe>'
)

# Text without colours of its own, for dark notebooks and for viewers that strip frames
TEXT = (
    "<details><summary>As text</summary>"
    '<pre style="line-height: normal; white-space: pre">{code}</pre></details>'
)


def as_text(document: Any) -> str:
    """Write a document of `TABLES` as the command line does, in 80 columns without colours.

    Without the advice of ``run``, which needs simulations.
    """
    console = Console(
        file=StringIO(),
        record=True,
        width=WIDTH,
        highlight=False,
        markup=False,
        force_jupyter=False,
    )
    console.print(TABLES[type(document)](document), soft_wrap=True)
    return console.export_text().rstrip("\n")


def as_html(document: Any) -> str:
    """Make a frame with the page of a document of `TABLES`, and its text below."""
    from simdp.reports.page import page_of, render  # as above

    made = page_of(document)
    stream = BytesIO()
    render(made, stream)
    frame = FRAME.format(title=escape(made.title), page=escape(stream.getvalue().decode()))
    return frame + TEXT.format(code=escape(as_text(document)))
