"""Failure history of a job, and training through it.

* *Lost* steps are simulated and dropped: the next attempt loads the state before them and repeats
  them on the same samples. With the same ranks, the result has the bits of a run without failures.
* Attempts with other numbers of *ranks* continue as under torch's elastic launch: the rest of the
  epoch is distributed again, and without another ``grad_accum`` the global batch changes.
* *Replica groups* work as under torchft: an absent group neither computes nor communicates, sums
  are divided by the counted groups, and the samples of the others are skipped. An *uncommitted*
  step leaves weights, optimizer and loss scale unchanged; its samples are skipped too, and changes
  of buffers by forward remain. A group that was absent, or is a spare, starts with the state of the
  first counted one. Groups broadcast no buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.engine.clocks.clock import Fabric
from simdp.engine.collective import Planner
from simdp.engine.job.planning import planned
from simdp.engine.job.policies import policy_for
from simdp.engine.job.run import JobRun
from simdp.engine.job.training import ProgressMark
from simdp.engine.payload import without_repeats
from simdp.engine.run import Run
from simdp.engine.simulate import simulate_segment
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import Segment, State, check_dealing, segment_of
from simdp.errors import ScenarioError
from simdp.job.recovery import ReplicaGroups
from simdp.results import metrics
from simdp.results.metrics import Metrics
from simdp.results.result import Result
from simdp.scenario import checked
from simdp.scenario.checks import group_problems
from simdp.scenario.overrides import override_all
from simdp.scenario.root import Scenario
from simdp.workload.sampling import Participants, Role, Start

# History ------------------------------------------------------------------------------------------

Fate = Literal["kept", "lost", "uncommitted"]
"""Result of steps. ``kept``: part of the state of the next attempt; ``lost``: repeated on the same
samples; ``uncommitted``: dropped, and their samples are skipped.
"""


class Attempt(NamedTuple):
    """Steps with one fate, by the same ranks."""

    first: int
    """Number of its first step, from 0, and the number after its last."""
    stop: int
    """Number of its first step, from 0, and the number after its last."""
    fate: Fate = "kept"
    """Result of the steps."""
    world_size: int | None = None
    """Ranks; None: the scenario's."""
    grad_accum: int | None = None
    """Micro-steps, with which other numbers of ranks may keep the global batch; None: the
    scenario's."""
    groups: tuple[int, ...] | None = None
    """Present replica groups; None: all."""
    silent: tuple[int, ...] = ()
    """Those of them that add zeros: spares, and groups that copy a peer's state meanwhile."""


class RestartEvent(NamedTuple):
    """A stop of all ranks after ``step`` finished steps; they continue from the last checkpoint.

    ``world_size`` and ``grad_accum`` are those from then on, as of `Attempt`; None: unchanged.
    """

    step: int
    world_size: int | None = None
    grad_accum: int | None = None


class GroupEvent(NamedTuple):
    """Failure of a replica group during a step, or its return at the beginning of one.

    ``step`` and ``group`` are counted from 0.
    """

    step: int
    group: int
    effect: Literal["fail", "join"]


