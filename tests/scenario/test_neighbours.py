"""Several jobs on one network: who slows whom down, by how much, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from for_each import for_each
from small_networks import between, cluster
from small_scenario import FAST, WORKLOAD

import simdp
from simdp.cli import run_command_line
from simdp.collectives.ring import RingAllReduce
from simdp.engine import simulate
from simdp.engine.clocks.clock import OtherJob, clock_for
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import ClockWait, ComputeWork, Launch
from simdp.engine.simulate import neighbours_of
from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.results.trace import TraceBuilder

pytestmark = pytest.mark.slow

PARAMETERS = {
    "model": {"kind": "parameters", "num_params": 1_000_000},
    "microbatch": 8,
    "steps": 3,
    "optimizer": "none",
}
"""4 MB of gradients, and nothing else to do."""

LEAVES = {"kind": "fat_tree", "ports_per_leaf": 2, "spines": 1, "oversubscription": 2}
"""Two nodes a leaf, and a trunk as wide as one node's port."""


def nodes(topology=LEAVES, alpha="0 s", world_size=4, per_node=2, **more):
    net = {"devices_per_node": per_node, "inter_node": between(topology, alpha, "5 GB/s", **more)}
    return {**FAST, "topology": "switch", "world_size": world_size, **net}


def job(world_size=4, num_params=1_000_000, **more):
    model = {"kind": "parameters", "num_params": num_params}
    return {"world_size": world_size, "workload": {**PARAMETERS, "model": model}, **more}


@pytest.fixture
def played(load):
    """Simulate the small job on some nodes, with or without neighbours."""

    def played(cluster=None, **top):
        top = {"workload": PARAMETERS, "numerics": False, **top}
        return simdp.simulate(load(cluster=cluster or nodes(), **top))

    return played


def assert_alike(found, wanted):
    """Equal up to the rounding in which two clocks differ."""
    if isinstance(wanted, Mapping):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for own, other in zip(found, wanted, strict=True):
            assert_alike(own, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-18)
    else:
        assert found == wanted


def test_jobs_packed_on_leaves_of_their_own_are_as_fast_as_alone(played):
    alone = played()
    beside = played(neighbours=[job(), job(8)])
    assert_alike(beside.metrics, alone.metrics)
    assert_alike(sorted(beside.trace.spans), sorted(alone.trace.spans))
    either = {"fabric": "either", "why": ""}  # two clocks agree, and each may play it
    assert_alike({**beside.network, **either}, {**alone.network, **either})
    assert beside.network["why"].startswith("no link is shared")


def test_the_bottleneck_counts_what_a_neighbour_sends_over_it(played):
    """Two jobs alike for fifty steps: the trunk carries both, a port of a card one of them."""
    longer = {**PARAMETERS, "steps": 50}
    alike = {**job(), "workload": longer}
    busiest = played(workload=longer, neighbours=[alike], placement="interleaved").network
    found = busiest["bottleneck"]
    assert found["link"] == "the link from leaf switch 0 to spine switch 0"
    assert found["nbytes"] == pytest.approx(2 * 3 / 4 * 4e6)
    assert found["neighbours_nbytes"] == pytest.approx(found["nbytes"], rel=0.05)
    assert found["utilization"] == pytest.approx(1.0, rel=0.05)
    port = next(link for link in busiest["links"] if "card 0 of node 0 to" in link["link"])
    assert port["neighbours_nbytes"] == 0
    assert port["utilization"] == pytest.approx(0.5, rel=0.01)


