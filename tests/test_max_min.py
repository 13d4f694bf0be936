"""The simulator that clocks are checked against, against what can be worked out by hand."""

from collections import defaultdict
from math import inf

import closed_forms
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.collectives import ALL_REDUCE
from tests.max_min import Transfer, collective_ends, ends, fair_rates, rank_ends
from tests.small_networks import cluster

LINKS = {"a": 10.0, "b": 4.0, "c": 1.0}


def test_each_link_is_shared_evenly_by_those_that_no_other_link_holds_back():
    # c gives 1 to one flow; b's other flow gets 3; a's other flow the 6 that are left.
    flows = [(("a", "b", "c"), inf), (("a", "b"), inf), (("a",), inf)]
    assert fair_rates(flows, LINKS) == pytest.approx([1, 3, 6])
    assert fair_rates([(("a",), 2.0), (("a",), inf)], LINKS) == pytest.approx([2, 8])


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=1), st.sampled_from([0.5, 2.0, inf])),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.floats(0.1, 10), min_size=6, max_size=6),
)
def test_every_flow_has_a_full_link_on_which_none_is_faster(flows, bandwidths):
    rates = fair_rates(
        [(tuple(links), limit) for links, limit in flows], dict(enumerate(bandwidths))
    )
    load, fastest = defaultdict(float), defaultdict(float)
    for (links, _), rate in zip(flows, rates, strict=True):
        for link in links:
            load[link] += rate
            fastest[link] = max(fastest[link], rate)
    assert all(total <= bandwidths[link] * (1 + 1e-9) for link, total in load.items())
    for (links, limit), rate in zip(flows, rates, strict=True):
        full = [link for link in links if load[link] >= bandwidths[link] * (1 - 1e-9)]
        held = any(rate >= fastest[link] * (1 - 1e-9) for link in full)
        assert held or rate >= limit * (1 - 1e-9)


def test_latency_comes_first_and_then_the_bytes():
    assert ends([Transfer(("b",), 0.5, 8.0, begin=1.0)], LINKS) == [3.5]
    assert ends([Transfer((), 0.5, 8.0, begin=1.0)], LINKS) == [1.5]


def test_a_flow_that_comes_later_takes_its_share_from_then_on():
    # Alone at 4 bytes/s for 1 s, at 2 for 1 s beside the short one, at 4 for the last 2 bytes.
    found = ends([Transfer(("b",), 0.0, 8.0), Transfer(("b",), 0.5, 2.0, begin=0.5)], LINKS)
    assert found == pytest.approx([2.5, 2.0])


def test_transfers_wait_for_those_before_them():
    found = ends([Transfer(("b",), 1.0, 4.0), Transfer(("b",), 1.0, 4.0, after=(0,))], LINKS)
    assert found == pytest.approx([2.0, 4.0])
    with pytest.raises(AssertionError, match="in a circle"):
        ends(
            [Transfer(("b",), 1.0, 4.0, after=(1,)), Transfer(("b",), 1.0, 4.0, after=(0,))], LINKS
        )


def test_a_rank_is_through_with_the_last_that_it_sends_or_receives():
    assert rank_ends([(0, 1), (1, 2)], [1.0, 2.0], [0.0, 0.0, 0.5, 3.0]) == [1.0, 2.0, 2.0, 3.0]


@for_each("kind", ["ring", "tree", "naive"])
def test_collectives_take_their_closed_forms(kind):
    topology, alpha, beta = ("switch", 2e-6, 1e-9) if kind == "naive" else ("full_mesh", 1e-6, 1e-9)
    where = cluster(5, topology, alpha="1 us", bandwidth="1 GB/s")
    plan = ALL_REDUCE[kind]().plan(5, 4e4)
    expected = {
        "ring": closed_forms.ring_all_reduce_time(4e4, 5, alpha, beta),
        "tree": closed_forms.tree_all_reduce_time(4e4, 5, alpha, beta, plan.num_chunks),
        "naive": closed_forms.naive_all_reduce_time(4e4, 5, alpha, beta, sharing=True),
    }
    found = collective_ends(where, plan, 4e4, [0.0] * 5)
    assert max(found) == pytest.approx(expected[kind], rel=1e-9)
