"""Degraded links slow down what crosses them, in the steps in which they are, on both clocks."""

import numpy as np
import pytest
from for_each import for_each, for_some
from small_networks import between

import simdp
from simdp.collectives.costs.nccl import NcclCost
from simdp.collectives.costs.table import TableCost
from simdp.distributed.launch import find
from simdp.engine.slowdown import Slowdown
from simdp.scenario.placement import degraded_problems, wiring_of

NUM_PARAMS, STEPS = 1_000_000, 6
NBYTES = 4 * NUM_PARAMS
ALPHA, BANDWIDTH = 5e-6, 25e9
FACTOR = {"bandwidth": 0.25, "latency": 3.0}


def job(*degraded, n=4, topology="ring", steps=STEPS, collectives="ring", numerics=False, **more):
    """Gradients of 4 MB in one bucket, and nothing else to do."""
    cluster = {
        "world_size": n,
        "device": "a100-sxm4-80gb",
        "topology": topology,
        "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
        "stragglers": [{"kind": "degraded_link", **FACTOR, **one} for one in degraded],
        **more,
    }
    workload = {
        "model": {"kind": "parameters", "num_params": NUM_PARAMS},
        "microbatch": 8,
        "steps": steps,
        "optimizer": "none",
    }
    if isinstance(collectives, str):
        collectives = {"all_reduce": collectives, "broadcast": "ring"}
    return {
        "cluster": cluster,
        "workload": workload,
        "strategy": {"kind": "ddp", "bucket_cap": "100 MiB"},
        "collectives": collectives,
        "numerics": numerics,
        "seed": 3,
    }


@pytest.fixture
def lengths(load):
    """How long each step takes on the slowest rank [s]."""

    def lengths(*degraded, fabric="auto", keep_trace=None, **keys):
        scenario = load(**job(*degraded, **keys))
        result = simdp.simulate(scenario, fabric=fabric, keep_trace=keep_trace)
        return np.diff(result.step_ends.max(axis=0))

    return lengths


def ring(n, alpha, bandwidth):
    return 2 * (n - 1) * (alpha + NBYTES / n / bandwidth)


# Always -------------------------------------------------------------------------------------------


@for_each("fabric", ["event", "vector"])
@for_each("where", [{"rank": 2}, {"link": [1, 2]}, {"link": [2, 1]}])
def test_a_ring_is_as_fast_as_its_slowest_link(where, fabric, lengths):
    slow = ring(4, 3 * ALPHA, BANDWIDTH / 4)
    assert lengths(where, fabric=fabric) == pytest.approx(np.full(STEPS, slow), rel=1e-9)
    sound = ring(4, ALPHA, BANDWIDTH)
    assert lengths(fabric=fabric) == pytest.approx(np.full(STEPS, sound), rel=1e-9)


@for_each("cost", ["links", "nccl"])
@for_each("card", [0, 3])
def test_one_of_four_cards_slows_all_four_of_its_device(card, cost, lengths):
    """Each has an equal part of the bytes, and they are done when the slowest is."""
    nodes = {"devices_per_node": 2, "collectives": {"cost": cost}}
    spread = nodes | {"inter_node": between("switch", bandwidth="11 GB/s", cards=8)}
    joined = nodes | {"inter_node": between("switch", bandwidth="44 GB/s", cards=2)}
    found = lengths({"node": 1, "card": card}, topology="switch", **spread)
    assert found == pytest.approx(lengths({"node": 1, "card": 0}, topology="switch", **joined))
    assert found.max() > lengths(topology="switch", **spread).max()


@for_each("where", [{"node": 1}, {"node": 1, "card": 0}])
def test_a_node_or_its_card_slows_the_ring_between_nodes(where, lengths):
    nodes = {"devices_per_node": 2, "inter_node": between("switch", cards=2)}
    slow = ring(4, 9e-6 + 3 * 9e-6, 11e9 / 4)  # one end of each way between nodes is sound
    sound = ring(4, 2 * 9e-6, 11e9)
    found = lengths(where, topology="switch", **nodes)
    assert found == pytest.approx(np.full(STEPS, slow), rel=1e-9)
    other = lengths({"node": 1, "bandwidth": 1, "latency": 1}, topology="switch", **nodes)
    assert other == pytest.approx(np.full(STEPS, sound), rel=1e-9)


