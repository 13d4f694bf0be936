"""Training of a job between failures: its pace, plan and length.

A state machine without SimPy: between two events all steps are equal, and so are all checkpoints,
so that any number of them is one multiplication. A run of two months has a thousand events and a
hundred thousand times as many steps, too many for SimPy in ensembles of thousands of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

from simdp.cluster.failures import Failures
from simdp.engine.job.account import Account, TimeShares
from simdp.engine.outcome import need_of
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.job.recovery import Recovery
from simdp.job.targets import SamplesNeeded
from simdp.results.metrics import Rates
from simdp.rng import stream
from simdp.scenario.root import Scenario

# JobTraining --------------------------------------------------------------------------------------

ROUNDING = 1e-9
"""Rounding error of sums, as a fraction of a step or of a wait."""

WORST = ("process", "node", "nodes")
"""Severity of a failure: loss of processes only, one node, several nodes; ascending."""


class TrainingPace(NamedTuple):
    """Time [s] and breakdown of a step on a number of nodes.

    ``headway`` is its progress relative to a step on all nodes: 1, or its fraction of the samples.
    """

    step: float
    shares: TimeShares = TimeShares(1.0)
    headway: float = 1.0


class Saving(NamedTuple):
    """One kind of checkpoint: steps between two, and times [s].

    Training is blocked for ``blocking``; after another ``background`` it can be loaded, in
    ``load``. ``tolerates`` is the worst failure that it survives, of `WORST`.
    """

    every: int
    blocking: float
    background: float = 0.0
    load: float = 0.0
    tolerates: str = "nodes"


class SavedState(NamedTuple):
    """A state of the job: steps, also in steps on all nodes, their time, and its instant [s]."""

    steps: int
    headway: float
    trained: TimeShares
    at: float


class ProgressMark(NamedTuple):
    """A change in the job's sequence of steps, for `simdp.engine.job.history`."""

    steps: int
    """Finished steps."""
    effect: str
    """It returned to the state after ``of`` steps; dropped the current step; continued with ``of``
    nodes; or without the replica groups ``of``."""
    of: tuple[int, ...] = ()
    """See there."""


START = SavedState(0, 0.0, TimeShares(0.0), 0.0)