@dataclass(frozen=True)
class History:
    """The attempts of a run, in order.

    Raises
    ------
    ScenarioError
        If an attempt does not follow from the previous ones, with a line for the first such
        attempt.
    """

    attempts: tuple[Attempt, ...]
    """Each begins at the end of the kept steps; the last one is kept."""
    num_groups: int = 1
    """Replica groups, of equal numbers of neighbouring ranks, that continue without each other; 1
    if all ranks stop together."""

    def __post_init__(self) -> None:
        done = 0
        for number, attempt in enumerate(self.attempts):
            wrong = _gap(attempt, done) or _in_groups(attempt, self.num_groups)
            if wrong:
                raise ScenarioError([f"history.attempts.{number}: {wrong}"])
            done = attempt.stop if attempt.fate == "kept" else done
        if not self.attempts or self.attempts[-1].fate != "kept":
            raise ScenarioError(
                ["history.attempts: the last attempt is not kept; add one that is kept."]
            )

    @property
    def num_steps(self) -> int:
        """Number of kept steps."""
        return self.attempts[-1].stop

    @property
    def changes_ranks(self) -> bool:
        """Whether some attempts have other ranks than the scenario."""
        return self.num_groups > 1 or any(a.world_size or a.grad_accum for a in self.attempts)

    def participants(self, attempt: Attempt, world_size: int) -> Participants | None:
        """Roles of the ranks in an attempt; None without replica groups."""
        if self.num_groups == 1:
            return None
        size, roles = world_size // self.num_groups, list[Role]()
        for group in range(self.num_groups):
            here = attempt.groups is None or group in attempt.groups
            counts: Role = "silent" if group in attempt.silent else "counted"
            roles += [counts if here else "absent"] * size
        return Participants(tuple(roles))

    @classmethod
    def restarted(cls, num_steps: int, every: int, restarts: Sequence[RestartEvent]) -> History:
        """History in which all ranks return to the last checkpoint after each failure (torchrun).

        Parameters
        ----------
        num_steps : int
            Of the run.
        every : int
            Steps between checkpoints; one exists at the beginning.
        restarts : sequence of RestartEvent
            In order.

        Raises
        ------
        ScenarioError
            If a restart's step is out of range.
        """
        attempts, done = list[Attempt](), 0
        world_size = grad_accum = None
        for number, restart in enumerate(restarts):
            if not done <= restart.step < num_steps:
                raise ScenarioError(
                    [
                        f"history.restarts.{number}: the run is never at step {restart.step} then; "
                        f"write {done} ... {num_steps - 1}."
                    ]
                )
            saved = restart.step // every * every
            who = world_size, grad_accum
            if saved > done:
                attempts.append(Attempt(done, saved, "kept", *who))
            if restart.step > saved:
                attempts.append(Attempt(saved, restart.step, "lost", *who))
            done, world_size = saved, restart.world_size or world_size
            grad_accum = restart.grad_accum or grad_accum
        return cls((*attempts, Attempt(done, num_steps, "kept", world_size, grad_accum)))

    @classmethod
    def of_groups(
        cls,
        num_steps: int,
        num_groups: int,
        events: Sequence[GroupEvent],
        *,
        min_groups: int = 1,
        fixed: bool = False,
        period: int = 1,
    ) -> History:
        """History of replica groups that fail and return, as under torchft.

        Parameters
        ----------
        num_steps, num_groups : int
            Of the run.
        events : sequence of GroupEvent
            In order.
        min_groups : int
            Minimum number of groups in a step.
        fixed : bool
            Only the first ``min_groups`` present groups count; the others are spares, which add
            zeros (torchft: FIXED_WITH_SPARES). Otherwise all count (DYNAMIC).
        period : int
            Steps after which groups synchronize: 1, or those between two averages of weights. A
            failure discards the whole period.

        Raises
        ------
        ScenarioError
            If an event has no valid step or group, or does not fit the group's state; or if too few
            groups are left.
        """
        made = _GroupHistory(num_steps, num_groups, min_groups, fixed, period)
        for number, event in enumerate(events):
            wrong = made.add(event)
            if wrong:
                raise ScenarioError([f"history.events.{number}: {wrong}"])
        made.go_on(num_steps)
        return cls(tuple(made.attempts), num_groups)


