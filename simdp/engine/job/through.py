"""Through: a small run that really fails and goes on, with its numbers, attempt by attempt.

* Steps that are *lost* are played, and forgotten: the next attempt loads the state before them
  and does them again, on the same samples. By the same ranks it ends with the bits of the run
  that never failed.
* Attempts by other numbers of *ranks* go on as under torch's elastic launch: what is left of
  the epoch is dealt anew, and without another ``grad_accum`` the global batch is another one.
* Of *replica groups*, as under torchft: who is absent neither computes nor communicates, sums
  are divided by those that count, and the samples of the others are passed over. An
  *uncommitted* step leaves weights, optimizer and loss scale as they were; its samples are
  passed over, too, and what forward has made of buffers stays. A group that was away, or is a
  spare, begins with the state of the first that counts. Groups broadcast no buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.engine.by_rank import without_repeats
from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import Fabric
from simdp.engine.job.history import Attempt, History
from simdp.engine.run import Run
from simdp.engine.simulate import simulate_segment
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import Segment, State, check_dealing, segment_of
from simdp.errors import ScenarioError
from simdp.results import metrics
from simdp.results.result import Result
from simdp.scenario import Scenario, checked
from simdp.scenario.feasibility import group_problems
from simdp.scenario.overrides import override_all
from simdp.workload.participants import Participants
from simdp.workload.sampling import Start

OWN = "buffers/"
"""What a replica learns by itself, without the others' consent."""


