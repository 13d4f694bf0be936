"""Every plan: each contribution counted once, and no plan that loses, doubles or misplaces one."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from draws import draws
from every_plan import ALGORITHMS, ROOTED, MiB, every_algorithm, layouts, some_plan
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simdp.collectives import FAMILIES, Layout, Round
from simdp.collectives.base import pipeline_chunks
from simdp.collectives.plans import expand, prove
from simdp.errors import PlanError
from simdp.spec import problems

pytestmark = pytest.mark.slow

every_world = for_each("n", [*range(1, 7), 8, 9, 12, 17])


def rounds_of(plan):
    """Every chunk that moves, round by round and part by part, as (src, dst, chunk, to, reduce)."""
    return list(plan.moves())


def as_rounds(plan):
    """The same, as rounds of transfers of one chunk."""
    return [Round(src, dst, chunk, reduce, to) for src, dst, chunk, to, reduce in plan.moves()]


def doctored(plan, change):
    """The plan with its list of rounds changed."""
    changed = change(as_rounds(plan))
    return replace(plan, parts=(), order="chunk", rounds=lambda: iter(changed))


def without(transfers, i):
    """A round without its transfer i."""
    per_transfer = (np.broadcast_to(part, transfers.src.shape) for part in transfers[:4])
    count = np.broadcast_to(transfers.num_chunks, transfers.src.shape)
    to = transfers.chunk if transfers.to is None else transfers.to
    left = [np.delete(part, i) for part in (*per_transfer, to, count)]
    return Round(*left, transfers.stride)


def with_part(plan, number, rounds):
    """The plan with other rounds in one of its parts."""
    parts = list(plan.everything)
    inner = replace(parts[number].plan, rounds=lambda: iter(rounds), order="chunk")
    parts[number] = replace(parts[number], plan=inner)
    return replace(plan, parts=tuple(parts), rounds=lambda: iter(()))


def complaint(plan):
    with pytest.raises(PlanError) as caught:
        prove(plan)
    return str(caught.value)


# The proof ---------------------------------------------------------------------------------------


@for_some("n", [*range(1, 7), 8, 9, 12, 17], 2)
@every_algorithm
def test_every_contribution_is_counted_once(algorithm, n):
    served = layouts(algorithm, n)
    for number in sorted({0, n % len(served)}) if served else ():  # all kinds come round
        slices = 1 + (n + number) % 3
        nbytes = (0, 3 * 512 * 1024 + 5, 1)[n // 3 % 3]
        root = (0, n - 1, n // 2)[n % 3] if algorithm.collective in ROOTED else 0
        sliced = algorithm.model_copy(update={"slices": slices})
        plan = sliced.plan(served[number], nbytes, root)
        prove(plan)
        more = (algorithm.collective, algorithm.kind) == ("reduce_scatter", "gloo") and n > 1
        assert plan.collective == ("all_reduce" if more else algorithm.collective)
        assert (plan.world_size, plan.root) == (n, root)


@for_each("name", ALGORITHMS)
def test_every_algorithm_serves_some_numbers_of_ranks(name):
    assert [n for n in range(2, 18) if layouts(ALGORITHMS[name], n)]


@every_algorithm
@for_each("n", [33])
def test_the_proof_holds_beyond_one_word_of_ranks(algorithm, n):
    if algorithm.kind == "multi_ring":  # otherwise it has as many rings as there are
        algorithm = algorithm.model_copy(update={"channels": 2})
    plan = some_plan(algorithm, n, 1.0)
    prove(plan)
    with pytest.raises(PlanError):
        prove(doctored(plan, lambda r: r[:-1]))


@every_algorithm
def test_one_rank_sends_nothing(algorithm):
    plan = algorithm.plan(1, 1e6)
    assert rounds_of(plan) == []
    assert plan.num_rounds == plan.num_transfers == 0
    assert plan.num_chunks == 1
    assert plan.sends_per_rank.tolist() == [0]


@every_algorithm
@for_each("n", [2, 4, 8])
def test_a_plan_can_be_read_again_and_again(algorithm, n):
    plan = some_plan(algorithm, n)
    first, second = rounds_of(plan), rounds_of(plan)
    num_rounds = sum(part.plan.num_rounds for part in plan.everything)
    assert len(first) == len(second) == num_rounds
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@every_algorithm
def test_equal_arguments_give_the_same_plan(algorithm):
    again = type(algorithm).model_validate(algorithm.model_dump(mode="json"))
    plan = some_plan(algorithm, 4, 10.0)
    assert plan is some_plan(again, 4, 10.0)
    assert plan is not some_plan(algorithm, 8, 10.0)


# What the proof refuses --------------------------------------------------------------------------


@every_algorithm
@for_some("n", [3, 4], 2, first=1)
def test_no_transfer_can_be_dropped(algorithm, n):
    plan = some_plan(algorithm, n)
    for number, part in enumerate(plan.everything):
        rounds = list(part.plan.rounds())
        for k, transfers in enumerate(rounds):
            for i in range(len(transfers.src)):
                broken = [*rounds[:k], without(transfers, i), *rounds[k + 1 :]]
                if is_there_already(algorithm, transfers):
                    continue
                said = complaint(with_part(plan, number, broken))
                assert said.startswith(f"{plan.collective}: ")
                assert "rank " in said
                assert "chunk " in said


def is_there_already(algorithm, transfers):
    """Whether an adding switch is told the sum that it has told, and tells everyone again."""
    return (algorithm.collective, algorithm.kind) == ("all_reduce", "nvls") and not np.any(
        transfers.reduce
    )


@every_algorithm
@for_each("n", [2, 3, 4])
def test_no_reduction_can_be_doubled(algorithm, n):
    plan = some_plan(algorithm, n)
    for number, moves in enumerate(rounds_of(plan)):
        for i in np.flatnonzero(moves.reduce):
            src, dst, chunk, to, reduce = (part[i : i + 1] for part in moves)
            extra = Round(src, dst, chunk, reduce, to)
            said = complaint(
                doctored(plan, lambda r, k=number, e=extra: [*r[: k + 1], e, *r[k + 1 :]])
            )
            assert said == (
                f"{plan.collective}: in round {number + 1} rank {dst[0]} adds to chunk {to[0]} "
                "a contribution that it holds already; it would be counted twice."
            )


def test_a_reduction_doubled_within_its_round_is_found():
    plan = ALGORITHMS["all_reduce naive"].plan(3, 1.0)
    twice = doctored(plan, lambda r: [Round(*(np.repeat(part, 2) for part in r[0][:5])), r[1]])
    assert complaint(twice) == (
        "all_reduce: in round 0 rank 0 adds to chunk 0 a contribution that it holds already; "
        "it would be counted twice."
    )


def test_nothing_is_sent_before_it_is_there():
    plan = ALGORITHMS["broadcast ring"].plan(4, 1.0)
    late = doctored(plan, lambda r: r[1:])
    assert complaint(late) == (
        "broadcast: in round 0 rank 1 sends chunk 0 to rank 2 before it holds any of it."
    )


def test_a_round_reads_what_was_there_when_it_began():
    plan = ALGORITHMS["broadcast ring"].plan(3, 1.0)
    at_once = doctored(
        plan, lambda r: [Round(*(np.concatenate(p[:5]) for p in list(zip(*r, strict=True))[:5]))]
    )
    assert complaint(at_once) == (
        "broadcast: in round 0 rank 1 sends chunk 0 to rank 2 before it holds any of it."
    )


@for_each(
    ("src", "dst", "chunk"),
    [(0, 3, 0), (3, 0, 0), (-1, 0, 0), (0, -1, 0), (1, 1, 0), (0, 1, 3), (0, 1, -1)],
)
def test_nothing_is_sent_outside_the_ranks_and_chunks(src, dst, chunk):
    plan = ALGORITHMS["all_reduce ring"].plan(3, 1.0)
    one = Round(np.array([src]), np.array([dst]), np.array([chunk]), False)
    assert complaint(doctored(plan, lambda r: [one, *r])) == (
        f"all_reduce: round 0 sends chunk {chunk} from rank {src} to rank {dst}, "
        "outside 3 ranks and 3 chunks."
    )


def test_what_is_missing_at_the_end_is_named():
    plan = ALGORITHMS["all_reduce ring"].plan(4, 1.0)
    short = doctored(plan, lambda r: r[:-1])
    assert complaint(short) == (
        "all_reduce: rank 0 ends with an incomplete chunk 2: 1 of 4 contributions are missing."
    )


def test_a_broadcast_misses_one_contribution_only():
    plan = ALGORITHMS["broadcast naive"].plan(4, 1.0)
    short = doctored(plan, lambda r: [without(r[0], 2)])
    said = complaint(short)
    assert said.startswith("broadcast: rank 3 ends with an incomplete chunk 0: ")
    assert "1 of 1 " in said


@every_algorithm
def test_a_plan_that_does_nothing_is_refused(algorithm):
    assert complaint(doctored(some_plan(algorithm, 4, 1.0), lambda r: []))


# Bytes -------------------------------------------------------------------------------------------


@every_algorithm
@for_each("n", [1, 2, 3, 4, 8, 9])
def test_sends_are_counted_as_they_are_planned(algorithm, n):
    for layout in layouts(algorithm, n)[-2:]:
        plan = algorithm.plan(layout, 2 * MiB)
        counted = np.zeros(plan.num_vertices, dtype=np.int64)
        for moves in rounds_of(plan):
            np.add.at(counted, moves.src[moves.src != moves.dst], 1)
        np.testing.assert_array_equal(plan.sends_per_rank, counted[:n])
        parts = [(len(p.members), r) for p in plan.everything for r in p.plan.rounds()]
        assert plan.num_transfers == sum(groups * len(r.src) for groups, r in parts)


@every_world
@for_each(
    ("name", "times"), [("all_reduce ring", 2), ("reduce_scatter ring", 1), ("all_gather ring", 1)]
)
def test_a_ring_sends_the_known_bytes(name, times, n):
    plan = ALGORITHMS[name].plan(n, 1200.0)
    sent = plan.sends_per_rank * 1200.0 / plan.num_chunks
    np.testing.assert_allclose(sent, times * (n - 1) / n * 1200.0, rtol=1e-15)
    assert plan.num_rounds == times * (n - 1)


@for_each("n", range(2, 18))
@for_each("root", [0, 1])
def test_a_broadcast_over_the_ring_sends_the_buffer_once_per_link(n, root):
    plan = ALGORITHMS["broadcast ring"].plan(n, 3 * MiB, root)
    wanted = np.full(n, plan.num_chunks)
    wanted[(root - 1) % n] = 0  # the end of the chain
    np.testing.assert_array_equal(plan.sends_per_rank, wanted)
    assert plan.num_rounds == plan.num_chunks + n - 2


@for_each("n", range(2, 18))
def test_a_tree_sends_the_buffer_up_and_down_every_edge(n):
    plan = ALGORITHMS["all_reduce tree"].plan(n, 3 * MiB)
    assert plan.sends_per_rank.sum() == 2 * (n - 1) * plan.num_chunks
    depth = int(np.floor(np.log2(n)))
    assert plan.num_rounds == 2 * depth - 1 + plan.num_chunks


# Chunks ------------------------------------------------------------------------------------------


@for_each(
    ("nbytes", "num_chunks"),
    [(0, 1), (1, 1), (512 * 1024, 1), (512 * 1024 + 1, 2), (25 * MiB, 50), (2**40, 1024)],
)
def test_a_pipeline_has_between_one_and_1024_chunks(nbytes, num_chunks):
    assert pipeline_chunks(nbytes, 512 * 1024) == num_chunks
    assert ALGORITHMS["all_reduce tree"].plan(4, nbytes).num_chunks == num_chunks


@every_algorithm
@for_each("n", [1, 2, 3, 4, 8, 9])
def test_a_buffer_is_cut_into_one_chunk_at_least(algorithm, n):
    for nbytes in (0, 1, 100 * MiB):
        assert some_plan(algorithm, n, nbytes).num_chunks >= 1


@every_algorithm
@draws(4, 8)
@given(
    n=st.integers(1, 17), num_elements=st.integers(0, 10**7), itemsize=st.sampled_from([2, 4, 8])
)
def test_offsets_cut_the_whole_buffer_in_order(algorithm, n, num_elements, itemsize):
    served = layouts(algorithm, n)
    if not served:
        return
    plan = algorithm.plan(served[-1], num_elements * itemsize)
    offsets = plan.offsets(num_elements, itemsize)
    assert offsets.shape == (plan.num_chunks + 1,)
    assert offsets[0] == 0
    assert offsets[-1] == num_elements
    assert (np.diff(offsets) >= 0).all()


@given(n=st.integers(2, 17), num_elements=st.integers(0, 10**6))
def test_an_even_cut_differs_by_one_element_at_most(n, num_elements):
    plan = ALGORITHMS["all_reduce ring"].plan(n, num_elements * 4)
    assert np.ptp(np.diff(plan.offsets(num_elements, 4))) <= 1


@given(
    n=st.integers(2, 16), num_elements=st.integers(1, 3_000_000), itemsize=st.sampled_from([4, 8])
)
def test_gloo_cuts_by_its_own_rule(n, num_elements, itemsize):
    # nseg = max(ceil(bytes / 1 MiB), 2 W) rounded up to a multiple of W;
    # seg = ceil(bytes / nseg) rounded up to an element; chunk = seg (nseg / W).
    nbytes = num_elements * itemsize
    nseg = max(-(-nbytes // MiB), 2 * n)
    nseg += -nseg % n
    seg = -(-nbytes // nseg)
    seg += -seg % itemsize
    chunk = seg * (nseg // n) // itemsize
    plan = ALGORITHMS["all_reduce ring gloo"].plan(n, nbytes)
    wanted = [min(i * chunk, num_elements) for i in range(n + 1)]
    assert plan.offsets(num_elements, itemsize).tolist() == wanted


@for_each("n", [2, 3, 5])
def test_gloo_adds_each_chunk_from_the_left_to_the_one_before_its_owner(n):
    # Chunk i = x[i-1] + x[i-2] + ... + x[i], left to right, ranks mod W.
    order = defaultdict(list)
    plan = ALGORITHMS["all_reduce ring gloo"].plan(n, 1.0)
    for src, dst, chunk, _, reduce in rounds_of(plan):
        for i in np.flatnonzero(reduce):
            order[int(chunk[i])].append((int(src[i]), int(dst[i])))
    for chunk, hops in order.items():
        assert hops == [((chunk - 1 - k) % n, (chunk - 2 - k) % n) for k in range(n - 1)]


# Order -------------------------------------------------------------------------------------------


@every_algorithm
@for_some("slices", [1, 3], 2, first=1)
def test_a_plan_that_says_it_is_a_ring_is_one(algorithm, slices):
    sliced = algorithm.model_copy(update={"slices": slices})
    for n in (2, 3, 4, 8, 9, 12):
        for part in parts_of(sliced, n):
            if part.plan.order == "ring":
                check_ring(part.plan)


def parts_of(algorithm, n):
    """The parts of plans on two layouts; a plan without any is its own part."""
    plans = [algorithm.plan(layout, 3 * MiB) for layout in layouts(algorithm, n)[:2]]
    return [part for plan in plans for part in plan.everything]


def check_ring(plan):
    rounds = [expand(transfers) for transfers in plan.rounds()]
    everyone = np.arange(plan.world_size)
    for moves in rounds:
        np.testing.assert_array_equal(np.sort(moves.src), everyone)
        np.testing.assert_array_equal(moves.src, rounds[0].src)
        np.testing.assert_array_equal(moves.dst, rounds[0].dst)
    np.testing.assert_array_equal(np.sort(rounds[0].dst), everyone)
    for before, moves in zip(rounds, rounds[plan.slices :], strict=False):
        received = dict(zip(before.dst.tolist(), before.to.tolist(), strict=True))
        assert [received[src] for src in moves.src.tolist()] == moves.chunk.tolist()


@for_each("kind", ["binomial", "halving_doubling", "pairwise", "recursive_doubling"])
def test_a_rank_talks_to_one_rank_at_a_time(kind):
    for algorithm in (a for a in ALGORITHMS.values() if a.kind == kind):
        for n in range(2, 18):
            plan = algorithm.plan(n, 3 * MiB)
            assert plan.order == "rank"
            for transfers in plan.rounds():
                assert len(np.unique(transfers.src)) == len(transfers.src)
                assert len(np.unique(transfers.dst)) == len(transfers.dst)


@for_each("name", ["all_reduce ring", "reduce_scatter ring", "all_gather ring"])
def test_rings_say_that_they_are_rings(name):
    assert ALGORITHMS[name].plan(8, 1.0).order == "ring"


# Slices ------------------------------------------------------------------------------------------


@every_algorithm
@for_each("n", [2, 4, 9])
def test_slices_move_the_same_bytes_in_more_pieces(algorithm, n):
    for layout in layouts(algorithm, n)[:3]:
        whole = algorithm.plan(layout, 0)
        sliced = algorithm.model_copy(update={"slices": 3}).plan(layout, 0)
        assert (sliced.slices, sliced.num_chunks) == (3, 3 * whole.num_chunks)
        np.testing.assert_array_equal(sliced.sends_per_rank, 3 * whole.sends_per_rank)


@for_each(
    ("slices", "message"),
    [
        (0, "slices: 0 is out of range; it must be >= 1."),
        (1025, "slices: 1025 is out of range; it must be <= 1024."),
        (1.5, "slices: 1.5 is not a whole number."),
    ],
)
def test_slices_out_of_range_are_refused(slices, message):
    raw = {"kind": "ring", "slices": slices}
    with pytest.raises(ValidationError) as caught:
        FAMILIES["all_reduce"]["ring"].model_validate(raw)
    assert [problem.line for problem in problems(caught.value, raw)] == [message]


# Wrong arguments ---------------------------------------------------------------------------------


@every_algorithm
@for_each(
    ("arguments", "message"),
    [
        ((0, 1.0), "world_size must be >= 1, got 0"),
        ((-3, 1.0), "world_size must be >= 1, got -3"),
        ((4, -1.0), "nbytes must be >= 0 and finite, got -1.0"),
        ((4, float("inf")), "nbytes must be >= 0 and finite, got inf"),
        ((4, 1.0, 4), "root must be in 0 ... 3, got 4"),
        ((4, 1.0, -1), "root must be in 0 ... 3, got -1"),
    ],
)
def test_arguments_out_of_range_are_refused(algorithm, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        algorithm.plan(*arguments)


@for_each(
    ("world_size", "local_size", "message"),
    [
        (8, 3, "local_size must divide world_size 8, got 3"),
        (8, -1, "local_size must divide world_size 8, got -1"),
        (8, 16, "local_size must divide world_size 8, got 16"),
        (0, 0, "world_size must be >= 1, got 0"),
    ],
)
def test_nodes_must_be_of_equal_size(world_size, local_size, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Layout(world_size, local_size)


def test_every_family_holds_algorithms_of_its_own():
    for family, table in FAMILIES.items():
        for kind, member in table.items():
            assert member.collective == family
            assert member.model_fields["kind"].default == kind