@for_each("num_neighbours", [1, 2])
def test_interleaved_jobs_share_the_trunk_and_take_as_much_longer(played, num_neighbours):
    """Node 0 and 1 are on a leaf, 2 and 3 on the next: each job's ring crosses the trunk twice.

    A ring over two nodes sends 2 (n - 1) / n S over the trunk in each direction; jobs alike share
    it evenly and without a pause, since they do nothing else. Three jobs on nodes 0, 3; 1, 4; 2, 5
    have the trunks 0 -> 1 (jobs 0 and 1), 1 -> 2 and 0 -> 2, and so on.
    """
    alone = played(nodes()).metrics["step_time_s"]
    assert alone == pytest.approx(2 * 3 / 4 * 4e6 / 5e9)
    beside = played(neighbours=[job()] * num_neighbours, placement="interleaved")
    # Up from leaf 0 go jobs 0 and 1 in both cases, each over the one spine.
    assert beside.metrics["step_time_s"] == pytest.approx(2 * alone)
    assert beside.network["fabric"] == "event"
    expected = "the link from leaf switch 0 to spine switch 0 is shared with a neighbour"
    assert beside.network["why"] == expected


def test_a_neighbour_that_also_computes_slows_a_job_down_by_less_than_half(played):
    slow = {"kind": "mlp", "widths": [1000, 1000]}
    dataset = {"kind": "regression", "num_samples": 64}
    busy = {"model": slow, "dataset": dataset, "microbatch": 64, "steps": 1}
    alone = played().metrics["step_time_s"]
    beside = played(
        neighbours=[{"world_size": 4, "workload": busy}], placement="interleaved"
    ).metrics["step_time_s"]
    assert alone < beside < 2 * alone


@for_each(("world_size", "is_met"), [(2, False), (4, True), (8, True)])
def test_neighbours_of_another_size_slow_a_job_down_where_they_cross_its_trunk(
    played, world_size, is_met
):
    """One node alone uses no network; the job then is on nodes 0 and 2, still on two leaves."""
    alone, beside = played(), played(neighbours=[job(world_size)], placement="interleaved")
    ratio = beside.metrics["step_time_s"] / alone.metrics["step_time_s"]
    assert ratio == pytest.approx(2 if is_met else 1)
    assert ("with a neighbour" in beside.network["why"]) == is_met


@pytest.mark.parametrize("num_params", [1, 100_000_000])
def test_a_neighbour_may_be_much_shorter_or_much_longer_than_the_job(played, num_params):
    """It begins again as often as it takes, and is cut off when the job is done."""
    alone = played(nodes(alpha="1 us")).metrics["step_time_s"]
    beside = played(
        nodes(alpha="1 us"), neighbours=[job(num_params=num_params)], placement="interleaved"
    ).metrics["step_time_s"]
    if num_params == 1:  # a few bytes a message: latency is all that it takes
        assert alone <= beside < 1.01 * alone
    else:
        # Its chunks are under way all the time, so that each of ours gets half of the trunk.
        assert 1.9 * alone < beside < 2.1 * alone


@for_each("topology", ["switch", "ring", "full_mesh"])
def test_packed_jobs_of_two_nodes_never_meet(played, topology):
    """Behind a switch every card has a port; between neighbours on a ring the way is theirs."""
    where = nodes(topology, per_node=1, world_size=2)
    why = played(where, neighbours=[job(2)] * 2).network["why"]
    assert why.startswith("no link is shared")


def test_who_is_slowed_by_a_neighbours_neighbour_plays_with_both():
    """Chains of meetings: mine meets 1, 1 meets 2, and 3 meets nobody."""
    where = cluster(12, "ring")
    pair, slowdown = RingAllReduce().plan(2, 1e6), Slowdown(cluster(2), 0)

    def routed(*ranks):
        return NetworkRoutes(where, np.array(ranks))

    others = [
        OtherJob(routed(*ranks), [pair], slowdown, iter(()), Traffic())
        for ranks in ((9, 10), (3, 5), (1, 4), (7, 8))
    ]
    clock = clock_for(routed(0, 2), [pair], slowdown, TraceBuilder(), others=others)
    assert list(clock.others) == [others[1], others[2]]
    assert clock.why.endswith("is shared with a neighbour")
    asked = clock_for(routed(0, 2), [pair], slowdown, TraceBuilder(), "event", others=others)
    assert list(asked.others) == [others[1], others[2]]
    with pytest.raises(ScenarioError, match="fabric 'vector' is not exact here: the link"):
        clock_for(routed(0, 2), [pair], slowdown, TraceBuilder(), "vector", others=others)


