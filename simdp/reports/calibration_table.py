"""Tables of a calibration for the terminal: its constants, and the error at every point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.reports import validation_words as words
from simdp.reports.wide_table import wide_table
from simdp.results.baselines import Baseline
from simdp.results.calibration import CalibrationStudy, WantedStep
from simdp.results.step_calibration import StepCalibration
from simdp.units import format_quantity


def tables(study: CalibrationStudy | StepCalibration) -> RenderableType:
    """Write the points, the constants with their intervals, and what to measure next."""
    points = _collectives(study) if isinstance(study, CalibrationStudy) else _steps(study)
    constants = _table(
        f"constants of {study.name}",
        ("constant", "value", "90 % interval", ""),
        (
            (
                constant.key,
                constant.value,
                f"{constant.low} ... {constant.high}",
                "" if constant.is_determined else "not determined by the data",
            )
            for constant in study.constants
        ),
    )
    said = f"root mean square error of the fit: {words.share(study.residual)}\n{_next(study)}"
    return Group(points, constants, Text(said))


def baselines(found: Sequence[Baseline]) -> RenderableType:
    """Write the one-device steps that steps of several ranks tell."""
    table = _table(
        "a step on one device",
        ("scenario", "microbatch", "ranks", "nodes", "given", "solved", "90 % interval", "change"),
        (
            (
                one.scenario,
                str(one.microbatch),
                str(one.world_size),
                str(one.num_nodes),
                words.time(one.given),
                words.time(one.found),
                words.interval(one.low, one.high),
                words.share(one.change, "+"),
            )
            for one in found
        ),
    )
    said = "solved: with it as workload.compute's step_time the measured step is met."
    return Group(table, Text(said))


def _collectives(study: CalibrationStudy) -> RenderableType:
    return _table(
        "fit",
        ("file", "collective", "ranks", "size", "measured", "fitted", "error", "by"),
        (
            (
                point.source,
                point.collective,
                str(point.world_size),
                format_quantity(point.nbytes, "data size"),
                words.time(point.measured),
                words.time(point.fitted),
                words.share(point.error, "+"),
                f"{point.algorithm}/{point.protocol}",
            )
            for point in study.points
        ),
    )


def _steps(study: StepCalibration) -> RenderableType:
    return _table(
        "fit",
        ("point", "measured", "fitted", "error"),
        (
            (
                point.title,
                words.time(point.measured),
                words.time(point.fitted),
                words.share(point.error, "+"),
            )
            for point in study.points
        ),
    )


def _next(study: CalibrationStudy | StepCalibration) -> str:
    """Say which further measurement would help most."""
    if study.wanted is not None:
        return _wanted(study.wanted)
    if isinstance(study, StepCalibration):
        step = study.next_point
        if step is None:
            return "add points with role: predicted to be told which of them to measure next"
        return (
            f"what is predicted is known within {words.share(step.before)}; measuring {step.title} "
            f"would make it {words.share(step.after)}"
        )
    following = study.next_point
    size = format_quantity(following.nbytes, "data size")
    return (
        f"{following.target} is known within {words.share(following.before)}; measuring "
        f"{following.collective} of {size} between {following.world_size} ranks on "
        f"{following.num_nodes} nodes would make it {words.share(following.after)}"
    )


def _wanted(found: WantedStep) -> str:
    """Say how well what was asked for is known, and what would narrow it."""
    known = f"{found.target}: known within {words.share(found.before)}"
    if not found.proposals:
        return f"{known}; neither a table nor a step on fewer ranks would narrow it"
    first, *others = found.proposals
    said = f"{first.title} would make it {words.share(first.after)}"
    return "; ".join([known, said, *(f"{one.title} {words.share(one.after)}" for one in others)])


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return wide_table(title, [(head, bool(n and head)) for n, head in enumerate(heads)], rows)
