"""What ``--save-weights`` stores can be trained on, also where ranks differ."""

import numpy as np

import simdp
from simdp.scenario import checked

BATCH_NORM_NET = [
    {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 6},
    {"name": "bn", "kind": "batch_norm1d", "num_features": 6},
    {"name": "l2", "kind": "linear", "in_features": 6, "out_features": 3},
]
RAW = {
    "cluster": {
        "world_size": 2,
        "device": "a100-sxm4-80gb",
        "topology": "full_mesh",
        "link": "nvlink3",
    },
    "workload": {
        "model": {"kind": "sequential", "layers": BATCH_NORM_NET},
        "dataset": {"kind": "regression", "num_samples": 64},
        "microbatch": 8,
    },
    "strategy": "ddp",
}


def test_running_means_that_differ_between_ranks_do_not_hinder_another_run(tmp_path):
    saved = simdp.simulate(checked(RAW, tmp_path)).weights()
    assert "rank1/bn.running_mean" in saved
    np.savez(tmp_path / "weights.npz", **saved)
    workload = {**RAW["workload"], "weights": "weights.npz", "optimizer": "none", "steps": 1}
    again = simdp.simulate(checked({**RAW, "workload": workload}, tmp_path)).replicas
    for tensors in again:
        np.testing.assert_array_equal(tensors["l1.weight"], saved["l1.weight"])
        assert tensors["bn.num_batches_tracked"] == saved["bn.num_batches_tracked"] + 1
