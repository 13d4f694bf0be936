"""Halving, doubling, direct, pairwise and binomial: who talks to whom, and how many bytes."""

import numpy as np
import pytest
from for_each import for_each

from simdp.collectives import ALSO_CALLED, FAMILIES, Layout
from simdp.collectives.doubling import core_of
from simdp.collectives.plans import expand, prove
from simdp.studies.collective import make_algorithm

NBYTES = 2.0**20
POWERS = [2, 4, 8, 16, 64]


def plan_of(family, kind, n, root=0):
    return FAMILIES[family][kind]().plan(n, NBYTES, root)


def sent(plan):
    """Bytes that each rank sends."""
    return plan.sends_per_rank * NBYTES / plan.num_chunks


def messages(plan):
    """Each round's transfers as (src, dst, first chunk, chunks)."""
    return [
        list(
            zip(
                r.src.tolist(),
                r.dst.tolist(),
                r.chunk.tolist(),
                np.broadcast_to(r.num_chunks, r.src.shape).tolist(),
                strict=True,
            )
        )
        for r in plan.rounds()
    ]


# Bytes -------------------------------------------------------------------------------------------


@for_each("n", POWERS)
@for_each(
    ("family", "kind", "times"),
    [
        ("all_reduce", "halving_doubling", 2),
        ("reduce_scatter", "halving_doubling", 1),
        ("all_gather", "recursive_doubling", 1),
    ],
)
def test_powers_of_two_send_no_byte_too_many(family, kind, times, n):
    plan = plan_of(family, kind, n)
    np.testing.assert_allclose(sent(plan), times * (n - 1) / n * NBYTES, rtol=1e-15)
    assert plan.num_rounds == times * np.log2(n)


@for_each("n", POWERS)
def test_recursive_doubling_sends_the_buffer_in_every_round(n):
    np.testing.assert_array_equal(
        sent(plan_of("all_reduce", "recursive_doubling", n)), np.log2(n) * NBYTES
    )


@for_each("n", range(2, 18))
@for_each(
    ("family", "kind", "times", "rounds"),
    [
        ("all_reduce", "direct", 2, lambda n: 2),
        ("reduce_scatter", "direct", 1, lambda n: 1),
        ("all_gather", "direct", 1, lambda n: 1),
        ("all_to_all", "direct", 1, lambda n: 1),
        ("all_to_all", "pairwise", 1, lambda n: n - 1),
    ],
)
def test_everyone_sends_every_piece_once(family, kind, times, rounds, n):
    plan = plan_of(family, kind, n)
    np.testing.assert_allclose(sent(plan), times * (n - 1) / n * NBYTES, rtol=1e-15)
    assert plan.num_rounds == rounds(n)


