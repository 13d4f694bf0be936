"""Simulates a job: weeks of training with failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from simdp.cluster.failures import FailureEvent, Failures
from simdp.engine.job.account import PARTS, Account
from simdp.engine.job.training import JobPlan, JobTraining
from simdp.errors import ScenarioError
from simdp.rng import stream


def events(
    failures: Sequence[Failures], num_nodes: int, devices_per_node: int, seed: int, run: int
) -> Iterator[FailureEvent]:
    """Merge the events of all failure processes, in ascending time; ties: in their order.

    Each process draws from a stream of its own, so that adding one does not change the others.
    Endless unless all processes are traces. Deterministic for a seed and the number of a run in its
    ensemble. Nodes include spares.
    """
    streams = [
        process.events(num_nodes, devices_per_node, stream(seed, "failures", run, number))
        for number, process in enumerate(failures)
    ]
    return streams[0] if len(streams) == 1 else merge(*streams, key=attrgetter("time"))


def expected_mttf(
    failures: Sequence[Failures], num_nodes: int, devices_per_node: int
) -> float | None:
    """Mean time between the failures of a job, by the sum of all rates [s].

    inf without failures; None if a process has no known rate. Parameters are those of `events`.
    """
    rates = [process.job_rate(num_nodes, devices_per_node) for process in failures]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    total = sum(known)
    return 1 / total if total else float("inf")


class Nodes:
    """The nodes of a run: ``wanted`` ones, which the job uses if available, and spares.

    ``away`` has the unavailable nodes with the ends of their absence [s], ``idle`` the available
    unused ones in order of arrival; ``seconds`` is the available time, summed over nodes [node s].
    """

    def __init__(self, wanted: int, spares: int = 0) -> None:
        self.wanted, self.total = wanted, wanted + spares
        self.away: dict[int, float] = {}
        self.idle = list(range(wanted, self.total))
        self.seconds, self._since = 0.0, 0.0

    @property
    def used(self) -> int:
        """Number of nodes that the job uses, or would use while it is stopped."""
        return self.total - len(self.away) - len(self.idle)

    def in_use(self, nodes: Iterable[int]) -> list[int]:
        """The used ones of some nodes."""
        return [n for n in nodes if n not in self.away and n not in self.idle]

    def take(self, now: float, nodes: Sequence[int], until: float = inf) -> None:
        """Remove nodes until an instant."""
        self.count(now)
        for node in nodes:
            self.away[node] = max(until, self.away.get(node, 0.0))
            if node in self.idle:
                self.idle.remove(node)

    def give(self, now: float, nodes: Iterable[int]) -> list[int]:
        """Return nodes that were away, which become idle."""
        self.count(now)
        back = [node for node in nodes if self.away.pop(node, None) is not None]
        self.idle += back
        return back

    def claim(self) -> int:
        """Use idle nodes in place of missing ones; return how many."""
        count = min(max(self.wanted - self.used, 0), len(self.idle))
        del self.idle[:count]
        return count

    def due(self, node: int, now: float) -> bool:
        """Whether an absent node is available again."""
        return self.away.get(node, inf) <= now

    def count(self, now: float) -> None:
        """Add the available time up to now."""
        self.seconds += (self.total - len(self.away)) * (now - self._since)
        self._since = now


# JobRun -------------------------------------------------------------------------------------------

MAX_IN_VAIN = 10_000
"""Failures without any progress in between, after which a job fails."""


class Outcome(NamedTuple):
    """Result of a run.

    ``finish`` is its end, ``parts`` its time by `simdp.engine.job.account.PARTS`, ``queued`` the
    part of it in which the job waited for nodes [s]; ``node_seconds`` is the available time summed
    over nodes, including spares [s].
    """

    finish: float
    parts: tuple[float, ...]
    queued: float
    num_failures: int
    node_seconds: float


class Policy(Protocol):
    """Reactions to failures."""

    def begin(self) -> None:
        """Start the job."""

    def react(self, event: FailureEvent) -> None:
        """Handle an event that hit the job during training."""

    def at_save(self) -> None:
        """Handle requests that waited for a checkpoint."""

    def returned(self, nodes: list[int]) -> bool:
        """Handle nodes that came back; return whether to stop training for them."""


class Alarm(NamedTuple):
    """A scheduled event: nodes that come back, or a policy's callback."""

    time: float
    number: int
    node: int | None
    call: Callable[[], None] | None


