"""``auto``: the fastest candidate for each size, by the clock that plays the run."""

from itertools import pairwise

import pytest
from for_each import for_each, for_some
from small_networks import between, cluster
from small_scenario import CLUSTER

import simdp
from simdp.collectives import FAMILIES
from simdp.collectives.auto import MAX_DIRECT_RANKS, AutoAllReduce
from simdp.collectives.ring import RingAllReduce
from simdp.engine import collective
from simdp.engine.collective import Bench, Planner
from simdp.engine.ops import Launch
from simdp.engine.run import Run
from simdp.engine.simulate import plans_of
from simdp.engine.slowdown import Slowdown

pytestmark = pytest.mark.slow

ADDING = {"kind": "switch", "in_network": True}
KiB, MiB, GiB = 2**10, 2**20, 2**30
SIZES = [1 * KiB, 64 * KiB, 4 * MiB, 128 * MiB, 1 * GiB]
"""The largest on one cluster alone: its pipelines of a thousand chunks take their time."""

CLEAN = {
    "mesh": cluster(6, "full_mesh"),
    "nvswitch": cluster(8, ADDING, bandwidth="300 GB/s"),
    "four nodes": cluster(8, devices_per_node=2, inter_node=between("switch", cards=2)),
    "slow network": cluster(
        8, devices_per_node=4, inter_node=between("full_mesh", "50 us", "1 GB/s", cards=4)
    ),
    "odd": cluster(5, "full_mesh", alpha="0 s"),
}
PARAMETERS = {
    "model": {"kind": "parameters", "num_params": 1_000_000},
    "microbatch": 8,
    "steps": 2,
    "optimizer": "none",
}
NODES = {
    **CLUSTER,
    "world_size": 8,
    "devices_per_node": 2,
    "topology": "switch",
    "inter_node": between("switch", cards=2),
}


def auto(family, **options):
    return FAMILIES[family]["auto"](**options)


@for_some("where", CLEAN.values(), 3, ids=CLEAN)
@for_each(
    "family", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"]
)
def test_auto_is_as_fast_as_the_fastest_of_its_candidates(where, family):
    bench, asked = Bench(where), auto(family)
    candidates = asked.fitting(bench.planner.layout)
    assert len({candidate.kind for candidate in candidates}) == len(candidates) > 1
    for nbytes in SIZES[: 5 if where is CLEAN["odd"] and family == "all_reduce" else 3]:
        each = {a.kind: bench.time(a, nbytes).seconds for a in candidates}
        found = bench.time(asked, nbytes)
        assert found.seconds == pytest.approx(min(each.values()), rel=1e-9)
        assert found.algorithm.kind in each


def test_where_links_are_shared_auto_comes_near_the_fastest():
    """Its prediction shares them evenly, the event fabric fairly: off by a quarter here at most."""
    bench = Bench(cluster(8, "ring"))
    for nbytes in (1 * KiB, 1 * MiB):
        candidates = auto("all_reduce").fitting(bench.planner.layout)
        fastest = min(bench.time(a, nbytes).seconds for a in candidates)
        assert bench.time(auto("all_reduce"), nbytes).seconds <= 1.25 * fastest


@for_each(("n", "alpha"), [(4, 5e-6), (16, 20e-6)])
def test_small_sizes_go_by_latency_and_large_ones_by_bandwidth(n, alpha):
    """Log n exchanges of everything against 2 (n - 1) of an n-th: they cross where both are equal.

    ``log n (a + S b) = 2 (n - 1) (a + S b / n)``, with two latencies a over a switch.
    """
    planner = Planner(cluster(n, "switch", alpha=f"{alpha} s"))
    asked = auto("all_reduce", candidates=["ring", "recursive_doubling"])
    a, b, rounds = 2 * alpha, 1 / 25e9, {4: 2, 16: 4}[n]
    crossing = (2 * (n - 1) - rounds) * a / (b * (rounds - 2 * (n - 1) / n))
    for nbytes, expected in ((0.99, "recursive_doubling"), (1.01, "ring")):
        assert planner.algorithm(asked, nbytes * crossing).kind == expected
    by_ring, by_doubling = (found.seconds for found in planner.predict(asked, crossing))
    assert by_ring == pytest.approx(by_doubling, rel=1e-9)


def test_named_candidates_are_all_that_there_is_to_choose_from():
    bench = Bench(CLEAN["mesh"])
    only = auto("all_reduce", candidates=["tree", {"kind": "ring", "slices": 4}])
    assert [p.algorithm.kind for p in bench.candidates(only, 1e3)] == ["tree", "ring"]
    assert bench.candidates(only, 1e3)[1].algorithm.slices == 4
    assert bench.time(only, 1e3).algorithm.kind in ("tree", "ring")


