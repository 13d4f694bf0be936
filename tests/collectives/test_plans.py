"""Every plan: each contribution counted once, and no plan that loses, doubles or misplaces one."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.collectives import FAMILIES, Round
from simdp.collectives.ledger import prove
from simdp.collectives.ring import pipeline_chunks
from simdp.errors import PlanError

ALGORITHMS = {
    f"{family} {kind}": member()
    for family, table in FAMILIES.items()
    for kind, member in table.items()
} | {
    "all_reduce ring gloo": FAMILIES["all_reduce"]["ring"](chunking="gloo"),
    "all_reduce tree small chunks": FAMILIES["all_reduce"]["tree"](chunk_size="256 KiB"),
}
ROOTED = {"broadcast", "gather", "reduce", "scatter"}
MiB = 2**20

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
every_world = pytest.mark.parametrize("n", range(1, 18))


def rounds_of(plan):
    """Each round's transfers as (src, dst, chunk, reduce) with ``reduce`` spelled out."""
    for part in plan.rounds():
        yield part.src, part.dst, part.chunk, np.broadcast_to(part.reduce, part.src.shape)


def doctored(plan, change):
    """The plan with its list of rounds changed."""
    rounds = [Round(*(np.array(part) for part in transfers)) for transfers in rounds_of(plan)]
    changed = change(rounds)
    return replace(plan, rounds=lambda: iter(changed))


def without(transfers, i):
    return Round(*(np.delete(part, i) for part in transfers))


def complaint(plan):
    with pytest.raises(PlanError) as caught:
        prove(plan)
    return str(caught.value)


# The proof ---------------------------------------------------------------------------------------


@every_algorithm
@every_world
@pytest.mark.parametrize("nbytes", [0, 1, 3 * 512 * 1024 + 5])
def test_every_contribution_is_counted_once(algorithm, n, nbytes):
    for root in sorted({0, n // 2, n - 1}) if algorithm.collective in ROOTED else (0,):
        plan = algorithm.plan(n, nbytes, root)
        prove(plan)
        assert plan.collective == algorithm.collective
        assert (plan.world_size, plan.root) == (n, root)


@every_algorithm
def test_the_proof_holds_beyond_one_word_of_ranks(algorithm):
    plan = algorithm.plan(67, 1.0)
    prove(plan)
    rounds = list(plan.rounds())
    short = replace(plan, rounds=lambda: iter(rounds[:-1]), repeats=False)
    with pytest.raises(PlanError):
        prove(short)


@every_algorithm
def test_one_rank_sends_nothing(algorithm):
    plan = algorithm.plan(1, 1e6)
    assert list(plan.rounds()) == []
    assert plan.num_rounds == 0
    assert plan.sends_per_rank.tolist() == [0]


@every_algorithm
@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_plan_can_be_read_again_and_again(algorithm, n):
    plan = algorithm.plan(n, 2 * MiB)
    first, second = ([tuple(map(np.array, r)) for r in rounds_of(plan)] for _ in range(2))
    assert len(first) == len(second) == plan.num_rounds
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@every_algorithm
def test_equal_arguments_give_the_same_plan(algorithm):
    again = type(algorithm).model_validate(algorithm.model_dump(mode="json"))
    assert algorithm.plan(4, 10.0) is again.plan(4, 10.0)
    assert algorithm.plan(4, 10.0) is not algorithm.plan(5, 10.0)


# What the proof refuses --------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize("n", [2, 3, 5])
def test_no_transfer_can_be_dropped(algorithm, n):
    plan = algorithm.plan(n, 2 * MiB)
    rounds = list(rounds_of(plan))
    for number, transfers in enumerate(rounds):
        for i in range(len(transfers[0])):
            broken = doctored(
                plan, lambda r, k=number, i=i: [*r[:k], without(r[k], i), *r[k + 1 :]]
            )
            said = complaint(broken)
            assert said.startswith(f"{plan.collective}: ")
            assert "rank " in said
            assert "chunk " in said


@every_algorithm
@pytest.mark.parametrize("n", [2, 3, 5])
def test_no_reduction_can_be_doubled(algorithm, n):
    plan = algorithm.plan(n, 2 * MiB)
    for number, (src, dst, chunk, reduce) in enumerate(rounds_of(plan)):
        for i in np.flatnonzero(reduce):
            extra = Round(src[i : i + 1], dst[i : i + 1], chunk[i : i + 1], reduce[i : i + 1])
            broken = doctored(plan, lambda r, k=number, e=extra: [*r[: k + 1], e, *r[k + 1 :]])
            said = complaint(broken)
            assert said == (
                f"{plan.collective}: in round {number + 1} rank {dst[i]} adds to chunk {chunk[i]} "
                "a contribution that it holds already; it would be counted twice."
            )


def test_a_reduction_doubled_within_its_round_is_found():
    plan = ALGORITHMS["all_reduce naive"].plan(3, 1.0)
    twice = doctored(plan, lambda r: [Round(*(np.repeat(part, 2) for part in r[0])), r[1]])
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
        plan, lambda r: [Round(*(np.concatenate(parts) for parts in zip(*r, strict=True)))]
    )
    assert complaint(at_once) == (
        "broadcast: in round 0 rank 1 sends chunk 0 to rank 2 before it holds any of it."
    )


@pytest.mark.parametrize(
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
        "all_reduce: rank 0 ends without what it should have of chunk 2: "
        "1 of 4 contributions are missing."
    )


def test_a_broadcast_misses_one_contribution_only():
    plan = ALGORITHMS["broadcast naive"].plan(4, 1.0)
    short = doctored(plan, lambda r: [without(r[0], 2)])
    said = complaint(short)
    assert said.startswith("broadcast: rank 3 ends without what it should have of chunk 0: ")
    assert "1 of 1 " in said


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_plan_that_does_nothing_is_refused(name):
    assert complaint(doctored(ALGORITHMS[name].plan(3, 1.0), lambda r: []))


# Bytes -------------------------------------------------------------------------------------------


@every_algorithm
@every_world
def test_sends_are_counted_as_they_are_planned(algorithm, n):
    plan = algorithm.plan(n, 2 * MiB)
    counted = np.zeros(n, dtype=np.int64)
    for src, _, _, _ in rounds_of(plan):
        np.add.at(counted, src, 1)
    np.testing.assert_array_equal(plan.sends_per_rank, counted)


@every_world
@pytest.mark.parametrize(
    ("name", "times"), [("all_reduce ring", 2), ("reduce_scatter ring", 1), ("all_gather ring", 1)]
)
def test_a_ring_sends_the_known_bytes(name, times, n):
    plan = ALGORITHMS[name].plan(n, 1200.0)
    sent = plan.sends_per_rank * 1200.0 / plan.num_chunks
    np.testing.assert_allclose(sent, times * (n - 1) / n * 1200.0, rtol=1e-15)
    assert plan.num_rounds == times * (n - 1)


@pytest.mark.parametrize("n", range(2, 18))
@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_over_the_ring_sends_the_buffer_once_per_link(n, root):
    plan = ALGORITHMS["broadcast ring"].plan(n, 3 * MiB, root)
    wanted = np.full(n, plan.num_chunks)
    wanted[(root - 1) % n] = 0  # the end of the chain
    np.testing.assert_array_equal(plan.sends_per_rank, wanted)
    assert plan.num_rounds == plan.num_chunks + n - 2


@pytest.mark.parametrize("n", range(2, 18))
def test_a_tree_sends_the_buffer_up_and_down_every_edge(n):
    plan = ALGORITHMS["all_reduce tree"].plan(n, 3 * MiB)
    assert plan.sends_per_rank.sum() == 2 * (n - 1) * plan.num_chunks
    depth = int(np.floor(np.log2(n)))
    assert plan.num_rounds == 2 * depth - 1 + plan.num_chunks


# Chunks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "num_chunks"),
    [(0, 1), (1, 1), (512 * 1024, 1), (512 * 1024 + 1, 2), (25 * MiB, 50), (2**40, 1024)],
)
def test_a_pipeline_has_between_one_and_1024_chunks(nbytes, num_chunks):
    assert pipeline_chunks(nbytes, 512 * 1024) == num_chunks
    assert ALGORITHMS["all_reduce tree"].plan(4, nbytes).num_chunks == num_chunks


