"""Local SGD: when weights are averaged, what of, and what it costs."""

import json
from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import FAST
from small_workload import NUM_SAMPLES, workload

import simdp
from simdp.scenario import checked
from simdp.steps.ops import Average
from simdp.steps.program import Program
from simdp.strategies.local_sgd import LocalSGD

SGD = {"kind": "sgd", "lr": 0.2}
MOMENTUM = {**SGD, "momentum": 0.9, "weight_decay": 0.01}
MODEL = {"kind": "mlp", "widths": [6, 10, 3], "activation": "tanh"}
SIZE = (6 + 1) * 10 + (10 + 1) * 3


def play(strategy, world_size=3, cluster=None, numerics=True, **more):
    raw = {
        "cluster": {"world_size": world_size, **FAST, **(cluster or {})},
        "workload": {
            "model": MODEL,
            "dataset": {"kind": "regression", "num_samples": 240},
            "optimizer": SGD,
            "microbatch": 8,
            "steps": 8,
            "dtype": "float64",
            **more,
        },
        "strategy": strategy,
        "numerics": numerics,
    }
    return simdp.simulate(checked(raw, Path()))


def local(local_steps, *args, warmup_steps=0, **options):
    strategy = {"kind": "local_sgd", "local_steps": local_steps, "warmup_steps": warmup_steps}
    return play(strategy, *args, **options)


def averages(result, rank=0):
    """Steps in which weights were averaged, one entry for each time."""
    return [s.step for s in result.trace.spans if s.rank == rank and s.name == "all_reduce weights"]


def assert_close(result, wanted, within=1e-12):
    for name, weight in wanted.replicas[0].items():
        np.testing.assert_allclose(result.replicas[0][name], weight, rtol=0, atol=within)


# What is learned ---------------------------------------------------------------------------------


@pytest.mark.slow
@draws(4, 10)
@given(
    world_size=st.integers(1, 4),
    optimizer=st.sampled_from([SGD, MOMENTUM]),
    grad_accum=st.integers(1, 2),
)
def test_an_average_after_every_step_of_sgd_is_an_average_of_gradients(
    world_size, optimizer, grad_accum
):
    same = {"optimizer": optimizer, "grad_accum": grad_accum}
    every, plain = local(1, world_size, **same), play({"kind": "ddp"}, world_size, **same)
    assert_close(every, plain)
    assert every.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-12)
    assert every.metrics["replicas_identical"]


def test_ranks_train_alone_between_two_averages(tmp_path):
    """What is averaged after three steps is what one device makes of each rank's samples."""
    together = local(3, 2, steps=3, optimizer=MOMENTUM)
    alone = []
    for rank in range(2):
        mine = np.arange(240)[rank::2][: 3 * 8]  # as the sampler deals them
        order = np.concatenate([mine, np.setdiff1d(np.arange(240), mine)])
        np.savez(tmp_path / "order.npz", order)
        shuffle = {"path": str(tmp_path / "order.npz")}
        alone.append(play("single", 1, steps=3, optimizer=MOMENTUM, shuffle=shuffle).replicas[0])
    for name, weight in together.replicas[0].items():
        mean = (alone[0][name] + alone[1][name]) / 2
        np.testing.assert_allclose(weight, mean, rtol=0, atol=1e-12)


def test_a_run_that_ends_within_a_period_leaves_replicas_that_differ():
    assert local(4, steps=8).metrics["replicas_identical"]
    assert not local(4, steps=9).metrics["replicas_identical"]
    assert not local(100, steps=3).metrics["replicas_identical"]


def test_the_warm_up_is_ddp():
    assert_close(local(8, steps=5, warmup_steps=5), play({"kind": "ddp"}, steps=5), within=0)


def test_the_loss_falls_and_timing_changes_no_bit():
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 3.0}]}
    hasty, late = local(4), local(4, cluster=slow)
    assert hasty.metrics["loss"][-1] < 0.8 * hasty.metrics["loss"][0]
    assert late.metrics["step_time_s"] > hasty.metrics["step_time_s"]
    assert_close(late, hasty, within=0)


def test_a_rank_without_samples_keeps_its_weights_until_the_next_average():
    """Of five samples the second batch of three has two: one, one and none."""
    batch = {"microbatch": None, "global_batch": 3, "optimizer": MOMENTUM}
    data = {"dataset": {"kind": "regression", "num_samples": 5}}
    before, after = (local(3, steps=steps, **batch, **data).replicas for steps in (1, 2))
    same = [(before[r]["layers.0.weight"] == after[r]["layers.0.weight"]).all() for r in range(3)]
    assert same == [False, False, True]


def test_master_weights_are_averaged_and_the_others_rounded_from_them():
    mixed = {"dtype": "float32", "precision": {"kind": "mixed", "dtype": "bfloat16"}}
    every, plain = local(1, **mixed), play({"kind": "ddp"}, **mixed)
    assert every.metrics["replicas_identical"]
    assert_close(every, plain, within=5e-3)
    assert local(1, **mixed).metrics["bytes_sent_per_rank"][0] == pytest.approx(4 / 3 * SIZE * 4)


