"""Runs in which one batch is cut over the ranks."""

from pathlib import Path

from small_scenario import FAST

import simdp
from simdp.scenario import checked

WORKLOAD = {
    "model": {"kind": "mlp", "widths": [5, 8, 6, 2]},
    "dataset": {"kind": "regression", "num_samples": 60},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "global_batch": 30,
    "dtype": "float64",
    "epochs": 1,
}


def scenario(strategy, world_size, cluster=None, numerics=True, **workload):
    """Plain data; what is None is left out."""
    options = {key: value for key, value in {**WORKLOAD, **workload}.items() if value is not None}
    return {
        "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
        "workload": options,
        "strategy": strategy,
        "numerics": numerics,
    }


def play(strategy, world_size, fabric="auto", **options):
    return simdp.simulate(checked(scenario(strategy, world_size, **options), Path()), fabric=fabric)


def infer(strategy, world_size, **options):
    return play(strategy, world_size, **{"mode": "inference", "optimizer": None, **options})