def train_through(
    scenario: Scenario,
    history: History,
    *,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Train through failures: play every attempt, and go on from what was kept.

    Parameters
    ----------
    scenario : Scenario
        Without a sweep.
    history : History
        The attempts.
    fabric, progress
        As for `simulate`; progress counts the steps of every attempt.

    Returns
    -------
    Result
        Of the last attempt, as of a run that went on: its numbers are those of all steps that were
        kept, its times its own. ``participation`` has, beside what `simulate` tells, the samples of
        steps that were ``repeated`` or ``uncommitted``, and the losses of all ``attempts``.

    Raises
    ------
    ValueError
        If the scenario has a sweep.
    ScenarioError
        If the scenario cannot be trained in this way, with a line for the first reason.
    """
    if scenario.sweep:
        raise ValueError("the scenario has a sweep; take one of its points")
    scenario = scenario.model_copy(update={"target": None})  # the history says where it ends
    _check(scenario, history)
    state = beginning(scenario) if history.num_groups > 1 else None
    told, result = _Told(), None
    for attempt in history.attempts:
        case = _case(scenario, attempt)
        segment = _segment(case, history, attempt, state)
        tried = simulate_segment(case, segment, fabric, progress)
        told.add(attempt, tried, state)
        if attempt.fate == "kept":
            state, result = tried.state, tried
        elif attempt.fate == "uncommitted":
            assert segment.past is not None, "groups have a beginning"
            state = _passed_over(segment.past, tried.state)
    assert result is not None, "something is kept at the end"
    result.participation = told.participation()
    return result


def beginning(scenario: Scenario) -> State:
    """The state before the first step: all ranks have the same model."""
    planner = Planner(scenario.cluster)
    run = Run(scenario, Slowdown(scenario.cluster, scenario.seed), planner)
    for _ in run.setup():
        pass
    return run.state(0.0)


@dataclass
class _Told:
    """What became of the samples, attempt by attempt."""

    counted: int = 0
    repeated: int = 0
    uncommitted: int = 0
    dropped: list[int] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, attempt: Attempt, tried: Result, before: State | None) -> None:
        """Count an attempt."""
        known = 0 if before is None else before.num_steps
        records = tried.state.records[known:]
        samples = sum(record.samples for record in records)
        missed = (tried.participation or {}).get("dropped", [])
        if attempt.fate == "kept":
            self.counted += samples
            longer = max(len(missed), len(self.dropped))
            both = ([*of, *[0] * (longer - len(of))] for of in (self.dropped, missed))
            self.dropped = [sum(pair) for pair in zip(*both, strict=True)]
        elif attempt.fate == "lost":
            self.repeated += samples
        else:
            self.uncommitted += samples + sum(missed)
        losses = metrics.numbers(records).get("loss")
        told = {"first": attempt.first, "stop": attempt.stop, "fate": attempt.fate}
        self.attempts.append({**told, "loss": losses})

    def participation(self) -> dict[str, Any]:
        """As a result has it."""
        return {
            "counted": self.counted,
            "dropped": self.dropped,
            "repeated": self.repeated,
            "uncommitted": self.uncommitted,
            "attempts": self.attempts,
        }


# One attempt -------------------------------------------------------------------------------------


def _case(scenario: Scenario, attempt: Attempt) -> Scenario:
    """The scenario with the ranks of an attempt."""
    asked = {
        "cluster.world_size": attempt.world_size,
        "workload.grad_accum": attempt.grad_accum,
    }
    changed = {key: value for key, value in asked.items() if value is not None}
    if not changed:
        return scenario
    raw = override_all(scenario.resolved(), changed, scenario.base)
    return checked(raw, scenario.base)


def _segment(case: Scenario, history: History, attempt: Attempt, state: State | None) -> Segment:
    """What an attempt plays, from the state that it begins with."""
    if not history.changes_ranks:
        return segment_of(case, attempt.stop, state)
    if state is None:
        return Segment(attempt.stop)
    check_dealing(case, state)
    if case.strategy.player == "server":  # which says why
        return segment_of(case, attempt.stop, state)
    who = history.participants(attempt, case.cluster.world_size)
    if who is not None:
        state = _healed(case, state, who, history.num_groups)
    return Segment(attempt.stop, state, participants=who)


def _passed_over(before: State, after: State) -> State:
    """A step that was not committed: its samples are gone, and buffers are what they became."""
    start = Start(after.start.epoch, after.start.num_samples, before.num_steps)
    arrays = dict(before.arrays)
    for key in {key for key in (*before.arrays, *after.arrays) if _name(key).startswith(OWN)}:
        arrays.pop(key, None)
    found = {key: value for key, value in after.arrays.items() if _name(key).startswith(OWN)}
    arrays |= found
    return replace(before, start=start, clock=after.clock, arrays=arrays, is_whole=False)


def _healed(case: Scenario, state: State, who: Participants, num_groups: int) -> State:
    """Give ranks that do not count what the same place of the first group has that does."""
    n = case.cluster.world_size
    size = n // num_groups
    ranks = np.arange(n)
    first = int(who.counted.argmax()) // size * size
    sources = np.where(who.counted, ranks, first + ranks % size).tolist()
    sharded = case.program.partition is not None
    leaders = (ranks // size * size).tolist()
    arrays = copied(state.arrays, sources, leaders if sharded else None)
    return replace(state, arrays=arrays)


def copied(
    arrays: Mapping[str, Array], sources: Sequence[int], leaders: Sequence[int] | None
) -> dict[str, Array]:
    """Let some ranks have what others have.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of a state, by rank and name; what a rank lacks is that of rank 0.
    sources : sequence of int
        Of each rank, whose it has.
    leaders : sequence of int, or None
        Where ranks have pieces, the first of those that have all pieces together: under its name
        stand whole tensors.
    """
    mine = {key for key in arrays if key.partition("/")[0].isdigit()}
    names = {_name(key) for key in mine}
    found: dict[str, Array] = {}
    for rank, source in enumerate(sources):
        for name in names:
            value = arrays.get(f"{source}/{name}")
            follows = leaders is not None and leaders[rank] != rank and _is_piece(name)
            if value is None and not follows:
                value = arrays.get(f"0/{name}")
            if value is not None:
                found[f"{rank}/{name}"] = value
    others = {key: value for key, value in arrays.items() if key not in mine}
    return {**others, **without_repeats(found)}


def _name(key: str) -> str:
    return key.partition("/")[2]


def _is_piece(name: str) -> bool:
    """Whether it is a tensor that ranks may have pieces of."""
    return "/" in name and not name.startswith(OWN)


# Checks ------------------------------------------------------------------------------------------


def _check(scenario: Scenario, history: History) -> None:
    """Refuse what cannot be trained through this history."""
    wrong = _wrong_length(scenario, history)
    if history.num_groups > 1:
        wrong = wrong or _wrong_groups(scenario, history)
    if wrong:
        raise ScenarioError([wrong])


def _wrong_length(scenario: Scenario, history: History) -> str | None:
    if scenario.workload.steps is None:
        if not history.changes_ranks:
            return None
        return (
            "workload.epochs: other ranks, or steps that are not committed, change how many steps "
            "an epoch has; write workload.steps."
        )
    if history.num_steps <= scenario.workload.steps:
        return None
    return (
        f"history: keeps {history.num_steps} steps, but the run has {scenario.workload.steps}; set "
        "workload.steps to more, or end before."
    )


def _wrong_groups(scenario: Scenario, history: History) -> str | None:
    strategy, n = scenario.strategy, scenario.cluster.world_size
    wrong = strategy.problem_with_groups(history.num_groups, n, scenario.workload)
    if wrong:
        return f"strategy.{wrong}"
    together = strategy.steps_together
    for number, attempt in enumerate(history.attempts):
        here = f"history.attempts.{number}"
        ends = attempt.stop % together and attempt.stop != history.num_steps
        one = min(attempt.first + together, history.num_steps)
        if ends or (attempt.fate == "uncommitted" and attempt.stop != one):
            return (
                f"{here}: {strategy.kind} agrees every {together} steps, in which none can drop "
                f"out; let it begin and end with these, and fail in {together} at a time."
            )
        who = history.participants(attempt, n)
        groups = scenario.program_with(None, participants=who).groups
        problems = group_problems(scenario.cluster, scenario.collectives, groups)
        if problems:
            return problems[0]
    return None
