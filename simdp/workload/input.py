"""Cost of the input pipeline: reading, decoding and copying of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from simdp.files import Catalogue
from simdp.spec import Bandwidth, Bool, Bytes, Int, Seconds, Spec, from_catalogue, problem

LINKS = Catalogue(Path(__file__).parents[1] / "cluster" / "links")
"""The catalogue of links as data: a workload knows nothing of clusters."""


def _figures(name: str) -> dict[str, Any]:
    """Figures of a link of the catalogue; what collectives make of it is no matter here."""
    return {key: value for key, value in LINKS.figures(name).items() if key != "transport"}


class HostLink(Spec):
    """One direction of the link from the host to its devices; as a link of the cluster.

    Attributes
    ----------
    name : str or None
        What to call it; a catalogue entry's own.
    alpha : float
        Latency of a copy [s].
    bandwidth : float
        Bytes per second.
    """

    name: str | None = None
    alpha: Seconds
    bandwidth: Bandwidth


class Input(Spec):
    """The input pipeline of every rank: workers that make batches, and the copy to the device.

    Workers take turns, as those of torch's DataLoader; each makes whole batches, one for each
    micro-step, at most ``workers * prefetch`` ahead of the one that the training loop takes.

    Attributes
    ----------
    workers : int
        Processes per rank (num_workers). With 0 the training process makes the batches itself, when
        it needs them.
    prefetch : int
        Batches ahead per worker (prefetch_factor).
    per_sample : float
        What a worker needs for a sample [s].
    sample_size : float
        Bytes of a sample that are copied to the device.
    link : HostLink or None
        What they cross: a catalogue name, or figures.
    pinned : bool
        True: while a batch is computed with, the next one is taken from the workers and copied
        (pin_memory and non_blocking on a stream of its own); without workers there is no next one.
        False: the compute stream copies.
    shared_link : int
        Ranks of a node that share the link, each with an equal part of its bandwidth.
    """

    workers: Int = Field(0, ge=0, le=4096)
    prefetch: Int = Field(2, ge=1, le=4096)
    per_sample: Seconds = 0.0
    sample_size: Bytes = 0.0
    link: Annotated[HostLink, from_catalogue("link", LINKS.names, _figures)] | None = None
    pinned: Bool = True
    shared_link: Int = Field(1, ge=1, le=2**20)

    @model_validator(mode="after")
    def _costs_something(self) -> Input:
        if not self.per_sample and not self.sample_size:
            raise problem(
                "the input costs nothing; give per_sample, such as 3 ms, or sample_size and link."
            )
        if self.sample_size and self.link is None:
            raise problem("sample_size needs a link to cross; add for example link: pcie3-x16.")
        if self.link is not None and not self.sample_size:
            raise problem("link: nothing crosses it; add sample_size, such as 602 kB.")
        return self

    def copy_time(self, samples: float, sharers: int = 1) -> float:
        """Time to copy a batch, while so many ranks use the link [s]."""
        if self.link is None or not samples:
            return 0.0
        return self.link.alpha + sharers * samples * self.sample_size / self.link.bandwidth

    def blocking_time(self, samples: float) -> float:
        """Time for which a batch keeps the compute stream of one device busy [s]."""
        return 0.0 if self.pinned and self.workers else self.copy_time(samples)


class Host(Spec):
    """Time of the host that its device waits for, such as Python between two steps.

    Attributes
    ----------
    step : float
        At the beginning of every step, on every rank [s].
    per_neighbour : float
        The same for each further rank of the job that shares the node, such as its loaders and its
        Python competing for the node's cores [s]; a step measured on one device knows none of it.
    async_launch : bool
        Whether the host launches kernels while the device works on earlier ones. Then a device that
        has enough to do waits for no launch, and one with little to do for every one; false charges
        a launch to each kernel.
    """

    step: Seconds = 0.0
    per_neighbour: Seconds = 0.0
    async_launch: Bool = False

    def before_step(self, local_size: int) -> float:
        """Time that a step begins with, on each of ``local_size`` ranks of a node [s]."""
        return self.step + self.per_neighbour * (local_size - 1)
