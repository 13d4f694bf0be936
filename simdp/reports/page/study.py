"""The page of a study: of one run, or of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.reports import theme
from simdp.reports.captions import about, about_point
from simdp.reports.page import run
from simdp.reports.page.closing import closing
from simdp.reports.page.loss import loss
from simdp.reports.page.sections import Page
from simdp.results.result import Advice, Study


def page(study: Study, command: Sequence[str] = (), advice: Advice | None = None) -> Page:
    """Make the page of a study.

    Parameters
    ----------
    study : Study
        Left as it is.
    command : sequence of str
        The command line that made it, from the subcommand on, such as ``("run", "a.yaml")``.
    advice : Advice, optional
        What would make the one run faster, where somebody has looked for it.
    """
    last = study.points[-1]
    if study.scenario.get("sweep"):
        from simdp.reports.page import sweep

        said, found = about(study), sweep.sections(study)
        within = [sweep.of_last(section, last) for section in run.pictures(last)]
    else:
        said, found = about_point(last), run.sections(last, advice)
        within = run.pictures(last)
    return Page(
        str(study.scenario.get("name", "scenario")),
        said,
        [
            *found,
            *loss(study),
            *within,
            *closing(study.scenario, study.version, "run", command),
        ],
        theme.footer(study),
    )