def test_a_subgroup_of_all_ranks_is_ddp_and_one_of_none_but_a_rank_trains_alone():
    options = {"kind": "local_sgd", "local_steps": 100}
    whole = play({**options, "subgroup": "world"}, 4)
    assert_close(whole, play({"kind": "ddp"}, 4), within=0)
    alone, own = play({**options, "subgroup": 1}, 4), play(options, 4)
    for rank in range(4):
        for name, weight in own.replicas[rank].items():
            np.testing.assert_array_equal(alone.replicas[rank][name], weight)


def test_several_periods_are_saved_and_read_again_in_their_order():
    chosen = LocalSGD(period_group_size_dict={12: "world", 2: 2, 3: "node"})
    assert list(chosen.period_group_size_dict) == [2, 3, 12]
    assert chosen.local_steps == 12
    assert LocalSGD.model_validate(json.loads(chosen.model_dump_json())) == chosen


@for_each("at", ["begin", "end"])
def test_every_step_of_several_periods_is_known_beforehand(at):
    """In each, the longest period counts that divides the number of the step."""
    periods, late = {2: 1, 3: 2, 4: 4}, int(at == "begin")
    trained = workload(steps=30)
    batches = next(iter(trained.batches(4, 0, Path())))
    for warmup in range(13):
        chosen = LocalSGD(
            period_group_size_dict=periods, average_at=at, averager_warmup_steps=warmup
        )
        program = Program.of(chosen, trained, 4, NUM_SAMPLES)
        listed = {id(plan) for plan in program.plans}
        for number in range(30):
            plan = program.plan(number, batches)
            ends = [n for n in periods if (number + 1 - late) % n == 0 and number >= warmup]
            found = [op.num_averaged for op in plan if isinstance(op, Average)]
            assert found == [None if periods[n] == 4 else periods[n] for n in ends[-1:]]
            assert id(plan) in listed


# What it costs -----------------------------------------------------------------------------------


def test_a_period_ends_with_its_average():
    assert averages(local(3, steps=8)) == [2, 5]
    assert averages(local(3, steps=8, warmup_steps=2)) == [4, 7]
    assert averages(local(1, steps=3)) == [0, 1, 2]


@for_each("local_steps", [1, 2, 4, 8])
def test_weights_are_sent_once_in_so_many_steps(local_steps):
    """The first step is warm-up, so that 8 of 9 steps count, of which the last ends a period."""
    result = local(local_steps, 4, steps=9, numerics=False, warmup_steps=1)
    share = 2 * 3 / 4 * SIZE * 8
    sent = result.metrics["bytes_sent_per_rank"]
    assert sent == pytest.approx([share / local_steps] * 4, rel=1e-12)
    assert result.metrics["bucket_bytes"] is None


def test_an_average_comes_after_the_update_and_holds_the_next_step_up():
    result = local(1, numerics=False)
    mine = [s for s in result.trace.spans if s.rank == 0 and s.step == 1]
    (update,) = (s for s in mine if s.activity == "update")
    (average,) = (s for s in mine if s.name == "all_reduce weights")
    assert average.start == pytest.approx(update.end, rel=1e-12)
    following = min(s.start for s in result.trace.spans if s.rank == 0 and s.step == 2)
    assert following == pytest.approx(average.end, rel=1e-12)
    exposed = result.metrics["exposed_comm_s"]
    assert exposed == pytest.approx(average.end - average.start, rel=1e-9)


