"""Rank programs share links max-min fairly, transfer by transfer, whatever is under way."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simdp.collectives import Collectives
from simdp.engine.choice import Planner
from simdp.engine.programs import playing
from simdp.engine.programs.calls import Asked, Given
from simdp.engine.programs.runtime import Runtime
from tests import max_min
from tests.small_networks import FAT_TREE, cluster

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


class Reduction:
    """An all_reduce of a group, which its ranks ask for at some instants."""

    def __init__(self, ranks, asked_at, nbytes, algorithm="ring"):
        self.ranks, self.asked_at, self.nbytes = ranks, dict(asked_at), nbytes
        self.algorithm = algorithm

    def events(self, rank):
        return [self.asked_at[rank]] if rank in self.ranks else []

    def issue(self, runtime, rank):
        group = runtime.group(f"{self.ranks}", self.ranks, self.algorithm)
        tensor = np.zeros(self.nbytes, np.int8)
        asked = Asked("all_reduce", "int8", tensor.shape)
        given = Given((tensor,), (tensor,))
        return [group.issue(rank, runtime.clock[rank], asked, given, "all_reduce")]


class Message:
    """A message, which sender and receiver ask for at some instants."""

    def __init__(self, src, dst, sent_at, received_at, nbytes):
        self.ranks, self.nbytes = (src, dst), nbytes
        self.asked_at = {src: sent_at, dst: received_at}

    def events(self, rank):
        return [self.asked_at[rank]] if rank in self.ranks else []

    def issue(self, runtime, rank):
        src, dst = self.ranks
        asked, tensor = Asked("send"), np.zeros(self.nbytes, np.int8)
        name = f"{id(self)}"  # a group of its own, so that it waits for no other message
        post = (runtime.clock[rank], asked, tensor)
        if rank == src:
            return [runtime.messages.send(rank, *post, dst, 0, name)]
        return [runtime.messages.receive(rank, *post, src, 0, name)]


def played(on, things):
    """When each thing is over on each of its ranks, by a rank program."""
    kinds = {thing.algorithm for thing in things if isinstance(thing, Reduction)} or {"ring"}
    backends = {kind: Collectives.model_validate({"all_reduce": kind}) for kind in sorted(kinds)}
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
            asked = Collectives.model_validate({"all_reduce": thing.algorithm}).all_reduce
            plan = planner.plan(asked, thing.nbytes)
            enter = [thing.asked_at.get(rank, 0.0) for rank in range(on.world_size)]
            behind = before.get(thing.ranks, ())
            found, vertices = max_min.transfers_of(plan, thing.nbytes, enter, route, first, behind)
            numbered = list(enumerate(vertices, first))
            before[thing.ranks] = [*behind, *numbered]
        transfers += found
        of_thing.append((first, vertices))
    over = max_min.ends(transfers, capacity)
    ends = []
    for thing, (first, vertices) in zip(things, of_thing, strict=True):
        last = max(thing.asked_at.values())  # nobody leaves before all have come
        found = dict.fromkeys(thing.ranks, last)
        for number, pair in enumerate(vertices, first):
            for rank in pair:
                found[rank] = max(found.get(rank, 0.0), over[number])
        ends.append({rank: found[rank] for rank in thing.ranks})
    return ends


def agree(on, things):
    """Assert that every rank is through with everything at the same instant in both."""
    for found, right in zip(played(on, things), expected(on, things), strict=True):
        assert found == pytest.approx(right, rel=1e-9)


def together(instant=0.0, ranks=EVERYONE):
    return dict.fromkeys(ranks, instant)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_collective_takes_what_max_min_sharing_says(topology, algorithm):
    late = np.random.default_rng(0).exponential(2e-5, N)
    for asked_at in (together(), dict(enumerate(late))):
        agree(where(topology), [Reduction(EVERYONE, asked_at, 3_000_000, algorithm)])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_collectives_of_two_groups_and_messages_share_links_transfer_by_transfer(
    topology, algorithm
):
    random = np.random.default_rng(1)
    things = [
        Reduction(ranks, {rank: random.exponential(3e-5) for rank in ranks}, 2_000_000, algorithm)
        for ranks in (EVERYONE, (0, 2, 4, 6), (1, 2, 5, 7))
    ]
    things += [Message(k, (k + 3) % N, *random.exponential(6e-5, 2), 10**6) for k in range(N)]
    agree(where(topology), things)


@pytest.mark.parametrize("algorithm", ["ring", "double_binary_tree"])
def test_calls_of_one_group_follow_each_other_rank_by_rank(algorithm):
    random = np.random.default_rng(2)
    things = [
        Reduction(EVERYONE, dict(enumerate(random.exponential(3e-5, N))), 10**6, algorithm)
        for _ in range(3)
    ]
    ordered = [dict(enumerate(np.sort([t.asked_at[r] for t in things]))) for r in range(N)]
    for k, thing in enumerate(things):
        thing.asked_at = {rank: ordered[rank][k] for rank in range(N)}
    agree(where("switch"), things)
    agree(where("switch"), [*things, Message(3, 4, 5e-5, 5e-5, 10**6)])


def test_what_nobody_disturbs_is_not_played(monkeypatch):
    monkeypatch.delattr(playing.Playing, "_prepared")
    half = N // 2
    groups = EVERYONE[:half], EVERYONE[half:]
    things = [Reduction(ranks, together(k * 1e-5, ranks), 10**6) for k, ranks in enumerate(groups)]
    agree(where("switch"), [*things, Reduction(EVERYONE, together(1.0), 10**6)])


instants = st.sampled_from([0.0, 1e-6, 2e-5, 1e-4]) | st.floats(0, 2e-4)


@st.composite
def messages(draw):
    src, dst = draw(st.lists(st.integers(0, N - 1), min_size=2, max_size=2, unique=True))
    nbytes = draw(st.sampled_from([0, 1, 10**6]) | st.integers(1, 3 * 10**6))
    return Message(src, dst, draw(instants), draw(instants), nbytes)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(list(TOPOLOGIES)), st.lists(messages(), min_size=1, max_size=12))
def test_staggered_messages_share_links_max_min_fairly(topology, things):
    agree(where(topology), things)


@st.composite
def reductions(draw):
    ranks = draw(st.sampled_from([EVERYONE, (0, 1, 2, 3), (4, 5, 6, 7), (1, 3, 6), (0, 7)]))
    algorithm = draw(st.sampled_from(["ring", "tree", "double_binary_tree", "naive"]))
    nbytes = draw(st.sampled_from([8, 10**6]) | st.integers(1, 3 * 10**6))
    return Reduction(ranks, {rank: draw(instants) for rank in ranks}, nbytes, algorithm)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(TOPOLOGIES)),
    st.lists(reductions(), min_size=1, max_size=3, unique_by=lambda each: each.ranks),
    st.lists(messages(), max_size=6),
)
def test_anything_at_the_same_time_shares_links_max_min_fairly(topology, calls, others):
    agree(where(topology), [*calls, *others])
