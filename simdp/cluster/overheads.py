"""Overheads: what the software that trains together costs, beside arithmetic and wires.

Every figure is 0 unless it is given, and then costs nothing. Machines of the catalogue bring
calibrated ones.
"""

from __future__ import annotations

from pydantic import Field

from simdp.spec import Bool, Float, Seconds, Spec


class Overheads(Spec):
    """Costs of hooks, launches and messages, and what compute and communication do to each other.

    Attributes
    ----------
    hook : float
        Time on the compute stream per gradient that is taken into a bucket [s]: DDP's hook, and
        the launch of the copy.
    launch : float
        Time on the compute stream per collective that is started [s].
    message : float
        Time on the communication stream per collective, before it begins [s]: the host that
        hands it over.
    message_per_rank : float
        The same for each rank of the world [s]: a coordinator that hears all of them, as
        Horovod's does.
    compute_slowdown : float
        The part by which compute takes longer while a collective is under way: its kernels hold
        multiprocessors and memory bandwidth. About 0.6 on V100 with NVLink: torch's DDP benchmark
        (pytorch benchmarks/distributed/ddp/README.md) finds steps 3 to 4 % longer, all of which
        comes from the few milliseconds for which collectives run. Without NVLink, where copies
        leave no room for kernels, up to 10: one after the other.
    collective_slowdown : float
        The part by which a collective takes longer while compute is under way.
    copies : bool
        Charge the copies of gradients into buckets and back, at the memory's bandwidth, where the
        strategy does not say.
    """

    hook: Seconds = 0.0
    launch: Seconds = 0.0
    message: Seconds = 0.0
    message_per_rank: Seconds = 0.0
    compute_slowdown: Float = Field(0.0, ge=0, le=10)
    collective_slowdown: Float = Field(0.0, ge=0, le=10)
    copies: Bool = False

    def before_collective(self, world_size: int) -> float:
        """Time that a collective keeps the communication stream before it begins [s].

        Parameters
        ----------
        world_size : int
            Number of ranks that take part.
        """
        return self.message + self.message_per_rank * world_size
