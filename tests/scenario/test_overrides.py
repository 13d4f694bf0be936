"""Overrides and sweeps: keys set in a scenario, and grids of them."""

from math import prod

import numpy as np
import pytest
from for_each import for_each
from small_scenario import CLUSTER, RICH, WORKLOAD

from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.scenario.overrides import MAX_POINTS, set_key


def sizes(scenario):
    return [point.cluster.world_size for _, point in scenario.points()]


# Overrides ---------------------------------------------------------------------------------------


@for_each(
    ("raw", "key", "value", "expected"),
    [
        ({}, "a.b.c", 1, {"a": {"b": {"c": 1}}}),
        ({"a": {"b": 1, "c": 2}}, "a.b", 3, {"a": {"b": 3, "c": 2}}),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.1.b", 3, {"a": [{"b": 1}, {"b": 3}]}),
        ({"a": [1, 2]}, "a.0", 3, {"a": [3, 2]}),
        ({"a": None}, "a.b", 1, {"a": {"b": 1}}),
        ({"a": False}, "a.b", 1, {"a": {"b": 1}}),
        ({"a": "ring"}, "a.chunking", "gloo", {"a": {"kind": "ring", "chunking": "gloo"}}),
        ({"a": "ring"}, "a.kind", "ring", {"a": {"kind": "ring"}}),
        ({"a": {"kind": "x", "o": 1}}, "a.kind", "y", {"a": {"kind": "y"}}),
        ({"a": {"kind": "x", "o": 1}}, "a.kind", "x", {"a": {"kind": "x", "o": 1}}),
        ({"a": {"kind": "x", "o": 1}}, "a", "y", {"a": "y"}),
    ],
)
def test_a_key_is_set_in_place(raw, key, value, expected):
    set_key(raw, key, value)
    assert raw == expected


def test_a_value_that_is_set_is_a_copy():
    value = [1]
    raw = {}
    set_key(raw, "a", value)
    value.append(2)
    assert raw == {"a": [1]}


@for_each(
    ("raw", "key", "message"),
    [
        ({"a": 3}, "a.b", "a.b: a is 3, which has no keys inside."),
        ({"a": {"b": 2.5}}, "a.b.c.d", "a.b.c.d: a.b is 2.5, which has no keys inside."),
        (
            {"a": [1, 2]},
            "a.2",
            "a.2: the list has 2 entries, so '2' is none; count from 0.",
        ),
        (
            {"a": [{}]},
            "a.first.b",
            "a.first.b: the list has 1 entries, so 'first' is none; count from 0.",
        ),
        ({"a": [1]}, "a.-1", "a.-1: the list has 1 entries, so '-1' is none; count from 0."),
        ({"a": [1]}, "a.²", "a.²: the list has 1 entries, so '²' is none; count from 0."),
    ],
)
def test_a_key_that_leads_nowhere_is_refused(raw, key, message):
    with pytest.raises(ScenarioError) as caught:
        set_key(raw, key, 1)
    assert str(caught.value) == message


def test_an_override_of_a_catalogue_part_keeps_its_other_figures(load):
    scenario = load({"cluster.device.memory": "1 GB", "cluster.link.alpha": "1 us"}, **RICH)
    device, link = scenario.cluster.device, scenario.cluster.link
    assert device.memory == 1e9
    assert device.peak["float32"] == 19.5e12
    assert (link.alpha, link.bandwidth) == (1e-6, 300e9)


T4 = 14.56 * 2**30


def test_an_override_reaches_one_device_of_a_list(load):
    devices = ["t4-16gb", "a100-sxm4-80gb", "t4-16gb", "t4-16gb"]
    scenario = load({"cluster.device": devices, "cluster.device.1.memory": "1 GB"})
    assert [device.memory for device in scenario.cluster.devices()] == [T4, 1e9, T4, T4]


def test_an_override_expands_a_short_form(load):
    scenario = load({"collectives.all_reduce": "ring", "collectives.all_reduce.chunking": "gloo"})
    assert scenario.collectives.all_reduce.chunking == "gloo"


