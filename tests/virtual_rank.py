"""A rank of a torch script without a launcher: what it computes is charged, and meets nobody."""

from contextlib import contextmanager
from types import SimpleNamespace

from simdp.cluster import Cluster


class AloneRuntime:
    """What a rank needs of the runtime if it never meets another one."""

    def __init__(self, cluster):
        self.cluster, self.clock = cluster, [0.0] * cluster.world_size
        self.backends, self.now = {}, 0.0

    def busy(self, rank, seconds, activity, name):
        self.clock[rank] += seconds

    def is_beside(self, rank):
        return False

    def catch_up(self, rank, activity, name):
        return self.reach(rank, self.clock[rank])

    def reach(self, rank, instant):
        self.now = max(self.now, instant)
        return self.now


@contextmanager
def virtual_rank(devices=4, device="h100-sxm5-80gb", world_size=1, fake=False):
    """A rank on a node of so many devices, as this thread."""
    from simdp.torch import ranks
    from simdp.torch.cuda.faking import faked
    from simdp.torch.cuda.machine import KEY
    from simdp.torch.launch import Devices

    cluster = Cluster(
        world_size=world_size, topology="fully_connected", link="nvlink4", device=device
    )
    rank = ranks.Rank(0, AloneRuntime(cluster), devices, {}, [])
    part = Devices()
    with faked(fake), part.installed():
        ranks.become(rank)
        part.begin(rank)
        try:
            yield SimpleNamespace(rank=rank, machine=rank.state[KEY])
        finally:
            part.end(rank)
            ranks.become(None)