class _GroupHistory:
    """Builds the history of `History.of_groups`, event by event."""

    def __init__(
        self, num_steps: int, num_groups: int, min_groups: int, fixed: bool, period: int
    ) -> None:
        self.num_steps, self.num_groups, self.min_groups = num_steps, num_groups, min_groups
        self.fixed, self.period = fixed, period
        self.attempts: list[Attempt] = []
        self.there, self.healing = set(range(num_groups)), set[int]()
        self.failing = set[int]()
        self.done = 0

    def add(self, event: GroupEvent) -> str | None:
        """Apply an event; or return the reason why it cannot come next."""
        wrong = self._out_of_range(event)
        if wrong is None:
            begin = event.step // self.period * self.period
            self.go_on(begin)
            wrong = self._out_of_place(event)
        if wrong is not None:
            return wrong
        if event.effect == "join":
            self._drop(begin)
            self.there.add(event.group)
            self.healing.add(event.group)
        else:
            self.failing.add(event.group)
        return None

    def _out_of_range(self, event: GroupEvent) -> str | None:
        group = event.group
        if not 0 <= group < self.num_groups:
            return f"there is no group {group}; groups are 0 ... {self.num_groups - 1}."
        if not self.done <= event.step < self.num_steps:
            last = self.num_steps - 1
            return f"step {event.step} is past or never comes; write {self.done} ... {last}."
        return None

    def _out_of_place(self, event: GroupEvent) -> str | None:
        group = event.group
        if (group in self.there - self.failing) == (event.effect == "join"):
            there = "already present" if event.effect == "join" else "absent"
            return f"group {group} is {there} in step {event.step}; leave this event out."
        left = self.there - self.failing - self.healing - {group}
        if event.effect == "fail" and len(left) < self.min_groups:
            return (
                f"{len(left)} of {self.num_groups} groups are left, fewer than the "
                f"{self.min_groups} that a step needs; let others join before."
            )
        return None

    def go_on(self, stop: int) -> None:
        """Add the steps before another one."""
        if stop > self.done:
            self._drop(self.done)
            if self.healing and self.done < stop:
                self._attempt(self.done + self.period, "kept")
                self.healing.clear()
            if self.done < stop:
                self._attempt(stop, "kept")

    def _drop(self, begin: int) -> None:
        """Add the uncommitted step in which groups fail, and remove these."""
        if self.failing:
            self._attempt(begin + self.period, "uncommitted")
            self.there -= self.failing
            self.failing.clear()
            self.healing.clear()  # their copies are complete

    def _attempt(self, stop: int, fate: Fate) -> None:
        stop = min(stop, self.num_steps)
        ready = sorted(self.there - self.healing)
        spares = ready[self.min_groups :] if self.fixed else []
        silent = tuple(sorted({*self.healing, *spares}))
        groups = tuple(sorted(self.there))
        self.attempts.append(Attempt(self.done, stop, fate, groups=groups, silent=silent))
        self.done = stop if fate == "kept" else self.done


def _gap(attempt: Attempt, done: int) -> str | None:
    """Return an error if an attempt does not begin at the end of the kept steps."""
    if attempt.first != done:
        return f"begins with step {attempt.first}, but {done} steps are kept; begin with {done}."
    if attempt.stop <= attempt.first:
        return f"has no step; let it stop at {attempt.first + 1} or later."
    return None


def _in_groups(attempt: Attempt, num_groups: int) -> str | None:
    """Return an error in the groups of an attempt."""
    if num_groups == 1:
        if attempt.groups is not None or attempt.silent or attempt.fate == "uncommitted":
            return "has replica groups, but num_groups is 1; set num_groups, or leave them out."
        return None
    if attempt.world_size or attempt.grad_accum:
        return "replica groups have a fixed number of ranks; leave out world_size and grad_accum."
    there = range(num_groups) if attempt.groups is None else attempt.groups
    unknown = [group for group in there if not 0 <= group < num_groups]
    if unknown:
        return f"there is no group {unknown[0]}; groups are 0 ... {num_groups - 1}."
    if set(there) <= set(attempt.silent):
        return "no present group counts; leave one out of silent."
    return None


# train_through ------------------------------------------------------------------------------------

OWN = "buffers/"
"""State that a replica changes locally, even in uncommitted steps."""


