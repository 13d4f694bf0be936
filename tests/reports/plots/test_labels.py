from __future__ import annotations

import itertools

from for_each import for_each

from simdp.reports.charts.names import MAX_NAME, evenly, key_label, point_names, wrapped
from simdp.reports.plots.text import spread
from simdp.results.metrics import Metrics
from simdp.results.result import Result


def points(*sets):
    return [Result({}, chosen, Metrics()) for chosen in sets]


@for_each(("count", "limit"), [(3, 5), (5, 5), (100, 8), (9, 2), (4, 1)])
def test_an_even_choice_is_ordered_and_within_its_limit(count, limit):
    chosen = evenly(count, limit)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, limit)
    assert chosen[0] == 0
    assert limit < 2 or chosen[-1] == count - 1


def test_a_point_is_named_by_what_differs_between_the_points():
    named = point_names(points({"a.x": 1, "b.on": True}, {"a.x": 1, "b.on": False}))
    assert named == ["on: true", "on: false"]


def test_a_key_that_an_axis_shows_is_not_in_the_name():
    swept = points({"a.x": 1, "b.y": 0.5}, {"a.x": 2, "b.y": 1.0})
    assert point_names(swept, leave_out="a.x") == ["y: 0.5", "y: 1"]


def test_a_kind_is_named_after_its_family():
    swept = points({"strategy.kind": "ddp"}, {"strategy.kind": "single"})
    assert point_names(swept) == ["strategy: ddp", "strategy: single"]


def test_options_of_a_kind_are_part_of_the_name():
    swept = points(
        {"collectives.all_reduce": "ring"},
        {"collectives.all_reduce": {"kind": "ring", "chunking": "gloo"}},
    )
    assert point_names(swept) == ["all_reduce: ring", "all_reduce: ring(chunking=gloo)"]


def test_a_long_name_is_cut():
    (name, _) = point_names(points({"a.b": "x" * 90}, {"a.b": "y"}))
    assert name.endswith("x…")
    assert len(name) <= MAX_NAME


def test_a_key_that_stands_alone_goes_where_its_value_would_be_cut():
    option = {"kind": "top_k", "ratio": 0.01, "error_feedback": False}
    swept = points({"strategy.comm_hook": "none"}, {"strategy.comm_hook": option})
    assert point_names(swept) == ["comm_hook: none", "top_k(ratio=0.01, error_feedback=false)"]


def test_an_entry_of_a_list_is_named_with_the_list():
    swept = points({"cluster.stragglers.0": "a"}, {"cluster.stragglers.0": "b"})
    assert point_names(swept) == ["stragglers.0: a", "stragglers.0: b"]


def test_keys_are_cut_before_values():
    named = point_names(
        points(
            {"cluster.devices_per_node": 1, "workload.group_by_length": True},
            {"cluster.devices_per_node": 2, "workload.group_by_length": False},
        )
    )
    assert named[0].startswith("devices_p")
    assert "…: 1, group_by" in named[0]
    assert [name.rpartition(" ")[2] for name in named] == ["true", "false"]
    assert max(map(len, named)) <= MAX_NAME


@for_each(
    "wanted", [[], [0.5], [0.5, 0.5, 0.5], [0.0, 0.05, 0.3, 0.31, 0.32, 0.9], [0.9, 0.1, 0.11]]
)
def test_labels_that_were_spread_keep_their_order_and_never_overlap(wanted):
    placed = spread(wanted, 0.1)
    order = sorted(range(len(wanted)), key=lambda i: (-wanted[i], i))
    heights = [placed[i] for i in order]
    for above, below in itertools.pairwise(heights):
        assert above - below >= 0.1 - 1e-12


def test_labels_with_room_stay_where_they_were():
    assert spread([0.2, 0.8, 0.5], 0.1) == [0.2, 0.8, 0.5]


STRAGGLERS = {
    "cluster": {
        "stragglers": [{"kind": "slow_rank", "rank": 3, "factor": 1.5}, {"kind": "lognormal"}]
    }
}


@for_each(
    ("key", "label"),
    [
        ("strategy.overlap", "Overlap"),
        ("cluster.world_size", "World size [GPUs]"),
        ("strategy.kind", "Strategy"),
        ("collectives.all_reduce", "All reduce"),
        ("cluster.stragglers.0.factor", "Slowdown of rank 3 [x]"),
        ("cluster.stragglers.1.sigma", "Sigma of lognormal"),
        ("cluster.stragglers.7.sigma", "Sigma of stragglers 7"),
        ("cluster.stragglers.0", "Stragglers 0"),
    ],
)
def test_an_axis_names_a_key_in_words_with_its_unit(key, label):
    assert key_label(key, STRAGGLERS) == label


def test_a_long_name_is_broken_into_lines_and_never_cut():
    name = "links_per_node: 1, strategy: fsdp(reshard_after_forward=false, units=whole)"
    lines = wrapped(name, 40).split("\n")
    assert " ".join(lines) == name
    assert max(map(len, lines)) <= 40
    assert wrapped("short") == "short"
    assert wrapped("x" * 50, 40) == "x" * 40 + "\n" + "x" * 10
