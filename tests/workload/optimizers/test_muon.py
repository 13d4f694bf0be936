"""Muon against torch's trajectory, which is of bfloat16, and what it leaves to the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

from simdp.workload.optimizers.adam import AdamW
from simdp.workload.optimizers.large_batch import Muon

GOLDEN = Path(__file__).parents[2] / "golden"
SETTING = json.loads((GOLDEN / "g16_optim.json").read_text())["optimizers"]["muon"]


def test_weights_and_state_follow_torch():
    chosen = Muon(**SETTING["kwargs"])
    with np.load(GOLDEN / "g16_optim.npz") as recorded:
        weights, before = recorded["W0"].copy(), recorded["W0"]
        state = chosen.new_state(weights)
        for step, gradient in enumerate(recorded["muon_gW"]):
            chosen.step(weights, gradient, state, chosen.lr, step + 1)
            wanted = recorded["muon_W"][step]
            moved = abs(wanted - before).max()
            assert abs(weights - wanted).max() <= 2e-2 * moved * (step + 1)
            before = wanted
        buffer = recorded["muon_stateW_momentum_buffer"]
        np.testing.assert_allclose(state["momentum_buffer"], buffer, rtol=1e-12)


def test_arguments_and_defaults_are_torchs():
    ours = Muon(**SETTING["kwargs"]).model_dump(mode="json")
    for beside in ("kind", "foreach", "param_groups", "rest", "rest_optimizer"):
        ours.pop(beside)
    assert ours == SETTING["defaults"]


@for_each("shape", [(6, 4), (4, 6), (5, 5)])
def test_an_update_is_nearly_orthogonal(shape):
    random = np.random.default_rng(0)
    weights, gradient = np.zeros(shape), random.standard_normal(shape)
    chosen = Muon(lr=1.0, nesterov=False, momentum=0.0)
    chosen.step(weights, gradient, chosen.new_state(weights), 1.0, 1)
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    values = np.linalg.svd(weights / scale, compute_uv=False)
    assert values == pytest.approx(np.ones(min(shape)), abs=0.4)
    matched = Muon(nesterov=False, momentum=0.0, adjust_lr_fn="match_rms_adamw")
    other = np.zeros(shape)
    matched.step(other, gradient, matched.new_state(other), 1.0, 1)
    np.testing.assert_allclose(other, weights / scale * 0.2 * max(shape) ** 0.5, rtol=1e-12)


def test_the_rest_has_an_optimizer_of_its_own():
    chosen = Muon(lr=0.02, rest=["*.bias", "head.*"], rest_optimizer={"kind": "adamw", "lr": 0.3})
    assert chosen.for_parameter("l1.weight") == chosen
    assert chosen.for_parameter("l1.bias") == AdamW(lr=0.3)
    assert chosen.unmatched(["l1.weight", "l1.bias"]) == ["head.*"]


def test_its_products_are_counted():
    """Per iteration X X^T and what multiplies X: 2 r^2 c each; the square of X X^T: 2 r^3."""
    assert Muon().flops((3, 7)) == Muon().flops((7, 3)) == 5 * (4 * 9 * 7 + 2 * 27)