def test_factors_of_one_link_multiply(lengths):
    twice = lengths({"rank": 2}, {"link": [1, 2]})
    assert twice == pytest.approx(np.full(STEPS, ring(4, 9 * ALPHA, BANDWIDTH / 16)), rel=1e-9)


def test_a_degraded_link_is_idle_where_its_rank_does_not_exist(load):
    nodes = {"devices_per_node": 2, "inter_node": between("switch"), "topology": "full_mesh"}
    asked = job({"link": [4, 5]}, {"node": 2}, n=8, **nodes)
    swept = load(**asked, sweep={"cluster.world_size": [2, 8]})
    (_, small), (_, large) = swept.points()
    assert small.cluster.degraded.bandwidth.min() == 1
    assert large.cluster.degraded.bandwidth.min() == 0.25


# At times -----------------------------------------------------------------------------------------


@for_each("fabric", ["event", "vector", "auto"])
def test_a_link_is_degraded_from_one_step_to_before_another(fabric, lengths):
    found = lengths({"rank": 2, "steps": [2, 4]}, fabric=fabric)
    slow, sound = ring(4, 3 * ALPHA, BANDWIDTH / 4), ring(4, ALPHA, BANDWIDTH)
    assert found == pytest.approx([sound, sound, slow, slow, sound, sound], rel=1e-9)


def test_a_flapping_link_is_on_and_off_for_so_many_steps(lengths):
    found = lengths({"rank": 2, "on": 2, "off": 3}, steps=20)
    is_on = found > 1.5 * found.min()
    assert is_on.sum() == 8
    np.testing.assert_array_equal(is_on[:15], is_on[5:])
    begins = np.flatnonzero(np.diff(is_on.astype(int)) == 1) + 1
    assert all(is_on[begin : begin + 2].all() for begin in begins)


def test_where_flapping_begins_is_drawn_by_the_seed(load):
    def first(seed):
        flapping = {"rank": 2, "on": 1, "off": 9}
        result = simdp.simulate(load(**{**job(flapping, steps=10), "seed": seed}))
        return int(np.diff(result.step_ends.max(axis=0)).argmax())

    assert first(5) == first(5)
    assert len({first(seed) for seed in range(12)}) > 4


def test_a_run_that_goes_on_with_other_ranks_counts_its_steps_on(load):
    """Of 6 steps the fourth and fifth are slow; the run stops after two of them."""
    data = {"kind": "regression", "num_samples": 512}

    def run(n, **options):
        asked = job({"rank": 1, "steps": [3, 5], "bandwidth": 0.001}, n=n, numerics=True)
        asked["workload"] |= {"model": {"kind": "mlp", "widths": [64, 64]}, "dataset": data}
        asked["workload"]["optimizer"] = "sgd"
        return simdp.simulate(load(**asked), **options)

    state = run(4, stop_after=2, keep_state=True).state
    found = np.diff(run(2, resume=state).step_ends.max(axis=0))
    assert len(found) == 4
    is_slow = found > 2 * found.min()
    assert is_slow.tolist() == [False, True, True, False]


TIMES = [{}, {"steps": [1, 3]}, {"on": 1, "off": 2}]
CLUSTERS = {
    "ring": {"topology": "ring"},
    "mesh": {"topology": "full_mesh"},
    "switch": {"topology": "switch"},
    "nodes": {
        "topology": "switch",
        "devices_per_node": 4,
        "inter_node": between("switch", cards=4),
    },
}


