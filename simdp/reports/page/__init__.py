"""The page that people share: ``report.html``, one file that needs no network.

A kind of document has a module here that makes a `Page` of it; what sections look like is known to
`rendering` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, BinaryIO

from simdp.reports.page.rendering import render
from simdp.reports.sections import Page
from simdp.results.comparison import Comparison, Difference
from simdp.results.diagnosis import Diagnosis
from simdp.results.job import JobStudy
from simdp.results.plan import PlanResult
from simdp.results.result import Study
from simdp.results.validation import Validation

KINDS: dict[type, str] = {
    Comparison: "sweep:comparison_page",
    Diagnosis: "diagnosis:page",
    Difference: "diagnosis:difference_page",
    JobStudy: "job:page",
    PlanResult: "plan:page",
    Study: "sweep:study_page",
    Validation: "validation:page",
}
"""The module and function here that make the page of each kind of document; the module is imported
when it is needed. This table is the one place of registration."""


def write(document: Any, stream: BinaryIO, **more: Any) -> None:
    """Write a document as a page.

    Parameters
    ----------
    document : Study
        Or another kind of `KINDS`; left as it is.
    stream : binary stream
        Where the bytes go; equal documents give equal bytes.
    **more
        What the document does not hold itself, such as the ``command`` that made it; see the
        function of its kind.

    Raises
    ------
    TypeError
        If there is no page of such documents.
    """
    render(page_of(document, **more), stream)


def page_of(document: Any, **more: Any) -> Page:
    """Make the page of a document; arguments and errors as for `write`."""
    name = next((KINDS[kind] for kind in type(document).__mro__ if kind in KINDS), None)
    if name is None:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise TypeError(f"a page is made of {known}, got {type(document).__name__}")
    module, _, function = name.partition(":")
    made: Page = getattr(import_module(f"{__name__}.{module}"), function)(document, **more)
    return made


__all__ = ["KINDS", "Page", "page_of", "render", "write"]
