"""MSCCL algorithms: what they amount to, proved, on real numbers, and on the clock."""

from collections import defaultdict, deque
from xml.etree import ElementTree

import numpy as np
import pytest
from closed_forms import ring_all_reduce_time
from for_each import for_each
from msccl_examples import (
    EXAMPLES,
    algorithm,
    all_pairs,
    block,
    chain_broadcast,
    chain_reduce,
    hierarchical_all_reduce,
    ring_all_reduce,
    star_gather,
    step,
)
from small_networks import cluster, durations

from simdp.collectives import FAMILIES, Collectives, Layout
from simdp.collectives.hierarchical import HierarchicalAllReduce
from simdp.collectives.plans import prove
from simdp.collectives.ring import RingAllReduce
from simdp.engine import payload
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import shared_link

pytestmark = pytest.mark.slow

ALPHA, BETA = 5e-6, 1 / 25e9
every_example = for_each(("collective", "text"), EXAMPLES.values(), ids=list(EXAMPLES))


@pytest.fixture
def member(tmp_path):
    """Read an algorithm from a file that holds a text."""

    def read(collective, text, **options):
        (tmp_path / "algorithm.xml").write_text(text)
        made = FAMILIES[collective]["msccl"](path="algorithm.xml", **options)
        return made.settled(tmp_path)

    return read


def on_a_mesh(plan, nbytes):
    """How long a plan takes on both clocks where every pair of ranks has a link."""
    return durations(cluster(plan.world_size, "full_mesh"), plan, nbytes)


def wanted(collective, before, mine):
    """What a rank whose piece is ``mine`` should end with."""
    if collective in ("all_reduce", "reduce"):
        return sum(before)
    if collective == "reduce_scatter":
        return sum(before)[mine]
    if collective == "broadcast":
        return before[0]
    if collective == "scatter":
        return before[0][mine]
    if collective == "all_to_all":
        return np.concatenate([buffer[mine] for buffer in before])
    pieces = [np.array_split(buffer, len(before))[rank] for rank, buffer in enumerate(before)]
    return np.concatenate(pieces)  # all_gather, gather


# What they do ------------------------------------------------------------------------------------


@every_example
@for_each("slices", [1, 3])
def test_every_contribution_is_counted_once(collective, text, slices, member):
    made = member(collective, text, slices=slices)
    n = made.loaded.num_ranks
    for root in range(n) if collective in ("broadcast", "reduce") else (0,):
        plan = made.plan(n, 1e6, root)
        prove(plan)
        assert (plan.collective, plan.root, plan.order) == (collective, root, "chunk")


