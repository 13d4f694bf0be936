"""Policies: the behaviour of each kind of `simdp.job.recovery` at a failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simdp.cluster.failures import FailureEvent
from simdp.engine.job.run import JobRun
from simdp.job.recovery import Elastic, Migrate, Recovery, ReplicaGroups, Spares
from simdp.rng import stream

NOTICED = ("drain", "join")
"""Effects that are known without detection."""


def worst(event: FailureEvent) -> str:
    """Severity of an event, one of `simdp.engine.job.training.WORST`."""
    return ("process", "node", "nodes")[min(len(event.nodes), 2)]


class Restarting:
    """Restarts all processes from the last checkpoint once there are enough nodes."""

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.spec: Any = run.plan.recovery

    def begin(self) -> None:
        """Start the job."""
        self._restart(self.run.pause("startup", self.spec.restart))

    def react(self, event: FailureEvent) -> None:
        """Handle an event that hit the job during training."""
        hit = self._save_first() if event.effect == "drain" else None
        if not self.run.training.is_done:
            self._restart(hit or event)

    def at_save(self) -> None:
        """Handle requests that waited for a checkpoint."""

    def returned(self, nodes: list[int]) -> bool:
        """Handle nodes that came back; return whether to stop training for them."""
        return False

    def _restart(self, event: FailureEvent | None) -> None:
        """Repeat attempts until none is interrupted."""
        while event is not None:
            event = self._attempt(event, self.run.training.roll_back(worst(event)))
        self._resumed()

    def _attempt(self, event: FailureEvent, load: float) -> FailureEvent | None:
        """Start all processes after an event; return the event that interrupts this, if any."""
        run, spec = self.run, self.spec
        return (
            run.pause("recovery", self._noticing(event))
            or self._find_nodes()
            or run.pause("startup", spec.restart)
            or run.pause("checkpoint_restore", load)
        )

    def _find_nodes(self) -> FailureEvent | None:
        self._wait()
        return self.run.pause("recovery", self.spec.rescheduling, is_queue=True)

    def _wait(self) -> bool:
        """Wait for enough nodes; return whether a wait was necessary."""
        if self._is_enough():
            return False
        while self.run.wait(self._is_enough) is not None:
            pass
        return True

    def _is_enough(self) -> bool:
        nodes = self.run.nodes
        nodes.claim()
        return nodes.used >= nodes.wanted

    def _resumed(self) -> None:
        """Adapt to the nodes after a restart."""

    def _noticing(self, event: FailureEvent) -> float:
        """Time until a failure is detected [s]."""
        if event.effect in NOTICED:
            return 0.0
        spec: Recovery = self.spec
        return spec.hang_timeout if event.effect == "hang" else spec.detection

    def _save_first(self) -> FailureEvent | None:
        """Finish the step and write a checkpoint before nodes leave; return any interruption."""
        run, training = self.run, self.run.training
        if not training.savings:
            return None
        end = training.now + training.rest_of_step()
        if run.next_time() > end:
            training.train(end)
        if training.is_done:
            return None
        last = training.savings[-1]
        hit = run.pause("checkpoint_save", last.blocking + last.background)
        if hit is None:
            training.kept_now()
        return hit


class WithSpares(Restarting):
    """Replaces lost nodes by spares."""

    def _find_nodes(self) -> FailureEvent | None:
        run, nodes, spec = self.run, self.run.nodes, self.spec
        swapped = nodes.claim() > 0
        if self._wait():
            return run.pause("recovery", spec.rescheduling, is_queue=True)
        return run.pause("recovery", spec.swap) if swapped else None


class WithFewer(Restarting):
    """Continues with the remaining nodes, and adds those that come back."""

    def __init__(self, run: JobRun) -> None:
        super().__init__(run)
        self._sizes = sorted(run.plan.paces)
        self._running = run.plan.num_nodes

    def at_save(self) -> None:
        hit = self.run.pause("checkpoint_save", self.run.training.unwritten())
        self._restart(hit or FailureEvent(self.run.training.now, "join", "more nodes", (), 0.0))

    def returned(self, nodes: list[int]) -> bool:
        if self._size(self.run.nodes.used + len(self.run.nodes.idle)) <= self._running:
            return False
        if self.spec.rejoin == "at_once":
            return True
        self.run.training.stops_at_save = True
        return False

    def _find_nodes(self) -> FailureEvent | None:
        run = self.run
        if self._wait():
            return run.pause("recovery", self.spec.rescheduling, is_queue=True)
        return None

    def _is_enough(self) -> bool:
        self.run.nodes.claim()
        return self._size(self.run.nodes.used) > 0

    def _size(self, num_nodes: int) -> int:
        """The largest trainable number of nodes up to a limit; 0 if there is none."""
        return max((size for size in self._sizes if size <= num_nodes), default=0)

    def _resumed(self) -> None:
        run, nodes = self.run, self.run.nodes
        self._running = self._size(nodes.used)
        run.training.pace = run.plan.paces[self._running]
        run.training.note("nodes", self._running)
        run.training.stops_at_save = False
        self.returned([])  # nodes that came back during the start


class InGroups(Restarting):
    """Drops failed replica groups, continues with the others, and heals them."""

    def __init__(self, run: JobRun) -> None:
        super().__init__(run)
        self._num_groups = run.plan.num_nodes // self.spec.group_nodes
        self._out: dict[int, int] = {}  # absent groups, and their last alarm
        self._num_alarms = 0

    def react(self, event: FailureEvent) -> None:
        hit: FailureEvent | None = event
        while hit is not None:
            if not hit.nodes:
                self._restart(hit)
                return
            lost = self._groups_of(hit.nodes)
            fresh = lost - self._out.keys()
            for group in lost:
                self._heal(group, hit)
            if not fresh and self._has_quorum():
                return
            if hit.effect != "drain":
                self.run.training.drop_step()
            if len(self._out) == self._num_groups:
                self._restart(hit)
                return
            timeout = 0.0 if hit.effect == "drain" else self.spec.timeout
            hit = self.run.pause("recovery", timeout) or self.run.wait(self._has_quorum)
        self._take_pace()

    def returned(self, nodes: list[int]) -> bool:
        self.run.nodes.claim()
        for group in self._groups_of(nodes) & self._out.keys():
            self._heal(group, None)
        return False

    def _groups_of(self, nodes: Iterable[int]) -> set[int]:
        return {node // self.spec.group_nodes for node in nodes}

    def _whole(self) -> int:
        """Number of groups with all their nodes."""
        return int(self._num_groups - len(self._groups_of(self.run.nodes.away)))

    def _is_enough(self) -> bool:
        self.run.nodes.claim()
        return bool(self._whole() >= self.spec.min_replicas)

    def _has_quorum(self) -> bool:
        return bool(self._num_groups - len(self._out) >= self.spec.min_replicas)

    def _heal(self, group: int, event: FailureEvent | None) -> None:
        """Take a group out, and schedule its return if all its nodes are available."""
        self._num_alarms += 1
        self._out[group] = mine = self._num_alarms
        if group in self._groups_of(self.run.nodes.away):
            return
        spec, now = self.spec, self.run.training.now
        noticing = self._noticing(event) if event else 0.0
        seconds = noticing + spec.rescheduling + spec.restart + self.run.plan.heal

        def back() -> None:
            if self._out.get(group) == mine:
                del self._out[group]
                self._take_pace()

        self.run.alarm(now + seconds, back)

    def _take_pace(self) -> None:
        plan, whole = self.run.plan, self.run.plan.pace.headway
        share = (self._num_groups - len(self._out)) / self._num_groups
        by_samples = plan.length.counts_samples
        self.run.training.note("absent", *sorted(self._out))
        self.run.training.pace = plan.pace._replace(headway=whole * share if by_samples else whole)

    def _resumed(self) -> None:
        """Heal groups that missed the restart once their nodes are back."""
        self._out = {}
        for group in self._groups_of(self.run.nodes.away):
            self._num_alarms += 1
            self._out[group] = self._num_alarms
        self._take_pace()


class Moving(Restarting):
    """Moves the processes of a failing node to another one."""

    def __init__(self, run: JobRun) -> None:
        super().__init__(run)
        self._random = stream(run.plan.seed, "migrate", run.number)

    def react(self, event: FailureEvent) -> None:
        hit: FailureEvent | None = event
        while hit is not None:
            if not hit.nodes or not self._can_move(hit):
                self._restart(hit)
                return
            if hit.effect != "drain":
                self.run.training.drop_step()
            hit = self.run.pause("recovery", self._noticing(hit) + self.spec.migration)

    def _can_move(self, event: FailureEvent) -> bool:
        return event.effect == "drain" or self._random.random() < self.spec.share


POLICIES: tuple[tuple[type[Recovery], type[Restarting]], ...] = (
    (Elastic, WithFewer),
    (Migrate, Moving),
    (ReplicaGroups, InGroups),
    (Spares, WithSpares),
)
"""By class of recovery; all others restart."""


def policy_for(run: JobRun) -> Restarting:
    """Create the policy of a run."""
    kinds = (policy for kind, policy in POLICIES if isinstance(run.plan.recovery, kind))
    return next(kinds, Restarting)(run)
