"""simulate: metrics at once, with the trace to come, are those of a run that is played at once."""

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from every_strategy import ON_RANKS, scenario
from for_each import for_each, for_some, one_in
from small_workload import CLASSIFIER

import simdp
from simdp import load_scenario, simulate
from simdp.collectives import plans
from simdp.engine import simulate as common
from simdp.engine.simulate import prove_plans, rebalanced, simulate_segment
from simdp.engine.state import segment_of
from simdp.results.trace import Columns, TraceToCome
from simdp.scenario import root

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "scenarios"
SCENARIOS = sorted(FOLDER.glob("*.yaml"))
MAX_RANKS = 8
LATE = {
    "lognormal": {"kind": "lognormal", "sigma": 0.3},
    "jitter": {"kind": "jitter", "sigma": 0.3},
    "slow rank": {"kind": "slow_rank", "rank": 1, "factor": 2.0},
    "pauses by steps": {"kind": "pause", "rank": 1, "every": 2, "duration": "1 ms"},
    "pauses on the clock": {"kind": "pause", "rank": 1, "every": "50 us", "duration": "9 us"},
}
OVERHEADS = {"hook": "3 us", "launch": "5 us", "message": "7 us", "message_per_rank": "1 us"}
SLOWDOWNS = {"compute_slowdown": 0.5, "collective_slowdown": 0.3}
SEQUENCES = {
    "model": CLASSIFIER,
    "dataset": {"kind": "tokens", "num_samples": 64, "sequence_length": 32, "min_length": 1},
}


def assert_same_times(found, wanted):
    """Equal metrics, up to rounding: clocks of one round and of all at once add up otherwise."""
    least = 1e-12 * wanted["step_time_s"]
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-12, abs=least), key
        else:
            assert found[key] == value, key


def spans(trace):
    return {name: getattr(trace, name).tobytes() for name in Columns._fields}, trace.names


def at_once(chosen):
    """Metrics and trace of one play, whose spans are taken down."""
    return simulate_segment(rebalanced(chosen), segment_of(chosen), keep_state=False)


def assert_the_trace_may_wait(chosen):
    found, wanted = simulate(chosen), at_once(chosen)
    assert isinstance(found.trace, TraceToCome) != bool(chosen.program.facts.foreseen)
    assert_same_times(found.metrics, wanted.metrics)
    assert spans(found.trace) == spans(wanted.trace)
    assert len(found.trace.memory) == len(wanted.trace.memory)
    assert found.network["num_links_used"] == wanted.network["num_links_used"]


def fresh(chosen):
    """What a run tells in a process that knows of no other."""
    common._KNOWN.clear()
    root.MADE.clear()
    return simulate(chosen()).metrics


def first_point(path):
    """The first point of a scenario that a clock without spans can play."""
    for _, point in load_scenario(path).points():
        small = 1 < point.cluster.world_size <= MAX_RANKS and not point.neighbours
        if small and not point.strategy.has_server:
            return point
    pytest.skip("it has none")


# The same run ------------------------------------------------------------------------------------


