"""Rank: the hands that a strategy works with, by what they are for.

`Compressing`, `Sharding` and `Scattering` are called as the rooms of the runtime rank that do it
(`simdp.engine.cohort`); the rest is in its rooms `computing`, `buckets`, `keeping` and its base.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from simdp.cluster import Overheads
from simdp.strategies.partition import Partition
from simdp.strategies.rank_types import (
    Around,
    Bucket,
    Factored,
    Factoring,
    Pending,
    Script,
    Selected,
    Tensor,
)
from simdp.workload import Workload
from simdp.workload.graph import Graph
from simdp.workload.layers import Buffer, Parameter


class Compressing(Protocol):
    """Comm hooks with state, and averages of weights."""

    def take_factors(
        self, bucket: Bucket, factoring: Factoring, label: str
    ) -> Generator[Any, None, Factored]:
        """Take each matrix M of a bucket apart: P = M Q, with an orthonormal Q.

        First what was lost the last time is added, with error feedback.
        """

    def unpacking_seconds(self, factored: Factored) -> float:
        """How long the sums of what travels as it is take to get back into the bucket [s]."""

    def turn_factors(self, factored: Factored) -> float:
        """Make the sums of P orthonormal, and take Q = M^T P.

        Returns
        -------
        float
            How long that takes on the slowest device [s].
        """

    def join_factors(self, factored: Factored, divisor: float) -> Script:
        """Make averages of the sums: P Q^T, divided; and note what is lost of each gradient."""

    def select(
        self, bucket: Bucket, ratio: float, divisor: float, error_feedback: bool, label: str
    ) -> Generator[Any, None, Selected]:
        """Choose a part of a bucket's entries, those of largest magnitude, and divide them.

        With error feedback, what was not sent the last time is added first.
        """

    def all_gather_selected(
        self, selected: Selected, label: str, wait: float
    ) -> Generator[Any, None, Pending]:
        """Start to give the chosen entries of every rank to all, after ``wait`` seconds."""

    def add_selected(self, selected: Selected) -> Script:
        """Make the bucket's content the sum of all that was chosen, 0 elsewhere."""

    def average_weights(self, copies: bool) -> Script:
        """Give every rank the mean of all ranks' weights, and wait for it.

        They travel as one buffer, divided before the sum. With ``copies`` the copies into it and
        back are charged.
        """


class Sharding(Protocol):
    """Parameters, gradients and optimizer state dealt to the ranks."""

    @property
    def workload(self) -> Workload:
        """What is trained."""

    @property
    def graph(self) -> Graph:
        """The model's calls, and what they learn."""

    @property
    def partition(self) -> Partition:
        """What the strategy deals to the ranks; see `Strategy.partition`."""

    def shard(self) -> Script:
        """From here on each rank has only what `Strategy.partition` deals to it."""

    def unit_bucket(self, unit: int) -> Generator[Any, None, Bucket]:
        """Make a flat buffer for the whole gradients of a unit, whose pieces go to their owners."""

    def reduce_scatter(
        self, unit: int, bucket: Bucket, label: str
    ) -> Generator[Any, None, Sequence[Pending]]:
        """Start to sum a unit's gradients, each piece on its owner, and forget the whole ones.

        What an owner gets is added to its piece of the step's gradients. Where several groups of
        ranks each have all pieces, the groups' pieces are then summed over the groups.
        """

    def release(self, unit: int) -> Script:
        """Give the memory of a unit's bucket back."""

    def all_gather(self, unit: int, label: str) -> Generator[Any, None, Sequence[Pending]]:
        """Start to put a unit's parameters together from their pieces, on every rank."""

    def free(self, unit: int) -> Script:
        """Forget a unit's parameters, but for each rank's own piece."""

    def send_owned(
        self, names: Sequence[str], label: str, root: int
    ) -> Generator[Any, None, Pending]:
        """Start to broadcast parameters from the rank that has updated them."""

    @property
    def skipped(self) -> bool:
        """Whether an inf or nan kept the last update from changing anything."""

    def agree(self) -> Script:
        """Sum over the ranks what the pieces of gradients tell of the whole, and wait for it.

        That is the norm, where gradients are clipped, and whether there is an inf or nan, where
        the loss is scaled.
        """


class Scattering(Protocol):
    """A batch in one place, cut over the ranks."""

    def scatter_batch(self, micro_step: int, targets: bool = False) -> Script:
        """Let rank 0 have a micro-batch, and hand out each rank's piece, one after the other.

        With ``targets`` these are handed out too; else they stay where they are.
        """

    def replicate(self, tensors: Sequence[Tensor], active: Sequence[bool], label: str) -> Script:
        """Replace parameters, or buffers of one dtype, of some ranks by rank 0's; wait for it."""

    def own_batch(self, micro_step: int) -> Script:
        """Let every rank have its own part of a micro-batch."""

    def forward_together(self, micro_step: int, gil: float = 0.0, losses: bool = False) -> Script:
        """Run the model of every rank that has samples, with no collective in between.

        Of a kernel's launch, the part ``gil`` is done by one rank at a time, as where all are
        threads of one interpreter. With ``losses`` each rank computes that of its own piece too.
        """

    def gather_outputs(self, micro_step: int, root: int) -> Script:
        """Copy the outputs of all ranks to a rank, one after the other."""

    def gather_losses(self, micro_step: int, root: int) -> Script:
        """Copy the losses of all ranks to a rank, one after the other; their mean counts."""

    def loss_of_outputs(self, micro_step: int, root: int) -> Script:
        """Let a rank compute the loss of all outputs that it has gathered."""

    def backward_together(self, micro_step: int, root: int, losses: bool = False) -> Script:
        """Hand the gradients of what was gathered back from the root; run every backward."""

    def reduce_gradients(
        self, names: Sequence[str], micro_step: int, label: str
    ) -> Generator[Any, None, Pending]:
        """Start to sum gradients of a micro-step on rank 0, in one flat buffer."""

    def take_sums(self, micro_step: int) -> Script:
        """Add the sums to rank 0's gradients of the step, and let the copies go."""

    def meet(self) -> Script:
        """Hold every rank until all have come, at no cost."""

    @property
    def scatters(self) -> bool:
        """Whether rank 0 has the batch of all ranks; see `Strategy.scatters`."""

    @property
    def infers(self) -> bool:
        """Whether outputs alone are asked for, and nothing is learned: ``mode: inference``."""


