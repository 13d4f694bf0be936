"""Small jobs of plain figures, whose failures are written out."""

from collections.abc import Iterator

import numpy as np

from simdp.cluster.failures import FailureEvent, Failures
from simdp.engine.job.policies import policy_for
from simdp.engine.job.run import JobRun
from simdp.engine.job.training import JobPlan, Length, Saving, TrainingPace
from simdp.job.recovery import RECOVERY

PACES = {n: TrainingPace(4.0 / n) for n in (1, 2, 3, 4)}
"""Steps of as many samples on fewer nodes."""


class Written(Failures):
    """Events as they are given."""

    kind: str = "written"
    happen: tuple[FailureEvent, ...]

    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[FailureEvent]:
        return iter(self.happen)


def fail(time, *nodes, repair=0.0, effect="fail"):
    return FailureEvent(time, effect, "test", nodes, repair)


def plan_of(
    num_steps, *happen, savings=(), nodes=4, recovery=None, paces=None, counts_samples=False, **more
):
    """A job of steps of 1 s on nodes of one device."""
    length = Length(num_steps, counts_samples)
    raw = {"kind": "restart", **(recovery or {})}
    return JobPlan(
        length,
        tuple(savings),
        paces or {nodes: TrainingPace(1.0)},
        nodes,
        1,
        RECOVERY[raw["kind"]].model_validate(raw),
        (Written(happen=tuple(happen)),) if happen else (),
        0,
        **more,
    )


def played(plan, number=0, keeps_strip=False):
    run = JobRun(plan, number, keeps_strip)
    outcome = run.play(policy_for(run))
    parts = run.account.seconds
    assert abs(sum(parts.values()) - outcome.finish) <= 1e-9 * outcome.finish
    assert all(seconds >= -1e-9 for seconds in parts.values())
    return outcome, {part: seconds for part, seconds in parts.items() if abs(seconds) > 1e-9}, run


__all__ = ["PACES", "FailureEvent", "Saving", "TrainingPace", "fail", "plan_of", "played"]