def test_slices_of_a_free_choice_are_those_of_every_candidate():
    found = auto("all_reduce", slices=3).fitting(Planner(CLEAN["mesh"]).layout)
    assert {candidate.slices for candidate in found} == {3}


def test_algorithms_for_every_pair_of_ranks_are_not_tried_on_thousands():
    asked = auto("all_reduce")
    few, many = (
        {a.kind for a in asked.fitting(Planner(cluster(n)).layout)}
        for n in (MAX_DIRECT_RANKS, 2 * MAX_DIRECT_RANKS)
    )
    assert few - many == {"direct"}
    assert "ring" in many


def test_candidates_of_too_many_transfers_are_passed_over_unless_all_are(monkeypatch):
    monkeypatch.setattr(collective, "MAX_PREDICTED", 30)
    where = cluster(8, "full_mesh")
    planner, asked = Planner(where), auto("all_reduce", candidates=["ring", "recursive_doubling"])
    # A ring has 8 x 14 transfers, but a closed form; the other one has 8 x 3, below the limit.
    assert [p.algorithm.kind for p in planner.predict(asked, 1e3)] == ["ring", "recursive_doubling"]
    asked = auto("all_reduce", candidates=["ring", "direct"])
    assert [p.algorithm.kind for p in planner.predict(asked, 1e3)] == ["ring"]
    asked = auto("all_reduce", candidates=["direct"])
    assert [p.algorithm.kind for p in planner.predict(asked, 1e3)] == ["direct"]


def test_a_choice_is_made_once_for_each_size_and_root(monkeypatch):
    planner, asked = Planner(CLEAN["mesh"]), auto("broadcast")
    first = planner.algorithm(asked, 1e6)
    monkeypatch.setattr(planner, "predict", None)
    assert planner.algorithm(asked, 1e6) is first
    with pytest.raises(TypeError):
        planner.algorithm(asked, 1e6, root=1)


def test_what_was_chosen_is_listed_by_size_with_equal_neighbours_once():
    planner = Planner(CLEAN["mesh"])
    for nbytes in (64e6, 1e3, 2e3, 32e6):
        planner.plan(auto("all_reduce"), nbytes)
    listed = planner.chosen()["all_reduce"]
    sizes = [entry["nbytes"] for entry in listed]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1e3
    for before, after in pairwise(listed):
        assert before["algorithm"] != after["algorithm"]
    assert planner.algorithm(auto("all_reduce"), 64e6).kind == listed[-1]["algorithm"]
    planner.plan(RingAllReduce(), 1e3)  # nothing was chosen here
    assert planner.chosen() == {"all_reduce": listed}


@for_each("method", ["cut", "build"])
def test_auto_itself_has_no_plan(method):
    arguments = {"cut": (1.0,), "build": (1, 0)}[method]
    with pytest.raises(
        TypeError, match=r"auto has no plan; simdp\.engine\.collective\.Planner chooses"
    ):
        getattr(AutoAllReduce(), method)(Planner(cluster(2)).layout, *arguments)


# In a scenario ------------------------------------------------------------------------------------


@for_each("topology", ["switch", "ring"])
def test_a_run_with_auto_equals_the_run_with_what_it_chose(load, topology):
    common = {"cluster": {**NODES, "topology": topology}, "workload": PARAMETERS}
    found = simdp.simulate(load(**common, numerics=False, collectives={"all_reduce": "auto"}))
    ((entry,),) = found.network["chosen"].values()
    assert entry["nbytes"] == 4e6
    named = {"all_reduce": entry["algorithm"]}
    expected = simdp.simulate(load(**common, numerics=False, collectives=named))
    assert found.metrics == expected.metrics
    assert found.network["links"] == expected.network["links"]
    assert expected.network["chosen"] == {}


def test_auto_may_choose_another_algorithm_for_every_bucket(load):
    """A wide layer and a narrow one in buckets of their own; the numbers are added all the same."""
    workload = {
        "model": {"kind": "mlp", "widths": [4, 3000, 30]},
        "dataset": {"kind": "regression", "num_samples": 32},
        "microbatch": 4,
        "steps": 2,
    }
    slow = {**CLUSTER, "topology": "full_mesh", "link": {"alpha": "5 us", "bandwidth": "1 GB/s"}}
    several = ["ring", "recursive_doubling"]  # which cross at 40 kB
    chooses = {"all_reduce": {"kind": "auto", "candidates": several}, "broadcast": "auto"}
    strategy = {"kind": "ddp", "bucket_cap": "0 B"}
    common = {"cluster": slow, "workload": workload, "strategy": strategy}
    result = simdp.simulate(load(**common, collectives=chooses))
    kinds = [entry["algorithm"] for entry in result.network["chosen"]["all_reduce"]]
    assert kinds == ["recursive_doubling", "ring"]
    assert set(result.network["chosen"]) == {"all_reduce", "broadcast"}
    assert result.metrics["replicas_identical"]
    assert result.metrics["loss"] == pytest.approx(simdp.simulate(load(**common)).metrics["loss"])