class Rank(Compressing, Sharding, Scattering, Protocol):
    """What a strategy can do on a rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    @property
    def step(self) -> int:
        """Number of the current step, from 0."""

    @property
    def num_reduced_before(self) -> int:
        """Steps whose gradients were reduced before the current one.

        A model of layer times begins with 1: its profile is of a step long after the first.
        """

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Learned tensors, in torch's order of registration."""

    @property
    def buffers(self) -> Sequence[Buffer]:
        """Tensors that are kept but not learned, in torch's order of registration."""

    @property
    def ready_order(self) -> Sequence[str]:
        """Names of the parameters in the order in which backward finishes their gradients."""

    @property
    def unused(self) -> Sequence[str]:
        """Names of the parameters that get no gradient."""

    @property
    def itemsize(self) -> int:
        """Bytes per element of a gradient."""

    @property
    def overheads(self) -> Overheads:
        """What the software costs on the cluster."""

    @property
    def node_bandwidth(self) -> float:
        """What a node can send to others [bytes/s]; infinite with one node."""

    @property
    def num_micro_steps(self) -> int:
        """Micro-steps of the current step."""

    @property
    def closes_epoch(self) -> bool:
        """Whether the current step is the last one of its epoch, or of the run."""

    def active(self, micro_step: int | None = None) -> list[bool]:
        """Which ranks have samples in a micro-step, or in any one of the step."""

    def scale_losses(self, by_shard: bool) -> None:
        """Choose how each loss counts in this step.

        Every micro-step's loss counts with its share of the rank's samples; with ``by_shard`` also
        each rank's with its share of what all ranks' losses average, times world_size.
        """

    def forward(self, micro_step: int, around: Around | None = None) -> Script:
        """Run the model and the loss on a micro-batch."""

    def backward(
        self,
        micro_step: int,
        hook: Callable[[str], Script] | None = None,
        around: Around | None = None,
    ) -> Script:
        """Add the micro-batch's gradients to those of the step, the last layer first.

        Each time a parameter's gradient is complete, ``hook(name)`` is run, as torch's hooks are.
        ``around`` must be given where it was in forward.
        """

    def ready_times(self, micro_step: int = 0) -> Sequence[float]:
        """When the gradients of `ready_order` become ready, if nothing gets in the way.

        Returns
        -------
        sequence of float
            From the start of the micro-step's backward to each gradient, on the slowest device,
            with its hook, without stragglers and collectives [s].
        """

    def bucket(self, names: Sequence[str], compress: str | None = None) -> Bucket:
        """Make a flat buffer for the gradients of some parameters, in this order.

        With ``compress`` it holds elements of that dtype.
        """

    def fill(self, bucket: Bucket, name: str, divisor: float, copies: bool) -> Script:
        """Write a gradient, divided, into its place in the bucket; 0 where there is none.

        With ``copies`` the copy is charged: it reads and writes the gradient in device memory.
        """

    def all_reduce(
        self, bucket: Bucket, label: str, wait: float = 0.0, delay: float = 0.0
    ) -> Generator[Any, None, Pending]:
        """Start to sum a bucket over the ranks, on the communication stream.

        It does not begin before ``wait`` seconds have passed, as where a background thread looks
        for work only now and then. ``delay`` is what it does on its stream before it begins [s].
        """

    def all_reduce_bytes(self, nbytes: float, label: str) -> Generator[Any, None, Pending]:
        """Start an all_reduce of bookkeeping that has no part in the arithmetic."""

    def hold(self, part: str, nbytes: float) -> Script:
        """Take memory for a part of `simdp.results.memory.PARTS`, or give it back if negative."""

    def wait(self, pending: Sequence[Pending]) -> Script:
        """Hold the compute stream until collectives are done."""

    def all_reduce_seconds(self, nbytes: float) -> float:
        """Predict an all_reduce that every rank enters at once, with nothing beside it [s]."""

    def empty(self, bucket: Bucket, copies: bool, divisor: float = 1.0) -> Script:
        """Make the bucket's content, divided, the gradients of its parameters."""

    def broadcast(
        self, tensors: Sequence[Tensor], label: str, root: int = 0, group: str | None = None
    ) -> Script:
        """Replace parameters, or buffers of one dtype, by the root's; wait for it.

        In process groups, each does so by itself, and the root is a place in the group.
        """

    def itemsize_of(self, tensor: Tensor) -> int:
        """Bytes per element of a parameter or buffer."""

    def update(self, active: Sequence[bool] | None = None) -> Script:
        """Let the optimizer change the weights of all or some ranks, and forget the gradients."""
