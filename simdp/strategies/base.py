"""Strategy: a training loop as a script.

A script is a generator. What it yields is for the engine, which charges the time; a strategy only
passes on what the methods of its rank yield, so that it reads like the training loop of a rank
program. One script serves every rank: ranks that do the same work run it together, as one cohort.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from simdp.arrays import Ints
from simdp.spec import Spec
from simdp.strategies.partition import Partition
from simdp.strategies.rank import Rank
from simdp.strategies.rank_types import (
    Around,
    Bucket,
    Factor,
    Factored,
    Factoring,
    Pending,
    Script,
    Selected,
    Tensor,
)
from simdp.workload import Workload
from simdp.workload.layers import Parameter

__all__ = [
    "Around",
    "Bucket",
    "Factor",
    "Factored",
    "Factoring",
    "Pending",
    "ProcessGroups",
    "Rank",
    "Script",
    "Selected",
    "Strategy",
    "Tensor",
    "uneven",
]


class ProcessGroups(NamedTuple):
    """Groups of ranks that call the same collectives of their own at the same time.

    Attributes
    ----------
    name : str
        What the launcher knows them by.
    ranks : ndarray, shape `(num_groups, group size)`, int64
        Every rank is in one group.
    stream : int
        The communication stream that takes their collectives.
    collectives : tuple of str
        Keys of ``collectives``.
    """

    name: str
    ranks: Ints
    stream: int
    collectives: tuple[str, ...]


class Strategy(Spec):
    """How ranks train together."""

    kind: str

    infers: ClassVar[bool] = False
    """Whether it can serve ``mode: inference``."""

    one_process: ClassVar[bool] = False
    """Whether all devices are of one process, whose only model is on device 0."""

    player: ClassVar[str] = "cohort"
    """Who plays it: a ``cohort`` in step, or a ``server``; see `simdp.engine.simulate.play`."""

    looks_ahead: ClassVar[bool] = False
    """Whether what it sends when follows from times that it foresees."""

    @abstractmethod
    def setup(self, rank: Rank) -> Script:
        """Prepare the ranks, before the first step."""

    @abstractmethod
    def train_step(self, rank: Rank) -> Script:
        """One optimizer step."""

    def infer_step(self, rank: Rank) -> Script:
        """One step of ``mode: inference``."""
        raise AssertionError(f"{self.kind} serves no inference; the scenario's checks refuse it")

    def scatters(self, workload: Workload) -> bool:
        """Whether rank 0 has the batch of all ranks, and hands out its pieces."""
        return False

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        """Say why this strategy cannot train this on so many ranks, led by a key; or None."""
        return None

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        """Collectives that the strategy may call: keys of ``collectives``, and roots.

        Parameters
        ----------
        world_size : int
            Number of ranks.
        workload : Workload
            What they train.
        num_samples : int
            Of the data set.
        """
        return []

    def keeps_errors(self) -> bool:
        """Whether a copy of all gradients is kept from step to step, of what they have lost."""
        return False

    def num_updates(self, world_size: int, num_steps: int) -> int:
        """Count the optimizer's updates in so many steps, which the learning rate follows."""
        return num_steps

    def process_groups(
        self, workload: Workload, local_size: int, world_size: int
    ) -> list[ProcessGroups]:
        """Groups with collectives of their own, beside those of `uses`; as `partition`."""
        return []

    def partition(self, workload: Workload, local_size: int, world_size: int) -> Partition | None:
        """How parameters, gradients and optimizer state are dealt to the ranks; None: not at all.

        Parameters
        ----------
        workload : Workload
            What they train.
        local_size, world_size : int
            Ranks of a node, and in all.
        """
        return None

    def sent_nbytes(self, rank: Rank) -> list[int]:
        """Bytes of each bucket of gradients in a steady step, in launch order; or none.

        What depends on time is that of the rank's current step.
        """
        return []

    def steps_alone(self, step: int) -> bool:
        """Whether ranks step by gradients of their own in a step, from 0."""
        return False

    def gradients_stay(self) -> bool:
        """Whether gradients live in buckets, and so keep their memory from step to step."""
        return False

    def bucket_memory(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> float:
        """Bytes that buckets take on a device beside the gradients themselves.

        Parameters
        ----------
        parameters : sequence of Parameter
            In order of registration.
        ready : sequence of str
            Names in the order in which gradients become ready.
        itemsize : int
            Bytes per element of a gradient.
        """
        return 0.0


def uneven(workload: Workload) -> str | None:
    """Say that ranks run out of samples at different times, which `DDP` alone handles; or None."""
    if len(set(workload.samples_per_rank or [])) <= 1:
        return None
    return (
        "kind: ranks have different numbers of samples, and those that run out would leave the "
        "others waiting; use {kind: ddp, join: true}."
    )
