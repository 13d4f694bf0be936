"""The input pipeline and the host: throughput is that of the slowest stage, in both fabrics."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st

import simdp
from simdp.engine.ops import Pipeline
from simdp.scenario import checked
from simdp.workload.compute import Input

COMPUTE = 10e-3
BATCH = 8
LINK = {"alpha": "0 s", "bandwidth": "1 GB/s"}


def scenario(feed, cluster=(), **workload):
    raw = {
        "cluster": {
            "world_size": 1,
            "device": "v100-sxm2-16gb",
            "topology": "switch",
            "link": {"alpha": "1 us", "bandwidth": "100 GB/s"},
            **dict(cluster),
        },
        "workload": {
            "model": {"kind": "parameters", "num_params": 4, "num_layers": 1},
            "compute": {
                "kind": "measured",
                "points": [{"microbatch": BATCH, "step_time": "10 ms"}],
            },
            "microbatch": BATCH,
            "optimizer": "none",
            **({"input": feed} if feed else {}),
            **workload,
        },
        "collectives": {"cost": "links"},
    }
    return checked(raw, Path())


def run(*args, fabric="auto", **more):
    return simdp.simulate(scenario(*args, **more), fabric=fabric)


def step_time(*args, **more):
    return run(*args, **more).metrics["step_time_s"]


@pytest.mark.slow
@for_some("workers", [1, 2, 4], 2)
@for_each("fabric", ["vector", "event"])
@for_each("per_sample", [0.1, 2, 5, 20])
@for_each("prefetch", [1, 3])
def test_throughput_is_that_of_compute_or_of_the_workers(fabric, per_sample, workers, prefetch):
    feed = {"workers": workers, "prefetch": prefetch, "per_sample": f"{per_sample} ms"}
    found = run(feed, fabric=fabric, steps=1 + 8 * workers).metrics
    slowest = min(BATCH / COMPUTE, workers / (per_sample * 1e-3))
    assert found["throughput_samples_per_s"] == pytest.approx(slowest, rel=1e-9)
    waited = found["step_time_s"] - COMPUTE
    assert found["other_s"] == pytest.approx(max(waited, 0.0), abs=1e-12)


def test_a_run_of_no_stated_length_lets_every_worker_take_a_turn():
    feed = {"workers": 4, "per_sample": "20 ms"}
    assert scenario(feed).workload.num_steps(1, Path()) == 5
    assert step_time(feed) == pytest.approx(BATCH * 20e-3 / 4, rel=1e-12)


def test_without_workers_the_rank_makes_its_batches_itself():
    assert step_time({"per_sample": "2 ms"}) == pytest.approx(COMPUTE + BATCH * 2e-3, rel=1e-12)


def test_the_first_step_waits_for_a_whole_batch():
    found = run({"workers": 4, "per_sample": "1 ms"}, steps=1).metrics
    assert found["other_s"] == pytest.approx(BATCH * 1e-3, rel=1e-12)


@for_each(
    ("pinned", "workers", "nbytes", "seconds"),
    [
        (True, 1, "500 kB", COMPUTE),  # 4 ms, behind the compute
        (True, 1, "2 MB", 16e-3),
        (False, 1, "500 kB", COMPUTE),  # inside the measured step
        (True, 0, "500 kB", COMPUTE),  # likewise: there is no next batch to copy
    ],
)
def test_a_pinned_copy_is_hidden_by_compute_where_there_are_workers(
    pinned, workers, nbytes, seconds
):
    feed = {"workers": workers, "sample_size": nbytes, "link": LINK, "pinned": pinned}
    assert step_time(feed, steps=6) == pytest.approx(seconds, rel=1e-12)


def test_the_slowest_of_three_stages_sets_the_pace():
    feed = {"workers": 2, "per_sample": "4 ms", "sample_size": "1.5 MB", "link": LINK}
    assert step_time(feed, steps=21) == pytest.approx(16e-3, rel=1e-9)
    feed = {**feed, "sample_size": "3 MB"}
    assert step_time(feed, steps=21) == pytest.approx(24e-3, rel=1e-9)


@for_each(("ranks", "seconds"), [(1, 12e-3), (2, 24e-3), (8, 48e-3)])
def test_ranks_of_a_node_share_the_link_as_far_as_they_are_there(ranks, seconds):
    feed = {"workers": 1, "sample_size": "1.5 MB", "link": LINK, "shared_link": 4}
    found = step_time(feed, {"world_size": ranks}, steps=4)
    assert found == pytest.approx(seconds, rel=1e-3)


def test_a_catalogue_link_carries_the_copy():
    feed = Input.model_validate({"sample_size": "602 kB", "link": "pcie3-x16"})
    assert feed.link.name == "pcie3-x16"
    assert feed.copy_time(64) == feed.link.alpha + 64 * 602e3 / feed.link.bandwidth
    assert feed.copy_time(0) == 0


def test_each_micro_step_takes_a_batch():
    feed = {"workers": 1, "per_sample": "5 ms"}
    found = step_time(feed, grad_accum=3, steps=4)
    assert found == pytest.approx(3 * BATCH * 5e-3, rel=1e-12)


def test_waiting_and_copying_are_spans_of_their_own():
    feed = {"workers": 1, "per_sample": "5 ms", "sample_size": "1 MB", "link": LINK}
    spans = run({**feed, "pinned": False}, steps=2, compute=measured(40)).trace.spans
    names = {span.name for span in spans if span.activity == "input"}
    assert names == {"wait for the batch", "copy"}
    assert all(span.lane == "compute" for span in spans if span.activity == "input")


def measured(ms):
    return {"kind": "measured", "points": [{"microbatch": BATCH, "step_time": f"{ms} ms"}]}


def test_ranks_that_wait_for_data_keep_the_others_waiting():
    """A rank that a straggler slows takes its batches late, and nobody's pipeline is another's."""
    feed = {"workers": 1, "per_sample": "1.2 ms"}
    slow = {"kind": "slow_rank", "rank": 1, "factor": 1.5}
    cluster = {"world_size": 2, "stragglers": [slow]}
    each = [run(feed, cluster, fabric=fabric, steps=5) for fabric in ("vector", "event")]
    clocks = [found.metrics["simulated_s"] for found in each]
    assert clocks[0] == pytest.approx(clocks[1], rel=1e-12)
    assert each[0].metrics["step_time_s"] == pytest.approx(15e-3, rel=1e-2)


def test_host_time_is_paid_once_a_step():
    compute = measured(10)
    plain = run(None, compute=compute, host={"step": "2 ms"}, grad_accum=2).metrics
    assert plain["step_time_s"] == pytest.approx(2 * 8e-3 + 2e-3, rel=1e-12)
    assert plain["other_s"] == pytest.approx(2e-3, rel=1e-12)


@for_each("fabric", ["vector", "event"])
@for_each(("world_size", "per_node", "expected"), [(1, 4, 12e-3), (3, 4, 13e-3), (8, 4, 13.5e-3)])
def test_ranks_of_a_node_cost_each_other_host_time(fabric, world_size, per_node, expected):
    """One rank has no neighbour; three of a node have two each, four have three."""
    inter = {"link": {"alpha": "0 s", "bandwidth": "1e9 GB/s"}}
    cluster = {"world_size": world_size, "devices_per_node": per_node, "inter_node": inter}
    cluster |= {"link": {"alpha": "0 s", "bandwidth": "1e9 GB/s"}}
    host = {"step": "2 ms", "per_neighbour": "0.5 ms"}
    found = run(None, cluster, compute=measured(12), host=host, fabric=fabric).metrics
    assert found["step_time_s"] == pytest.approx(expected, rel=1e-6)
    assert found["other_s"] == pytest.approx(expected - 10e-3, rel=1e-6)


def test_host_time_is_a_span_of_its_own():
    spans = run(None, host={"step": "2 ms"}, steps=2).trace.spans
    host = [(span.step, span.name, span.lane) for span in spans if span.activity == "host"]
    assert host == [(0, "step", "compute"), (1, "step", "compute")]


def test_a_neighbour_that_waits_for_data_sends_less_often():
    job = {"model": {"kind": "parameters", "num_params": 1_000_000}, "microbatch": BATCH}
    inter = {"link": {"alpha": "0 s", "bandwidth": "5 GB/s"}, "topology": {"kind": "fat_tree"}}
    inter["topology"] |= {"ports_per_leaf": 2, "spines": 1, "oversubscription": 2}
    found = []
    for feed in (None, {"per_sample": "20 ms"}):
        other = {**job, **({"input": feed} if feed else {})}
        raw = scenario(
            None, {"world_size": 4, "devices_per_node": 1, "inter_node": inter}
        ).resolved()
        raw |= {"workload": job, "placement": "interleaved"}
        raw |= {"neighbours": [{"world_size": 4, "workload": other}]}
        found.append(simdp.simulate(checked(raw, Path())).metrics["step_time_s"])
    assert found[1] < 0.8 * found[0]


# One rank, against a walk through every batch ----------------------------------------------------


def walked(feed, loads, copies, computes):
    """Instants at which batches are handed over, from the rules, one batch after the other."""
    ahead = feed.workers * feed.prefetch
    made, taken, handed, clock = [], [], [], 0.0
    fetches = feed.pinned and feed.sample_size > 0 and feed.workers > 0
    for k, (load, copy, compute) in enumerate(zip(loads, copies, computes, strict=True)):
        asked = handed[-1] if fetches and handed else clock
        if feed.workers:
            free = made[k - feed.workers] if k >= feed.workers else 0.0
            order = taken[k - ahead] if k >= ahead else 0.0
            made.append(max(free, order) + load)
            taken.append(max(asked, made[k]))
        else:
            taken.append(asked + load)
        done = taken[k] + copy
        handed.append(max(clock, done) if feed.pinned else done)
        clock = handed[-1] + compute
    return handed


@given(
    workers=st.integers(0, 3),
    prefetch=st.integers(1, 3),
    pinned=st.booleans(),
    copied=st.booleans(),
    batches=st.lists(st.tuples(st.integers(1, 9), st.floats(0, 30)), min_size=1, max_size=14),
)
def test_every_batch_comes_when_the_rules_say(workers, prefetch, pinned, copied, batches):
    raw = {"workers": workers, "prefetch": prefetch, "per_sample": "1 s", "pinned": pinned}
    raw |= {"sample_size": "1 GB", "link": LINK} if copied else {}
    feed = Input.model_validate(raw)
    pipeline, clock, found = Pipeline(feed, 3, 3), 0.0, []
    for k, (samples, compute) in enumerate(batches):
        here = np.array([clock]), np.array([1])
        there, end = pipeline.hand_over(k, np.array([float(samples)]), *here)
        assert clock <= there[0] <= end[0]
        found.append(float(end[0]))
        clock = found[-1] + compute
    sizes = [float(samples) for samples, _ in batches]
    copies = sizes if copied else [0.0] * len(sizes)
    assert found == pytest.approx(walked(feed, sizes, copies, [c for _, c in batches]))


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("feed", "line"),
    [
        (
            {"workers": 2},
            "workload.input: the input costs nothing; give per_sample, such as 3 ms, or "
            "sample_size and link.",
        ),
        (
            {"sample_size": "1 MB"},
            "workload.input: sample_size needs a link to cross; add for example link: pcie3-x16.",
        ),
        (
            {"per_sample": "1 ms", "link": "pcie3-x16"},
            "workload.input: link: nothing is copied; add sample_size, such as 602 kB.",
        ),
        (
            {"per_sample": "1 ms", "prefetch": 0},
            "workload.input.prefetch: 0 is out of range; it must be >= 1.",
        ),
        (
            {"sample_size": "1 MB", "link": "pcie3"},
            "workload.input.link: unknown link 'pcie3'. Did you mean ",
        ),
    ],
)
def test_an_input_that_is_no_pipeline_is_refused(feed, line):
    with pytest.raises(simdp.ScenarioError) as caught:
        scenario(feed)
    assert caught.value.problems[0].startswith(line)


def test_an_input_loads_again():
    feed = {"workers": 4, "per_sample": "3 ms", "sample_size": "602 kB", "link": "pcie3-x16"}
    chosen = scenario(feed, host={"step": "2 ms"})
    assert checked(chosen.resolved(), Path()) == chosen
