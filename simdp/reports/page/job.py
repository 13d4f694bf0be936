"""Page of a job: time to finish, timeline of events, and time by activity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simdp.reports import job_table, theme
from simdp.reports.captions import about_scenario
from simdp.reports.charts.job import badput, finishes, strip
from simdp.reports.figures import Row, long_time, percent
from simdp.reports.page.run import closing
from simdp.reports.sections import Page, Section, Summary, Tile, Verdict
from simdp.results.job import JobRuns, JobStudy


def page(study: JobStudy, command: Sequence[str] = ()) -> Page:
    """Make the page of a job, or of one for every point of a sweep."""
    single = not study.scenario.get("sweep")
    sections = [
        *(_one(study, study.points[0]) if single else _several(study)),
        *finishes(study),
        *badput(study),
        *strip(study.points[0]),
        *closing(study.scenario, study.version, "job", command or _command(study)),
    ]
    name = str(study.scenario["name"])
    return Page(
        f"{name}: when the job is done",
        about_scenario(study.scenario, list(study.scenario.get("sweep") or {})),
        sections,
        f"{theme.footer(study)} · {job_table.runs_of(study.points[0])}",
    )


def _command(study: JobStudy) -> list[str]:
    """Make the command that repeats the runs of the scenario below."""
    until = [] if study.until_s is None else ["--until", f"{study.until_s:.10g} s"]
    return ["job", f"{study.scenario['name']}.yaml", "--runs", str(study.points[0].runs), *until]


def _one(study: JobStudy, job: JobRuns) -> Iterator[Section]:
    lines = [f"Done after {long_time(job.finish_s.mean)}, mean of {job_table.runs_of(job)}."]
    _, *lost = job_table.part_rows(job)
    if lost:
        most = max(lost, key=lambda row: row.value)
        lines.append(
            f"{percent(job.goodput.mean)} of the time is productive; of the rest "
            f"{percent(most.value / (sum(row.value for row in lost) or 1.0))}, "
            f"{long_time(most.value)}, goes to: {most.label}."
        )
    chance = job.chance_to_finish
    if chance is not None:
        lines.insert(0, f"Done within {long_time(study.until_s)}: {percent(chance)} of the runs.")
    lines = [*job_table.too_short(study), *lines]
    yield Verdict("Verdict", lines, "warning" if chance is not None and chance < 0.9 else "good")
    low, high = map(long_time, job.finish_interval_s)
    money = [] if job.cost_usd is None else [Tile("cost", f"{job.cost_usd.mean:,.0f} USD", "mean")]
    yield Summary(
        "Summary",
        [
            Tile("done after", long_time(job.finish_s.mean), f"90 % of runs: {low} to {high}"),
            Tile("goodput", percent(job.goodput.mean), "of the job's time is productive"),
            Tile("failures", f"{job.num_failures:.4g}", "in a run"),
            *money,
        ],
        [
            Row("about", "about it" * (not n), line)
            for n, line in enumerate(job_table.foot(study, job))
        ],
    )
    yield job_table.spreads(job)
    yield job_table.parts(job)


def _several(study: JobStudy) -> Iterator[Section]:
    lines = [*job_table.too_short(study), *job_table.first_done(study)]
    best = min(study.points, key=lambda job: job.finish_s.mean)
    is_sure = best.runs > 1 and not any(
        job is not best and job.is_tie(best) for job in study.points
    )
    yield Verdict("Verdict", lines, "good" if is_sure else "note")
    yield job_table.grid(study)
