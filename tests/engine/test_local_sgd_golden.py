"""Local SGD against real torch: every rank's weights, and when they are averaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_scenario import FAST

import simdp
from simdp.scenario import checked
from simdp.steps.ops import Average
from simdp.steps.program import flat

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [f"layers.{layer}.{kind}" for layer in range(3) for kind in ("weight", "bias")]
SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}
ADAM = {"kind": "adam", "lr": 0.02}
CASES = {
    "periodic(period=4,warmup=0)": (4, 0, 0, SGD),
    "periodic(period=3,warmup=4)": (3, 0, 4, SGD),
    "periodic(period=1,warmup=0)": (1, 0, 0, SGD),
    "post_local_sgd(start=4,period=4,averager warmup=4)": (4, 4, 4, SGD),
    "post_local_sgd, no gradient all_reduce after start=4, period=2, warmup=4": (2, 4, 4, SGD),
    "post_local_sgd(start=3,period=2,averager warmup=6), Adam": (2, 3, 6, ADAM),
}


def scenario(case, steps, tmp_path):
    golden = np.load(GOLDEN / "g19_local_sgd.npz")
    first = {name: golden[f"init{number}"] for number, name in enumerate(NAMES)}
    np.savez(tmp_path / "weights.npz", **first)
    np.savez(tmp_path / "data.npz", x=golden["X"].reshape(-1, 5), y=golden["T"].reshape(-1, 2))
    period, start, warmup, optimizer = CASES[case]
    strategy = {"kind": "local_sgd", "average_at": "begin", "local_steps": period}
    raw = {
        "cluster": {**FAST, "world_size": 2},
        "workload": {
            "model": {"kind": "mlp", "widths": [5, 8, 6, 2], "activation": "tanh"},
            "weights": "weights.npz",
            "dataset": {"kind": "npz", "path": "data.npz"},
            "optimizer": optimizer,
            "global_batch": 16,
            "dtype": "float64",
            "steps": steps,
        },
        "strategy": {**strategy, "warmup_steps": start, "averager_warmup_steps": warmup},
    }
    return checked(raw, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_every_rank_has_torchs_weights(case, tmp_path):
    wanted = np.load(GOLDEN / "g19_local_sgd.npz")[f"{case}.w"]
    for steps in (1, 4, 7, 12):
        result = simdp.simulate(scenario(case, steps, tmp_path))
        for own, flat_weights in zip(result.replicas, wanted[:, steps - 1], strict=True):
            found = np.concatenate([own[name].reshape(-1) for name in NAMES])
            np.testing.assert_allclose(found, flat_weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_averaged_in_torchs_steps(case, tmp_path):
    _, start, *_ = CASES[case]
    notes = json.loads((GOLDEN / "g19_local_sgd.json").read_text())["cases"][case]
    chosen = scenario(case, 12, tmp_path)
    batches = chosen.workload.batches(2, 0, chosen.base)
    plans = [chosen.program.plan(step, of) for step, of in zip(range(12), batches, strict=True)]
    averaging = [any(isinstance(op, Average) for op in flat(plan)) for plan in plans]
    found = [number for number, does in enumerate(averaging, start=1) if does]
    wanted = [step for step in notes["steps_with_equal_weights"] if step > start or not start]
    assert found == wanted
