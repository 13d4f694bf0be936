"""Strategy: a training loop as a generator of operations.

A strategy says what happens, in which order, and nothing beside it: it knows the facts of a run and
neither numbers nor time, and reads like the training loop of a rank program. One loop serves all
ranks. What others want to know of it is read off its operations (`simdp.steps.program`).
"""

from __future__ import annotations

from abc import abstractmethod
from math import ceil
from pathlib import Path
from typing import ClassVar, Self

from simdp.arrays import Ints
from simdp.spec import Spec
from simdp.steps.facts import Facts, Ops, Step
from simdp.workload import Workload

__all__ = ["Facts", "Ops", "Step", "Strategy", "copies_charged", "uneven"]


class Strategy(Spec):
    """How ranks train together."""

    kind: str

    one_process: ClassVar[bool] = False
    """Whether all devices are of one process, whose only model is on device 0."""

    player: ClassVar[str] = "together"
    """Who plays it: all ranks ``together``, or a ``server``; see `simdp.engine.simulate.play`."""

    @property
    def updates_on_host(self) -> bool:
        """Whether the optimizer works, and keeps its state, in the memory of the host."""
        return False

    @property
    def keeps_parameters_on_host(self) -> bool:
        """Whether pieces of parameters are kept there too."""
        return False

    def settled(self, base: Path) -> Self:
        """The same strategy with its files read; relative paths start from ``base``.

        Raises
        ------
        ScenarioError
            With a line for every file that cannot be read, or does not say what it should.
        """
        return self

    @abstractmethod
    def setup(self, facts: Facts) -> Ops:
        """Prepare the ranks, before the first step."""

    @abstractmethod
    def train_step(self, facts: Facts, step: Step) -> Ops:
        """One optimizer step."""

    def infer_step(self, facts: Facts, step: Step) -> Ops:
        """One step of ``mode: inference``."""
        raise AssertionError(f"{self.kind} serves no inference; the scenario's checks refuse it")

    def step(self, facts: Facts, step: Step) -> Ops:
        """One step of the workload's mode."""
        return (self.infer_step if facts.is_inference else self.train_step)(facts, step)

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        """Say why this strategy cannot train this on so many ranks, led by a key; or None."""
        return None

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        """Say why replica groups cannot drop out of steps and come back, led by a key; or None."""
        return (
            f"kind: {self.kind} knows no replica groups that go on without each other; use ddp, "
            "hsdp or local_sgd, or a recovery that restarts all ranks."
        )

    def cast_units(self, workload: Workload) -> tuple[str, ...]:
        """Modules within the root whose outputs the strategy casts to its ``output_dtype``."""
        return ()

    @property
    def steps_together(self) -> int:
        """Steps after which ranks agree on weights, and before which none can drop out."""
        return 1

    def whole_periods(self, least: int) -> int:
        """Steps of a run whose metrics cover whole periods.

        Parameters
        ----------
        least : int
            Steps that the run must have, the first of which metrics leave out.
        """
        return 1 + self.steps_together * max(ceil((least - 1) / self.steps_together), 1)

    def after_warmup(self) -> Self:
        """The same strategy as it trains after its warm-up steps."""
        return self

    def num_updates(self, world_size: int, num_steps: int) -> int:
        """Count the optimizer's updates in so many steps, which the learning rate follows."""
        return num_steps


def infers(strategy: Strategy | type[Strategy]) -> bool:
    """Whether a strategy can serve ``mode: inference``."""
    kind = strategy if isinstance(strategy, type) else type(strategy)
    return kind.infer_step is not Strategy.infer_step


def copies_charged(asked: bool | None, facts: Facts) -> bool:
    """Whether copies of gradients cost time: as the strategy says, or else the cluster."""
    return facts.overheads.copies if asked is None else asked


def uneven(workload: Workload) -> str | None:
    """Say that ranks run out of samples at different times, which `DDP` alone handles; or None."""
    if len(set(workload.samples_per_rank or [])) <= 1:
        return None
    return (
        "kind: ranks have different numbers of samples, and those that run out would leave the "
        "others waiting; use {kind: ddp, join: true}."
    )


def members(ranks: Ints) -> tuple[tuple[int, ...], ...]:
    """Process groups, as `NewGroup` takes them."""
    return tuple(tuple(row) for row in ranks.tolist())