def test_fewer_averages_take_less_time():
    times = [local(h, steps=9, numerics=False).metrics["step_time_s"] for h in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


def test_copies_are_charged_where_that_is_asked_for():
    strategy = {"kind": "local_sgd", "local_steps": 1, "charge_copies": True}
    charged, free = play(strategy, numerics=False), local(1, numerics=False)
    longer = charged.metrics["step_time_s"] - free.metrics["step_time_s"]
    assert longer == pytest.approx(2 * 2 * SIZE * 8 / 1e12, rel=1e-6)


def test_the_buffer_that_travels_is_given_back():
    trace = local(1, numerics=False).trace
    for rank in range(3):
        mine = [h for h in trace.memory if h.step == 1 and rank in h.ranks]
        assert [float(np.max(h.nbytes)) for h in mine][-2:] == [SIZE * 8, -SIZE * 8]


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("options", "line"),
    [
        ({"local_steps": 0}, "local_steps: 0 is out of range; it must be >= 1."),
        ({"warmup_steps": -1}, "warmup_steps: -1 is out of range; it must be >= 0."),
        ({"local_steps": 2.5}, "local_steps: 2.5 is not a whole number."),
        (
            {"subgroup": "nodes"},
            "subgroup: 'nodes' is not a size of process groups; write one of none, node, world, or "
            "a number of ranks.",
        ),
        (
            {"subgroup": 0},
            "subgroup: 0 is not a size of process groups; write one of none, node, world, or "
            "a number of ranks.",
        ),
        ({"subgroup": 3}, "subgroup: 3 does not divide the 4 ranks; use one of 1, 2, 4."),
        (
            {"period_group_size_dict": {}},
            "period_group_size_dict: {} has no periods; write the ranks that average for each, "
            "such as {2: node, 8: world}.",
        ),
        (
            {"period_group_size_dict": {0: 2, 4: 4}},
            "period_group_size_dict: 0 is not a period; write a whole number of steps from 1.",
        ),
        (
            {"period_group_size_dict": {2: "none", 4: 4}},
            "period_group_size_dict: 2: 'none' is not a size of process groups; write one of node, "
            "world, or a number of ranks.",
        ),
        (
            {"period_group_size_dict": {2: 3, 4: 4}},
            "period_group_size_dict.2: 3 does not divide the 4 ranks; use one of 1, 2, 4.",
        ),
        (
            {"period_group_size_dict": {2: 4, 4: 2}},
            "period_group_size_dict.4: 2 ranks, but the longest period averages among all 4; "
            "write world.",
        ),
    ],
)
def test_options_out_of_range_are_refused(refuse, options, line):
    assert refuse(strategy={"kind": "local_sgd", **options}) == [f"strategy.{line}"]


@for_each(
    ("options", "line"),
    [
        (
            {"subgroup": 2, "weight_by_shard": True},
            "weight_by_shard: a rank's share is that of the global batch, which a subgroup does "
            "not have; leave it out, or write subgroup: none.",
        ),
        (
            {"period_group_size_dict": {2: 2, 4: 4}, "local_steps": 8},
            "local_steps: 8, but the averages of period_group_size_dict repeat after 4 steps; "
            "leave local_steps out.",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(refuse, options, line):
    assert refuse(strategy={"kind": "local_sgd", **options}) == [f"strategy: {line}"]


def test_ranks_with_different_numbers_of_samples_are_refused():
    uneven = workload(samples_per_rank=[320, 300])
    assert LocalSGD().problem_with(2, uneven).startswith("kind: ranks have different numbers of")


def test_a_parameter_without_a_gradient_is_refused_in_the_warm_up_alone():
    idle = {"name": "idle", "kind": "linear", "in_features": 4, "out_features": 3}
    model = {"kind": "sequential", "input_shape": [4], "unused": ["idle"]}
    model["layers"] = [{**idle, "name": "l1"}, idle]
    spare = workload(model=model)
    assert LocalSGD(warmup_steps=1).problem_with(2, spare) == (
        "warmup_steps: idle.weight gets no gradient, so that its bucket would never be complete; "
        "set warmup_steps: 0."
    )
    assert LocalSGD().problem_with(2, spare) is None
    assert LocalSGD(subgroup=1).problem_with(2, spare) == (
        "subgroup: idle.weight gets no gradient, so that its bucket would never be complete; set "
        "subgroup: none."
    )


@for_each("key", ["subgroup", "period_group_size_dict"])
def test_replica_groups_have_no_groups_of_their_own(key):
    chosen = LocalSGD(**{key: {2: 2, 4: 4} if key != "subgroup" else "node"})
    assert chosen.problem_with_groups(2, 4, workload()).startswith(f"{key}: replica groups take")


@for_each("numerics", [True, False])
def test_every_rank_skips_by_itself_what_its_own_gradients_spoil(numerics):
    amp = {"dtype": "float32", "precision": {"kind": "amp", "dtype": "float16"}}
    fault = {"inject": [{"kind": "inf", "rank": 1, "step": 2}], "steps": 3}
    result = local(8, numerics=numerics, **amp, **fault)
    assert result.metrics["skipped_steps"] == [2]
    updates = [s for s in result.trace.spans if s.name == "optimizer" and s.step == 1]
    assert {s.rank: s.end > s.start for s in updates} == {0: True, 1: False, 2: True}
    together = local(8, numerics=numerics, warmup_steps=3, **amp, **fault)
    assert not [s for s in together.trace.spans if s.name == "optimizer" and s.step == 1]


@for_each("numerics", [True, False])
def test_a_subgroup_skips_together_what_one_of_its_ranks_spoils(numerics):
    amp = {"dtype": "float32", "precision": {"kind": "amp", "dtype": "float16"}}
    fault = {"inject": [{"kind": "inf", "rank": 1, "step": 2}], "steps": 3}
    strategy = {"kind": "local_sgd", "subgroup": 2}
    result = play(strategy, 4, numerics=numerics, **amp, **fault)
    updates = [s for s in result.trace.spans if s.name == "optimizer" and s.step == 1]
    assert {s.rank: s.end > s.start for s in updates if s.end > s.start} == {2: True, 3: True}