@for_some("algorithm", ["ring", "halving_doubling", "hierarchical"], 3, first=2)
@for_each("when", TIMES)
@for_each("name", CLUSTERS)
def test_both_clocks_agree_where_both_are_exact(name, algorithm, when, load):
    asked = job({"rank": 1, **when}, n=8, collectives=algorithm, **CLUSTERS[name])
    asked["cluster"]["stragglers"].append({"kind": "lognormal", "sigma": 0.3})
    asked["workload"]["model"] = {"kind": "mlp", "widths": [512, 512]}
    asked["workload"]["dataset"] = {"kind": "regression", "num_samples": 512}
    scenario = load(**asked)
    try:
        fast = simdp.simulate(scenario, fabric="vector")
    except simdp.ScenarioError as error:
        assert "is shared" in str(error)
        return
    slow = simdp.simulate(scenario, fabric="event")
    np.testing.assert_allclose(fast.step_ends, slow.step_ends, rtol=1e-12)
    alone = simdp.simulate(scenario)
    np.testing.assert_allclose(alone.step_ends, slow.step_ends, rtol=1e-12)


def test_on_shared_links_nothing_is_faster_than_what_a_degraded_one_lets_through(lengths):
    """Two cards' worth of traffic over one: in degraded steps four times the bytes' time."""
    nodes = {"devices_per_node": 2, "inter_node": between("switch", alpha="0 s", cards=1)}
    keys = {"topology": "switch", "collectives": "direct", "n": 4, **nodes}
    found = lengths({"node": 1, "latency": 1, "steps": [2, 4]}, **keys)
    assert found[2:4] == pytest.approx(4 * found[[0, 1]], rel=0.02)
    assert found[4:] == pytest.approx(found[:2], rel=1e-9)


def test_the_bytes_over_a_link_are_the_same_however_slow_it_is(load):
    sound, slow = (simdp.simulate(load(**job(*some))) for some in ([], [{"rank": 2}]))
    moved = [
        {one["link"]: one["nbytes"] for one in found.network["links"]} for found in (sound, slow)
    ]
    assert moved[0] == moved[1]
    used = {one["link"]: one["utilization"] for one in slow.network["links"]}
    assert used["the link from rank 1 to rank 2"] == pytest.approx(
        4 * used["the link from rank 0 to rank 1"]
    )


# Timed collectives --------------------------------------------------------------------------------


NODES = {"topology": "switch", "devices_per_node": 2, "inter_node": between("switch", cards=2)}


@for_each(
    ("where", "changed"),
    [
        ({"node": 1, "card": 1}, {"inter_bandwidth": 0.25, "inter_alpha": 3}),
        ({"node": 0}, {"inter_bandwidth": 0.25, "inter_alpha": 3}),
        ({"rank": 3}, {"intra_bandwidth": 0.25, "intra_alpha": 3}),
    ],
)
def test_nccl_is_as_fast_as_the_slowest_card_or_device(where, changed, load, lengths):
    sound = wiring_of(load(**job(n=4, **NODES)).cluster)
    slow = wiring_of(load(**job(where, n=4, **NODES)).cluster)
    assert slow == sound._replace(
        **{key: getattr(sound, key) * factor for key, factor in changed.items()}
    )
    keys = {"n": 4, "collectives": {"cost": "nccl"}, **NODES}
    seconds = [NcclCost().seconds("all_reduce", NBYTES, one) for one in (sound, slow)]
    assert lengths(**keys) == pytest.approx(np.full(STEPS, seconds[0]), rel=1e-9)
    assert lengths(where, **keys) == pytest.approx(np.full(STEPS, seconds[1]), rel=1e-9)
    found = lengths({**where, "steps": [2, 3]}, **keys)
    at = [int(step == 2) for step in range(STEPS)]
    assert found == pytest.approx([seconds[i] for i in at], rel=1e-9)


def test_one_slow_link_of_a_mesh_slows_its_devices_down(load):
    """Channels have equal parts, so that the slowest of a device's links sets the pace."""
    mesh = wiring_of(load(**job({"link": [2, 3]}, topology="full_mesh")).cluster)
    assert mesh.intra_bandwidth == pytest.approx(3 * BANDWIDTH / 4)
    assert mesh.intra_alpha == 3 * ALPHA


def test_process_groups_know_degraded_links(load):
    asked = job({"node": 1, "steps": [1, 3]}, n=4, collectives={"cost": "nccl"}, **NODES)
    asked["strategy"] = {"kind": "hsdp"}
    asked["workload"]["model"] = {"kind": "mlp", "widths": [64, 64]}
    found = np.diff(simdp.simulate(load(**asked)).step_ends.max(axis=0))
    assert found[1] > 1.05 * found[0]
    assert found[4] == pytest.approx(found[3])


