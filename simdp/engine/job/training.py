"""Training of a job between failures: its pace, plan and length.

A plain state machine, without SimPy: between two events all steps are alike, and so are all
checkpoints, so that any number of them is one multiplication. A run of two months has a thousand
events and a hundred thousand times as many steps; an event each on SimPy's loop is too much for
ensembles of thousands of runs.
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
from simdp.scenario import Scenario

# Training -----------------------------------------------------------------------------------------

ROUNDING = 1e-9
"""Share of a step, or of a wait, by which sums of floats may be off."""

WORST = ("process", "node", "nodes")
"""What a failure takes: processes alone, one node, several; each takes what those before it do."""


class TrainingPace(NamedTuple):
    """How training goes on so many nodes.

    Attributes
    ----------
    step : float
        Time of a step [s].
    shares : Shares
        What it goes to.
    headway : float
        What a step is of one on all nodes: 1, or its share of the samples.
    """

    step: float
    shares: TimeShares = TimeShares(1.0)
    headway: float = 1.0


class Saving(NamedTuple):
    """One kind of checkpoint.

    Attributes
    ----------
    every : int
        Steps from one to the next.
    blocking : float
        What it holds training up for [s].
    background : float
        How much longer it takes until it can be loaded [s].
    load : float
        Until it is loaded [s].
    tolerates : str
        The worst after which it is there, of `WORST`.
    """

    every: int
    blocking: float
    background: float = 0.0
    load: float = 0.0
    tolerates: str = "nodes"


class SavedState(NamedTuple):
    """A state of the job.

    Attributes
    ----------
    steps : int
        Steps that were done.
    headway : float
        The same in steps on all nodes.
    trained : Shares
        Time that they took, by what it went to [s].
    at : float
        When it was reached [s].
    """

    steps: int
    headway: float
    trained: TimeShares
    at: float


class ProgressMark(NamedTuple):
    """What steps the job did, and did not keep, as its numbers would notice.

    Attributes
    ----------
    steps : int
        Steps that are done.
    effect : {"back", "dropped", "nodes", "absent"}
        Then it went back to the state after ``of`` steps; or lost the step at hand; or goes on with
        ``of`` nodes; or without the replica groups ``of``.
    of : tuple of int
        See there.
    """

    steps: int
    effect: str
    of: tuple[int, ...] = ()


START = SavedState(0, 0.0, TimeShares(0.0), 0.0)


class JobTraining:
    """Steps and checkpoints of a run.

    Parameters
    ----------
    num_steps : float
        Steps on all nodes that the job takes.
    savings : sequence of Saving
        Kinds of checkpoints, the most durable one last; none: nothing is kept.
    pace : Pace
        Of the first step.
    account : Account
        Where the job's time is written down.

    Attributes
    ----------
    now : float
        The job's clock [s].
    stops_at_save : bool
        Whether to stop when the next checkpoint of the most durable kind is made.
    marks : list of Mark
        What became of its steps.
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
        kinds = range(len(savings))
        self._frequent = min(kinds, key=lambda i: savings[i].every, default=None)

    @property
    def is_done(self) -> bool:
        """Whether all steps are done, and the last of them is kept."""
        return not self._due and not self._partial and self._steps_left() == 0

    @property
    def steps(self) -> int:
        """Steps that are done and not lost so far."""
        return self._live.steps

    @property
    def furthest(self) -> int:
        """Steps of the youngest state that can be loaded, whatever happens."""
        for number in range(len(self.savings)):
            self._settle(number)
        kept = self._durable[-1] if self.savings else None
        return kept.steps if kept else 0

    def _steps_left(self) -> int:
        left = (self.num_steps - self._live.headway) / self.pace.headway
        return max(ceil(left - ROUNDING), 0)

    # Forward --------------------------------------------------------------------------------------

    def train(self, until: float) -> bool:
        """Go on until an instant, or the end; True where a durable checkpoint stopped it before.

        Parameters
        ----------
        until : float
            On the job's clock [s].
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
        """The state so many steps from now."""
        live, pace = self._live, self.pace
        return SavedState(
            live.steps + steps,
            live.headway + steps * pace.headway,
            live.trained.plus(pace.shares, steps * pace.step),
            at,
        )

    def _advance(self, steps: int, seconds: float) -> None:
        """Do whole steps, of which the first may have begun."""
        self.account.train(self.now, seconds, self.pace.shares)
        self.now += seconds
        self._live, self._partial = self._further(steps, self.now), 0.0

    def _go_part_of_the_way(self, until: float) -> None:
        worked = until - self.now + self._partial
        whole = floor(worked / self.pace.step)
        self._advance(whole, until - self.now)
        self._partial, self.now = max(worked - whole * self.pace.step, 0.0), until

    def _leap(self, until: float) -> None:
        """Do as many cycles of the most frequent checkpoint as nothing else comes between."""
        number = self._frequent
        if number is None or self._partial or self.stops_at_save:
            return
        saving, pending = self.savings[number], self._pending[number]
        training = saving.every * self.pace.step
        waiting = max(saving.background - training, 0.0)
        if self._live.steps % saving.every:
            return
        # Whether a cycle that begins now is as those to come.
        in_write = max(pending[1] - self.now, 0.0) if pending else 0.0
        if abs(max(in_write - training, 0.0) - waiting) > ROUNDING * training:
            return
        others = [self._next(s) for i, s in enumerate(self.savings) if i != number]
        room = min([self._steps_left(), *others]) - 1  # where another is due, one walks
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
        """Begin all that are due after a step; after the last one the most durable."""
        steps, last = self._live.steps, len(self.savings) - 1
        if is_last:
            self._due = [last] if self.savings else []
        else:
            self._due = [i for i, saving in enumerate(self.savings) if steps % saving.every == 0]
        if not self._due:
            return
        ends = [pending[1] for i in self._due if (pending := self._pending[i]) is not None]
        self._owed = max([0.0, *(end - self.now for end in ends)])  # a write that is not through
        self._owed += sum(self.savings[i].blocking for i in self._due)
        self._owed += self.savings[last].background if is_last else 0.0

    def _save(self, until: float) -> bool:
        """Stand still for what is due; False where an instant comes before it is through."""
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
        """Take down the state: at once, or when what is written behind training is through."""
        behind = self.savings[number].background
        if behind:
            self._pending[number] = self._live, self.now + behind
        else:
            self._durable[number], self._pending[number] = self._live, None

    def _settle(self, number: int) -> None:
        """Count what has been written meanwhile."""
        pending = self._pending[number]
        if pending is not None and pending[1] <= self.now:
            self._durable[number], self._pending[number] = pending[0], None

    def unwritten(self) -> float:
        """How long until the youngest durable checkpoint can be loaded [s]."""
        pending = self._pending[-1] if self.savings else None
        return max(pending[1] - self.now, 0.0) if pending else 0.0

    def kept_now(self) -> None:
        """Take down that the state was written at once, as before nodes are set free."""
        self._due, self._owed = [], 0.0
        self._durable[-1], self._pending[-1] = self._live, None

    # Backward -------------------------------------------------------------------------------------

    def note(self, effect: str, *of: int) -> None:
        """Take down who goes on; see `Mark`."""
        self.marks.append(ProgressMark(self._live.steps, effect, of))

    def rest_of_step(self) -> float:
        """Time until the step at hand is done [s]; 0 between two steps."""
        return self.pace.step - self._partial if self._partial else 0.0

    def drop_step(self) -> None:
        """Lose the step at hand, and no more."""
        if self._partial:
            done = TimeShares(0.0).plus(self.pace.shares, self._partial)
            self.account.lose(done, self.now - self._partial)
            self._partial = 0.0
            self.note("dropped")

    def roll_back(self, worst: str) -> float:
        """Lose what no checkpoint has that is there after a failure.

        Parameters
        ----------
        worst : str
            What the failure took, of `WORST`.

        Returns
        -------
        float
            How long it takes to load the youngest one [s]; 0 where there is none.
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
    """How long a job is.

    Attributes
    ----------
    num_steps : float
        Steps on all nodes; of a target that luck has a part in, of a mean run.
    counts_samples : bool
        Whether a step of fewer samples is less of one, as in a job of epochs.
    need : Need or None
        Samples that a target takes.
    global_batch : float
        Samples of a step.
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
    """How many steps a job takes: to its target, or else ``workload.steps`` or its epochs.

    Raises
    ------
    ScenarioError
        If nothing says where it ends, or the target is a loss that is not reached.
    """
    workload, world_size = scenario.workload, scenario.cluster.world_size
    if scenario.target is not None:
        return _to_target(scenario)
    if scenario.is_shortened:  # one epoch, which a run of times alone does not play
        workload = workload.model_copy(update={"steps": None})
    if workload.steps is not None:
        return Length(workload.steps, False)
    if workload.dataset.kind == "none":
        raise ScenarioError(
            [
                "workload.steps: the job has no end, as there is no data set and no number of "
                "steps; add steps: 100000, or a target."
            ]
        )
    return Length(workload.num_steps(world_size, scenario.base), True)


def _to_target(scenario: Scenario) -> Length:
    batch = float(scenario.workload.samples_per_step(scenario.cluster.world_size))
    need = need_of(scenario, batch)
    if need is not None:
        return Length(max(need.mean / batch, 1.0), True, need, batch)
    found = simulate(scenario).target or {}
    if not found.get("reached"):
        raise ScenarioError(
            [
                "target: the job has no end, since the loss is not reached in all steps of a run; "
                "train longer, or ask for a larger loss."
            ]
        )
    return Length(float(found["steps"]), False)


NO_RATES = Rates()


@dataclass(frozen=True)
class JobPlan:
    """A job.

    Attributes
    ----------
    length : Length
        How many steps it takes.
    savings : tuple of Saving
        Kinds of checkpoints, the most durable one last; none where nothing is kept.
    paces : mapping of int to Pace
        By the number of nodes; with another number it goes as with the next smaller one.
    num_nodes, devices_per_node : int
        Of the cluster, without spares.
    recovery : Recovery
        What is done about failures.
    failures : tuple of Failures
        What fails.
    seed : int
        The scenario's.
    heal : float
        How long a replica group copies the state from a peer [s].
    rates : Rates
        What the cluster costs and draws.
    busy, waiting : float
        Shares of a step in which devices compute, and wait in collectives.
    """

    length: Length
    savings: tuple[Saving, ...]
    paces: Mapping[int, TrainingPace]
    num_nodes: int
    devices_per_node: int
    recovery: Recovery
    failures: tuple[Failures, ...]
    seed: int
    heal: float = 0.0
    rates: Rates = NO_RATES
    busy: float = 1.0
    waiting: float = 0.0

    @property
    def pace(self) -> TrainingPace:
        """With all nodes."""
        return self.paces[self.num_nodes]
