"""Local SGD against real torch: every rank's weights, and when they are averaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, one_in
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

OF_FOUR = {
    "post_local_sgd(start=4,period=4,averager warmup=4)": (
        {"local_steps": 4, "warmup_steps": 4, "subgroup": 2},
        SGD,
    ),
    "post_local_sgd(start=3,period=2,averager warmup=6), Adam": (
        {"local_steps": 2, "warmup_steps": 3, "averager_warmup_steps": 6, "subgroup": "node"},
        ADAM,
    ),
    "hierarchical({2: 2, 4: 4},warmup=0)": ({"period_group_size_dict": {2: 2, 4: 4}}, SGD),
    "hierarchical({3: 2, 6: 4},warmup=2)": (
        {"period_group_size_dict": {6: "world", 3: "node"}, "averager_warmup_steps": 2},
        SGD,
    ),
}
"""On two nodes of two ranks each."""
NODES = {"devices_per_node": 2, "inter_node": {"link": {"alpha": "20 us", "bandwidth": "1 GB/s"}}}


def scenario(case, steps, tmp_path):
    period, start, warmup, optimizer = CASES[case]
    strategy = {"local_steps": period, "warmup_steps": start, "averager_warmup_steps": warmup}
    cluster = {**FAST, "world_size": 2}
    return of_golden("g19_local_sgd", strategy, optimizer, cluster, steps, tmp_path)


def of_four(case, steps, tmp_path):
    cluster = {**FAST, **NODES, "world_size": 4}
    return of_golden("g19b_local_sgd", *OF_FOUR[case], cluster, steps, tmp_path)


def of_golden(name, strategy, optimizer, cluster, steps, tmp_path):
    golden = np.load(GOLDEN / f"{name}.npz")
    first = {name: golden[f"init{number}"] for number, name in enumerate(NAMES)}
    np.savez(tmp_path / "weights.npz", **first)
    np.savez(tmp_path / "data.npz", x=golden["X"].reshape(-1, 5), y=golden["T"].reshape(-1, 2))
    raw = {
        "cluster": cluster,
        "workload": {
            "model": {"kind": "mlp", "widths": [5, 8, 6, 2], "activation": "tanh"},
            "weights": "weights.npz",
            "dataset": {"kind": "npz", "path": "data.npz"},
            "optimizer": optimizer,
            "global_batch": 16,
            "dtype": "float64",
            "steps": steps,
        },
        "strategy": {"kind": "local_sgd", "average_at": "begin", **strategy},
        "collectives": {"all_reduce": "ring", "cost": "links"},
    }
    return checked(raw, tmp_path)


def plans_of(chosen, world_size):
    batches = chosen.workload.batches(world_size, 0, chosen.base)
    return [chosen.program.plan(step, of) for step, of in zip(range(12), batches, strict=True)]


@pytest.mark.parametrize("case", one_in(3, CASES))
def test_every_rank_has_torchs_weights(case, tmp_path):
    wanted = np.load(GOLDEN / "g19_local_sgd.npz")[f"{case}.w"]
    for steps in (1, 4, 7, 12):
        result = simdp.simulate(scenario(case, steps, tmp_path))
        for own, flat_weights in zip(result.replicas, wanted[:, steps - 1], strict=True):
            found = np.concatenate([own[name].reshape(-1) for name in NAMES])
            np.testing.assert_allclose(found, flat_weights, rtol=0, atol=1e-12)


@for_each("case", CASES)
def test_weights_are_averaged_in_torchs_steps(case, tmp_path):
    _, start, *_ = CASES[case]
    notes = json.loads((GOLDEN / "g19_local_sgd.json").read_text())["cases"][case]
    plans = plans_of(scenario(case, 12, tmp_path), 2)
    averaging = [any(isinstance(op, Average) for op in flat(plan)) for plan in plans]
    found = [number for number, does in enumerate(averaging, start=1) if does]
    wanted = [step for step in notes["steps_with_equal_weights"] if step > start or not start]
    assert found == wanted


@pytest.mark.parametrize("case", one_in(2, OF_FOUR))
def test_every_rank_of_two_nodes_has_torchs_weights(case, tmp_path):
    wanted = np.load(GOLDEN / "g19b_local_sgd.npz")[f"{case}.w"]
    for number, steps in enumerate((3, 7, 12)):
        result = simdp.simulate(of_four(case, steps, tmp_path))
        for own, flat_weights in zip(result.replicas, wanted[:, number], strict=True):
            found = np.concatenate([own[name].reshape(-1) for name in NAMES])
            np.testing.assert_allclose(found, flat_weights, rtol=0, atol=1e-12)


@for_each("case", OF_FOUR)
def test_rank_0_calls_what_torch_calls_among_the_same_ranks(case, tmp_path):
    notes = json.loads((GOLDEN / "g19b_local_sgd.json").read_text())["cases"][case]
    chosen = of_four(case, 12, tmp_path)
    known = {several.name: several.ranks[0].tolist() for several in chosen.program.groups}
    for plan, wanted in zip(plans_of(chosen, 4), notes["calls_rank0"], strict=True):
        calls = [op.called for op in flat(plan) if op.called is not None]
        # Torch's first step has one bucket, and so have the later ones of so small a model.
        found = [[c.collective, c.nbytes / 8, known.get(c.group, [0, 1, 2, 3])] for c in calls]
        assert found == wanted


@for_each("case", OF_FOUR)
def test_all_that_a_run_calls_is_known_beforehand(case, tmp_path):
    """Also where the first steps of two periods are the same one."""
    chosen = of_four(case, 12, tmp_path)
    listed = {id(plan) for plan in chosen.program.plans}
    assert {id(plan) for plan in plans_of(chosen, 4)} <= listed


def test_collectives_of_a_subgroup_stay_inside_its_node(tmp_path):
    """Two rounds of half of it over the node's link; those of all four take the network."""
    chosen = of_four("post_local_sgd(start=4,period=4,averager warmup=4)", 12, tmp_path)
    spans = simdp.simulate(chosen).trace.spans
    size = 116 * 8
    sent = [s for s in spans if s.rank == 3 and s.name.startswith("all_reduce")]
    of_step = {step: [s.end - s.start for s in sent if s.step == step] for step in (3, 4, 5)}
    inside = 2 * (5e-6 + size / 2 / 25e9)
    assert of_step[5] == pytest.approx([inside], rel=1e-9)
    assert of_step[4] == pytest.approx([inside, *of_step[3]], rel=1e-9)
    assert of_step[3][0] > 2 * 3 * 20e-6


def test_an_average_among_two_takes_their_link_and_sends_less(tmp_path):
    result = simdp.simulate(of_four("hierarchical({2: 2, 4: 4},warmup=0)", 5, tmp_path))
    size = 116 * 8
    sent = [s for s in result.trace.spans if s.rank == 1 and s.name == "all_reduce weights"]
    assert [s.step for s in sent] == [0, 2, 4]
    assert sent[1].end - sent[1].start == pytest.approx(2 * (5e-6 + size / 2 / 25e9), rel=1e-9)
    # The mean of the last four of five steps: one average of two, one of four.
    wanted = (size + 2 * 3 / 4 * size) / 4
    assert result.metrics["bytes_sent_per_rank"] == pytest.approx([wanted] * 4, rel=1e-12)
