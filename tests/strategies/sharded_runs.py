"""Small runs of sharded training, and what they send."""

from itertools import pairwise
from pathlib import Path

from small_scenario import FAST

import simdp
from simdp.scenario import checked

WIDTHS = [5, 8, 6, 2]


def play(strategy, world_size, cluster=None, widths=WIDTHS, numerics=True, **workload):
    raw = {
        "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
        "workload": {
            "model": {"kind": "mlp", "widths": list(widths)},
            "dataset": {"kind": "regression", "num_samples": 240},
            "optimizer": {"kind": "sgd", "lr": 0.1},
            "microbatch": 4,
            "dtype": "float64",
            "steps": 2,
            **workload,
        },
        "strategy": strategy,
        "numerics": numerics,
    }
    return simdp.simulate(checked(raw, Path()))


def elements(widths):
    return sum(a * b + b for a, b in pairwise(widths))


def sent(result):
    return result.metrics["bytes_sent_per_rank"]


def spans(result, step=1, rank=0):
    """Collectives of a step on a rank, as they begin."""
    found = [s for s in result.trace.spans if s.activity == "comm" and s.lane == "comm"]
    return [s for s in found if s.step == step and s.rank == rank]
