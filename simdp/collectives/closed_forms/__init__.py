"""Alpha-beta formulas: the oracle of the tests.

Equal, uncontended links; alpha is the latency of a transfer over its whole route [s], beta the
inverse bandwidth [s/byte], S the buffer [bytes], n the number of ranks.
"""

from simdp.collectives.closed_forms.composed import (
    hierarchical_all_reduce_time,
    hierarchical_all_to_all_time,
    hierarchical_reduce_scatter_time,
    nvls_all_reduce_time,
    nvls_reduce_scatter_time,
    switch_tree_time,
    torus2d_all_reduce_time,
)
from simdp.collectives.closed_forms.exchanges import (
    binomial_reduce_time,
    direct_all_reduce_time,
    direct_reduce_scatter_time,
    halving_doubling_all_reduce_time,
    halving_doubling_reduce_scatter_time,
    halving_doubling_reduce_time,
    pairwise_all_to_all_time,
    recursive_doubling_all_gather_time,
    recursive_doubling_all_reduce_time,
)
from simdp.collectives.closed_forms.rings_and_trees import (
    bidirectional_ring_all_reduce_time,
    bidirectional_ring_broadcast_time,
    bidirectional_ring_reduce_scatter_time,
    double_binary_tree_all_reduce_time,
    double_binary_tree_reduce_time,
    multi_ring_all_reduce_time,
    multi_ring_reduce_scatter_time,
    naive_all_reduce_time,
    ring_all_reduce_time,
    ring_broadcast_time,
    ring_reduce_scatter_time,
    tree_all_reduce_time,
    tree_reduce_time,
)

__all__ = [
    "bidirectional_ring_all_reduce_time",
    "bidirectional_ring_broadcast_time",
    "bidirectional_ring_reduce_scatter_time",
    "binomial_reduce_time",
    "direct_all_reduce_time",
    "direct_reduce_scatter_time",
    "double_binary_tree_all_reduce_time",
    "double_binary_tree_reduce_time",
    "halving_doubling_all_reduce_time",
    "halving_doubling_reduce_scatter_time",
    "halving_doubling_reduce_time",
    "hierarchical_all_reduce_time",
    "hierarchical_all_to_all_time",
    "hierarchical_reduce_scatter_time",
    "multi_ring_all_reduce_time",
    "multi_ring_reduce_scatter_time",
    "naive_all_reduce_time",
    "nvls_all_reduce_time",
    "nvls_reduce_scatter_time",
    "pairwise_all_to_all_time",
    "recursive_doubling_all_gather_time",
    "recursive_doubling_all_reduce_time",
    "ring_all_reduce_time",
    "ring_broadcast_time",
    "ring_reduce_scatter_time",
    "switch_tree_time",
    "torus2d_all_reduce_time",
    "tree_all_reduce_time",
    "tree_reduce_time",
]