def test_numbers_are_those_of_the_run_alone_bit_for_bit(load):
    common = {
        "cluster": nodes(),
        "workload": {**WORKLOAD, "steps": 4, "model": {"kind": "mlp", "widths": [100, 3000, 3]}},
        "seed": 3,
    }
    alone = simdp.simulate(load(**common))
    beside = simdp.simulate(load(**common, neighbours=[job(8)], placement="interleaved"))
    assert beside.metrics["step_time_s"] > alone.metrics["step_time_s"]
    for name in ("loss", "loss_per_rank", "grad_norm", "bytes_sent_per_rank", "peak_memory_bytes"):
        assert beside.metrics[name] == alone.metrics[name]
    for mine, theirs in zip(alone.replicas, beside.replicas, strict=True):
        assert {k: v.tobytes() for k, v in mine.items()} == {
            k: v.tobytes() for k, v in theirs.items()
        }


def test_stragglers_are_the_jobs_own_and_runs_repeat_themselves(load):
    where = {**nodes(), "stragglers": [{"kind": "lognormal", "sigma": 0.5}]}
    common = {"cluster": where, "workload": WORKLOAD, "placement": "interleaved"}
    first, again = (
        simdp.simulate(load(**common, neighbours=[{"world_size": 4, "workload": WORKLOAD}] * 2))
        for _ in range(2)
    )
    assert first.metrics == again.metrics
    assert list(first.trace.spans) == list(again.trace.spans)
    _, others = neighbours_of(load(**common, neighbours=[job(8)]))
    assert [other.slowdown.world_size for other in others] == [8]
    assert others[0].slowdown.factors(0).tolist() == [1.0] * 8


def test_a_neighbours_run_begins_again_with_other_numbers_for_its_collectives(load):
    scenario = load(cluster=nodes(), workload=PARAMETERS, neighbours=[job()])
    _, (other,) = neighbours_of(scenario)
    calls = [op for _, op in zip(range(80), other.script, strict=False) if isinstance(op, Launch)]
    assert [op.call for op in calls] == list(range(len(calls)))
    assert len([op for op in calls if op.step == -1]) > 2  # it has begun three times
    assert not any(op.record for op in calls)


def test_a_neighbour_that_takes_no_time_ends(monkeypatch):
    """It would begin again for ever, at one instant."""
    plan = RingAllReduce().plan(2, 0.0)
    idle = [
        ComputeWork(0, "forward", "x", np.zeros(2)),
        Launch(0, "x", 0, plan, 0.0, False),
        ClockWait((0,)),
    ]
    monkeypatch.setattr(simulate, "Run", lambda *_: SimpleNamespace(script=lambda: iter(idle)))
    assert list(simulate._endless(None, None, None)) == idle
    at_work = ComputeWork(0, "forward", "x", np.array([0.0, 1e-3]))
    for takes_time in (at_work, Launch(0, "x", 0, plan, 8.0, False)):
        idle[0] = takes_time
        again = [op for _, op in zip(range(9), simulate._endless(None, None, None), strict=False)]
        assert len(again) == 9


@pytest.mark.parametrize("strategy", ["ddp", "single"])
def test_a_job_of_one_rank_sends_nothing_and_slows_nobody_down(played, strategy):
    """It would never wait for the clock, so that it must not play at all."""
    where = nodes(per_node=1, world_size=3)
    idle = {**job(1), "strategy": strategy}
    first, second = (
        played(where, neighbours=neighbours, placement="interleaved")
        for neighbours in ([job(3)], [job(3), idle])
    )
    assert first.network["fabric"] == second.network["fabric"] == "event"
    alone = played(where, neighbours=[idle], placement="interleaved")
    assert alone.network["why"].startswith("no link is shared")
    assert_alike(alone.metrics, played(where).metrics)