class JobTraining:
    """Steps and checkpoints of a run.

    Parameters
    ----------
    num_steps : float
        Steps of the job on all nodes.
    savings : sequence of Saving
        Kinds of checkpoints, the most durable one last; empty: none.
    pace, account
        Pace of the first step; receives the job's time.

    Attributes
    ----------
    now : float
        The job's clock [s].
    stops_at_save : bool
        Whether to stop at the next checkpoint of the most durable kind.
    marks : list of ProgressMark
        Changes in the sequence of steps.
    """

    def __init__(
        self, num_steps: float, savings: Sequence[Saving], pace: TrainingPace, account: Account
    ) -> None:
        self.num_steps, self.savings, self.pace = num_steps, savings, pace
        self.account = account
        self.now, self.stops_at_save = 0.0, False
        self._live, self._partial = START, 0.0
        self._durable: list[SavedState | None] = [None] * len(savings)
        self._pending: list[tuple[SavedState, float] | None] = [None] * len(savings)
        self._due, self._owed = list[int](), 0.0
        self.marks = list[ProgressMark]()
        self._frequent = min(range(len(savings)), key=lambda i: savings[i].every, default=None)

    @property
    def is_done(self) -> bool:
        """Whether all steps are finished, and the last of them is saved."""
        return not self._due and not self._partial and self._steps_left() == 0

    @property
    def steps(self) -> int:
        """Steps that are finished and not lost."""
        return self._live.steps

    @property
    def furthest(self) -> int:
        """Steps of the newest state that survives any failure."""
        for number in range(len(self.savings)):
            self._settle(number)
        kept = self._durable[-1] if self.savings else None
        return kept.steps if kept else 0

    def _steps_left(self) -> int:
        left = (self.num_steps - self._live.headway) / self.pace.headway
        return max(ceil(left - ROUNDING), 0)

    # Steps ----------------------------------------------------------------------------------------

    def train(self, until: float) -> bool:
        """Train until an instant on the job's clock [s], or to the end.

        Returns True if a durable checkpoint stopped it before, on request.
        """
        while True:
            if self._due:
                durable = len(self.savings) - 1 in self._due
                if not self._save(until):
                    return False
                if durable and self.stops_at_save:
                    return True
            if self.now >= until:
                return False
            self._leap(until)
            left = self._steps_left()
            if left == 0:
                return False
            ahead = min([left, *map(self._next, self.savings)])
            needed = ahead * self.pace.step - self._partial
            if self.now + needed > until:
                self._go_part_of_the_way(until)
                return False
            self._advance(ahead, needed)
            self._begin_save(is_last=ahead == left)

    def _next(self, saving: Saving) -> int:
        """Steps until the next save of a kind."""
        return saving.every - self._live.steps % saving.every

    def _further(self, steps: int, at: float) -> SavedState:
        """The state after some more steps."""
        live, pace = self._live, self.pace
        return SavedState(
            live.steps + steps,
            live.headway + steps * pace.headway,
            live.trained.plus(pace.shares, steps * pace.step),
            at,
        )

    def _advance(self, steps: int, seconds: float) -> None:
        """Finish whole steps, of which the first may have begun."""
        self.account.train(self.now, seconds, self.pace.shares)
        self.now += seconds
        self._live, self._partial = self._further(steps, self.now), 0.0

    def _go_part_of_the_way(self, until: float) -> None:
        worked = until - self.now + self._partial
        whole = floor(worked / self.pace.step)
        self._advance(whole, until - self.now)
        self._partial, self.now = max(worked - whole * self.pace.step, 0.0), until

    def _leap(self, until: float) -> None:
        """Advance by whole cycles of the most frequent checkpoint until another event."""
        number = self._frequent
        if number is None or self._partial or self.stops_at_save:
            return
        saving, pending = self.savings[number], self._pending[number]
        training = saving.every * self.pace.step
        waiting = max(saving.background - training, 0.0)
        if self._live.steps % saving.every:
            return
        # Whether a cycle that begins now equals the later ones.
        in_write = max(pending[1] - self.now, 0.0) if pending else 0.0
        if abs(max(in_write - training, 0.0) - waiting) > ROUNDING * training:
            return
        others = [self._next(s) for i, s in enumerate(self.savings) if i != number]
        room = min([self._steps_left(), *others]) - 1  # `train` handles other checkpoints
        cycle = training + waiting + saving.blocking
        count = floor(min(room // saving.every, (until - self.now) / cycle))
        count -= self.now + count * cycle > until  # of rounding
        if count < 1:
            return
        self.account.cycles(self.now, count, training, waiting + saving.blocking, self.pace.shares)
        end = self.now + count * cycle
        if count > 1:
            self._durable[number] = self._further((count - 1) * saving.every, end - cycle)
        elif pending is not None:
            self._durable[number] = pending[0]
        self._live, self.now = self._further(count * saving.every, end), end
        self._keep(number)

    # Checkpoints ----------------------------------------------------------------------------------

    def _begin_save(self, is_last: bool) -> None:
        """Begin all checkpoints due after a step; after the last step only the most durable one."""
        steps, last = self._live.steps, len(self.savings) - 1
        if is_last:
            self._due = [last] if self.savings else []
        else:
            self._due = [i for i, saving in enumerate(self.savings) if steps % saving.every == 0]
        if not self._due:
            return
        ends = [pending[1] for i in self._due if (pending := self._pending[i]) is not None]
        self._owed = max([0.0, *(end - self.now for end in ends)])  # an unfinished write
        self._owed += sum(self.savings[i].blocking for i in self._due)
        self._owed += self.savings[last].background if is_last else 0.0

    def _save(self, until: float) -> bool:
        """Block training for due checkpoints; return False if an instant comes before their end."""
        taken = min(self._owed, until - self.now)
        self.account.add("checkpoint_save", self.now, taken)
        if self._owed > taken:
            self.now, self._owed = until, self._owed - taken
            return False
        self.now += taken
        due, self._due, self._owed = self._due, [], 0.0
        for number in due:
            self._settle(number)
            self._keep(number)
        return True

    def _keep(self, number: int) -> None:
        """Save the state: at once, or at the end of the write in the background."""
        behind = self.savings[number].background
        if behind:
            self._pending[number] = self._live, self.now + behind
        else:
            self._durable[number], self._pending[number] = self._live, None

    def _settle(self, number: int) -> None:
        """Complete a write in the background that has ended."""
        pending = self._pending[number]
        if pending is not None and pending[1] <= self.now:
            self._durable[number], self._pending[number] = pending[0], None

    def unwritten(self) -> float:
        """Time until the newest durable checkpoint can be loaded [s]."""
        pending = self._pending[-1] if self.savings else None
        return max(pending[1] - self.now, 0.0) if pending else 0.0

    def kept_now(self) -> None:
        """Save the state at once, as before nodes leave."""
        self._due, self._owed = [], 0.0
        self._durable[-1], self._pending[-1] = self._live, None

    # Failures -------------------------------------------------------------------------------------

    def note(self, effect: str, *of: int) -> None:
        """Add a `ProgressMark`."""
        self.marks.append(ProgressMark(self._live.steps, effect, of))

    def rest_of_step(self) -> float:
        """Remaining time of the current step [s]; 0 between two steps."""
        return self.pace.step - self._partial if self._partial else 0.0

    def drop_step(self) -> None:
        """Lose only the current step."""
        if self._partial:
            done = TimeShares(0.0).plus(self.pace.shares, self._partial)
            self.account.lose(done, self.now - self._partial)
            self._partial = 0.0
            self.note("dropped")

    def roll_back(self, worst: str) -> float:
        """Return to the newest checkpoint that survives a failure.

        ``worst`` is the severity, one of `WORST`. Returns the time to load the checkpoint [s]; 0 if
        there is none.
        """
        best, load = START, 0.0
        for number, saving in enumerate(self.savings):
            self._settle(number)
            self._pending[number] = None
            if WORST.index(saving.tolerates) < WORST.index(worst):
                self._durable[number] = None
            kept = self._durable[number]
            if kept is not None and kept.steps > best.steps:
                best, load = kept, saving.load
        done = self._live.trained.plus(best.trained, -1.0)
        done = done.plus(self.pace.shares, self._partial)
        if sum(done) > 0:
            self.account.lose(done, best.at)
        self.note("back", best.steps)
        self._live, self._partial = best, 0.0
        self._due, self._owed = [], 0.0
        return load


class Length(NamedTuple):
    """Length of a job.

    ``num_steps`` are those on all nodes, the mean over runs for a random target;
    ``counts_samples``: a step of fewer samples is less progress, as with epochs; ``need`` are the
    samples that a target takes.
    """

    num_steps: float
    counts_samples: bool
    need: SamplesNeeded | None = None
    global_batch: float = 1.0

    def drawn(self, seed: int, run: int) -> float:
        """Steps of one run of an ensemble."""
        if self.need is None or not self.need.sd:
            return self.num_steps
        samples = float(self.need.draw(stream(seed, "target", run), 1)[0])
        return max(samples / self.global_batch, 1.0)


def length_of(scenario: Scenario) -> Length:
    """Number of steps of a job: to its target, or else ``workload.steps`` or its epochs.

    Raises
    ------
    ScenarioError
        If the job has no end, or the loss of its target is not reached.
    """
    workload, world_size = scenario.workload, scenario.cluster.world_size
    if scenario.target is not None:
        return _to_target(scenario)
    if scenario.is_shortened:  # a timing-only run simulates less than its one epoch
        workload = workload.model_copy(update={"steps": None})
    if workload.steps is not None:
        return Length(workload.steps, False)
    if workload.dataset.kind == "none":
        raise ScenarioError(
            [
                "workload.steps: the job has no end without a data set or a number of "
                "steps; add steps: 100000, or a target."
            ]
        )
    return Length(workload.num_steps(world_size, scenario.base), True)


def _to_target(scenario: Scenario) -> Length:
    batch = float(scenario.workload.samples_per_step(scenario.cluster.world_size))
    need = need_of(scenario, batch)
    if need is not None:
        return Length(max(need.mean / batch, 1.0), True, need, batch)
    target = simulate(scenario).target or {}
    if not target.get("reached"):
        raise ScenarioError(
            [
                "target: the job has no end, since the loss is not reached in all steps of a run; "
                "train longer, or set a larger loss."
            ]
        )
    return Length(float(target["steps"]), False)


NO_RATES = Rates()


@dataclass(frozen=True)
class JobPlan:
    """Inputs of a job's simulation."""

    length: Length
    """Number of steps."""
    savings: tuple[Saving, ...]
    """Kinds of checkpoints, the most durable one last; may be empty."""
    paces: Mapping[int, TrainingPace]
    """By the number of nodes; others use the next smaller one."""
    num_nodes: int
    """Of the cluster, without spares."""
    devices_per_node: int
    """Of the cluster, without spares."""
    recovery: Recovery
    """Reaction to failures."""
    failures: tuple[Failures, ...]
    """Failure processes."""
    seed: int
    heal: float = 0.0
    """Time in which a replica group copies the state from a peer [s]."""
    rates: Rates = NO_RATES
    """Prices and power of the cluster."""
    busy: float = 1.0
    """Fractions of a step in which devices compute, and wait in collectives."""
    waiting: float = 0.0
    """Fractions of a step in which devices compute, and wait in collectives."""

    @property
    def pace(self) -> TrainingPace:
        """Pace with all nodes."""
        return self.paces[self.num_nodes]
