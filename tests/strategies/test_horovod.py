"""Horovod: what a step sends and when, by hand; what it refuses; and whole runs."""

import pytest
from for_each import for_each
from pydantic import ValidationError
from small_workload import facts_of, program_of, step_of, workload

from simdp.strategies.horovod import BENCHMARK_NBYTES, PUBLISHED, SMALLEST_MESSAGE, Horovod

BIG = SMALLEST_MESSAGE
MS = 1e-3


class Known:
    """Gradients that are ready at given instants [ms], on a network of 1 GB/s."""

    def __init__(self, instants, alpha):
        self.instants, self.alpha, self.asked = instants, alpha, []

    def ready_times(self, batches, micro):
        return [instant * MS for instant in self.instants]

    def all_reduce_seconds(self, nbytes):
        self.asked.append(nbytes)
        return self.alpha + nbytes / 1e9


def ranks(*ready, elements=BIG, unused=(), alpha=0.0, bandwidth=1e9, **options):
    """Ranks whose gradients are ready at given instants [ms]."""
    names = [f"p{i}" for i in range(len(ready))]
    sizes = dict.fromkeys([*names, *unused], elements)
    options |= {"nominal": Known(ready, alpha), "node_bandwidth": bandwidth}
    return facts_of(sizes, names, unused, **options)


def messages(strategy, facts):
    return strategy.messages(facts, step_of(facts))


def sent(found):
    return [tuple(int(name[1:]) for name in message.bucket.names) for message in found]


# Messages ----------------------------------------------------------------------------------------


def test_gradients_wait_for_the_next_cycle_and_travel_with_those_of_the_same():
    found = messages(Horovod(cycle_time="1 ms"), ranks(0.25, 0.75, 1.5))
    assert sent(found) == [(0, 1), (2,)]
    assert [message.wait for message in found] == pytest.approx([0.25 * MS, 0.5 * MS])


def test_the_threshold_counts_what_is_sent():
    at_once = ranks(0.5, 0.5, 0.5)
    threshold = f"{8 * BIG} B"  # two gradients in 32 bit, four in 16
    assert sent(messages(Horovod(fusion_threshold=threshold), at_once)) == [(0, 1), (2,)]
    compressed = Horovod(fusion_threshold=threshold, compression="fp16")
    assert sent(messages(compressed, at_once)) == [(0, 1, 2)]
    assert program_of(compressed, at_once).bucket_nbytes == [3 * BIG * 2]


def test_merge_none_sends_every_gradient_by_itself():
    found = messages(Horovod(merge="none", cycle_time="0 s"), ranks(0.5, 0.5, 2.0))
    assert sent(found) == [(0,), (1,), (2,)]
    assert [message.wait for message in found] == [0, 0, 0]


def test_merge_all_sends_everything_once_backward_is_through():
    strategy = Horovod(merge="all", fusion_threshold="1 B")
    assert sent(messages(strategy, ranks(0.5, 1.0, 2.25))) == [(0, 1, 2)]
    assert messages(strategy, ranks(0.5, 2.25))[0].wait == pytest.approx(0.75 * MS)
    assert program_of(strategy, ranks(0.5, 2.25)).bucket_nbytes == [2 * BIG * 4]


def test_without_overlap_everything_is_ready_at_the_end():
    found = messages(Horovod(overlap=False, cycle_time="1 ms"), ranks(0.25, 5.0, 9.5))
    assert sent(found) == [(0, 1, 2)]
    assert found[0].wait == pytest.approx(0.5 * MS)
    apart = messages(Horovod(overlap=False, merge="none"), ranks(0.25, 5.0, 9.5))
    assert [message.wait for message in apart] == pytest.approx([0.5 * MS] * 3)


def test_gradients_that_are_never_computed_are_sent_as_zeros_at_the_end():
    found = messages(Horovod(cycle_time="1 ms"), ranks(0.25, 3.5, unused=["p9"]))
    assert sent(found) == [(0,), (1, 9)]


@for_each(
    ("options", "copies", "charged"),
    [
        ({}, False, [False, False]),
        ({}, True, [True, False]),  # one that travels alone is reduced in its own place
        ({"charge_copies": True}, False, [True, False]),
        ({"charge_copies": False}, True, [False, False]),
        ({"charge_copies": True, "compression": "fp16"}, False, [True, True]),
    ],
)
def test_copies_are_charged_as_the_strategy_or_else_the_cluster_says(options, copies, charged):
    found = messages(Horovod(cycle_time="1 ms", **options), ranks(0.2, 0.3, 1.5, copies=copies))
    assert [message.copied for message in found] == charged
    assert [message.copied_back for message in found] == charged


# MG-WFBP -----------------------------------------------------------------------------------------


def test_given_figures_decide_what_is_merged():
    instants = ranks(1.0, 3.0, 5.0)
    patient = Horovod(merge="mg_wfbp", cycle_time="0 s", alpha="3 ms", bandwidth="1 GB/s")
    hasty = Horovod(merge="mg_wfbp", cycle_time="0 s", alpha="1 ms", bandwidth="1 GB/s")
    assert sent(messages(patient, instants)) == [(0, 1, 2)]
    assert sent(messages(hasty, instants)) == [(0,), (1,), (2,)]


