"""The main cause comes first, with evidence and remedies."""

import numpy as np
import pytest
from for_each import for_each
from trace_maker import RankMaker, job

import simdp
from simdp.results.diagnosis import Finding
from simdp.studies.diagnose.verdict import with_remedies


def told(traces, **more):
    return simdp.diagnose(traces, remedies=False, **more)


def first(traces, **more):
    return told(traces, **more).verdict[0]


def single(events, num_steps=4, length=1.0):
    """One rank without others; events of a step are added from its begin on."""
    maker = RankMaker(device=None)
    for step in range(num_steps):
        maker.step(step + 1, step * length, (step + 1) * length)
        events(maker, step * length)
    return [maker.trace()]


def test_a_device_that_always_works_is_bound_by_compute():
    found = first(single(lambda m, t: m.kernel(t, t + 1, launched=t)))
    assert (found.cause, found.ranks) == ("compute_bound", ())
    assert found.share == pytest.approx(1.0)
    assert "1 s of a step's 1 s (100.0 %)" in found.evidence


def test_a_host_that_launches_too_late_is_named_and_what_it_is_at():
    def events(maker, t):
        for i in range(10):
            maker.kernel(t + 0.1 * i, t + 0.1 * i + 0.03, launched=t + 0.1 * i - 1e-5)
        maker.note("## forward ##", t, t + 0.4)

    found = first(single(events))
    assert found.cause == "launch_bound"
    assert found.share == pytest.approx(0.7, abs=0.02)
    assert "## forward ## 400 ms" in found.evidence


def test_a_loader_that_holds_the_device_up_is_named():
    def events(maker, t):
        maker.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", t, t + 0.6)
        maker.kernel(t + 0.6, t + 1.0, launched=t + 0.6)

    found = first(single(events))
    assert (found.cause, found.ranks) == ("input_stall", ())
    assert found.share == pytest.approx(0.6, abs=0.01)


def test_a_rank_that_is_late_in_every_step_is_a_straggler_of_that_size():
    found = first(job([[0, 0.2, 0, 0]] * 5))
    assert (found.cause, found.ranks) == ("straggler", (1,))
    assert found.seconds == pytest.approx(0.2)
    assert found.share == pytest.approx(0.2 / 0.311)
    assert "5 of 5 steps" in found.evidence
    assert "kernels take 2.98 times as long as those of the others" in found.evidence


def test_lateness_that_goes_round_is_imbalance():
    found = first(job(0.1 * np.eye(4)))
    assert (found.cause, found.ranks) == ("imbalance", (0, 1, 2, 3))
    assert found.seconds == pytest.approx(0.1)


def test_one_rank_whose_loader_stalls_is_an_input_stall_of_that_rank():
    late = [[0, 0, 0.15]] * 4
    found = first(job(np.zeros((4, 3)), fetching=late))
    assert (found.cause, found.ranks) == ("input_stall", (2,))
    assert found.seconds == pytest.approx(0.15, rel=0.01)


def test_transfers_in_the_open_are_named():
    found = first(job(np.zeros((4, 2)), transfer=0.3))
    assert (found.cause, found.ranks) == ("exposed_communication", ())
    assert found.seconds == pytest.approx(0.3)


def test_transfers_far_below_what_the_machine_gives_are_a_slow_link():
    traces = job(np.zeros((4, 8)), transfer=0.1)
    found = first(traces, machine="dgx-a100")
    assert found.cause == "slow_link"
    assert found.seconds == pytest.approx(0.1, rel=0.01)
    assert "all_reduce of 4 MB among 8 ranks takes 100 ms" in found.evidence


def test_a_group_that_is_slower_than_its_like_has_a_slow_link():
    makers = [RankMaker(rank, 4, device=None) for rank in range(4)]
    for rank, maker in enumerate(makers):
        maker.group("1", (0, 1) if rank < 2 else (2, 3))
        for step in range(3):
            maker.step(step + 1, float(step), step + 1.0)
            maker.kernel(float(step), step + 0.5, launched=float(step))
            done = step + (0.55 if rank < 2 else 0.95)
            maker.call("all_reduce", step + 0.5, done, group="1", size=2, launched=float(step))
            maker.kernel(done, step + 1.0, launched=float(step))
    found = told([maker.trace() for maker in makers])
    slow = next(one for one in found.verdict if one.cause == "slow_link")
    assert slow.ranks == (2, 3)


def test_a_slow_spell_of_the_links_is_found_without_a_machine():
    traces = job(np.zeros((8, 2)), transfer=0.02)
    makers = [RankMaker(rank, 2, device=None) for rank in range(2)]
    for rank, maker in enumerate(makers):
        at = 0.0
        for step in range(8):
            lasts = 0.02 if step % 2 else 0.2
            maker.step(step + 1, at, at + 0.1 + lasts)
            maker.kernel(at, at + 0.1, launched=at)
            maker.call("all_reduce", at + 0.1, at + 0.1 + lasts, launched=at)
            at += 0.1 + lasts
        assert rank == traces[rank].rank
    assert first([maker.trace() for maker in makers]).cause == "slow_link"