@for_each("strategy", ["ddp", "fsdp", "horovod"])
def test_plans_of_auto_are_those_that_a_run_launches(load, strategy):
    everything = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "auto")
    scenario = load(
        cluster=CLUSTER | {"world_size": 4},
        strategy=strategy,
        collectives=everything,
        numerics=False,
    )
    planner = Planner(scenario.cluster)
    run = Run(scenario, Slowdown(scenario.cluster, 0), planner)
    launched = {op.plan for op in run.script() if isinstance(op, Launch)}
    assert launched
    assert {plan for plans in plans_of(scenario, planner).values() for plan in plans} == launched


def test_auto_works_at_every_point_of_a_sweep_and_on_one_rank(load):
    scenario = load(
        cluster={**CLUSTER, "topology": "full_mesh"},
        workload=PARAMETERS,
        numerics=False,
        collectives={"all_reduce": "auto", "broadcast": "auto"},
        sweep={"cluster.world_size": [1, 2, 3, 8]},
    )
    for point in simdp.sweep(scenario).points:
        n = point.set["cluster.world_size"]
        ((chosen,),) = [point.network["chosen"]["all_reduce"]]
        alone = Bench(cluster(n, "full_mesh")).time(auto("all_reduce"), 4e6)
        assert chosen["algorithm"] == alone.algorithm.kind
        assert point.metrics["step_time_s"] == pytest.approx(alone.seconds, rel=1e-9)


@for_each(
    ("asked", "line"),
    [
        (
            {"kind": "auto", "candidates": ["rign"]},
            "collectives.all_reduce.candidates.0: unknown all_reduce 'rign'. Did you mean "
            "'ring'? Known: auto, bidirectional_ring, binary_tree, direct, double_binary_tree, "
            "halving_doubling, hierarchical, msccl, multi_ring, naive, ... and 6 more: simdp list "
            "all_reduce.",
        ),
        (
            {"kind": "auto", "candidates": ["ring", "auto"]},
            "collectives.all_reduce: candidates: auto cannot choose itself; name algorithms.",
        ),
        (
            {"kind": "auto", "candidates": []},
            "collectives.all_reduce: candidates: there are none; name algorithms, or leave this "
            "out.",
        ),
        (
            {"kind": "auto", "candidates": "ring"},
            "collectives.all_reduce.candidates: 'ring' is not a list.",
        ),
        (
            {"kind": "auto", "candidates": ["tree", "ring"], "slices": 4},
            "collectives.all_reduce: slices: belongs to each of the candidates that are named; "
            "write for example candidates: [{kind: tree, slices: 4}].",
        ),
        (
            {"kind": "auto", "candidats": ["ring"]},
            "collectives.all_reduce: unknown key 'candidats'. Did you mean 'candidates'? Known: "
            "slices, candidates.",
        ),
        (
            {"kind": "hierarchical", "outer": "auto"},
            "collectives.all_reduce: outer: auto chooses between whole algorithms; name one, or "
            "list several as candidates of auto.",
        ),
        (
            {"kind": "auto", "candidates": [{"kind": "hierarchical", "inner": "auto"}]},
            "collectives.all_reduce.candidates.0: inner: auto chooses between whole algorithms; "
            "name one, or list several as candidates of auto.",
        ),
        (
            {"kind": "auto", "candidates": ["ring", "nvls"]},
            "collectives.all_reduce: auto candidate nvls: works inside one node, and there are 4; "
            "use {kind: hierarchical, inner: nvls}",
        ),
        (
            "nvls",
            "collectives.all_reduce: nvls works inside one node, and there are 4; "
            "use {kind: hierarchical, inner: nvls}",
        ),
    ],
)
def test_what_auto_cannot_choose_from_is_refused_in_one_line(refuse, asked, line):
    collectives = {"all_reduce": asked}
    assert refuse(cluster=NODES, workload=PARAMETERS, collectives=collectives) == [line]


def test_candidates_that_serve_no_cluster_of_the_sweep_are_named_with_the_point(refuse):
    (line,) = refuse(
        cluster=NODES,
        workload=PARAMETERS,
        collectives={"all_reduce": {"kind": "auto", "candidates": ["nvls"]}},
        sweep={"cluster.world_size": [1, 4]},
    )
    assert line.startswith("with cluster.world_size=4: collectives.all_reduce: auto candidate nvls")
