"""Linear scaling: the throughput of the fewest ranks that are shown, times the ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import nan

from benchmarks.leaderboard.adapters.base import Adapter, Answer
from benchmarks.leaderboard.adapters.figures import device_time
from benchmarks.leaderboard.folds import Asked
from benchmarks.leaderboard.points import Point
from simdp.results.validation import StepComparison
from simdp.studies.validate.jobs import add_linear

WORK = ("device", "model", "precision", "microbatch", "grad_accum", "micro_step_s")
"""What two points have in common if one does the same on more ranks."""


class Linear(Adapter):
    """From the fewest ranks shown of the same work; see `simdp.studies.validate.jobs.add_linear`.

    Where none are shown, from the time of one device.
    """

    name = "linear scaling"
    about = (
        "the throughput of the fewest visible ranks with the same work, else of the same "
        "scenario, else of one device, times the ranks. Fits nothing."
    )
    missing = "communication; no answers for collectives"

    def answers(self, asked: Asked) -> list[Answer | None]:
        """Grow what is shown, point by point."""
        steps = [one for one in asked.shown if one["kind"] == "step"]
        return [
            self._answer(point, steps) if point["kind"] == "step" else None
            for point in asked.questions
        ]

    def _answer(self, point: Point, shown: Sequence[Point]) -> Answer | None:
        own = [one for one in shown if one["cluster"] == point["cluster"]]
        several = [point, *own]
        work = [json.dumps([one[key] for key in WORK]) for one in several]
        time = add_linear([_comparison(one) for one in several], work)[0].linear
        if time is None:
            time = device_time(point, shown)
        return None if time is None else Answer(time)


def _comparison(point: Point) -> StepComparison:
    return StepComparison(
        scenario=point["scenario"],
        cluster=point["cluster"],
        set={},
        world_size=point["ranks"],
        role=point.get("role", "predicted"),
        measured=point.get("measured_s", nan),
        simulated=nan,
        low=nan,
        high=nan,
        note=None,
        samples=point["samples"],
        linear=None,
        ring=nan,
    )