def test_a_degraded_link_slows_no_compute(load):
    scenario = load(**job({"rank": 1}))
    assert Slowdown(scenario.cluster, 0).factors(0).tolist() == [1.0] * 4


# What is refused ----------------------------------------------------------------------------------


@for_each(
    ("one", "line"),
    [
        (
            {},
            "one of node, rank and link selects the degraded links; given: none of them; keep "
            "one, such as node: 1.",
        ),
        (
            {"node": 0, "rank": 1},
            "one of node, rank and link selects the degraded links; given: node and rank; keep "
            "one, such as node: 1.",
        ),
        ({"rank": 0, "card": 1}, "card 1 is a node's; add node, or leave card out."),
        ({"link": [2, 2]}, "link: joins rank 2 to itself; give two ranks."),
        (
            {"rank": 0, "steps": [3, 3]},
            "steps: [3, 3] contains no step; give the first, and the first after it, such as "
            "[10, 20].",
        ),
        (
            {"rank": 0, "on": 3},
            "on and off go together; give both in steps, such as on: 2, off: 8.",
        ),
    ],
)
def test_a_degraded_link_that_says_too_little_or_too_much_is_refused(one, line, refuse):
    assert refuse(**job(one)) == [f"cluster.stragglers.0: {line}"]


@for_each(
    ("one", "keys", "line"),
    [
        (
            {"rank": 4},
            {},
            "rank: rank 4 does not exist; the largest world_size is 4, so ranks are 0 ... 3.",
        ),
        (
            {"link": [0, 4]},
            {},
            "link: rank 4 does not exist; the largest world_size is 4, so ranks are 0 ... 3.",
        ),
        (
            {"node": 0},
            {},
            "node: there are no links between nodes where there is one; use rank or link.",
        ),
        (
            {"node": 1, "card": 2},
            NODES,
            "card: node 1 has cards 0 ... 1, not 2; see inter_node.links_per_node.",
        ),
        (
            {"rank": 1},
            {**NODES, "devices_per_node": 1},
            "rank: nodes of one device have no links inside; use node.",
        ),
        (
            {"link": [0, 1]},
            {"topology": "switch"},
            "link: the way from rank 0 to rank 1 has 2 links; give one end of it, such as rank: 0.",
        ),
        (
            {"link": [0, 2]},
            NODES,
            "link: the way from rank 0 to rank 2 has 2 links; give one end of it, such as node: 0.",
        ),
    ],
)
def test_a_degraded_link_that_is_not_there_is_refused(one, keys, line, refuse):
    assert refuse(**job(one, **keys)) == [f"cluster.stragglers.0.{line}"]


def test_degraded_links_are_refused_where_they_would_have_no_part(refuse, load):
    server = {**job({"rank": 1, "steps": [0, 2]}), "strategy": "parameter_server"}
    assert (
        "cluster.stragglers.0: degraded_link comes and goes by steps, which a server's workers do "
        "not share; leave out steps, on and off, or use ddp." in refuse(**server)
    )
    among = job({"rank": 1}, **NODES)
    other = {"world_size": 2, "workload": among["workload"]}
    assert (
        "cluster.stragglers.0: degraded_link knows no other jobs on the network; leave out "
        "neighbours." in refuse(**among, neighbours=[other])
    )
    table, nodes = TableCost(path="log.txt"), load(**among).cluster
    assert degraded_problems(nodes, table, "together", among_jobs=False) == [
        "cluster.stragglers.0: degraded_link has no part in a measured table; use "
        "collectives.cost: links or nccl, or leave it out."
    ]


def test_a_rank_program_knows_no_steps(load):
    always, at_times = (
        load(**job({"rank": 1, **when})).cluster for when in ({}, {"steps": [1, 2]})
    )
    assert find(always).cluster == always
    with pytest.raises(simdp.ScenarioError) as caught:
        find(at_times)
    assert caught.value.problems == [
        "cluster: cluster.stragglers.0: degraded_link comes and goes by steps, of which a rank "
        "program knows none; leave out steps, on and off."
    ]
