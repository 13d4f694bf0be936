"""Witness: the history of a job's run, by which a small run trains with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.engine.job.history import Attempt, History
from simdp.engine.job.planning import planned
from simdp.engine.job.policies import policy_for
from simdp.engine.job.run import Run
from simdp.engine.job.training import Mark
from simdp.errors import ScenarioError
from simdp.job.recovery.replica_groups import ReplicaGroups
from simdp.scenario import Scenario


def history_of(scenario: Scenario, number: int = 0) -> History:
    """What happened to the steps of one of a job's runs.

    Parameters
    ----------
    scenario : Scenario
        Without a sweep.
    number : int
        Which run of its ensemble, from 0.

    Returns
    -------
    History
        For `simdp.engine.job.through.train_through`.

    Raises
    ------
    ScenarioError
        If its steps are not counted, or the job has no end.
    """
    plan, recovery = planned(scenario), scenario.recovery
    if plan.length.counts_samples:
        raise ScenarioError(
            [
                "workload.epochs: a history counts steps, of which other ranks make more or fewer "
                "of an epoch; write workload.steps."
            ]
        )
    run = Run(plan, number)
    run.play(policy_for(run))
    groups = 1
    if isinstance(recovery, ReplicaGroups):
        groups = plan.num_nodes // recovery.group_nodes
    told = _Told(groups, plan.num_nodes, plan.devices_per_node)
    return told.history(run.training.marks, int(plan.length.num_steps))


class _Told:
    """Makes attempts of what has been noted.

    Parameters
    ----------
    num_groups, num_nodes, devices_per_node : int
        Replica groups, 1 where there are none; nodes of the cluster, and ranks of each.
    """

    def __init__(self, num_groups: int, num_nodes: int, devices_per_node: int) -> None:
        self.num_groups, self.num_nodes = num_groups, num_nodes
        self.devices_per_node = devices_per_node
        self.attempts: list[tuple[int, Attempt]] = []  # and after how many restarts
        self.at, self.restarts = 0, 0
        self.world_size: int | None = None
        self.absent, self.back = frozenset[int](), frozenset[int]()

    def history(self, marks: Sequence[Mark], num_steps: int) -> History:
        """Read all marks of a run."""
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
        """Do steps; groups that are back copy the state in the first of them."""
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
            self.attempts[-1] = turn, last._replace(stop=stop)  # nobody else goes on
        else:
            self.attempts.append((self.restarts, made))
        self.at = stop if fate == "kept" else self.at

    def go_back(self, to: int) -> None:
        """Lose all steps after a checkpoint; of some ranks' after others', as by the first ones."""
        found: list[tuple[int, Attempt]] = []
        for turn, attempt in self.attempts:
            if attempt.stop <= to or (attempt.fate != "kept" and attempt.first < to):
                found.append((turn, attempt))
                continue
            if attempt.first < to:
                found.append((turn, attempt._replace(stop=to)))
            last = found[-1] if found else None
            if last is not None and last[0] == turn and last[1].fate == "lost":
                longer = max(last[1].stop, attempt.stop)
                found[-1] = turn, last[1]._replace(stop=longer)
            else:
                found.append((turn, attempt._replace(first=to, fate="lost")))
        self.attempts, self.at = found, to
        self.restarts += 1
