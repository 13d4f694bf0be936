"""Work: how many share the points of a validation, and by what their results are known again."""

from __future__ import annotations

from simdp.engine import threads
from simdp.studies.store import key_of, key_of_all
from simdp.studies.validate.folds import Item
from simdp.studies.validate.jobs import Job

WORTH_A_PROCESS = 150
"""Runs that take about as long as to start a process."""


def worthwhile(num_jobs: int, num_runs: int) -> int:
    """How many processes are worth while for so many jobs, and the most runs that they take."""
    return max(1, min(threads.available(), 1 + num_runs // WORTH_A_PROCESS, num_jobs))


def key_of_job(job: Job) -> str:
    """Name a job by all that it depends on."""
    made = [*job.steps, *([] if job.table is None else [job.table])]
    known = [[one.place, one.calibration.model_dump(mode="json")] for one in job.known]
    measured = job.measured.model_dump(mode="json")
    return key_of_all(
        [key_of(one) for one in made],
        "validate",
        job.file,
        job.name,
        job.first,
        measured,
        known,
        job.only_predicted,
    )


def key_of_item(item: Item) -> str:
    """Name a point or a table by all that is known of it."""
    measured = item.measured.model_dump(mode="json")
    return key_of(item.made, item.file, item.name, item.number, item.is_table, measured)