def test_jobs_beside_each_other_may_leave_the_choice_to_auto(played):
    chosen = {"all_reduce": "auto", "broadcast": "auto"}
    beside = played(
        nodes(cards=2),
        collectives=chosen,
        neighbours=[job(collectives=chosen), job(6, collectives={"all_reduce": "hierarchical"})],
        placement="interleaved",
    )
    kinds = [entry["algorithm"] for entry in beside.network["chosen"]["all_reduce"]]
    assert kinds
    assert beside.network["fabric"] == "event"


def test_a_sweep_may_go_over_the_neighbours(load):
    scenario = load(
        cluster=nodes(),
        workload=PARAMETERS,
        numerics=False,
        neighbours=[job()],
        sweep={"placement": ["packed", "interleaved"]},
    )
    packed, mixed = (point.metrics["step_time_s"] for point in simdp.sweep(scenario).points)
    assert mixed == pytest.approx(2 * packed)


def test_a_scenario_with_neighbours_loads_again_as_it_resolves(load, tmp_path):
    scenario = load(cluster=nodes(), workload=PARAMETERS, neighbours=[job()])
    resolved = scenario.resolved()
    assert resolved["placement"] == "packed"
    assert resolved["neighbours"][0]["world_size"] == 4
    again = load(**{key: value for key, value in resolved.items() if key != "name"})
    assert again.resolved() == resolved


# What is refused ----------------------------------------------------------------------------------


def refused(refuse, **top):
    return refuse(**{"cluster": nodes(), "workload": PARAMETERS, "numerics": False, **top})