@for_each("n", range(2, 18))
@for_each("family", ["broadcast", "reduce"])
def test_a_binomial_tree_moves_the_buffer_to_or_from_every_rank_once(family, n):
    plan = plan_of(family, "binomial", n, root=n // 2)
    moves = [expand(r) for r in plan.rounds()]
    ends = np.concatenate([m.dst if family == "broadcast" else m.src for m in moves])
    assert sorted(ends.tolist()) == [rank for rank in range(n) if rank != n // 2]
    assert plan.num_rounds == np.ceil(np.log2(n))


@for_each("n", POWERS)
def test_a_scatter_and_doubling_send_nobody_what_it_has(n):
    plan = plan_of("broadcast", "halving_doubling", n, root=1)
    moves = [expand(r) for r in plan.rounds()]
    arrivals = np.concatenate([m.dst * n + m.chunk for m in moves])
    assert len(np.unique(arrivals)) == len(arrivals) == (n - 1) * n  # all chunks to all but one
    assert (np.concatenate([m.dst for m in moves]) != 1).all()


# Partners ----------------------------------------------------------------------------------------


def test_three_ranks_fold_one_away_and_tell_it_at_the_end():
    assert messages(plan_of("all_reduce", "recursive_doubling", 3)) == [
        [(1, 0, 0, 1)],
        [(0, 2, 0, 1), (2, 0, 0, 1)],
        [(0, 1, 0, 1)],
    ]


def test_ranks_that_stand_aside_are_the_second_ones_of_the_first_pairs():
    core = core_of(13)
    assert core.ranks.tolist() == [0, 2, 4, 6, 8, 10, 11, 12]
    assert core.starts.tolist() == [0, 2, 4, 6, 8, 10, 11, 12, 13]
    assert core.helpers.tolist() == [0, 2, 4, 6, 8]
    assert core.aside.tolist() == [1, 3, 5, 7, 9]
    assert core_of(8).aside.tolist() == []


def test_the_longest_messages_of_an_all_reduce_go_to_the_nearest_rank():
    found = [
        {(abs(src - dst), count) for src, dst, _, count in sending}
        for sending in messages(plan_of("all_reduce", "halving_doubling", 8))
    ]
    halving = [{(1, 4)}, {(2, 2)}, {(4, 1)}]
    assert found == halving + halving[::-1]


def test_a_reduce_scatter_leaves_every_rank_its_own_piece_and_halves_from_afar():
    assert messages(plan_of("reduce_scatter", "halving_doubling", 4)) == [
        [(0, 2, 2, 2), (1, 3, 2, 2), (2, 0, 0, 2), (3, 1, 0, 2)],
        [(0, 1, 1, 1), (1, 0, 0, 1), (2, 3, 3, 1), (3, 2, 2, 1)],
    ]


def test_six_ranks_gather_the_pieces_of_those_aside_with_their_helpers():
    # Ranks 1 and 3 stand aside for 0 and 2; in the last round they get everything.
    assert messages(plan_of("all_gather", "recursive_doubling", 6)) == [
        [(1, 0, 1, 1), (3, 2, 3, 1)],
        [(0, 2, 0, 2), (2, 0, 2, 2), (4, 5, 4, 1), (5, 4, 5, 1)],
        [(0, 4, 0, 4), (2, 5, 0, 4), (4, 0, 4, 2), (5, 2, 4, 2)],
        [(0, 1, 0, 6), (2, 3, 0, 6)],
    ]


@for_each("n", range(2, 18))
def test_pairwise_meets_every_pair_once_and_both_ways_at_a_time_if_it_can(n):
    plan = plan_of("all_to_all", "pairwise", n)
    met = []
    for r in plan.rounds():
        met += zip(r.src.tolist(), r.dst.tolist(), strict=True)
        if n.bit_count() == 1:
            np.testing.assert_array_equal(r.dst[r.dst], r.src)
    assert sorted(met) == [(a, b) for a in range(n) for b in range(n) if a != b]


# Size --------------------------------------------------------------------------------------------


@for_each(
    ("family", "kind"),
    [
        (family, kind)
        for family, table in FAMILIES.items()
        for kind in ("binomial", "halving_doubling", "pairwise", "recursive_doubling")
        if kind in table
    ],
)
@for_each("n", [256, 300])
def test_a_round_has_one_transfer_per_rank_at_most(family, kind, n):
    assert all(len(r.src) <= n for r in plan_of(family, kind, n).rounds())


def test_direct_refuses_more_pairs_than_fit_the_memory():
    direct = FAMILIES["all_reduce"]["direct"]()
    assert direct.problem_with(Layout(2048)) is None
    with pytest.raises(ValueError, match="direct: has 16,773,120 transfers on 4,096 ranks; the"):
        direct.plan(4096, 1e6)


@for_each(("family", "name"), [(f, name) for f, names in ALSO_CALLED.items() for name in names])
def test_an_algorithm_may_be_called_otherwise(family, name):
    made = make_algorithm(family, {"kind": name, "slices": 2})
    assert (made.kind, made.slices) == (ALSO_CALLED[family][name]["kind"], 2)


def test_hierarchical_comes_back_by_doubling_from_halving():
    algorithm = make_algorithm("all_reduce", {"kind": "hierarchical", "inner": "halving_doubling"})
    assert algorithm.gather.kind == "recursive_doubling"
    prove(algorithm.plan(Layout(24, 8), 1e6))
