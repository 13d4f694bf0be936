"""Pages: ``report.html``, one file that needs no network.

Each kind of document has a module here that makes a `Page` of it; only `rendering` writes HTML.
"""

from __future__ import annotations

from importlib import import_module
from typing import BinaryIO

from simdp.reports.page.rendering import render
from simdp.reports.sections import Page
from simdp.results.audit import AuditReport
from simdp.results.comparison import Comparison, Difference
from simdp.results.diagnosis import Diagnosis
from simdp.results.job import JobStudy
from simdp.results.plan import PlanResult
from simdp.results.result import Study
from simdp.results.validation import Validation

# Module and function here that make the page of each kind of document, imported on first use; this
# table is the one place of registration
KINDS: dict[type, str] = {
    AuditReport: "audit:page",
    Comparison: "sweep:comparison_page",
    Diagnosis: "diagnosis:page",
    Difference: "diagnosis:difference_page",
    JobStudy: "job:page",
    PlanResult: "plan:page",
    Study: "sweep:study_page",
    Validation: "validation:page",
}


def write(document: object, stream: BinaryIO, **more: object) -> None:
    """Write a document of `KINDS` as a page.

    ``more`` is passed to the function of its kind, such as the ``command`` that made the document.
    Equal documents give equal bytes. Raises `TypeError` for other documents.
    """
    render(page_of(document, **more), stream)


def page_of(document: object, **more: object) -> Page:
    """Make the page of a document; arguments and errors as for `write`."""
    name = next((KINDS[kind] for kind in type(document).__mro__ if kind in KINDS), None)
    if name is None:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise TypeError(f"a page is made of {known}, got {type(document).__name__}")
    module, _, function = name.partition(":")
    made: Page = getattr(import_module(f"{__name__}.{module}"), function)(document, **more)
    return made


__all__ = ["KINDS", "Page", "page_of", "render", "write"]