def test_a_benchmark_on_the_cluster_decides_where_it_is_asked_for():
    strategy = Horovod(merge="mg_wfbp", estimate="benchmark")
    assert sent(messages(strategy, ranks(1.0, 3.0, 5.0, alpha=3 * MS))) == [(0, 1, 2)]
    assert sent(messages(strategy, ranks(1.0, 3.0, 5.0, alpha=1 * MS))) == [(0,), (1,), (2,)]


@for_each(
    ("world_size", "bandwidth", "options", "source"),
    [
        (32, 1.25e9, {}, "10gbe"),
        (32, 12.5e9, {}, "56g_ib"),
        (32, 12.5e9, {"estimate": "10gbe"}, "10gbe"),
        (32, 1.25e9, {"estimate": "56g_ib"}, "56g_ib"),
        (24, 1.25e9, {}, "benchmark"),
        (4, float("inf"), {}, "benchmark"),
    ],
)
def test_otherwise_the_published_figures_of_the_network_do(world_size, bandwidth, options, source):
    benchmark = 0.7 * MS
    alpha = {"benchmark": benchmark, **{k: v[32][0] for k, v in PUBLISHED.items()}}[source]
    for gap, merges in ((0.9 * alpha, True), (1.1 * alpha, False)):
        # A message is longer than the gap, so that alpha alone decides.
        given = {"bandwidth": bandwidth, "alpha": benchmark, "elements": 100 * BIG}
        instants = ranks(1.0, 1.0 + gap / MS, world_size=world_size, **given)
        strategy = Horovod(merge="mg_wfbp", profile_overhead="0 s", **options)
        found = messages(strategy, instants)
        assert sent(found) == ([(0, 1)] if merges else [(0,), (1,)])


def test_the_profile_sees_longer_gaps_than_there_are():
    strategy = Horovod(merge="mg_wfbp", cycle_time="0 s", alpha="2.2 ms", bandwidth="1 GB/s")
    slow = strategy.model_copy(update={"profile_overhead": 0.5 * MS})
    assert sent(messages(strategy, ranks(1.0, 3.0, 5.0))) == [(0, 1, 2)]
    assert sent(messages(slow, ranks(1.0, 3.0, 5.0))) == [(0,), (1,), (2,)]
    assert [message.wait for message in messages(slow, ranks(1.0, 3.0, 5.0))] == [0.0] * 3


def test_the_benchmark_asks_for_the_authors_sizes():
    known = Known((1.0, 3.0), alpha=1.0)
    facts = facts_of({"a": BIG, "b": BIG}, ["b", "a"], nominal=known)
    messages(Horovod(merge="mg_wfbp", estimate="benchmark"), facts)
    assert tuple(known.asked) == BENCHMARK_NBYTES


# Refusals ----------------------------------------------------------------------------------------


@for_each(
    ("options", "message"),
    [
        ({"alpha": "1 ms"}, "alpha: MG-WFBP needs bandwidth too; give both, or an estimate"),
        ({"bandwidth": "1 GB/s"}, "bandwidth: MG-WFBP needs alpha too; give both"),
        (
            {"alpha": "1 ms", "bandwidth": "1 GB/s", "estimate": "10gbe"},
            "estimate: alpha and bandwidth are given already; leave one of them out",
        ),
    ],
)
def test_estimates_are_whole_and_given_once(options, message):
    with pytest.raises(ValidationError, match=message):
        Horovod(merge="mg_wfbp", **options)


def test_published_figures_are_for_certain_numbers_of_ranks():
    strategy = Horovod(merge="mg_wfbp", estimate="10gbe")
    assert strategy.problem_with(24, workload()) == (
        "estimate: 10gbe was published for 2, 4, 8, 16, 32, 64 ranks, but cluster.world_size is "
        "24; give alpha and bandwidth, or use benchmark."
    )
    assert strategy.problem_with(32, workload()) is None
    assert strategy.problem_with(1, workload()) is None
    assert Horovod(merge="mg_wfbp").problem_with(24, workload()) is None


def test_ranks_that_run_out_need_ddp():
    uneven = workload(samples_per_rank=[8, 4])
    assert Horovod().problem_with(2, uneven) == (
        "kind: ranks have different numbers of samples, and those that run out would leave the "
        "others waiting; use {kind: ddp, join: true}."
    )
    assert Horovod().problem_with(2, workload(samples_per_rank=[8, 8])) is None


# Memory ------------------------------------------------------------------------------------------


@for_each(
    ("options", "nbytes"),
    [
        ({}, 64 * 2**20),
        ({"fusion_threshold": "1 MiB"}, 2**20),
        ({"merge": "none"}, 0),
        ({"merge": "all"}, 30 * 4),
        ({"merge": "mg_wfbp"}, 30 * 4),
        ({"merge": "all", "compression": "fp16"}, 30 * 2 + 30 * 2),
        ({"merge": "none", "compression": "fp16"}, 30 * 2),
    ],
)
def test_the_fusion_buffer_and_compressed_gradients_take_memory(options, nbytes):
    facts = facts_of({"a": 10, "b": 20}, ["b", "a"])
    assert program_of(Horovod(**options), facts).bucket_room == nbytes


def test_a_single_gradient_needs_no_fusion_buffer():
    assert program_of(Horovod(), facts_of({"a": 10}, ["a"])).bucket_room == 0