@pytest.mark.long
@for_each("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_teaching_scenario_takes_as_long_without_its_trace(path):
    point = first_point(path)
    workload = point.workload.model_copy(update={"steps": 2, "epochs": None})
    short = point.model_copy(update={"numerics": False, "workload": workload})
    found = simulate(short)
    if isinstance(found.trace, TraceToCome):  # else it was played at once
        assert_same_times(found.metrics, simulate(short, fabric="vector").metrics)


@pytest.mark.parametrize("late", one_in(2, LATE))
def test_stragglers_take_as_long_without_a_trace(late):
    for strategy in ON_RANKS[1:10:4]:
        assert_the_trace_may_wait(scenario(strategy, cluster={"stragglers": [LATE[late]]}, steps=5))


@for_some("strategy", ON_RANKS, 4, ids=lambda strategy: strategy["kind"])
def test_every_strategy_takes_as_long_without_a_trace(strategy):
    world = 1 if strategy["kind"] == "single" else 4
    late = [each for each in LATE.values() if each.get("rank", 0) < world]
    chosen = scenario(strategy, cluster={"stragglers": late}, steps=3, grad_accum=2)
    found, wanted = simulate(chosen), at_once(chosen)
    assert_same_times(found.metrics, wanted.metrics)
    assert spans(found.trace) == spans(wanted.trace)


@pytest.mark.parametrize(
    "overheads", one_in(3, [OVERHEADS | SLOWDOWNS, OVERHEADS, SLOWDOWNS]), ids=len
)
def test_overheads_take_as_long_without_a_trace(overheads):
    cluster = {"overheads": overheads, "stragglers": list(LATE.values())}
    for kind in ("ddp", "zero1", "fsdp"):
        assert_the_trace_may_wait(scenario({"kind": kind}, cluster=cluster, steps=4))


@pytest.mark.parametrize(
    "more", one_in(3, [{"group_by_length": True}, {}, {"shuffle": True}]), ids=str
)
def test_batches_of_other_lengths_take_as_long_without_a_trace(more):
    late = [LATE["lognormal"], LATE["pauses by steps"]]
    options = SEQUENCES | {"cluster": {"stragglers": late}, "steps": 12} | more
    assert_the_trace_may_wait(scenario({"kind": "ddp"}, **options))


# Many runs in one process ------------------------------------------------------------------------

LINK = {"alpha": "5 us", "bandwidth": "2 GB/s"}
WEAK = {
    "peak": dict.fromkeys(["float64", "float32", "float16", "bfloat16"], "1 TFLOP/s"),
    "memory": "5 GB",
    "memory_bandwidth": "100 GB/s",
}


@pytest.mark.long
@for_each(
    ("before", "after"),
    [
        ({}, {"cluster": {"link": LINK}}),
        ({}, {"cluster": {"topology": "ring"}}),
        ({}, {"cluster": {"device": WEAK}}),
        ({}, {"cluster": {"overheads": OVERHEADS}}),
        ({"cluster": {"overheads": OVERHEADS}}, {"cluster": {"overheads": SLOWDOWNS}}),
        ({}, {"cluster": {"allocator": "cuda"}}),
        ({}, {"cluster": {"stragglers": [LATE["lognormal"]]}}),
        ({}, {"cluster": {"ranks_per_device": 2}}),
        ({}, {"world_size": 8}),
        ({}, {"collectives": {"all_reduce": "tree"}}),
        ({}, {"microbatch": 4}),
        ({}, {"dataset": {"kind": "regression", "num_samples": 10}}),
        (SEQUENCES | {"shuffle": True}, SEQUENCES),
    ],
    ids=str,
)
def test_a_run_tells_what_it_would_tell_as_the_first_of_a_process(before, after):
    strategy = {"kind": "ddp"}
    alone = fresh(lambda: scenario(strategy, **after))
    for first in (before, after):
        fresh(lambda first=first: scenario(strategy, **first))
        assert simulate(scenario(strategy, **after)).metrics == alone


@for_each("kind", ["ddp", "data_parallel"])
def test_runs_that_differ_in_their_seed_have_samples_of_other_lengths(kind):
    def chosen(seed):
        return scenario({"kind": kind}, **SEQUENCES).model_copy(update={"seed": seed})

    alone = fresh(lambda: chosen(1))
    other = fresh(lambda: chosen(0))
    assert alone["step_time_s"] != other["step_time_s"]
    assert simulate(chosen(1)).metrics == alone


def test_what_is_merged_by_the_bandwidth_between_nodes_goes_by_the_run_s_own():
    def chosen(link):
        nodes = {"devices_per_node": 4, "inter_node": {"link": link}}
        return scenario({"kind": "horovod", "merge": "mg_wfbp"}, 8, cluster=nodes)

    slow, fast = (fresh(lambda link=link: chosen(link)) for link in ("10gbe", "ib-hdr"))
    assert slow["step_time_s"] > fast["step_time_s"]
    assert simulate(chosen("10gbe")).metrics == slow


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    dataset = {"kind": "npz", "path": str(tmp_path / "data.npz")}
    chosen = SEQUENCES | {"dataset": dataset, "loss": "cross_entropy"}

    def write(length):
        x = np.ones((64, 32), dtype=np.int64)
        x[:, length:] = 0
        np.savez(tmp_path / "data.npz", x=x, y=np.zeros(64, dtype=np.int64))

    each = []
    for length in (4, 30):
        write(length)
        each.append(fresh(lambda: scenario({"kind": "ddp"}, **chosen)))
    write(4)
    assert simulate(scenario({"kind": "ddp"}, **chosen)).metrics == each[0] != each[1]


# A trace to come ---------------------------------------------------------------------------------


def told(result):
    """Of a result that has travelled."""
    return result.metrics, spans(result.trace)


def test_a_trace_to_come_travels_between_processes():
    chosen = scenario({"kind": "zero1"}, cluster={"stragglers": [LATE["lognormal"]]})
    here = told(simulate(chosen))
    assert told(pickle.loads(pickle.dumps(simulate(chosen)))) == here
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert told(pool.submit(simulate, chosen).result(60)) == here


def test_a_trace_to_come_is_made_once():
    trace = simulate(scenario({"kind": "ddp"})).trace
    assert trace.blocks is trace.blocks
    assert trace.start is trace.start


def test_a_check_proves_the_plans_of_three_roots_where_every_rank_broadcasts(monkeypatch):
    """A check of `cheapest_cluster` took eight times as long as its run."""
    chosen = load_scenario(SCENARIOS[0].parent / "cheapest_cluster.yaml").points()[2][1]
    assert (chosen.cluster.world_size, len(chosen.calls())) == (64, 65)
    proved, prove = [], plans.prove

    def count(plan):
        prove(plan)
        proved.append((plan.collective, plan.root))

    monkeypatch.setattr(plans, "prove", count)
    prove_plans(chosen)
    assert sorted(set(proved)) == [
        ("all_reduce", 0),
        ("broadcast", 0),
        ("broadcast", 31),
        ("broadcast", 63),
    ]
    assert len(proved) == len(set(proved))


POINTS = [
    ("topo_fat_tree", {"cluster.world_size": 2}),
    ("dgx1_rings", {"collectives.all_reduce": "ring"}),
    ("straggler", {}),
    ("fsdp_prefetch", {}),
    ("seed_mlp", {}),
    ("async_staleness", {"numerics": False}),
    ("two_jobs", {}),
    ("profile_step", {}),
]


@for_some(("name", "settings"), POINTS, 4)
def test_a_run_a_point_of_a_sweep_and_simulate_are_the_same_to_the_last_bit(
    name, settings, tmp_path
):
    settings = {**settings, "sweep": None}
    alone = load_scenario(FOLDER / f"{name}.yaml", settings)
    study = simdp.sweep(alone)  # as `run` plays it
    study.save(tmp_path / "result.json")
    run = json.loads((tmp_path / "result.json").read_text())["points"][0]
    seeds = {**settings, "sweep": {"seed": [alone.seed, alone.seed]}}
    point = simdp.sweep(load_scenario(FOLDER / f"{name}.yaml", seeds)).points[1]
    plain = simdp.simulate(alone)
    for metric, value in plain.metrics.items():
        if value is not None:
            assert run["metrics"][metric] == point.metrics[metric] == value, metric
    assert run["network"] == point.network == plain.network
