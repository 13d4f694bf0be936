"""How much memory a tensor takes."""

from for_each import for_each

from simdp.cluster import Cluster
from simdp.cluster.allocators import ALLOCATORS, Cuda

MiB = 2**20


@for_each("kind", ALLOCATORS)
@for_each("nbytes", [0, 1, 511, 512, 8000, MiB, 10 * MiB, 16_000_000, 10**9])
def test_no_tensor_takes_less_than_it_holds_or_more_than_another_segment(kind, nbytes):
    taken = ALLOCATORS[kind]().taken(nbytes)
    assert nbytes <= taken < nbytes + 2 * MiB
    assert taken > 0 or nbytes == 0


@for_each(
    ("nbytes", "taken"),
    [
        (0, 0),
        (1, 512),
        (512, 512),
        (8000, 8192),
        (10 * MiB - 1000, 10 * MiB - 512),
        (10 * MiB, 10 * MiB),
        (16_000_000, 8 * 2 * MiB),  # 0.74 MiB would be left, which is not split off
        (11 * MiB - 512, 11 * MiB - 512),  # 1 MiB and a block are left, which are
        (11 * MiB, 12 * MiB),
        (320_160_000, 153 * 2 * MiB),
    ],
)
def test_the_caching_allocator_rounds_as_torch_does(nbytes, taken):
    assert Cuda().taken(nbytes) == taken


def test_a_cluster_counts_exactly_unless_it_is_told_otherwise():
    device = {"peak": {"float32": "1 TFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 GB/s"}
    assert Cluster(world_size=1, device=device).allocator.kind == "exact"
    assert Cluster(world_size=1, device=device, allocator="cuda").allocator.kind == "cuda"
