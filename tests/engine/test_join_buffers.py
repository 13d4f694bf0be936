"""Batch norm under torch's Join: whose running statistics count when ranks run out of samples."""

import numpy as np
import pytest
from for_each import for_each
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.steps.ops import Broadcast

LAYERS = [
    {"name": "l1", "kind": "linear", "in_features": 3, "out_features": 2},
    {"name": "bn", "kind": "batch_norm1d", "num_features": 2},
]
WEIGHTS = {
    "l1.weight": np.array([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]]),
    "l1.bias": np.zeros(2),
    "bn.weight": np.ones(2),
    "bn.bias": np.zeros(2),
}

# torch 2.13.0: DDP processes of gloo within Join, SGD with lr 0.1, batches of 2, float64
CASES = [
    (
        [10, 6],
        [0.0013641226058820222, -0.004908195537132479],
        [0.6066912742917528, 0.6693063523731393],
    ),
    (
        [6, 10],
        [0.0073370124219935395, -0.005132496312476004],
        [0.6094547721839636, 0.6772082024018357],
    ),
    (
        [4, 8, 4],
        [0.01069733016556873, -0.03936421082283278],
        [0.6697124642533877, 0.7354174463368226],
    ),
]


JOIN = {"kind": "ddp", "join": True}


def joined(folder, parts, **more):
    x, y = np.sin(np.arange(48) * 1.7).reshape(16, 3), np.cos(np.arange(32) * 0.9).reshape(16, 2)
    np.savez(folder / "data.npz", x=x, y=y)
    np.savez(folder / "weights.npz", **WEIGHTS)
    workload = {
        "model": {"kind": "sequential", "layers": LAYERS},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "samples_per_rank": parts,
        "microbatch": 2,
        "dtype": "float64",
    }
    cluster = {"world_size": len(parts), **FAST}
    raw = {"cluster": cluster, "workload": workload, "strategy": JOIN}
    return checked({**raw, **more}, folder)


@for_each(("parts", "mean", "variance"), CASES)
def test_buffers_are_those_of_the_last_rank_that_has_samples(tmp_path, parts, mean, variance):
    """torch 2.13: _find_common_rank, since rank 0 may have run out and then hold stale ones."""
    for tensors in simdp.simulate(joined(tmp_path, parts)).replicas:
        np.testing.assert_allclose(tensors["bn.running_mean"], mean, rtol=1e-12)
        np.testing.assert_allclose(tensors["bn.running_var"], variance, rtol=1e-12)
        assert tensors["bn.num_batches_tracked"] == max(parts) / 2


def test_every_rank_may_give_its_buffers_away(tmp_path):
    scenario = joined(tmp_path, [4, 8, 4])
    asked = [root for name, root in scenario.calls() if name == "broadcast"]
    plain = joined(tmp_path, [4, 8, 4], strategy={**JOIN, "broadcast_buffers": False})
    last = {op.root for plan in plain.program.plans for op in plan if isinstance(op, Broadcast)}
    # While all have samples rank 2 counts, and then rank 1; rank 0 does in the setup alone.
    assert sorted(asked) == [0, 1, 2]
    assert last == {1}


def test_times_know_the_same_ranks_without_numerics(tmp_path):
    times = [
        simdp.simulate(joined(tmp_path, [4, 8, 4], numerics=numerics)).metrics["simulated_s"]
        for numerics in (True, False)
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-12)  # two clocks