def test_ranks_that_call_different_collectives_come_first():
    makers = [RankMaker(rank, 3) for rank in range(3)]
    for rank, maker in enumerate(makers):
        for step in range(4):
            maker.step(step + 1, float(step), step + 1.0)
            name = "broadcast" if (rank, step) == (1, 2) else "all_reduce"
            maker.call(name, step + 0.2, step + 0.9)
    found = told([maker.trace() for maker in makers])
    assert (found.verdict[0].cause, found.verdict[0].ranks) == ("desynchronised", (1,))
    assert found.mismatches[0].state == "COLLECTIVE_TYPE_MISMATCH"


def test_what_happened_before_the_trace_began_is_not_blamed_on_the_step():
    makers = [RankMaker(rank, 3) for rank in range(3)]
    for rank, maker in enumerate(makers):
        begin = (0.0, 0.1, 0.5)[rank]
        maker.step(10, begin, 1.2)
        maker.kernel(begin, begin + 0.3, launched=begin)
        maker.call("all_reduce", begin + 0.3, 0.9, launched=begin)
        maker.kernel(0.9, 1.2, launched=begin)
    found = first([maker.trace() for maker in makers])
    assert (found.cause, found.ranks) == ("straggler", (2,))
    assert "begins 500 ms after that of rank 0" in found.evidence
    assert "before the trace began" in found.evidence
    assert "one step alone does not tell" in found.evidence


@for_each(("work", "before"), [(0.5, True), (0.51, False)])
def test_lateness_is_from_before_the_trace_if_half_of_it_is(work, before):
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for maker, begin, compute in zip(makers, (0.0, 0.25), (0.25, work), strict=True):
        maker.step(10, begin, 1.5)
        maker.kernel(begin, begin + compute, launched=begin)
        maker.call("all_reduce", begin + compute, 1.25, launched=begin)
        maker.kernel(1.25, 1.5, launched=begin)
    found = first([maker.trace() for maker in makers])
    assert (found.cause, found.ranks) == ("straggler", (1,))
    assert ("before the trace began" in found.evidence) == before


def test_one_rank_alone_can_only_suggest_that_a_peer_is_late():
    maker = RankMaker(0, 2)
    for step, lasts in enumerate([0.01, 0.41, 0.01, 0.35]):
        maker.step(step + 1, float(step), step + 1.0)
        maker.kernel(float(step), step + 0.5, launched=float(step))
        maker.call("all_reduce", step + 0.5, step + 0.5 + lasts, launched=float(step))
        maker.kernel(step + 0.5 + lasts, step + 1.0, launched=float(step))
    found = first([maker.trace()])
    assert (found.cause, found.ranks) == ("imbalance", ())
    assert "can only suggest it" in found.evidence


def test_in_a_sample_the_host_is_not_blamed_for_what_is_missing():
    def events(maker, t):
        maker.kernel(t, t + 0.1, launched=t)

    (trace,) = single(events)
    maker_remark = "It is a sample: of 100 host events that torch numbered it holds 4."
    assert first([trace]).cause == "launch_bound"
    sampled = type(trace)(**{**vars(trace), "remarks": (maker_remark,)})
    assert told([sampled]).verdict == ()
    assert any("host is not blamed" in remark for remark in told([sampled]).remarks)


pytestmark = pytest.mark.slow


def test_a_straggler_that_is_replaced_costs_nothing_more():
    found = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5))
    assert found.replayed_s == pytest.approx(0.311, rel=0.05)
    best = found.verdict[0].remedies[0]
    assert best.step_time_s == pytest.approx(0.111, rel=0.1)


def test_without_remedies_nothing_is_simulated():
    found = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), remedies=False)
    assert found.replayed_s is None
    assert not any(one.remedies for one in found.verdict)


def test_what_cannot_be_replayed_is_said():
    finding = Finding("launch_bound", 0.9, "Why.")
    helped = with_remedies([finding], [RankMaker().trace()], None)
    assert helped.verdict == (finding,)
    assert helped.replayed_s is None
    assert helped.remarks[0].startswith("No remedies were simulated: ")


def test_small_causes_are_left_alone():
    finding = Finding("launch_bound", 0.01, "Why.")
    assert with_remedies([finding], job([[0, 0.2]] * 3), None).verdict == (finding,)


def test_a_remedy_saves_no_more_than_its_cause_costs():
    finding = Finding("straggler", 0.1, "Why.")
    helped = with_remedies([finding], job([[0, 0.2, 0, 0]] * 5), None)
    (best, *_) = helped.verdict[0].remedies
    assert best.step_time_s == pytest.approx(0.9 * helped.replayed_s)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_compiled_job_is_not_told_to_compile(is_compiled):
    def events(maker, t):
        for i in range(10):
            maker.kernel(t + 0.1 * i, t + 0.1 * i + 0.03, launched=t + 0.1 * i - 1e-5)
        if is_compiled:
            maker.note("## Call CompiledFxGraph fswe35vs ##", t, t + 0.9)

    first = simdp.diagnose(single(events)).verdict[0]
    texts = [one.change for one in first.remedies]
    assert any('mode="reduce-overhead"' in text for text in texts) == is_compiled
    assert any("or torch.compile" in text for text in texts) != is_compiled
    assert ("(host: compiled graph 900 ms)" in first.evidence) == is_compiled