def test_a_new_kind_drops_the_options_of_the_old_one(load):
    workload = {**WORKLOAD, "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9}}
    scenario = load({"workload.optimizer.kind": "adam"}, workload=workload)
    assert scenario.workload.optimizer.kind == "adam"
    assert scenario.workload.optimizer.lr == 1e-3


def test_options_that_follow_a_new_kind_are_kept(load):
    overrides = {"workload.optimizer.kind": "adam", "workload.optimizer.lr": 0.25}
    assert load(overrides).workload.optimizer.lr == 0.25


def test_an_override_reaches_an_entry_of_a_list(load):
    assert load({"cluster.stragglers.0.factor": 2}, **RICH).cluster.stragglers[0].factor == 2


def test_an_override_that_leads_nowhere_names_the_file(refuse):
    assert refuse({"cluster.world_size.x": 1}) == [
        "cluster.world_size.x: cluster.world_size is 4, which has no keys inside."
    ]


# Sweeps ------------------------------------------------------------------------------------------


def test_a_sweep_is_a_grid_whose_last_key_runs_fastest(load):
    scenario = load(
        sweep={"cluster.world_size": [1, 2], "workload.microbatch": [8, 16], "seed": [0, 1, 2]}
    )
    points = scenario.points()
    assert len(points) == prod((2, 2, 3))
    assert [list(chosen.values()) for chosen, _ in points][:4] == [
        [1, 8, 0],
        [1, 8, 1],
        [1, 8, 2],
        [1, 16, 0],
    ]
    for chosen, point in points:
        assert point.cluster.world_size == chosen["cluster.world_size"]
        assert point.workload.microbatch == chosen["workload.microbatch"]
        assert point.seed == chosen["seed"]
        assert point.sweep == {}
        assert point.base == scenario.base


def test_a_sweep_may_give_a_key_that_the_file_lacks(load):
    cluster = {key: value for key, value in CLUSTER.items() if key != "world_size"}
    scenario = load(cluster=cluster, sweep={"cluster.world_size": [1, 2, 8]})
    assert sizes(scenario) == [1, 2, 8]


def test_a_sweep_goes_over_kinds_and_catalogue_names(load):
    sweep = {
        "collectives.all_reduce.kind": ["ring", "tree"],
        "cluster.device": ["t4-16gb", "a100-sxm4-80gb"],
    }
    found = [
        (point.collectives.all_reduce.kind, point.cluster.device.name)
        for _, point in load(sweep=sweep, collectives={"all_reduce": "ring"}).points()
    ]
    assert found == [
        (kind, name) for kind in ("ring", "tree") for name in ("t4-16gb", "a100-sxm4-80gb")
    ]


def test_a_straggler_is_idle_where_its_rank_does_not_exist(load):
    slow = [{"kind": "slow_rank", "rank": rank, "factor": 2} for rank in (0, 3)]
    scenario = load(
        cluster={**CLUSTER, "stragglers": slow}, sweep={"cluster.world_size": [1, 2, 4]}
    )
    # It keeps its place in the list, so that the streams of those behind it stay the same.
    assert [len(point.cluster.stragglers) for _, point in scenario.points()] == [2, 2, 2]


def test_jitter_behind_an_idle_straggler_is_the_same_at_every_point(load):
    stragglers = [
        {"kind": "slow_rank", "rank": 3, "factor": 1},
        {"kind": "lognormal", "sigma": 0.3},
    ]
    scenario = load(
        cluster={**CLUSTER, "stragglers": stragglers}, sweep={"cluster.world_size": [2, 4]}
    )
    two, four = (Slowdown(point.cluster, 0).factors(5) for _, point in scenario.points())
    np.testing.assert_array_equal(two, four[:2])


@for_each(("sweep", "largest"), [({}, 4), ({"cluster.world_size": [1, 2]}, 2), ({"seed": [1]}, 4)])
def test_a_straggler_exists_at_the_largest_world_size(sweep, largest, refuse):
    slow = {"kind": "slow_rank", "rank": 4, "factor": 2}
    cluster = {**CLUSTER, "stragglers": [{"kind": "lognormal", "sigma": 0.1}, slow]}
    assert refuse(cluster=cluster, sweep=sweep) == [
        f"cluster.stragglers.1.rank: rank 4 does not exist; the largest world_size is {largest}, "
        f"so ranks are 0 ... {largest - 1}."
    ]


@for_each("sweep", [{}, {"cluster.world_size": [2, 4]}, {"seed": [1]}])
def test_failures_suit_the_largest_world_size(sweep, load, refuse):
    raw = [
        {"kind": "exponential", "mtbf": "1000 h", "per": "switch", "nodes_per_switch": 2},
        {"kind": "maintenance", "every": "1 week", "duration": "1 h", "nodes": 2},
    ]
    sizes = {"world_size": 4, "devices_per_node": 2, "inter_node": {"link": "ib-hdr"}}
    assert load(cluster={**CLUSTER, **sizes, "failures": raw}, sweep=sweep)
    raw[1]["nodes"] = 3
    assert refuse(cluster={**CLUSTER, **sizes, "failures": raw}, sweep=sweep) == [
        "cluster.failures.1.nodes: 3 at a time are more than the 2 of the cluster; use 2 or fewer."
    ]
    assert refuse(cluster={**CLUSTER, "failures": raw[:1]}) == [
        "cluster.failures.0.per: switch needs more than one node; use device or node."
    ]


@for_each(("sweep", "largest"), [({}, 4), ({"cluster.world_size": [2, 8]}, 8)])
def test_a_slow_node_exists_at_the_largest_world_size(sweep, largest, refuse):
    slow = {"kind": "slow_node", "node": 4, "factor": 2}
    nodes = {"devices_per_node": 2, "inter_node": {"link": "ib-hdr"}}
    cluster = {**CLUSTER, **nodes, "stragglers": [slow]}
    assert refuse(cluster=cluster, sweep=sweep) == [
        f"cluster.stragglers.0.node: node 4 does not exist; the largest world_size is {largest}, "
        f"so nodes are 0 ... {largest // 2 - 1}."
    ]


def test_the_files_own_value_of_a_swept_key_is_no_point(load):
    scenario = load(cluster={**CLUSTER, "world_size": 0}, sweep={"cluster.world_size": [1, 2, 8]})
    assert sizes(scenario) == [1, 2, 8]
    assert scenario.cluster.world_size == 8  # the last point stands for it


def test_what_is_wrong_at_every_point_is_said_once(refuse):
    assert refuse(seed=-1, sweep={"cluster.world_size": [2, 0, 4]}) == [
        "seed: -1 is out of range; it must be >= 0.",
        "with cluster.world_size=0: cluster.world_size: 0 is out of range; it must be >= 1.",
    ]


def test_a_wrong_point_is_named(refuse):
    assert refuse(sweep={"cluster.world_size": [2, 0], "seed": [1, 2]}) == [
        f"with cluster.world_size=0, seed={seed}: "
        "cluster.world_size: 0 is out of range; it must be >= 1."
        for seed in (1, 2)
    ]


def test_a_point_whose_parts_do_not_fit_is_named(refuse):
    cluster = {**CLUSTER, "devices_per_node": 4}
    (line,) = refuse(cluster=cluster, sweep={"cluster.world_size": [2, 4, 8]})
    assert line == (
        "with cluster.world_size=8: cluster: world_size 8 needs 2 nodes, but there is no "
        "inter_node network; add inter_node: {topology: switch, link: ib-hdr}."
    )


def test_a_sweep_that_is_set_to_a_number_is_refused(load):
    with pytest.raises(ScenarioError, match="sweep: 5 is not a mapping; write sweep: "):
        load({"sweep": 5})


@for_each(
    ("sweep", "line"),
    [
        (
            [1],
            "sweep: [1] is not a mapping; write sweep: {cluster.world_size: [1, 2]}.",
        ),
        ({"seed": 1}, "sweep.seed: 1 is not a list of values; write for example [1]."),
        ({"seed": []}, "sweep.seed: [] is not a list of values; write for example [1]."),
        (
            {"name": ["a"]},
            "sweep.name: cannot be swept; sweep a key of cluster, workload, ...",
        ),
        (
            {"sweep.seed": [1]},
            "sweep.sweep.seed: cannot be swept; sweep a key of cluster, workload, ...",
        ),
        (
            {"seed": list(range(101)), "cluster.world_size": list(range(100))},
            f"sweep: makes 10100 points; at most {MAX_POINTS} are allowed.",
        ),
        ({"sede": [1]}, None),
        ({"cluster.stragglers.0.factor": [1]}, None),
    ],
)
def test_a_wrong_sweep_is_refused(sweep, line, refuse):
    found = refuse(sweep=sweep)
    assert line is None or found == [line]


@for_each("values", [["four"], [None], [[1]]])
def test_a_sweep_over_what_is_no_world_size_is_refused(values, refuse):
    (line,) = refuse(sweep={"cluster.world_size": values})
    assert line.endswith(f"cluster.world_size: {values[0]!r} is not a whole number.")


def test_a_sweep_over_a_key_that_is_no_word_is_refused(refuse):
    assert refuse(sweep={3: [1]})
