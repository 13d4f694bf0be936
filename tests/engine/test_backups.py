"""Backups: the last ranks of every step are dropped, from its numbers and from its times."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from small_scenario import FAST

from simdp import simulate
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import State
from simdp.errors import ScenarioError
from simdp.results.result import Study
from simdp.scenario import checked
from simdp.scenario.root import Scenario

pytestmark = pytest.mark.slow

LATE = [{"kind": "lognormal", "sigma": 0.5}]
SLOW = [{"kind": "slow_rank", "rank": 0, "factor": 3}]
FREE = {"alpha": "1e-12 s", "bandwidth": "1e9 GB/s"}


def scenario(backup_ranks, world_size=4, stragglers=LATE, strategy=(), **options):
    cluster = {**FAST, "world_size": world_size, "stragglers": stragglers}
    workload = {
        "model": {"kind": "mlp", "widths": [6, 3]},
        "dataset": {"kind": "regression", "num_samples": 96},
        "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        "microbatch": 4,
        "steps": 8,
    }
    run = {key: options.pop(key) for key in ("numerics", "seed") if key in options}
    cluster |= options.pop("cluster", {})
    raw = {
        "cluster": cluster,
        "workload": {**workload, **options},
        "strategy": {"kind": "ddp", "backup_ranks": backup_ranks, **dict(strategy)},
        **run,
    }
    return checked(raw, Path())


def late(case: Scenario, step: int, backup_ranks: int) -> list[int]:
    """The slowest ranks of a step in which all have the same work."""
    factors = Slowdown(case.cluster, case.seed).factors(step)
    return sorted(np.argsort(factors, kind="stable")[len(factors) - backup_ranks :].tolist())


def by_hand(case: Scenario, backup_ranks: int, micro: int = 1) -> dict[str, np.ndarray]:
    """Momentum SGD on a linear model, of the mean over those that are in time."""
    n, workload = case.cluster.world_size, case.workload
    arrays = workload.dataset.arrays(workload.model, workload.loss, case.seed, case.base)
    x, y = arrays["x"].astype(float), arrays["y"].astype(float)
    start = workload.initial_weights(case.seed, 0, case.base)
    w, b = (start[f"layers.0.{name}"].copy() for name in ("weight", "bias"))
    speed_w, speed_b = np.zeros_like(w), np.zeros_like(b)
    each = 4 * micro
    for step in range(workload.steps):
        dropped, gw, gb = late(case, step, backup_ranks), 0.0, 0.0
        place = step % (96 // (n * each))
        for rank in (rank for rank in range(n) if rank not in dropped):
            mine = np.arange(rank, 96, n)[place * each : (place + 1) * each]
            error = 2 * (x[mine] @ w.T + b - y[mine]) / (each * 3)
            gw, gb = gw + error.T @ x[mine], gb + error.sum(axis=0)
        speed_w = 0.9 * speed_w + gw / (n - backup_ranks)
        speed_b = 0.9 * speed_b + gb / (n - backup_ranks)
        w, b = w - 0.1 * speed_w, b - 0.1 * speed_b
    return {"layers.0.weight": w, "layers.0.bias": b}


@for_each("backup_ranks", [0, 1, 3])
@for_each("grad_accum", [1, 2])
@for_each("no_sync", [True, False])
def test_the_sum_is_that_of_the_first(backup_ranks, grad_accum, no_sync):
    case = scenario(
        backup_ranks, dtype="float64", grad_accum=grad_accum, strategy={"no_sync": no_sync}
    )
    result = simulate(case)
    assert result.metrics["replicas_identical"]
    for name, value in by_hand(case, backup_ranks, grad_accum).items():
        np.testing.assert_allclose(result.replicas[0][name], value, rtol=1e-12, atol=1e-13)


def test_what_is_dropped_is_told():
    result = simulate(scenario(1, stragglers=SLOW))
    assert result.participation == {"counted": 8 * 3 * 4, "dropped": [32, 0, 0, 0]}
    losses = np.array(result.metrics["loss_per_rank"], dtype=float)
    assert np.isnan(losses[:, 0]).all()
    np.testing.assert_allclose(losses[:, 1:].mean(axis=1), result.metrics["loss"])
    assert "samples dropped: 32 of 128, most of them rank 0's: 32" in " ".join(
        result.summary().split()
    )
    study = Study("0", result.scenario, [result])
    assert '"participation"' in study.to_json()
    assert simulate(scenario(0)).participation is None


def test_of_ranks_that_are_equal_the_higher_are_late():
    result = simulate(scenario(2, stragglers=[]))
    assert result.participation["dropped"] == [0, 0, 32, 32]


def test_a_step_takes_what_it_would_without_the_slow_rank():
    without = simulate(scenario(0, stragglers=[])).metrics
    dropped = simulate(scenario(1, stragglers=SLOW)).metrics
    waiting = simulate(scenario(0, stragglers=SLOW)).metrics
    np.testing.assert_allclose(dropped["step_time_s"], without["step_time_s"], rtol=1e-9)
    assert waiting["step_time_s"] > 1.2 * without["step_time_s"]


@for_some("backup_ranks", [0, 1, 4], 3, first=1)
def test_exponential_ranks_take_a_difference_of_harmonic_numbers(backup_ranks, monkeypatch):
    n, steps = 8, 300
    draws = np.random.default_rng(0).exponential(size=(steps, n))
    monkeypatch.setattr(Slowdown, "factors", lambda self, step: draws[step])
    numbers = {"numerics": False, "steps": steps, "cluster": {"link": FREE}, "microbatch": 4096}
    free = {"optimizer": "none", "dataset": "none"}
    case = scenario(backup_ranks, n, [], **numbers | free)
    whole = simulate(case).metrics
    monkeypatch.setattr(Slowdown, "factors", lambda self, step: np.ones(n))
    once = simulate(case).metrics["compute_s"]
    expected = np.sort(draws[1:], axis=1)[:, n - 1 - backup_ranks].mean()
    found = (whole["step_time_s"] - whole["update_s"]) / once
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    harmonic = sum(1 / k for k in range(backup_ranks + 1, n + 1))
    np.testing.assert_allclose(found, harmonic, rtol=0.05)  # of some hundred draws


@for_each("overlap", [True, False])
def test_clocks_and_runs_without_numbers_agree(overlap):
    options = {"stragglers": [*LATE, {"kind": "pause", "rank": 2, "every": 2, "duration": "1 ms"}]}
    case = scenario(1, strategy={"overlap": overlap, "bucket_cap": "0 B"}, **options)
    vector, event = simulate(case, fabric="vector"), simulate(case, fabric="event")
    np.testing.assert_allclose(vector.step_ends, event.step_ends, rtol=1e-12)
    assert vector.metrics["loss"] == event.metrics["loss"]
    alone = simulate(case.model_copy(update={"numerics": False}))
    np.testing.assert_allclose(
        alone.metrics["step_time_s"], vector.metrics["step_time_s"], rtol=1e-9
    )
    assert alone.participation == vector.participation


def test_a_run_goes_on_with_the_same_ranks(tmp_path):
    case, path = scenario(1), tmp_path / "s.npz"
    simulate(case, stop_after=3, keep_state=True).state.save(path)
    whole, resumed = simulate(case), simulate(case, resume=State.load(path))
    assert resumed.metrics == whole.metrics
    assert resumed.participation == whole.participation


def test_a_rank_without_samples_takes_nobodys_place():
    options = {"global_batch": 7, "microbatch": None, "stragglers": []}
    one, two = (
        simulate(scenario(1, steps=13, **options)),
        simulate(scenario(1, steps=14, **options)),
    )
    assert one.participation == {"counted": 13 * 5, "dropped": [0, 0, 2 * 13, 0]}
    # The last batch of an epoch has samples for three.
    assert two.participation == {"counted": 13 * 5 + 5, "dropped": [0, 0, 2 * 13, 0]}
    assert [loss is None for loss in two.metrics["loss_per_rank"][-1]] == [False] * 3 + [True]


def test_an_inf_of_a_late_rank_does_no_harm():
    amp = {"kind": "amp", "dtype": "float16", "init_scale": 64}
    inject = [{"kind": "inf", "rank": 0, "step": 3}]
    late_one = simulate(scenario(1, stragglers=SLOW, precision=amp, inject=inject))
    assert late_one.metrics["skipped_steps"] == []
    forecast = simulate(scenario(1, stragglers=SLOW, precision=amp, inject=inject, numerics=False))
    assert forecast.metrics["skipped_steps"] == []
    waiting = simulate(scenario(0, stragglers=SLOW, precision=amp, inject=inject))
    assert waiting.metrics["skipped_steps"] == [3]


def test_a_weighted_loss_is_the_mean_of_what_counts():
    strategy = {"weight_by_shard": True}
    plain = simulate(scenario(1, dtype="float64"))
    weighted = simulate(scenario(1, dtype="float64", strategy=strategy))
    for name, value in plain.replicas[0].items():
        np.testing.assert_allclose(weighted.replicas[0][name], value, rtol=1e-12)


def test_noise_is_measured_on_those_that_count():
    found = simulate(scenario(1, gradient_noise=True)).gradient_noise
    assert found["steps"] == 8
    assert found["noise"] > 0


# Refusals ----------------------------------------------------------------------------------------

STOPS = [{"kind": "pause", "rank": 0, "every": "1 ms", "duration": "1 us"}]
POWER = {"comm_hook": "power_sgd"}
REFUSED = {
    "too many": (
        lambda: scenario(4),
        "strategy.backup_ranks: 4 dropped gradients of 4 leave none; use at most 3.",
    ),
    "pauses": (
        lambda: scenario(1, stragglers=STOPS),
        "strategy.backup_ranks: it is unknown before a step which rank cluster.stragglers.0 will "
        "stop on the clock; let it pause by steps, or use strategy: {kind: "
        "parameter_server, backup: ...}.",
    ),
    "join": (
        lambda: scenario(1, strategy={"join": True}),
        "strategy: backup_ranks drops gradients, but join lets ranks leave too; leave "
        "one of them out.",
    ),
    "hooks": (
        lambda: scenario(1, strategy=POWER),
        "strategy: backup_ranks drops gradients, but comm_hook: power_sgd keeps a part of them "
        "for later steps; use one of none, bf16, fp16.",
    ),
}


@for_each("case", REFUSED)
def test_refusals(case):
    make, line = REFUSED[case]
    with pytest.raises(ScenarioError) as caught:
        make()
    assert caught.value.problems == [line]
