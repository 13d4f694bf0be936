"""Scenarios as plain data that several files of tests start from."""

import numpy as np

CLUSTER = {
    "world_size": 4,
    "device": "a100-sxm4-80gb",
    "topology": "ring",
    "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
}
FAST = {
    "device": {
        "peak": dict.fromkeys(["float64", "float32", "float16", "bfloat16"], "10 TFLOP/s"),
        "memory": "10 GB",
        "memory_bandwidth": "1 TB/s",
    },
    "topology": "full_mesh",
    "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
}
"""A cluster without a world size, for runs whose numbers count."""

WORKLOAD = {
    "model": {"kind": "mlp", "widths": [4, 3]},
    "dataset": {"kind": "regression", "num_samples": 64},
    "microbatch": 8,
}
MINIMAL = {"cluster": CLUSTER, "workload": WORKLOAD}

RICH = {
    "seed": 7,
    "cluster": {
        **CLUSTER,
        "devices_per_node": 2,
        "link": "nvlink3",
        "inter_node": {"link": "ib-hdr", "links_per_node": 2},
        "stragglers": [
            {"kind": "slow_rank", "rank": 3, "factor": 1.5},
            {"kind": "lognormal", "sigma": 0.1},
            {"kind": "pause", "rank": 0, "every": "1 s", "duration": "10 ms"},
            {"kind": "pause", "rank": 0, "every": 3, "duration": "10 ms"},
        ],
    },
    "workload": {
        **WORKLOAD,
        "optimizer": {"kind": "adam", "betas": [0.9, 0.98]},
        "grad_accum": 2,
        "epochs": 2,
        "shuffle": True,
    },
    "strategy": {"kind": "ddp", "bucket_cap": "25 MiB"},
    "collectives": {"all_reduce": "tree"},
    "sweep": {"cluster.world_size": [2, 4], "strategy.overlap": [True, False]},
}

WEIGHTS = {"layers.0.weight": np.zeros((3, 4)), "layers.0.bias": np.zeros(3)}
