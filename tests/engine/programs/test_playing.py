"""Rank programs share links max-min fairly, transfer by transfer, whatever is under way."""

from functools import lru_cache

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given, settings
from hypothesis import strategies as st

from simdp.collectives import FAMILIES, Collectives
from simdp.engine.clocks import clock
from simdp.engine.collective import Planner
from simdp.engine.programs import playing
from simdp.engine.programs.records import NOTHING, CallArguments, CallSignature
from simdp.engine.programs.runtime import Runtime
from simdp.scenario.placement import layout
from simdp.studies.collective import sweep_collective
from tests import max_min
from tests.small_networks import FAT_TREE, between, cluster, serving

pytestmark = pytest.mark.slow

N = 8
DRAGONFLY = {"kind": "dragonfly", "ports_per_router": 2, "routers_per_group": 2}
TOPOLOGIES = {
    "switch": "switch",
    "ring": "ring",
    "torus": "torus2d",
    "fat_tree": FAT_TREE,
    "dragonfly": DRAGONFLY,
    "pcie": "pcie_tree",
}
ALGORITHMS = ["ring", "tree", "halving_doubling", "direct", "double_binary_tree"]
EVERYONE = tuple(range(N))


@lru_cache
def where(topology):
    """Eight devices."""
    return cluster(N, TOPOLOGIES[topology])


class Collective:
    """A collective of a group, which its ranks ask for at some instants."""

    def __init__(self, ranks, asked_at, nbytes, algorithm="ring", name="all_reduce"):
        self.ranks, self.asked_at, self.nbytes = ranks, dict(asked_at), nbytes
        self.algorithm, self.name = algorithm, name

    def events(self, rank):
        return [self.asked_at[rank]] if rank in self.ranks else []

    def issue(self, runtime, rank):
        group = runtime.group("some", self.ranks, f"{self.ranks}")
        given = given_to(self.name, self.nbytes, group.place[rank], len(self.ranks))
        asked = CallSignature(self.name, "int8", (self.nbytes,))
        return [group.issue(rank, runtime.clock[rank], asked, given, self.name)]