@for_each(
    ("top", "line"),
    [
        (
            {"neighbours": [job(3)]},
            "neighbours.0.world_size: 3 ranks do not fill nodes of 2 devices, and jobs share no "
            "node; use a multiple.",
        ),
        (
            {"cluster": nodes(world_size=1), "neighbours": [job()]},
            "cluster.world_size: 1 ranks do not fill nodes of 2 devices, and jobs share no node; "
            "use a multiple.",
        ),
        (
            {"cluster": {**FAST, "world_size": 4}, "neighbours": [job()]},
            "neighbours: jobs meet on the network between nodes, but there is none; add "
            "cluster.inter_node.",
        ),
        (
            {"cluster": nodes(per_node=None), "neighbours": [job()]},
            "neighbours: one node holds all ranks, however many they are; add "
            "cluster.devices_per_node, to say how large the neighbours' nodes are.",
        ),
        (
            {"cluster": {**nodes(), "device": [FAST["device"]] * 4}, "neighbours": [job()]},
            "cluster.device: a list does not cover the neighbours' nodes; give one for all.",
        ),
        (
            {"cluster": {**nodes(), "topology": ["switch"] * 2}, "neighbours": [job()]},
            "cluster.topology: a list does not cover the neighbours' nodes; give one for all.",
        ),
        (
            {"cluster": {**nodes(), "link": [FAST["link"]] * 2}, "neighbours": [job()]},
            "cluster.link: a list does not cover the neighbours' nodes; give one for all.",
        ),
        (
            {
                "cluster": {
                    **nodes(),
                    "inter_node": {"topology": "switch", "link": [FAST["link"]] * 2},
                },
                "neighbours": [job()],
            },
            "cluster.inter_node.link: a list does not cover the neighbours' nodes; give one for "
            "all.",
        ),
        (
            {"cluster": nodes({**LEAVES, "leaves": 2}), "neighbours": [job(), job()]},
            "neighbours: with them, cluster.inter_node.topology: fat_tree joins 4 ports at most, "
            "not 6; enlarge it, or use switch.",
        ),
        (
            {"cluster": nodes({"kind": "torus2d", "dims": [2, 1]}), "neighbours": [job()]},
            "neighbours: with them, cluster.inter_node.topology: dims 2 x 1 make 2 places for 4 "
            "endpoints; give dims whose product is 4, or leave them out.",
        ),
        (
            {
                "cluster": nodes({"kind": "switch", "in_network": True}),
                "collectives": {"all_reduce": "sharp"},
                "neighbours": [job()],
            },
            "collectives.all_reduce: sharp needs switches that add between nodes, and these add "
            "for one job alone; use ring, or leave out neighbours.",
        ),
        (
            {
                "cluster": nodes({"kind": "switch", "in_network": True}),
                "neighbours": [job(), job(collectives={"all_reduce": "sharp"})],
            },
            "neighbours.1.collectives.all_reduce: sharp needs switches that add between nodes, and "
            "these add for one job alone; use ring, or leave out neighbours.",
        ),
        (
            {"neighbours": [job(collectives={"all_reduce": "nvls"})]},
            "neighbours.0.collectives.all_reduce: nvls works inside one node, and there are 2; "
            "use {kind: hierarchical, inner: nvls}",
        ),
        (
            {"neighbours": [{**job(), "strategy": "single"}]},
            "neighbours.0.strategy.kind: single trains on one device, but cluster.world_size is 4; "
            "set it to 1, or use strategy: ddp.",
        ),
        (
            {"neighbours": [{**job(), "workload": {**PARAMETERS, "microbatch": 0}}]},
            "neighbours.0.workload.microbatch: 0 is out of range; it must be >= 1.",
        ),
        (
            {"neighbours": [{**job(), "seed": 1}]},
            "neighbours.0: unknown key 'seed'; known: world_size, workload, strategy, collectives.",
        ),
        (
            {"neighbours": [{"workload": PARAMETERS}]},
            "neighbours.0.world_size: is required but was not given; add it.",
        ),
        (
            {"placement": "random"},
            "placement: 'random' is not allowed; known: 'packed' or 'interleaved'.",
        ),
    ],
)
def test_jobs_that_cannot_share_a_network_are_refused_in_one_line(refuse, top, line):
    assert refused(refuse, **top) == [line]


def test_a_neighbours_files_are_looked_at(refuse):
    """Its data, and the program of its collectives."""
    gone = {**WORKLOAD, "dataset": {"kind": "npz", "path": "gone.npz"}, "loss": "mse"}
    (line,) = refused(refuse, neighbours=[{"world_size": 4, "workload": gone}])
    assert line.startswith("neighbours.0.workload.dataset")
    assert "gone.npz" in line
    program = {"all_reduce": {"kind": "msccl", "path": "gone.xml"}}
    (line,) = refused(refuse, neighbours=[job(collectives=program)])
    assert line.startswith("neighbours.0.collectives.all_reduce")
    assert "gone.xml" in line


def test_several_mistakes_of_several_jobs_are_said_at_once(refuse):
    found = refused(refuse, cluster=nodes(world_size=2, per_node=4), neighbours=[job(3), job(5)])
    assert [line.split(":")[0] for line in found] == [
        "cluster.world_size",
        "neighbours.0.world_size",
        "neighbours.1.world_size",
    ]


def test_the_command_line_says_so_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text(
        """\
cluster:
  world_size: 4
  devices_per_node: 2
  device: a100-sxm4-80gb
  link: nvlink3
  inter_node: {topology: switch, link: ib-hdr}
workload:
  model: {kind: parameters, num_params: 1000}
  microbatch: 1
  steps: 2
neighbours:
  - world_size: 5
    workload: {model: {kind: parameters, num_params: 1000}, microbatch: 1, steps: 2}
"""
    )
    assert run_command_line(["run", "jobs.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "jobs.yaml: neighbours.0.world_size: 5 ranks do not fill nodes of 2 devices, and jobs "
        "share no node; use a multiple."
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.yaml"]
