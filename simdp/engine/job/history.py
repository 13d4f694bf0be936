"""History: the attempts of a run that fails and goes on, step by step; it knows no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from simdp.errors import ScenarioError
from simdp.workload.participants import Participants, Role

Fate = Literal["kept", "lost", "uncommitted"]
"""What became of steps: they are in what the next attempt begins with; they are not, and are done
again on the same samples; they are not, and their samples are passed over."""


class Attempt(NamedTuple):
    """Steps with one fate, by the same ranks.

    Attributes
    ----------
    first, stop : int
        Number of its first step, from 0, and the number after its last.
    fate : Fate
        What became of them.
    world_size : int or None
        Ranks; None as the scenario says.
    grad_accum : int or None
        Micro-steps, with which other numbers of ranks may keep the global batch; None as the
        scenario says.
    groups : tuple of int or None
        Replica groups that are there; None is all.
    silent : tuple of int
        Of these, those that add zeros: spares, and groups that copy a peer's state meanwhile.
    """

    first: int
    stop: int
    fate: Fate = "kept"
    world_size: int | None = None
    grad_accum: int | None = None
    groups: tuple[int, ...] | None = None
    silent: tuple[int, ...] = ()


class Restart(NamedTuple):
    """All ranks stop while a step is under way, and go on from the last checkpoint.

    Attributes
    ----------
    step : int
        Steps that are done.
    world_size, grad_accum : int or None
        From then on, as of `Attempt`; None leaves them as they are.
    """

    step: int
    world_size: int | None = None
    grad_accum: int | None = None


class GroupEvent(NamedTuple):
    """A replica group dies while a step is under way, or joins at its beginning.

    Attributes
    ----------
    step : int
        Number of the step, from 0.
    group : int
        Which, from 0.
    effect : {"fail", "join"}
        What it does.
    """

    step: int
    group: int
    effect: Literal["fail", "join"]


@dataclass(frozen=True)
class History:
    """The attempts of a run, one after the other.

    Attributes
    ----------
    attempts : tuple of Attempt
        Each begins where the steps end that have been kept; the last one is kept.
    num_groups : int
        Replica groups, of equal numbers of neighbouring ranks, that go on without each other; 1
        where all ranks stop together.

    Raises
    ------
    ScenarioError
        If they do not follow from each other, with a line for the first that does not.
    """

    attempts: tuple[Attempt, ...]
    num_groups: int = 1

    def __post_init__(self) -> None:
        done = 0
        for number, attempt in enumerate(self.attempts):
            wrong = _gap(attempt, done) or _in_groups(attempt, self.num_groups)
            if wrong:
                raise ScenarioError([f"history.attempts.{number}: {wrong}"])
            done = attempt.stop if attempt.fate == "kept" else done
        if not self.attempts or self.attempts[-1].fate != "kept":
            raise ScenarioError(
                ["history.attempts: nothing is kept at the end; add an attempt that is kept."]
            )

    @property
    def num_steps(self) -> int:
        """Steps that are kept."""
        return self.attempts[-1].stop

    @property
    def changes_ranks(self) -> bool:
        """Whether not all attempts are by all ranks of the scenario."""
        return self.num_groups > 1 or any(a.world_size or a.grad_accum for a in self.attempts)

    def participants(self, attempt: Attempt, world_size: int) -> Participants | None:
        """Who takes part in the steps of an attempt; None without replica groups."""
        if self.num_groups == 1:
            return None
        size, roles = world_size // self.num_groups, list[Role]()
        for group in range(self.num_groups):
            here = attempt.groups is None or group in attempt.groups
            counts: Role = "silent" if group in attempt.silent else "counted"
            roles += [counts if here else "absent"] * size
        return Participants(tuple(roles))

    @classmethod
    def restarted(cls, num_steps: int, every: int, restarts: Sequence[Restart]) -> History:
        """All ranks go back to the last checkpoint, whenever something fails.

        So does torchrun, also with other numbers of nodes, and when one joins.

        Parameters
        ----------
        num_steps : int
            Of the run.
        every : int
            Steps from one checkpoint to the next; one is there at the beginning.
        restarts : sequence of Restart
            One after the other.

        Raises
        ------
        ScenarioError
            If a restart comes when fewer or more steps are done.
        """
        attempts, done = list[Attempt](), 0
        world_size = grad_accum = None
        for number, restart in enumerate(restarts):
            if not done <= restart.step < num_steps:
                raise ScenarioError(
                    [
                        f"history.restarts.{number}: {restart.step} steps are never done then; "
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
        """Replica groups drop out and come back, as under torchft.

        Parameters
        ----------
        num_steps, num_groups : int
            Of the run.
        events : sequence of GroupEvent
            One after the other.
        min_groups : int
            No step is taken by fewer.
        fixed : bool
            No more than ``min_groups`` of them count, the first of those that are there; the others
            are spares, which add zeros (torchft: FIXED_WITH_SPARES). Else all count (DYNAMIC).
        period : int
            Steps after which groups agree: 1, or those from one average of weights to the next. A
            failure takes the whole period along.

        Raises
        ------
        ScenarioError
            If an event is of no step or no group, or has nobody to be of; or if there are too few
            groups to go on.
        """
        made = _Groups(num_steps, num_groups, min_groups, fixed, period)
        for number, event in enumerate(events):
            wrong = made.add(event)
            if wrong:
                raise ScenarioError([f"history.events.{number}: {wrong}"])
        made.go_on(num_steps)
        return cls(tuple(made.attempts), num_groups)


class _Groups:
    """Replica groups, event by event; arguments as of `History.of_groups`."""

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
        """Take an event in; or say why it cannot come next."""
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
            return f"there is no group {group}; they are 0 ... {self.num_groups - 1}."
        if not self.done <= event.step < self.num_steps:
            last = self.num_steps - 1
            return f"step {event.step} is past or never comes; write {self.done} ... {last}."
        return None

    def _out_of_place(self, event: GroupEvent) -> str | None:
        group = event.group
        if (group in self.there - self.failing) == (event.effect == "join"):
            there = "there already" if event.effect == "join" else "not there"
            return f"group {group} is {there} in step {event.step}; leave this out."
        left = self.there - self.failing - self.healing - {group}
        if event.effect == "fail" and len(left) < self.min_groups:
            return (
                f"{len(left)} of {self.num_groups} groups are left, fewer than the "
                f"{self.min_groups} that a step needs; let others join before."
            )
        return None

    def go_on(self, stop: int) -> None:
        """Take the steps before another one."""
        if stop > self.done:
            self._drop(self.done)
            if self.healing and self.done < stop:
                self._attempt(self.done + self.period, "kept")
                self.healing.clear()
            if self.done < stop:
                self._attempt(stop, "kept")

    def _drop(self, begin: int) -> None:
        """Lose the step in which groups die; they are missed from then on."""
        if self.failing:
            self._attempt(begin + self.period, "uncommitted")
            self.there -= self.failing
            self.failing.clear()
            self.healing.clear()  # what they have copied they have

    def _attempt(self, stop: int, fate: Fate) -> None:
        stop = min(stop, self.num_steps)
        ready = sorted(self.there - self.healing)
        spares = ready[self.min_groups :] if self.fixed else []
        silent = tuple(sorted({*self.healing, *spares}))
        groups = tuple(sorted(self.there))
        self.attempts.append(Attempt(self.done, stop, fate, groups=groups, silent=silent))
        self.done = stop if fate == "kept" else self.done


def _gap(attempt: Attempt, done: int) -> str | None:
    """Say that an attempt does not begin where what was kept ends; or None."""
    if attempt.first != done:
        return f"begins with step {attempt.first}, but {done} are kept by then; begin with {done}."
    if attempt.stop <= attempt.first:
        return f"has no step; let it stop at {attempt.first + 1} or later."
    return None


def _in_groups(attempt: Attempt, num_groups: int) -> str | None:
    """Say what is wrong with the groups of an attempt; or None."""
    if num_groups == 1:
        if attempt.groups is not None or attempt.silent or attempt.fate == "uncommitted":
            return "tells of replica groups, but there is one; write num_groups, or leave it out."
        return None
    if attempt.world_size or attempt.grad_accum:
        return "replica groups have a fixed number of ranks; leave out world_size and grad_accum."
    there = range(num_groups) if attempt.groups is None else attempt.groups
    unknown = [group for group in there if not 0 <= group < num_groups]
    if unknown:
        return f"there is no group {unknown[0]}; they are 0 ... {num_groups - 1}."
    if set(there) <= set(attempt.silent):
        return "no group is there whose gradients count; leave one out of silent."
    return None