class JobRun:
    """A run of a job, the ``number``-th of an ensemble, from 0.

    A policy changes its ``training``, ``nodes`` and ``account``; ``keeps_strip``: with a timeline.
    """

    def __init__(self, plan: JobPlan, number: int, keeps_strip: bool = False) -> None:
        spec = plan.recovery
        self.plan, self.number = plan, number
        self.account = Account(keeps_strip)
        self.nodes = Nodes(plan.num_nodes, spec.num_spares or 0)
        num_steps = plan.length.drawn(plan.seed, number)
        self.training = JobTraining(num_steps, plan.savings, plan.pace, self.account)
        self.num_failures = 0
        self._replaces = spec.num_spares is None
        self._events = self._drawn()
        self._next = next(self._events, None)
        self._alarms, self._num_alarms = list[Alarm](), 0
        self._in_vain, self._best = 0, (-1, -1)
        self._policy: Policy | None = None

    def _drawn(self) -> Iterator[FailureEvent]:
        plan = self.plan
        if not plan.failures:
            return iter(())
        there = self.nodes.total
        return events(plan.failures, there, plan.devices_per_node, plan.seed, self.number)

    def play(self, policy: Policy) -> Outcome:
        """Simulate the job to its end, with the plan's policy for this run.

        Raises
        ------
        ScenarioError
            If it never ends: it waits for nodes that do not come back, or makes no progress.
        """
        training, account, self._policy = self.training, self.account, policy
        policy.begin()
        while not training.is_done:
            time = self.next_time()
            if training.train(time):
                policy.at_save()
                continue
            if training.is_done:
                break
            event = self._take()
            if event is not None:
                policy.react(event)
        self.nodes.count(training.now)
        parts = tuple(account.seconds[part] for part in PARTS)
        return Outcome(training.now, parts, account.queued, self.num_failures, self.nodes.seconds)

    # Time -----------------------------------------------------------------------------------------

    def next_time(self) -> float:
        """Time of the next event or alarm [s]; inf if there is none."""
        time = self._next.time if self._next else inf
        return min(time, self._alarms[0].time) if self._alarms else time

    def alarm(self, time: float, call: Callable[[], None]) -> None:
        """Schedule a callback."""
        self._set(time, None, call)

    def _set(self, time: float, node: int | None, call: Callable[[], None] | None) -> None:
        self._num_alarms += 1
        heappush(self._alarms, Alarm(time, self._num_alarms, node, call))

    def pause(self, part: str, seconds: float, is_queue: bool = False) -> FailureEvent | None:
        """Let time pass without training, and count it as a part.

        ``is_queue``: the job waits for nodes. Returns the event that hit the job meanwhile, at its
        instant; None if there was none.
        """
        until = self.training.now + seconds
        event = None
        while event is None and self.next_time() <= until:
            event = self._take(part, is_queue)
        if event is None:
            self._pass(until, part, is_queue)
        return event

    def wait(self, ready: Callable[[], bool]) -> FailureEvent | None:
        """Wait until there are enough nodes, or until an event hits the job, which is returned.

        Raises
        ------
        ScenarioError
            If no future event can bring nodes.
        """
        event = None
        while event is None and not ready():
            if self.next_time() == inf:
                away, since = len(self.nodes.away), self.training.now / 3600
                raise ScenarioError(
                    [
                        f"recovery: the job waits forever from hour {since:.4g} on, when {away} "
                        f"of {self.nodes.total} nodes are away and none comes back; give failures "
                        "a repair, or use elastic with fewer nodes."
                    ]
                )
            event = self._take("recovery", True)
        return event

    def _pass(self, until: float, part: str, is_queue: bool) -> None:
        training = self.training
        self.account.add(part, training.now, until - training.now)
        if is_queue:
            self.account.queued += until - training.now
        training.now = until

    # Events ---------------------------------------------------------------------------------------

    def _take(self, part: str | None = None, is_queue: bool = False) -> FailureEvent | None:
        """Process the next event; return it if it hits the job.

        ``part`` and ``is_queue`` classify the time until then, as for `pause`; None: training.
        """
        time = self.next_time()
        if part is not None:
            self._pass(time, part, is_queue)
        if self._alarms and self._alarms[0].time <= time:
            return self._ring(heappop(self._alarms))
        event = self._next
        assert event is not None
        self._next = next(self._events, None)
        if event.effect == "join":
            return self._back(event, self.nodes.give(time, event.nodes))
        nodes = event.nodes
        hits = not nodes or bool(self.nodes.in_use(nodes))
        self._send_away(event)
        if hits:
            self.num_failures += 1
            self._look_for_headway()
        return event if hits else None

    def _send_away(self, event: FailureEvent) -> None:
        """Remove the lost nodes, unless nodes are always replaced."""
        lost = event.nodes or (range(self.nodes.total) if event.repair else ())
        if self._replaces or not lost or not (event.repair or event.effect == "leave"):
            return
        until = inf if event.effect == "leave" else event.time + event.repair
        self.nodes.take(event.time, list(lost), until)
        for node in lost if until < inf else ():
            self._set(until, node, None)

    def _ring(self, alarm: Alarm) -> FailureEvent | None:
        if alarm.call is not None:
            alarm.call()
            return None
        assert alarm.node is not None
        if not self.nodes.due(alarm.node, alarm.time):
            return None  # it is away again
        back = self.nodes.give(alarm.time, [alarm.node])
        return self._back(FailureEvent(alarm.time, "join", "repair", (), 0.0), back)

    def _back(self, event: FailureEvent, nodes: list[int]) -> FailureEvent | None:
        assert self._policy is not None
        return event if nodes and self._policy.returned(nodes) else None

    def _look_for_headway(self) -> None:
        """Stop a job that will never finish.

        Raises
        ------
        ScenarioError
            After `MAX_IN_VAIN` failures in a row without progress.
        """
        headway = self.training.furthest, self.training.steps
        if headway[0] > self._best[0] or headway[1] > self._best[1]:
            self._in_vain, self._best = 0, headway
            return
        self._in_vain += 1
        if self._in_vain >= MAX_IN_VAIN:
            of = f"step {headway[1]}" if headway[1] else "the first step"
            raise ScenarioError(
                [
                    f"checkpoint: the job makes no progress; after {MAX_IN_VAIN} failures in a row "
                    f"it has not passed {of}; use shorter intervals, faster writes, or a faster "
                    "recovery."
                ]
            )
