"""Batches rebalanced by measured speed: who gets what, how long it takes, and the same numbers."""

import numpy as np
import pytest
from for_each import for_each
from small_scenario import FAST

import simdp
from simdp.engine.simulate import rebalanced
from simdp.results.result import Study

pytestmark = pytest.mark.slow

SLOW = {"kind": "slow_rank", "rank": 3, "factor": 2}
DDP = {"kind": "ddp", "weight_by_shard": True}
LINEAR = [{"microbatch": b, "step_time": f"{b} ms"} for b in (1, 1000)]
"""A step of b samples takes b ms, forward and backward."""


def job(rebalance, strategy=DDP, stragglers=(SLOW,), numerics=False, **workload):
    return {
        "cluster": {**FAST, "world_size": 4, "stragglers": list(stragglers)},
        "workload": {
            "model": {"kind": "mlp", "widths": [4, 8, 3]},
            "dataset": {"kind": "regression", "num_samples": 210},
            "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
            "global_batch": 70,
            "dtype": "float64",
            "epochs": 2,
            **({"rebalance": rebalance} if rebalance else {}),
            **workload,
        },
        "strategy": strategy,
        "numerics": numerics,
    }


MEASURED = {"compute": {"kind": "measured", "points": LINEAR}, "dataset": "none", "steps": 6}


def timed(load, rebalance, **keys):
    """A run whose compute is a millisecond per sample."""
    asked = job(rebalance, **{**MEASURED, **keys})
    asked["workload"].pop("epochs")
    return load(**asked)


def sizes(scenario):
    """Samples of each rank, step by step."""
    found = rebalanced(scenario)
    n = found.cluster.world_size
    return [b.sizes.sum(axis=0).tolist() for b in found.workload.batches(n, 0, found.base)]


def test_the_slow_rank_gets_half_as_many_samples(load):
    found = sizes(timed(load, {"every": 2}))
    assert found == [[18, 18, 18, 16]] * 2 + [[20, 20, 20, 10]] * 4


def test_the_step_takes_what_all_ranks_take_together(load):
    """70 samples at 1, 1, 1 and 2 ms each are done after 20 ms, not after 32."""
    for fabric in ("event", "vector"):
        result = simdp.simulate(timed(load, {"every": 2}), fabric=fabric)
        steps = np.diff(result.step_ends.max(axis=0))
        assert steps[:2] == pytest.approx(32e-3, rel=0.02)
        assert steps[2:] == pytest.approx(20e-3, rel=0.02)
    quick = simdp.simulate(timed(load, {"every": 2}))
    np.testing.assert_allclose(quick.step_ends, result.step_ends, rtol=1e-12)


def test_mixed_devices_are_balanced_too(load):
    asked = job({"every": 1}, stragglers=(), microbatch=None)
    half = {
        **FAST["device"],
        "launch": "0 s",
        "peak": {"float64": "5 TFLOP/s"},
        "memory_bandwidth": "0.5 TB/s",
    }
    asked["cluster"]["device"] = [{**FAST["device"], "launch": "0 s"}] * 3 + [half]
    asked["workload"]["model"] = {"kind": "mlp", "widths": [512, 512]}
    asked["workload"]["dataset"]["num_samples"] = 4 * 7000
    asked["workload"]["global_batch"] = 7000
    last = np.array(sizes(load(**asked))[-1])
    assert last[:3] == pytest.approx(2000, rel=0.02)
    assert last[3] == pytest.approx(1000, rel=0.05)


def test_speeds_are_followed_where_they_change(load):
    pause = {"kind": "pause", "rank": 0, "every": 4, "duration": "20 ms"}
    found = sizes(timed(load, {"every": 1}, stragglers=[pause], steps=8))
    assert all(sum(each) == 70 for each in found)
    assert found[5][0] < found[4][0]
    assert found[6][0] > found[5][0]


# Numbers ------------------------------------------------------------------------------------------


@for_each("strategy", ["ddp", "zero1", "fsdp", "horovod", "zero3"])
def test_however_a_batch_is_cut_the_numbers_are_those_of_one_device(strategy, load):
    chosen = {"kind": strategy, "weight_by_shard": True}
    found = simdp.simulate(load(**job({"every": 1}, chosen, numerics=True)))
    alone = job(None, "single", stragglers=(), numerics=True)
    alone["cluster"]["world_size"] = 1
    wanted = simdp.simulate(load(**alone))
    for name, value in wanted.replicas[0].items():
        np.testing.assert_allclose(found.replicas[0][name], value, rtol=1e-12, atol=1e-14)


