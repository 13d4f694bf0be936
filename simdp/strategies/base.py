"""Strategy and Rank: a training loop as a script, and the hands that it works with.

A script is a generator. What it yields is for the engine, which charges the time; a strategy only
passes on what the methods of its rank yield, so that it reads like the training loop of a rank
program. One script serves every rank: ranks that do the same work run it together, as one cohort.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from simdp.cluster import Overheads
from simdp.spec import Spec
from simdp.workload import Workload
from simdp.workload.layers import Buffer, Parameter

Script = Generator[Any, None, None]
"""A generator that the engine drives."""

Tensor = Parameter | Buffer


class Pending(Protocol):
    """A collective under way."""


class Bucket(Protocol):
    """Gradients that travel together, as one flat buffer on every rank."""

    @property
    def nbytes(self) -> float:
        """Size of the buffer [bytes]."""


class Rank(Protocol):
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

    def forward(self, micro_step: int) -> Script:
        """Run the model and the loss on a micro-batch."""

    def backward(self, micro_step: int, hook: Callable[[str], Script] | None = None) -> Script:
        """Add the micro-batch's gradients to those of the step, the last layer first.

        Each time a parameter's gradient is complete, ``hook(name)`` is run, as torch's hooks are.
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
        self, bucket: Bucket, label: str, wait: float = 0.0
    ) -> Generator[Any, None, Pending]:
        """Start to sum a bucket over the ranks, on the communication stream.

        It does not begin before ``wait`` seconds have passed, as where a background thread looks
        for work only now and then.
        """

    def all_reduce_bytes(self, nbytes: float, label: str) -> Generator[Any, None, Pending]:
        """Start an all_reduce of bookkeeping that has no part in the arithmetic."""

    def wait(self, pending: Sequence[Pending]) -> Script:
        """Hold the compute stream until collectives are done."""

    def all_reduce_seconds(self, nbytes: float) -> float:
        """Predict an all_reduce that every rank enters at once, with nothing beside it [s]."""

    def empty(self, bucket: Bucket, copies: bool, divisor: float = 1.0) -> Script:
        """Make the bucket's content, divided, the gradients of its parameters."""

    def broadcast(self, tensors: Sequence[Tensor], label: str, root: int = 0) -> Script:
        """Replace parameters, or buffers of one dtype, by the root's; wait for it."""

    def itemsize_of(self, tensor: Tensor) -> int:
        """Bytes per element of a parameter or buffer."""

    def update(self, active: Sequence[bool] | None = None) -> Script:
        """Let the optimizer change the weights of all or some ranks, and forget the gradients."""


class Strategy(Spec):
    """How ranks train together."""

    kind: str

    @abstractmethod
    def setup(self, rank: Rank) -> Script:
        """Prepare the ranks, before the first step."""

    @abstractmethod
    def train_step(self, rank: Rank) -> Script:
        """One optimizer step."""

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

    def sent_nbytes(self, rank: Rank) -> list[int]:
        """Bytes of each bucket of gradients in a steady step, in launch order; or none.

        What depends on time is that of the rank's current step.
        """
        return []

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