@every_algorithm
@every_world
def test_a_buffer_is_cut_into_one_chunk_at_least(algorithm, n):
    for nbytes in (0, 1, 100 * MiB):
        assert algorithm.num_chunks(n, nbytes) >= 1


@every_algorithm
@given(
    n=st.integers(1, 17), num_elements=st.integers(0, 10**7), itemsize=st.sampled_from([2, 4, 8])
)
def test_offsets_cut_the_whole_buffer_in_order(algorithm, n, num_elements, itemsize):
    plan = algorithm.plan(n, num_elements * itemsize)
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


@pytest.mark.parametrize("n", [2, 3, 5])
def test_gloo_adds_each_chunk_from_the_left_to_the_one_before_its_owner(n):
    # Chunk i = x[i-1] + x[i-2] + ... + x[i], left to right, ranks mod W.
    order = defaultdict(list)
    for src, dst, chunk, reduce in rounds_of(ALGORITHMS["all_reduce ring gloo"].plan(n, 1.0)):
        for i in np.flatnonzero(reduce):
            order[int(chunk[i])].append((int(src[i]), int(dst[i])))
    for chunk, hops in order.items():
        assert hops == [((chunk - 1 - k) % n, (chunk - 2 - k) % n) for k in range(n - 1)]


# Repeats -----------------------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize("n", [*range(2, 18)])
def test_a_plan_that_says_it_repeats_does(algorithm, n):
    plan = algorithm.plan(n, 3 * MiB)
    if not plan.repeats:
        return
    before = None
    everyone = np.arange(n)
    for src, dst, chunk, _ in rounds_of(plan):
        np.testing.assert_array_equal(np.sort(src), everyone)
        np.testing.assert_array_equal(np.sort(dst), everyone)
        if before is not None:
            np.testing.assert_array_equal(src, before[0])
            np.testing.assert_array_equal(dst, before[1])
            received = dict(zip(before[1].tolist(), before[2].tolist(), strict=True))
            assert [received[s] for s in src.tolist()] == chunk.tolist()
        before = src, dst, chunk


@pytest.mark.parametrize("name", ["all_reduce ring", "reduce_scatter ring", "all_gather ring"])
def test_rings_repeat(name):
    assert ALGORITHMS[name].plan(8, 1.0).repeats


# Wrong arguments ---------------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0), "world_size must be >= 1, got 0"),
        ((-3, 1.0), "world_size must be >= 1, got -3"),
        ((4, -1.0), "nbytes must be >= 0, got -1.0"),
        ((4, 1.0, 4), "root must be in 0 ... 3, got 4"),
        ((4, 1.0, -1), "root must be in 0 ... 3, got -1"),
    ],
)
def test_arguments_out_of_range_are_refused(algorithm, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        algorithm.plan(*arguments)


def test_every_family_holds_algorithms_of_its_own():
    for family, table in FAMILIES.items():
        for kind, member in table.items():
            assert member.collective == family
            assert member().kind == kind