def train_through(
    scenario: Scenario,
    history: History,
    *,
    fabric: Fabric = "auto",
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Train through failures: simulate every attempt, each from the last kept state.

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
        Of the last attempt, as of a continued run: its numbers cover all kept steps, its times only
        its own. ``participation`` also has the samples of ``repeated`` and ``uncommitted`` steps,
        and the losses of all ``attempts``.

    Raises
    ------
    ValueError
        If the scenario has a sweep.
    ScenarioError
        If the scenario cannot be trained in this way, with a line for the first reason.
    """
    if scenario.sweep:
        raise ValueError("the scenario has a sweep; take one of its points")
    scenario = scenario.model_copy(update={"target": None})  # the history determines the end
    _check(scenario, history)
    state = beginning(scenario) if history.num_groups > 1 else None
    record, result = _SampleCounts(), None
    for attempt in history.attempts:
        case = _case(scenario, attempt)
        segment = _segment(case, history, attempt, state)
        tried = simulate_segment(case, segment, fabric, progress)
        record.add(attempt, tried, state)
        if attempt.fate == "kept":
            state, result = tried.state, tried
        elif attempt.fate == "uncommitted":
            assert segment.past is not None, "groups have an initial state"
            state = _passed_over(segment.past, tried.state)
    assert result is not None, "the last attempt is kept"
    result.participation = record.participation()
    return result


def beginning(scenario: Scenario) -> State:
    """The state before the first step: all ranks have the same model."""
    run = Run(scenario, Slowdown(scenario.cluster, scenario.seed), Planner(scenario.cluster))
    for _ in run.setup():
        pass
    return run.state(0.0)


@dataclass
class _SampleCounts:
    """Numbers of samples by fate, over all attempts."""

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
        losses = metrics.with_numbers(Metrics(), records).loss
        attempt_record = {"first": attempt.first, "stop": attempt.stop, "fate": attempt.fate}
        self.attempts.append({**attempt_record, "loss": losses})

    def participation(self) -> dict[str, Any]:
        """The counts as in a result."""
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
    settings = {
        "cluster.world_size": attempt.world_size,
        "workload.grad_accum": attempt.grad_accum,
    }
    changed = {key: value for key, value in settings.items() if value is not None}
    if not changed:
        return scenario
    return checked(override_all(scenario.resolved(), changed, scenario.base), scenario.base)


def _segment(case: Scenario, history: History, attempt: Attempt, state: State | None) -> Segment:
    """Segment of an attempt, from its initial state."""
    if not history.changes_ranks:
        return segment_of(case, attempt.stop, state)
    if state is None:
        return Segment(attempt.stop)
    check_dealing(case, state)
    if case.strategy.has_server:  # which says why
        return segment_of(case, attempt.stop, state)
    who = history.participants(attempt, case.cluster.world_size)
    if who is not None:
        state = _healed(case, state, who, history.num_groups)
    return Segment(attempt.stop, state, participants=who)


def _passed_over(before: State, after: State) -> State:
    """The state after an uncommitted step: samples are skipped, and buffers changed."""
    start = Start(after.start.epoch, after.start.num_samples, before.num_steps)
    arrays = dict(before.arrays)
    for key in {key for key in (*before.arrays, *after.arrays) if _name(key).startswith(OWN)}:
        arrays.pop(key, None)
    arrays |= {key: value for key, value in after.arrays.items() if _name(key).startswith(OWN)}
    return replace(before, start=start, clock=after.clock, arrays=arrays, is_whole=False)


def _healed(case: Scenario, state: State, who: Participants, num_groups: int) -> State:
    """Copy the state of the first counted group to the ranks that do not count."""
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
    """Copy state between ranks.

    Each rank gets the arrays of its source rank, or of rank 0 where that has none. With pieces,
    ``leaders`` are the first ranks of each set of ranks that have all pieces together: whole
    tensors are stored under their names.
    """
    mine = {key for key in arrays if key.partition("/")[0].isdigit()}
    names = {_name(key) for key in mine}
    copies: dict[str, Array] = {}
    for rank, source in enumerate(sources):
        for name in names:
            value = arrays.get(f"{source}/{name}")
            is_piece = "/" in name and not name.startswith(OWN)
            follows = leaders is not None and leaders[rank] != rank and is_piece
            if value is None and not follows:
                value = arrays.get(f"0/{name}")
            if value is not None:
                copies[f"{rank}/{name}"] = value
    others = {key: value for key, value in arrays.items() if key not in mine}
    return {**others, **without_repeats(copies)}


def _name(key: str) -> str:
    return key.partition("/")[2]


# Checks ------------------------------------------------------------------------------------------


def _check(scenario: Scenario, history: History) -> None:
    """Reject a scenario that cannot be trained through this history."""
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
        end_of_period = min(attempt.first + together, history.num_steps)
        if ends or (attempt.fate == "uncommitted" and attempt.stop != end_of_period):
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


def history_of(scenario: Scenario, number: int = 0) -> History:
    """Failure history of one of a job's runs, for `train_through`.

    Parameters
    ----------
    scenario : Scenario
        Without a sweep.
    number : int
        Number of the run in its ensemble, from 0.

    Raises
    ------
    ScenarioError
        If its steps are not counted, or the job has no end.
    """
    plan, recovery = planned(scenario), scenario.recovery
    if plan.length.counts_samples:
        raise ScenarioError(
            [
                "workload.epochs: a history counts steps, but steps per epoch depend on the number "
                "of ranks; write workload.steps."
            ]
        )
    run = JobRun(plan, number)
    run.play(policy_for(run))
    groups = 1
    if isinstance(recovery, ReplicaGroups):
        groups = plan.num_nodes // recovery.group_nodes
    recorded = _Recorded(groups, plan.num_nodes, plan.devices_per_node)
    return recorded.history(run.training.marks, int(plan.length.num_steps))


class _Recorded:
    """Builds attempts from a run's marks; ``num_groups`` is 1 without replica groups."""

    def __init__(self, num_groups: int, num_nodes: int, devices_per_node: int) -> None:
        self.num_groups, self.num_nodes = num_groups, num_nodes
        self.devices_per_node = devices_per_node
        self.attempts: list[tuple[int, Attempt]] = []  # with the number of restarts before
        self.at, self.restarts = 0, 0
        self.world_size: int | None = None
        self.absent, self.back = frozenset[int](), frozenset[int]()

    def history(self, marks: Sequence[ProgressMark], num_steps: int) -> History:
        """Build the history from all marks of a run."""
        for mark in marks:
            self.go_on(mark.steps)
            match mark.effect:
                case "back":
                    self.go_back(mark.of[0])
                case "dropped" if self.num_groups > 1:
                    self._attempt(self.at + 1, "uncommitted")
                    self.back = frozenset()
                case "nodes":
                    ranks = mark.of[0] * self.devices_per_node
                    self.world_size = ranks if mark.of[0] != self.num_nodes else None
                case "absent":
                    absent = frozenset(mark.of)
                    self.back = (self.back | (self.absent - absent)) - absent
                    self.absent = absent
        self.go_on(num_steps)
        return History(tuple(attempt for _, attempt in self.attempts), self.num_groups)

    def go_on(self, steps: int) -> None:
        """Add steps; groups that are back copy the state in the first of them."""
        if self.back and self.at < steps:
            self._attempt(self.at + 1, "kept")
            self.back = frozenset()
        if self.at < steps:
            self._attempt(steps, "kept")

    def _attempt(self, stop: int, fate: str) -> None:
        groups: tuple[int, ...] | None = None
        if self.num_groups > 1:
            groups = tuple(g for g in range(self.num_groups) if g not in self.absent)
        made = Attempt(
            first=self.at,
            stop=stop,
            fate="kept" if fate == "kept" else "uncommitted",
            world_size=self.world_size,
            groups=groups,
            silent=tuple(sorted(self.back)),
        )
        turn, last = self.attempts[-1] if self.attempts else (-1, made)
        if turn == self.restarts and last._replace(first=self.at, stop=stop) == made:
            self.attempts[-1] = turn, last._replace(stop=stop)  # with the same ranks
        else:
            self.attempts.append((self.restarts, made))
        self.at = stop if fate == "kept" else self.at

    def go_back(self, to: int) -> None:
        """Mark all steps after a checkpoint as lost; adjacent ones become one attempt."""
        attempts: list[tuple[int, Attempt]] = []
        for turn, attempt in self.attempts:
            if attempt.stop <= to or (attempt.fate != "kept" and attempt.first < to):
                attempts.append((turn, attempt))
                continue
            if attempt.first < to:
                attempts.append((turn, attempt._replace(stop=to)))
            last = attempts[-1] if attempts else None
            if last is not None and last[0] == turn and last[1].fate == "lost":
                longer = max(last[1].stop, attempt.stop)
                attempts[-1] = turn, last[1]._replace(stop=longer)
            else:
                attempts.append((turn, attempt._replace(first=to, fate="lost")))
        self.attempts, self.at = attempts, to
        self.restarts += 1