@every_example
def test_real_numbers_come_out_right(collective, text, member):
    made = member(collective, text)
    n = made.loaded.num_ranks
    plan = made.plan(n, 1e6)
    size = 12 * plan.num_chunks + (5 if collective.startswith(("all_r", "br")) else 0)
    before = [np.arange(size, dtype=float) + 1000 * rank for rank in range(n)]
    after = [buffer.copy() for buffer in before]
    payload.run(plan, after)
    for rank in range(n):
        if collective in ("reduce", "gather") and rank != plan.root:
            continue
        mine = slice(rank * size // n, (rank + 1) * size // n)
        place = mine if collective in ("reduce_scatter", "scatter") else slice(None)
        np.testing.assert_array_equal(after[rank][place], wanted(collective, before, mine))


def interpreted(text, before, seed):
    """Run a file's thread blocks as the hardware does: each on its own, with buffered sends.

    Returns the input and output buffer of every rank, as chunks.
    """
    random, top = np.random.default_rng(seed), ElementTree.fromstring(text)
    apart = top.get("inplace") == "0"
    collective, chunks, n = top.get("coll"), int(top.get("nchunksperloop")), len(top)
    buffers, blocks, done, fifo = {}, [], set(), defaultdict(deque)
    for rank, gpu in enumerate(top):
        whole = before[rank].reshape(chunks, -1).copy()
        empty = np.full((chunks + 9, whole.shape[1]), np.nan)
        own = slice(rank * chunks // n, (rank + 1) * chunks // n)
        i = whole[own] if collective in ("allgather", "gather") else whole
        out = whole[own] if collective in ("reducescatter", "scatter") else whole
        buffers[rank] = {"i": i, "o": empty.copy() if apart else out, "s": empty}
        blocks += [[rank, tb, 0] for tb in gpu]
    while blocks:
        place = int(random.integers(len(blocks)))
        rank, tb, number = blocks[place]
        if number == len(tb):
            blocks.pop(place)
            continue
        step, kind = tb[number], tb[number].get("type")
        at = {key: int(step.get(key)) for key in ("srcoff", "dstoff", "cnt", "depid", "deps")}
        came = fifo[int(tb.get("recv")), rank, tb.get("chan")]
        waits = at["depid"] >= 0 and (rank, at["depid"], at["deps"]) not in done
        if waits or (kind.startswith("r") and kind != "re" and not came):
            continue
        mine = buffers[rank]
        src = mine[step.get("srcbuf")][max(at["srcoff"], 0) :][: at["cnt"]]
        dst = mine[step.get("dstbuf")][max(at["dstoff"], 0) :][: at["cnt"]]
        value = src.copy()
        if kind.startswith("r") and kind != "re":
            value = came.popleft() + (src if kind.startswith("rr") else 0)
        if kind in ("r", "rcs", "rrc", "rrcs", "cpy"):
            dst[:] = value
        elif kind == "re":
            dst += src
        if kind in ("s", "rcs", "rrs", "rrcs"):
            fifo[rank, int(tb.get("send")), tb.get("chan")].append(value.copy())
        done.add((rank, int(tb.get("id")), number))
        blocks[place][2] += 1
    assert not any(fifo.values())
    return buffers


@every_example
@for_each("seed", range(3))
def test_the_plan_does_what_the_thread_blocks_do(collective, text, seed, member):
    """Whichever way these interleave; the output is compared, wherever it lies."""
    made = member(collective, text)
    n, chunks = made.loaded.num_ranks, made.loaded.num_chunks
    before = [np.arange(2.0 * chunks) + 1000 * rank for rank in range(n)]
    plan, after = made.plan(n, 1e6), [buffer.copy() for buffer in before]
    payload.run(plan, after)
    for rank, buffers in interpreted(text, before, seed).items():
        if collective in ("reduce", "gather") and rank != plan.root:
            continue
        apart = collective in ("reduce_scatter", "scatter")
        size = chunks // n if apart else chunks
        found = after[rank].reshape(chunks, -1)
        found = found[rank * size : (rank + 1) * size] if apart else found
        np.testing.assert_array_equal(found, buffers["o"][:size])


@for_each("name", EXAMPLES)
def test_both_clocks_agree(name, member):
    collective, text = EXAMPLES[name]
    made = member(collective, text)
    clocks = on_a_mesh(made.plan(made.loaded.num_ranks, 4e6), 4e6)
    assert clocks == pytest.approx([clocks[0]] * len(clocks), rel=1e-12)
    assert len(clocks) == 1 + ("channels" not in name)  # channels share the link that they are on


@for_each("n", [2, 3, 4, 7])
def test_a_ring_from_a_file_is_the_ring(n, member):
    plan, ours = member("all_reduce", ring_all_reduce(n)).plan(n, 3e6), RingAllReduce().plan(n, 3e6)
    assert (plan.num_rounds, plan.num_scratch) == (2 * (n - 1), 0)
    np.testing.assert_array_equal(plan.sends_per_rank, ours.sends_per_rank)
    assert on_a_mesh(plan, 3e6) == pytest.approx(on_a_mesh(ours, 3e6), rel=1e-12)


@for_each("topology", ["ring", "switch"])
@for_each(("n", "channels"), [(8, 8), (5, 3), (2, 2)])
def test_channels_share_their_link_fairly_so_that_a_ring_takes_its_closed_form(
    n, channels, topology, member
):
    """Each channel has its slice of a chunk at its part of the bandwidth."""
    made = member("all_reduce", ring_all_reduce(n, channels))
    where, expected = cluster(n, topology), ring_all_reduce_time(8e6, n, ALPHA, BETA)
    expected += 2 * (n - 1) * ALPHA * (topology == "switch")  # a link to the switch, one from it
    assert shared_link(NetworkRoutes(where), [made.plan(n, 8e6)]) is not None
    assert durations(where, made.plan(n, 8e6), 8e6) == pytest.approx([expected], rel=1e-12)


def test_a_channel_waits_for_no_other_one(member):
    """Two chunks over one channel follow each other; over two, they share the link."""
    both = (
        [step("s", f"i{c}", f"i{c}") for c in (0, 1)],
        [step("r", f"i{c}", f"i{c}") for c in (0, 1)],
    )
    one = [[block(*both[0], send=1)], [block(*both[1], recv=0)]]
    two = [
        [block(both[0][c], send=1, chan=c) for c in (0, 1)],
        [block(both[1][c], recv=0, chan=c) for c in (0, 1)],
    ]
    took = [
        on_a_mesh(member("broadcast", algorithm("broadcast", gpus, 2)).plan(2, 2e6), 2e6)[0]
        for gpus in (one, two)
    ]
    assert took == pytest.approx([2 * (ALPHA + 1e6 * BETA), ALPHA + 2e6 * BETA], rel=1e-12)


@for_each("n", [2, 4, 5])
def test_all_pairs_take_two_transfers(n, member):
    """What a rank adds at home takes no time."""
    plan = member("all_reduce", all_pairs(n)).plan(n, n * 1e6)
    assert plan.sends_per_rank.tolist() == [2 * (n - 1)] * n
    assert on_a_mesh(plan, n * 1e6) == pytest.approx([2 * (ALPHA + BETA * 1e6)] * 2, rel=1e-12)


def test_a_hierarchy_takes_three_transfers(member):
    plan = member("all_reduce", hierarchical_all_reduce()).plan(4, 2e6)
    assert on_a_mesh(plan, 2e6) == pytest.approx([3 * (ALPHA + BETA * 1e6)] * 2, rel=1e-12)


def test_several_chunks_travel_as_one_transfer(member):
    plan = member("reduce", chain_reduce()).plan(4, 2e6)
    assert plan.num_transfers == 3
    assert on_a_mesh(plan, 2e6) == pytest.approx([3 * (ALPHA + BETA * 2e6)] * 2, rel=1e-12)


def test_a_sum_that_is_only_sent_on_leaves_the_local_part_alone(member):
    """Rank 1 passes on 0 + 1 to 2, and then sends its own part to 2 again."""
    first = block(step("s", "i0", "i0"), send=1)
    middle = block(step("rrs", "i0", "i0"), step("s", "i0", "s0"), send=2, recv=0)
    last = block(step("rrc", "i0", "i0"), step("r", "i0", "s0"), recv=1)
    plan = member("reduce", algorithm("reduce", [[first], [middle], [last]], 1, sizes=(1, 1, 1)))
    buffers = [np.full(4, 10.0**rank) for rank in range(3)]
    payload.run(plan.plan(3, 32.0, root=2), buffers)
    np.testing.assert_array_equal(buffers[2], 111.0)


def test_what_is_sent_is_what_was_there_when_it_was_sent(member):
    """Rank 0 sends its part, overwrites it, and sends again, before rank 2 takes the first one."""
    relay = block(step("s", "i0"), step("r", dst="i0"), step("s", "i0"), send=2, recv=1)
    giver = block(step("s", "i0"), send=0)
    nap = step("nop", "i-1", "o-1", 0)
    taker = block(nap, nap, nap, step("rrc"), step("rrc"), recv=0)
    made = member("reduce", algorithm("reduce", [[relay], [giver], [taker]], 1))
    assert made.loaded.schedule.num_scratch == 1  # what rank 2 has not taken yet
    buffers = [np.full(4, 10.0**rank) for rank in range(3)]
    payload.run(made.plan(3, 32.0, root=2), buffers)
    np.testing.assert_array_equal(buffers[2], 111.0)


@for_each(("collective", "text"), [("broadcast", chain_broadcast()), ("reduce", chain_reduce())])
def test_a_file_serves_every_root_with_its_ranks_counted_from_there(collective, text, member):
    made = member(collective, text)
    at_0, at_3 = made.plan(4, 8.0), made.plan(4, 8.0, root=3)
    for one, other in zip(at_0.moves(), at_3.moves(), strict=True):
        np.testing.assert_array_equal((one.src + 3) % 4, other.src)
        np.testing.assert_array_equal((one.dst + 3) % 4, other.dst)


# Where they stand --------------------------------------------------------------------------------


def test_collectives_read_the_files_of_their_algorithms_and_of_members_of_these(tmp_path):
    (tmp_path / "ring.xml").write_text(ring_all_reduce(2))
    file = {"kind": "msccl", "path": "ring.xml"}
    options = {"all_reduce": {"kind": "hierarchical", "outer": file}}
    made = Collectives.model_validate(options).settled(tmp_path)
    assert isinstance(made.all_reduce, HierarchicalAllReduce)
    prove(made.all_reduce.plan(Layout(8, 4), 1e6))
    assert made.model_dump(mode="json")["all_reduce"]["outer"] == {**file, "slices": 1}


def test_equal_files_give_equal_plans(member):
    one, other = (member("all_reduce", ring_all_reduce()) for _ in range(2))
    assert one == other
    assert one.plan(4, 1.0) is other.plan(4, 1.0)


def test_an_algorithm_whose_file_was_not_read_says_so():
    made = FAMILIES["all_reduce"]["msccl"](path="x.xml")
    with pytest.raises(ValueError, match=r"^x.xml has not been read; call settled with its folder"):
        made.plan(4, 1.0)


def test_another_world_size_is_refused(member):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message counts
        member("all_reduce", ring_all_reduce()).plan(8, 1.0)
    assert str(caught.value) == (
        "all_reduce msccl: needs 4 ranks, for which algorithm.xml is written"
    )


def test_another_root_is_refused_where_pieces_have_owners(member):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message counts
        member("gather", star_gather()).plan(4, 1.0, root=1)
    assert str(caught.value) == "gather msccl: algorithm.xml is written for root 0, got 1"