def given_to(collective, nbytes, place, n):
    """What a rank brings to a collective of a whole buffer; the first rank is the root."""
    whole, is_root = np.zeros(nbytes, np.int8), place == 0
    pieces = np.split(whole[: nbytes // n * n], n)
    return {
        "all_gather": CallArguments(pieces[:1], pieces),
        "all_reduce": CallArguments([whole], [whole]),
        "all_to_all": CallArguments(pieces, pieces),
        "barrier": NOTHING,
        "broadcast": CallArguments([whole], []) if is_root else CallArguments([], [whole]),
        "gather": CallArguments(pieces[:1], pieces if is_root else []),
        "reduce": CallArguments([whole], [whole] if is_root else []),
        "reduce_scatter": CallArguments([whole], pieces[:1]),
        "scatter": CallArguments(pieces if is_root else [], pieces[:1]),
    }[collective]


class Message:
    """A message, which sender and receiver ask for at some instants."""

    def __init__(self, src, dst, sent_at, received_at, nbytes):
        self.ranks, self.nbytes = (src, dst), nbytes
        self.asked_at = {src: sent_at, dst: received_at}

    def events(self, rank):
        return [self.asked_at[rank]] if rank in self.ranks else []

    def issue(self, runtime, rank):
        src, dst = self.ranks
        asked, tensor = CallSignature("send"), np.zeros(self.nbytes, np.int8)
        name = f"{id(self)}"  # a group of its own, so that it waits for no other message
        post = (runtime.clock[rank], asked, tensor)
        if rank == src:
            return [runtime.messages.send(rank, *post, dst, 0, name)]
        return [runtime.messages.receive(rank, *post, src, 0, name)]


def played(on, things):
    """When each thing is over on each of its ranks, by a rank program."""
    algorithms = {"": {}}
    for thing in things:
        if isinstance(thing, Collective):
            algorithms.setdefault(f"{thing.ranks}", {})[thing.name] = thing.algorithm
    backends = {name: Collectives.model_validate(served) for name, served in algorithms.items()}
    runtime = Runtime(on, backends, 0, lambda rank: None)
    ends = [{} for _ in things]

    def program(rank):
        asked = [(at, k) for k, thing in enumerate(things) for at in thing.events(rank)]
        handles = []
        for at, k in sorted(asked):
            runtime.compute(rank, max(at - runtime.clock[rank], 0.0), "compute", "work")
            handles += [(k, handle) for handle in things[k].issue(runtime, rank)]
        for k, handle in handles:
            runtime.wait(handle)
            ends[k][rank] = handle.end

    runtime.run(program)
    return ends


def expected(on, things):
    """The same by the independent simulator."""
    route, capacity = max_min.network_of(on)
    transfers, of_thing, before = [], [], {}
    for thing in things:
        first = len(transfers)
        if isinstance(thing, Message):
            links, alpha, limit = route(*thing.ranks)
            begin = max(thing.asked_at.values())
            found = [max_min.Transfer(links, alpha, thing.nbytes, begin, (), limit)]
            vertices = [thing.ranks]
        else:
            whole = len(thing.ranks) == on.world_size
            planner = Planner(on, groups=None if whole else np.array([thing.ranks]))
            served = Collectives.model_validate({thing.name: thing.algorithm})
            plan = planner.plan(getattr(served, thing.name), thing.nbytes)
            enter = [thing.asked_at.get(rank, 0.0) for rank in range(on.world_size)]
            behind = before.get(thing.ranks, ())
            found, vertices = max_min.transfers_of(plan, thing.nbytes, enter, route, first, behind)
            numbered = list(enumerate(vertices, first))
            before[thing.ranks] = [*behind, *numbered]
        transfers += found
        of_thing.append((first, vertices))
    over = max_min.ends(transfers, capacity)
    ends, earlier = [], {}
    for thing, (first, vertices) in zip(things, of_thing, strict=True):
        last = max(thing.asked_at.values())  # nobody leaves before all have come
        if isinstance(thing, Collective):
            last = max(last, earlier.get(thing.ranks, 0.0))
        found = dict.fromkeys(thing.ranks, last)
        for number, pair in enumerate(vertices, first):
            for rank in pair:
                found[rank] = max(found.get(rank, 0.0), over[number])
        ends.append({rank: found[rank] for rank in thing.ranks})
        if isinstance(thing, Collective):
            earlier[thing.ranks] = max(ends[-1].values())
    return ends


def agree(on, things):
    """Assert that every rank is through with everything at the same instant in both."""
    for found, right in zip(played(on, things), expected(on, things), strict=True):
        assert found == pytest.approx(right, rel=1e-9)


def together(instant=0.0, ranks=EVERYONE):
    return dict.fromkeys(ranks, instant)


@for_some("topology", TOPOLOGIES, 3)
@for_each("algorithm", ALGORITHMS)
def test_a_collective_takes_what_max_min_sharing_says(topology, algorithm):
    late = np.random.default_rng(0).exponential(2e-5, N)
    for asked_at in (together(), dict(enumerate(late))):
        agree(where(topology), [Collective(EVERYONE, asked_at, 3_000_000, algorithm)])


@for_some("topology", TOPOLOGIES, 3, first=2)
@for_each("algorithm", ALGORITHMS)
def test_collectives_of_two_groups_and_messages_share_links_transfer_by_transfer(
    topology, algorithm
):
    random = np.random.default_rng(1)
    things = [
        Collective(ranks, {rank: random.exponential(3e-5) for rank in ranks}, 2_000_000, algorithm)
        for ranks in (EVERYONE, (0, 2, 4, 6), (1, 2, 5, 7))
    ]
    things += [Message(k, (k + 3) % N, *random.exponential(6e-5, 2), 10**6) for k in range(N)]
    agree(where(topology), things)


@for_each("algorithm", ["ring", "double_binary_tree"])
def test_calls_of_one_group_follow_each_other_rank_by_rank(algorithm):
    random = np.random.default_rng(2)
    things = [
        Collective(EVERYONE, dict(enumerate(random.exponential(3e-5, N))), 10**6, algorithm)
        for _ in range(3)
    ]
    ordered = [dict(enumerate(np.sort([t.asked_at[r] for t in things]))) for r in range(N)]
    for k, thing in enumerate(things):
        thing.asked_at = {rank: ordered[rank][k] for rank in range(N)}
    agree(where("switch"), things)
    agree(where("switch"), [*things, Message(3, 4, 5e-5, 5e-5, 10**6)])


def test_calls_of_one_group_that_meet_on_links_share_them():
    # Rank 4 comes late; those who need not wait for it begin the second call before that.
    first = Collective(EVERYONE, {**together(), 4: 1e-4}, 10**6, "binomial", "reduce")
    second = Collective(EVERYONE, {**together(), 4: 1e-4}, 10**6)
    agree(where("fat_tree"), [first, second])


@for_each("topology", TOPOLOGIES)
@for_each("algorithm", ["direct", "pairwise"])
def test_ranks_that_keep_a_piece_of_their_own_reach_themselves_at_once(topology, algorithm):
    call = Collective(EVERYONE, together(), 10**6, algorithm, "all_to_all")
    agree(where(topology), [call, Message(0, 3, 0.0, 0.0, 10**6)])


def test_what_nobody_disturbs_is_not_played(monkeypatch):
    monkeypatch.delattr(playing.Playing, "_prepared")
    half = N // 2
    groups = EVERYONE[:half], EVERYONE[half:]
    things = [Collective(ranks, together(k * 1e-5, ranks), 10**6) for k, ranks in enumerate(groups)]
    agree(where("switch"), [*things, Collective(EVERYONE, together(1.0), 10**6)])


# Collectives by themselves ------------------------------------------------------------------------

TWO_NODES = {
    "devices_per_node": 4,
    "inter_node": between("switch", cards=2),
    "overheads": {"launch": "3 us", "message": "7 us", "compute_slowdown": 0.5},
}


def alone(on, algorithm, nbytes):
    """What ``simdp collective`` prints [s]."""
    (curve,) = sweep_collective(algorithm.collective, [algorithm], [on], [nbytes]).curves
    return curve.points[0].seconds


def by_itself(on, algorithm, nbytes, begin=0.0):
    """The same by a rank program [s]."""
    call = Collective(EVERYONE, together(begin), nbytes, algorithm, algorithm.collective)
    return max(played(on, [call])[0].values()) - begin


@pytest.mark.parametrize(
    "topology",
    ["two_nodes", *(pytest.param(t, marks=pytest.mark.long) for t in TOPOLOGIES)],
)
def test_a_collective_by_itself_takes_what_simdp_collective_prints(topology):
    on = cluster(N, "ring", **TWO_NODES) if topology == "two_nodes" else where(topology)
    algorithms = serving(layout(on))
    assert {algorithm.collective for algorithm in algorithms} == set(FAMILIES)
    for algorithm in algorithms:
        nbytes = 0 if algorithm.collective == "barrier" else 1_600_000
        found = by_itself(on, algorithm, nbytes)
        assert found == pytest.approx(alone(on, algorithm, nbytes), rel=1e-12), algorithm


@pytest.mark.parametrize("kind", ["ring", "direct", "double_binary_tree"])
def test_so_does_one_that_begins_later(kind):
    algorithm = FAMILIES["all_reduce"][kind]()
    for topology in TOPOLOGIES:
        expected = alone(where(topology), algorithm, 1_600_000)
        found = by_itself(where(topology), algorithm, 1_600_000, 0.25)
        assert found == pytest.approx(expected, abs=0.25 * 1e-12)


def test_so_does_one_of_too_many_transfers_to_be_played(monkeypatch):
    for module in (clock, playing):
        monkeypatch.setattr(module, "MAX_EVENT_TRANSFERS", 10)
    monkeypatch.delattr(playing.Playing, "_prepared")
    algorithm, on = FAMILIES["all_to_all"]["direct"](), where("ring")
    found = by_itself(on, algorithm, 1_600_000)
    assert found == pytest.approx(alone(on, algorithm, 1_600_000), rel=1e-12)


@pytest.mark.parametrize("late", [0.0, 0.2])
def test_too_many_transfers_are_one_flow_beside_others(monkeypatch, late):
    monkeypatch.setattr(playing, "MAX_EVENT_TRANSFERS", 10)
    monkeypatch.delattr(playing.Playing, "_prepared")
    calls = [Collective(ranks, together(ranks=ranks), 10**6) for ranks in (EVERYONE, (0, 1, 2, 3))]
    by_itself = [max(played(where("switch"), [call])[0].values()) for call in calls]
    begin = late * by_itself[0]
    calls[1].asked_at = together(begin, (0, 1, 2, 3))
    both = [max(ends.values()) for ends in played(where("switch"), calls)]
    # Each has half while both are under way; the first has the rest of the time for itself.
    assert both == pytest.approx([sum(by_itself), begin + 2 * by_itself[1]], rel=1e-9)


# Anything, at any time ---------------------------------------------------------------------------

instants = st.sampled_from([0.0, 1e-6, 2e-5, 1e-4]) | st.floats(0, 2e-4)


@st.composite
def messages(draw):
    src, dst = draw(st.lists(st.integers(0, N - 1), min_size=2, max_size=2, unique=True))
    nbytes = draw(st.sampled_from([0, 1, 10**6]) | st.integers(1, 3 * 10**6))
    return Message(src, dst, draw(instants), draw(instants), nbytes)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(list(TOPOLOGIES)), st.lists(messages(), min_size=1, max_size=12))
def test_staggered_messages_share_links_max_min_fairly(topology, things):
    agree(where(topology), things)


@st.composite
def reductions(draw):
    ranks = draw(st.sampled_from([EVERYONE, (0, 1, 2, 3), (4, 5, 6, 7), (1, 3, 6), (0, 7)]))
    algorithm = draw(st.sampled_from(["ring", "tree", "double_binary_tree", "naive"]))
    nbytes = draw(st.sampled_from([8, 10**6]) | st.integers(1, 3 * 10**6))
    return Collective(ranks, {rank: draw(instants) for rank in ranks}, nbytes, algorithm)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(list(TOPOLOGIES)),
    st.lists(reductions(), min_size=1, max_size=3, unique_by=lambda each: each.ranks),
    st.lists(messages(), max_size=6),
)
def test_anything_at_the_same_time_shares_links_max_min_fairly(topology, calls, others):
    agree(where(topology), [*calls, *others])
