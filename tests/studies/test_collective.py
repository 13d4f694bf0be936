"""Collectives by themselves: times against closed forms, choices, names, what is refused."""

import pytest
from for_each import for_each
from msccl_examples import star_gather

from simdp.cluster import Cluster
from simdp.collectives import FAMILIES
from simdp.errors import ScenarioError
from simdp.results.collective import NcclLog, NcclRow
from simdp.studies.collective import (
    GroupSplit,
    known_collective,
    make_algorithm,
    short_name,
    sweep_collective,
    usual_kind,
)

ALPHA, BANDWIDTH = 5e-6, 25e9


def ring_of(world_size, topology="ring"):
    return Cluster(
        world_size=world_size,
        device="a100-sxm4-80gb",
        topology=topology,
        link={"alpha": "5 us", "bandwidth": "25 GB/s"},
    )


def problems(function, *arguments, **named):
    with pytest.raises(ScenarioError) as caught:
        function(*arguments, **named)
    return caught.value.problems


def test_a_ring_takes_its_closed_form_at_every_size_and_world_size():
    sizes = [1000, 10**6, 10**9]
    ring = make_algorithm("all_reduce", "ring")
    study = sweep_collective("all_reduce", [ring], [ring_of(4), ring_of(8)], sizes)
    assert [curve.world_size for curve in study.curves] == [4, 8]
    for curve in study.curves:
        n = curve.world_size
        for point, size in zip(curve.points, sizes, strict=True):
            closed = 2 * (n - 1) * (ALPHA + size / n / BANDWIDTH)
            assert point.seconds == pytest.approx(closed, rel=1e-12)
            assert point.bottleneck.utilization <= 1
    last = study.curves[1].points[-1]
    assert study.busbw(last.nbytes, last.seconds, 8) == pytest.approx(BANDWIDTH, rel=0.001)


@for_each("collective", FAMILIES)
def test_every_collective_has_a_usual_algorithm_that_runs(collective):
    usual = make_algorithm(collective, usual_kind(collective))
    study = sweep_collective(collective, [usual], [ring_of(4)], [4096])
    (point,) = study.curves[0].points
    assert point.seconds > 0
    assert point.algorithm.partition("(")[0] in FAMILIES[collective]


@pytest.mark.long
@pytest.mark.slow
def test_auto_takes_the_fastest_candidate_of_each_size():
    auto = make_algorithm("all_reduce", {"kind": "auto", "candidates": ["ring", "tree"]})
    study = sweep_collective("all_reduce", [auto], [ring_of(16, "switch")], [1024, 2**27])
    (curve,) = study.curves
    assert [point.algorithm for point in curve.points] == ["tree", "ring"]
    assert [(c.nbytes, c.now, c.before) for c in curve.crossovers()] == [(2**27, "ring", "tree")]
    for point in curve.points:
        assert min(point.candidates, key=point.candidates.get) == point.algorithm


def test_a_rank_alone_takes_no_time_and_has_no_bandwidth():
    study = sweep_collective(
        "all_reduce", [make_algorithm("all_reduce", "ring")], [ring_of(1)], [1024]
    )
    (point,) = study.curves[0].points
    assert (point.seconds, point.bottleneck) == (0.0, None)


def test_measured_times_stand_at_their_sizes():
    log = NcclLog("some/where/a.log", "all_reduce", 4, "float", "sum", -1, (NcclRow(1000, 1e-4),))
    ring = make_algorithm("all_reduce", "ring")
    study = sweep_collective("all_reduce", [ring], [ring_of(4)], [1000, 2000], measured=log)
    assert [point.measured for point in study.curves[0].points] == [1e-4, None]
    assert study.against == "a.log"


def test_the_root_matters():
    tree = make_algorithm("broadcast", "tree")
    names = [
        sweep_collective("broadcast", [tree], [ring_of(4)], [10**6], root=root)
        .curves[0]
        .points[0]
        .bottleneck.name
        for root in (0, 2)
    ]
    assert names[0] != names[1]


# Names -------------------------------------------------------------------------------------------


@for_each(
    ("written", "name"),
    [
        ("ring", "ring"),
        ({"kind": "ring", "slices": 4}, "ring(slices=4)"),
        ({"kind": "tree", "chunk_size": "1 MiB"}, "tree(chunk_size=1 MiB)"),
        ({"kind": "hierarchical", "outer": "tree"}, "hierarchical(outer=tree)"),
        (
            {"kind": "auto", "candidates": ["ring", {"kind": "tree", "slices": 2}]},
            "auto(candidates=[ring, tree(slices=2)])",
        ),
        (
            {"kind": "torus2d", "dims": [2, 4], "both_ways": True},
            "torus2d(dims=[2, 4], both_ways=true)",
        ),
    ],
)
def test_an_algorithm_is_named_by_what_is_not_as_usual(written, name):
    named = short_name(make_algorithm("all_reduce", written))
    assert sorted(named) == sorted(name)  # the order of options is the class's
    assert named.partition("(")[0] == name.partition("(")[0]


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("name", "line"),
    [
        ("alltoall", "'alltoall' is called all_to_all here."),
        ("allReduce", "'allReduce' is called all_reduce here."),
        ("all_gather_perf", "'all_gather_perf' is called all_gather here."),
        ("AllGather", "'AllGather' is called all_gather here."),
    ],
)
def test_other_spellings_are_told_ours(name, line):
    assert problems(known_collective, name) == [line]


def test_sendrecv_is_no_collective():
    (line,) = problems(known_collective, "sendrecv")
    assert line.startswith("'sendrecv' is point to point, no collective; known: all_gather, ")


def test_an_unknown_collective_is_refused_with_a_hint():
    (line,) = problems(known_collective, "brodcast")
    assert line.startswith("unknown collective 'brodcast'. Did you mean 'broadcast'? Known: all_")