def test_numbers_are_those_of_the_same_split_by_hand(load):
    """An epoch of one step: its order, cut in parts of given sizes."""
    data = {"kind": "regression", "num_samples": 70}
    told = load(**job({"shares": [2, 2, 2, 1]}, numerics=True, dataset=data))
    join = {**DDP, "join": True}  # torch asks for it where ranks may run out
    by_hand = job(None, join, numerics=True, dataset=data, samples_per_rank=[20, 20, 20, 10])
    by_hand["workload"]["global_batch"] = None
    by_hand["workload"]["microbatch"] = 20
    a, b = simdp.simulate(told), simdp.simulate(load(**by_hand))
    assert a.metrics["loss"] == b.metrics["loss"]
    for name, value in a.replicas[0].items():
        np.testing.assert_array_equal(b.replicas[0][name], value)


def test_speeds_change_no_bit_of_what_the_same_sizes_give(load):
    """Measured speeds 2, 2, 2 and 1 cut as shares that are written do."""
    data = {"kind": "regression", "num_samples": 70}
    measured, told = (
        simdp.simulate(
            load(**job(rule, numerics=True, dataset=data, epochs=1, compute=MEASURED["compute"]))
        )
        for rule in ({"every": 1}, {"shares": [18, 18, 18, 16]})
    )
    for name, value in told.replicas[0].items():
        np.testing.assert_array_equal(measured.replicas[0][name], value)


def test_a_run_that_stops_goes_on_with_the_same_cuts(load, tmp_path):
    scenario = load(**job({"every": 2}, numerics=True))
    whole = simdp.simulate(scenario)
    part = simdp.simulate(scenario, stop_after=3, keep_state=True)
    rest = simdp.simulate(scenario, resume=part.state)
    for name, value in whole.replicas[0].items():
        np.testing.assert_array_equal(rest.replicas[0][name], value)
    np.testing.assert_allclose(rest.step_ends, whole.step_ends, rtol=1e-12)


def test_what_was_measured_is_not_written_as_if_it_were_asked_for(load):
    result = simdp.simulate(load(**job({"every": 2}, numerics=True)))
    rule = result.scenario["workload"]["rebalance"]
    assert {key: value for key, value in rule.items() if value is not None} == {"every": 2}
    assert Study("", result.scenario, [result]).summary()


# What is refused ----------------------------------------------------------------------------------


@for_each(
    ("rule", "strategy", "workload", "line"),
    [
        (
            {"every": 1},
            "ddp",
            {},
            "workload.rebalance: under ddp a rank with few samples would count as much as one with "
            "many; add strategy.weight_by_shard: true.",
        ),
        (
            {"every": 1},
            "data_parallel",
            {},
            "workload.rebalance: under data_parallel a rank with few samples would count as much "
            "as one with many; use ddp with weight_by_shard: true.",
        ),
        (
            {"shares": [1, 2]},
            DDP,
            {},
            "workload.rebalance.shares: has 2 entries for 4 ranks; give one each.",
        ),
        (
            {"every": 1},
            DDP,
            {"global_batch": None, "microbatch": 8},
            "workload: rebalance cuts a global batch over the ranks; give global_batch, with a "
            "number of grad_accum, in place of microbatch or sizes.",
        ),
    ],
)
def test_what_cannot_be_rebalanced_is_refused(rule, strategy, workload, line, refuse):
    assert refuse(**job(rule, strategy, **workload)) == [line]


def test_times_that_know_no_samples_cannot_be_rebalanced(refuse, tmp_path):
    (tmp_path / "layers.csv").write_text(
        "name,forward_us,backward_us,gradient_bytes\na,10,20,4000\n"
    )
    asked = job({"every": 1})
    asked["workload"] = {
        "model": {"kind": "profile", "path": "layers.csv"},
        "global_batch": 8,
        "rebalance": {"every": 1},
    }
    assert refuse(**asked) == [
        "workload: rebalance moves samples, but compute: profile takes as long with few as with "
        "many; leave it out, or use a model with layers."
    ]