def test_an_algorithm_of_another_family_is_refused():
    (line,) = problems(make_algorithm, "all_gather", "tree")
    assert line.startswith("--algorithm unknown all_gather 'tree'; known: auto, bidirectional_ring")


def test_an_option_that_an_algorithm_lacks_is_refused():
    (line,) = problems(make_algorithm, "all_reduce", {"kind": "ring", "slice": 4})
    assert line.startswith("--algorithm unknown key 'slice'. Did you mean 'slices'? ")


def test_an_algorithm_that_cannot_serve_the_cluster_is_refused():
    torus = make_algorithm("all_reduce", {"kind": "torus2d", "dims": [2, 3]})
    (line,) = problems(sweep_collective, "all_reduce", [torus], [ring_of(8)], [1])
    assert line == (
        "--algorithm torus2d: with 8 ranks: needs dims with the product world_size 8, "
        "got 2 x 3; leave dims out for the most square grid."
    )


def test_a_root_must_be_a_rank_of_every_world_size():
    ring = make_algorithm("broadcast", "ring")
    assert problems(
        sweep_collective, "broadcast", [ring], [ring_of(2), ring_of(8)], [1], root=2
    ) == ["--root 2: is not a rank; give 0 ... 1."]


def test_a_root_where_there_is_none_is_refused():
    ring = make_algorithm("all_reduce", "ring")
    assert problems(sweep_collective, "all_reduce", [ring], [ring_of(2)], [1], root=1) == [
        "--root 1: all_reduce has no root; leave it out."
    ]


def test_an_unknown_dtype_is_refused():
    ring = make_algorithm("all_reduce", "ring")
    (line,) = problems(sweep_collective, "all_reduce", [ring], [ring_of(2)], [1], dtype="bfloat61")
    assert line.startswith("--dtype: unknown dtype 'bfloat61'. Did you mean 'bfloat16'? Known: ")


def test_a_plan_from_a_file_is_read_and_refused_for_another_root(tmp_path):
    (tmp_path / "star.xml").write_text(star_gather(4))
    star = make_algorithm("gather", {"kind": "msccl", "path": "star.xml"}, tmp_path)
    study = sweep_collective("gather", [star], [ring_of(4)], [4096])
    assert study.curves[0].points[0].seconds > 0
    (line,) = problems(sweep_collective, "gather", [star], [ring_of(4)], [4096], root=1)
    assert line.startswith("--algorithm msccl: with 4 ranks: gather msccl: ")
    assert line.endswith("got 1.")


# Process groups ----------------------------------------------------------------------------------


def test_groups_on_the_same_rail_share_the_network_card_and_groups_in_a_node_do_not():
    """Two nodes of four with one card each: four rings of two across nodes, or two of four inside.

    A ring of two moves S each way over the card; four at once take four times as long as one.
    """
    raw = {
        "world_size": 8,
        "devices_per_node": 4,
        "device": "a100-sxm4-80gb",
        "topology": "switch",
        "link": {"alpha": "0 s", "bandwidth": "100 GB/s"},
        "inter_node": {"link": {"alpha": "0 s", "bandwidth": "10 GB/s"}},
    }
    cluster, ring = Cluster.model_validate(raw), make_algorithm("all_reduce", "ring")

    def seconds(rule, value):
        study = sweep_collective(
            "all_reduce", [ring], [cluster], [10**9], split=GroupSplit(rule, value)
        )
        return study.curves[0].world_size, study.curves[0].points[0].seconds

    assert seconds("mod", 4) == (2, pytest.approx(4 * 0.1, rel=1e-9))
    assert seconds("div", 4) == (4, pytest.approx(2 * 3 / 4 * 0.01, rel=1e-9))
    assert seconds("div", 8)[0] == 8


def test_auto_chooses_for_a_group():
    raw = {"world_size": 8, "device": "a100-sxm4-80gb", "topology": "full_mesh", "link": "nvlink3"}
    cluster, auto = Cluster.model_validate(raw), make_algorithm("all_reduce", "auto")
    whole = sweep_collective("all_reduce", [auto], [cluster], [2**26])
    pairs = sweep_collective("all_reduce", [auto], [cluster], [2**26], split=GroupSplit("mod", 4))
    assert pairs.curves[0].points[0].candidates.keys() >= {"ring", "direct"}
    assert pairs.curves[0].points[0].seconds != whole.curves[0].points[0].seconds


@for_each(
    ("text", "expected"),
    [("mod 8", ("mod", 8)), ("DIV 2", ("div", 2)), ("%4", ("mod", 4)), ("/ 16", ("div", 16))],
)
def test_a_split_is_read_as_nccl_tests_writes_it(text, expected):
    assert GroupSplit.parse(text) == expected


@for_each("text", ["8", "mod", "and 7", "mod -1", ""])
def test_a_split_that_is_none_is_refused(text):
    with pytest.raises(ScenarioError) as caught:
        GroupSplit.parse(text)
    assert caught.value.problems == [
        f"--split {text}: is no rule; write mod 8 (equal rank % 8) or div 8 (rank // 8)."
    ]


@for_each("value", [3, 0])
def test_groups_must_be_equally_large(value):
    raw = {"world_size": 8, "device": "a100-sxm4-80gb", "topology": "ring", "link": "nvlink3"}
    ring = make_algorithm("all_reduce", "ring")
    with pytest.raises(ScenarioError) as caught:
        clusters = [Cluster.model_validate(raw)]
        sweep_collective("all_reduce", [ring], clusters, [8], split=GroupSplit("mod", value))
    assert caught.value.problems == [f"--split mod {value}: {value} does not divide 8 ranks."]
