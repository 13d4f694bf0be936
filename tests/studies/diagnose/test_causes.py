"""Causes of one kind each, in traces made by hand, and all causes together make the step."""

from dataclasses import replace

import numpy as np
import pytest
from trace_maker import RankMaker, job

import simdp
from simdp.studies.diagnose.evidence import short_name
from simdp.studies.diagnose.exposed import SMALL
from simdp.studies.diagnose.host import SEARCHING
from simdp.traces import OP, RUNTIME


def told(traces):
    found = simdp.diagnose(traces, remedies=False)
    assert sum(one.share for one in found.verdict) == pytest.approx(1.0, abs=2e-3)
    return found


def cause(traces, name):
    return next(one for one in told(traces).verdict if one.cause == name)


def single(events, num_steps=4, length=1.0, on_host=False):
    """One rank alone; events of a step are added from its begin on."""
    maker = RankMaker(device=None)
    for step in range(num_steps):
        maker.step(step + 1, step * length, (step + 1) * length)
        events(maker, step * length, step)
    return [replace(maker.trace(), on_host=on_host)]


# The host -----------------------------------------------------------------------------------------


def test_a_host_that_waits_for_its_device_leaves_it_idle_until_its_next_launch():
    def events(maker, t, step):
        for i in range(5):
            begin = t + 0.2 * i
            maker.kernel(begin, begin + 0.1, launched=begin)
            maker.note("cudaStreamSynchronize", begin + 0.01, begin + 0.101, RUNTIME)
            maker.note("aten::item", begin + 0.009, begin + 0.102, OP)

    found = told(single(events)).verdict[0]
    assert found.cause == "host_synchronisation"
    assert found.share == pytest.approx(0.5, abs=0.02)
    assert "5 x cudaStreamSynchronize, 5 x aten::item in a step" in found.evidence


def test_a_call_that_returns_while_the_device_works_is_none():
    def events(maker, t, step):
        maker.kernel(t, t + 0.5, launched=t)
        maker.kernel(t + 0.7, t + 1.0, launched=t + 0.7)
        maker.note("cudaStreamSynchronize", t + 0.1, t + 0.2, RUNTIME)
        maker.note("cudaMemcpyAsync", t + 0.499, t + 0.49901, RUNTIME)

    found = told(single(events)).verdict
    assert [one.cause for one in found] == ["launch_bound", "compute_bound"]
    assert "host_synchronisation" not in {one.cause for one in found}


def test_a_pause_of_the_host_belongs_to_its_step():
    def events(maker, t, step):
        lost = 0.5 * (step == 6)
        maker.kernel(t + lost, t + 1.0, launched=t + lost)

    (trace,) = single(events, num_steps=10)
    found = cause([trace], "uneven_steps")
    assert found.seconds == pytest.approx(0.05, rel=0.01)
    assert "step 7 (of 10 traced) takes up to 500 ms longer" in found.evidence
    assert "the host pauses for 500 ms without a call (garbage collection" in found.evidence


def test_a_step_twice_as_long_in_its_collectives_is_named():
    def events(maker, t, step):
        maker.kernel(t, t + 0.5, launched=t)
        done = t + 0.6 + 0.1 * (step == 2)
        maker.call("all_reduce", t + 0.5, done, launched=t, size=2)
        maker.kernel(done, t + 1.0, launched=t)

    found = cause(single(events, num_steps=9), "uneven_steps")
    assert "step 3 (of 9 traced) takes up to 100 ms longer than the others in collectives" in (
        found.evidence
    )
    assert "(2 times as long)" in found.evidence


def test_a_rank_that_is_late_once_is_an_uneven_step_of_that_rank():
    delays = np.full((12, 3), 0.0)
    delays[:, 0] = 0.005
    delays[7, 2] = 0.4
    found = cause(job(delays), "uneven_steps")
    assert found.ranks == (2,)
    assert "step 8 (of 12 traced)" in found.evidence
    assert "for rank 2" in found.evidence


def test_recompilation_belongs_to_its_step():
    def events(maker, t, step):
        lost = 0.5 * (step == 6)
        if lost:
            maker.note("_compile.compile_inner (dynamo_timed)", t, t + lost, OP)
        maker.kernel(t + lost, t + 1.0, launched=t + lost)

    found = cause(single(events, num_steps=10), "uneven_steps")
    assert "longer than the others since torch.compile compiles anew" in found.evidence


def test_compilation_in_every_step_is_named_in_late_launches():
    def events(maker, t, step):
        maker.note("entire_frame_compile", t, t + 0.5, OP)
        maker.kernel(t + 0.5, t + 1.0, launched=t + 0.5)

    found = told(single(events)).verdict[0]
    assert found.cause == "launch_bound"
    assert "torch.compile is at work for 500 ms of it" in found.evidence


def test_late_launches_that_the_profiler_causes_do_not_lead():
    def events(maker, t, step):
        maker.kernel(t, t + 0.85, launched=t)
        maker.kernel(t + 0.99, t + 1.0, launched=t + 0.99)
        for i in range(40_000):
            maker.note("aten::add", t + 2e-5 * i, t + 2e-5 * i + 1e-6, OP)

    found = told(single(events, num_steps=2)).verdict
    assert [one.cause for one in found[:2]] == ["compute_bound", "launch_bound"]
    assert "the profiler causes about 140 ms of it" in found[1].evidence
    assert "a step without it takes about 860 ms" in found[1].evidence


# The device ---------------------------------------------------------------------------------------


def test_copies_and_casts_are_told_from_compute_and_do_not_lead():
    cast = "void at::native::elementwise_kernel<128, at::native::bfloat16_copy_kernel_cuda(...)>"

    def events(maker, t, step):
        maker.kernel(t, t + 0.85, launched=t)
        maker.kernel(t + 0.85, t + 1.0, launched=t, name=cast)

    verdict = told(single(events)).verdict
    assert [one.cause for one in verdict] == ["compute_bound", "copies"]
    assert verdict[1].share == pytest.approx(0.15, abs=0.01)
    assert "in 1 kernels, most of all elementwise_kernel (bfloat16_copy_kernel_cuda)" in (
        verdict[1].evidence
    )
    assert "need no casts in every step" in verdict[1].evidence


def test_changes_of_layout_have_their_remedy():
    def events(maker, t, step):
        maker.kernel(t, t + 0.4, launched=t, name="void cudnn::nchwToNhwcKernel<float>(int)")
        maker.kernel(t + 0.4, t + 1.0, launched=t, name="sm90_xmma_fprop")

    found = cause(single(events), "copies")
    assert "memory_format=torch.channels_last" in found.evidence


def test_compute_is_divided_by_the_use_of_its_kernels():
    def events(maker, t, step):
        maker.note("Optimizer.step#AdamW.step", t + 0.2, t + 0.3)
        maker.kernel(t, t + 0.5, launched=t, name="nvjet_sm90_tst_128x256")
        maker.kernel(t + 0.5, t + 0.7, launched=t, name="void at::native::softmax_kernel<4>(int)")
        maker.kernel(t + 0.7, t + 1.0, launched=t + 0.25, name="multi_tensor_apply_kernel")

    evidence = told(single(events)).verdict[0].evidence
    assert "matrix products and convolutions 500 ms, the optimizer's update 300 ms" in evidence
    assert "other kernels (most of all softmax_kernel 200 ms) 200 ms" in evidence


def test_names_of_kernels_are_short():
    functor = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(x)"
    )
    assert short_name(functor) == "vectorized_elementwise_kernel (CUDAFunctor_add)"
    assert short_name("void at::native::(anonymous namespace)::foo<1>(x)") == "foo"
    assert short_name("triton_poi_fused_add_1") == "triton_poi_fused_add_1"
    assert len(short_name("x" * 99)) == 60


def test_idle_time_behind_a_launch_is_unexplained():
    def events(maker, t, step):
        maker.kernel(t, t + 0.5, launched=t)
        maker.kernel(t + 0.8, t + 1.0, launched=t)

    found = cause(single(events), "unexplained")
    assert found.share == pytest.approx(0.3, abs=0.01)
    assert "the device is idle though its next kernel was launched" in found.evidence


def test_short_gaps_between_kernels_in_a_row_are_said():
    def events(maker, t, step):
        for i in range(100):
            begin = t + 2e-5 * i
            maker.kernel(begin, begin + 1.7e-5, launched=t)

    found = cause(single(events, length=2e-3), "unexplained")
    assert "2.97 us for each of its kernels, as they follow each other" in found.evidence


def test_a_cause_of_8_percent_does_not_lead_a_step_that_computes():
    def events(maker, t, step):
        maker.kernel(t, t + 0.86, launched=t)
        maker.copy(t + 0.86, t + 0.94)

    assert told(single(events)).verdict[0].cause == "compute_bound"


# Collectives --------------------------------------------------------------------------------------


def small(elements, count=40):
    def events(maker, t, step):
        maker.kernel(t, t + 0.2, launched=t)
        for i in range(count):
            begin = t + 0.2 + 0.8 / count * i
            end = begin + 0.8 / count
            maker.call("all_reduce", begin, end, elements, launched=t, size=2)

    return single(events)


def test_many_small_collectives_are_named_before_exposed_communication():
    found = told(small(SMALL // 4 - 1)).verdict[0]
    assert found.cause == "many_small_collectives"
    assert found.share == pytest.approx(0.8, abs=0.01)
    assert "40 all_reduce of 1.05 MB on average in a step" in found.evidence
    assert "wrap the module in DDP" in found.evidence


@pytest.mark.parametrize(("elements", "count"), [(SMALL // 4, 40), (1000, 15)])
def test_large_or_few_collectives_are_exposed_communication(elements, count):
    found = told(small(elements, count)).verdict
    assert "many_small_collectives" not in {one.cause for one in found}
    assert found[0].cause == "exposed_communication"


def unused(accumulated, searches=True):
    def events(maker, t, step):
        maker.kernel(t, t + 0.2, launched=t)
        if searches:
            maker.note(SEARCHING, t + 0.2, t + 0.21, OP)
        maker.kernel(t + 0.21, t + 0.3, launched=t + 0.21)
        maker.note("torch::autograd::AccumulateGrad", t + 0.3, t + 0.31, OP, accumulated)
        maker.call("all_reduce", t + 0.3, t + 0.9, 1_000_000, launched=t, size=2)
        maker.call("all_reduce", t + 0.9, t + 1.0, 4, dtype="int32", launched=t, size=2)

    return single(events)


def test_gradients_of_unused_parameters_are_named():
    found = told(unused(250_000)).verdict[0]
    assert found.cause == "unused_parameters"
    assert found.share == pytest.approx(0.01 + 0.1 + 0.75 * 0.6, abs=0.01)
    assert "of 1,000,000 gradients that a step sends, 75.0 % are of parameters" in found.evidence
    assert "the search takes 10 ms" in found.evidence


def test_without_shapes_the_search_and_its_bitmap_are_what_unused_parameters_cost():
    found = cause(unused(-1), "unused_parameters")
    assert found.share == pytest.approx(0.11, abs=0.01)
    assert "gradients that a step sends" not in found.evidence


def test_without_the_search_nothing_is_unused():
    assert "unused_parameters" not in {one.cause for one in told(unused(10, False)).verdict}


# Without a device ---------------------------------------------------------------------------------


def test_operators_that_only_cost_their_calls_are_launch_bound():
    def events(maker, t, step):
        for i in range(500):
            begin = t + 2e-5 * i
            maker.kernel(begin, begin + 1e-5, launched=begin, name="aten::add")
        maker.kernel(t + 0.01, t + 0.011, launched=t, name="aten::mm")

    found = told(single(events, length=0.011, on_host=True)).verdict[0]
    assert found.cause == "launch_bound"
    assert found.share == pytest.approx(10 / 11, abs=0.02)
    assert "less than 20 us (500 of a step's 501)" in found.evidence


@pytest.mark.parametrize("count", [49, 50])
def test_many_values_read_without_a_device_lead_whatever_they_cost_there(count):
    def events(maker, t, step):
        for i in range(count):
            begin = t + 2e-5 * i
            maker.kernel(begin, begin + 1e-5, launched=begin, name="aten::item")
        maker.kernel(t + 0.01, t + 0.1, launched=t, name="aten::mm")
        maker.note("Optimizer.step#Adam.step", t + 0.005, t + 0.006)
        maker.kernel(t + 0.0055, t + 0.00551, launched=t, name="aten::item")

    found = told(single(events, length=0.1, on_host=True)).verdict
    assert (found[0].cause == "host_synchronisation") == (count == 50)
    if count == 50:
        assert "the host reads 50 values of tensors in a step (.item())" in found[0].evidence
        assert found[0].share == pytest.approx(0.01, abs=0.002)


def uneven_batches(sizes):
    traces = job([[0, 0.2, 0, 0]] * 5)
    made = []
    for trace, size in zip(traces, sizes, strict=True):
        maker = RankMaker(trace.rank, 4)
        for number, begin in enumerate(trace.steps.start.tolist(), 1):
            maker.step(number, begin, begin + 0.01)
            maker.note("aten::linear", begin, begin + 1e-3, OP, size)
        made.append(replace(trace, host=maker.trace().host))
    return made


def test_a_rank_with_a_larger_batch_is_imbalance_and_no_slow_rank():
    found = told(uneven_batches([32, 128, 32, 32])).verdict[0]
    assert (found.cause, found.ranks) == ("imbalance", (1,))
    assert found.seconds == pytest.approx(0.2)
    assert "rank 1, which has 4 times as much work: 128 elements" in found.evidence


def test_a_slow_rank_with_as_large_a_batch_is_a_straggler():
    found = told(uneven_batches([32, 32, 32, 32])).verdict[0]
    assert (found.cause, found.ranks) == ("straggler", (1,))


def test_a_sample_leaves_its_unexplained_time_for_the_end():
    def events(maker, t, step):
        maker.kernel(t, t + 0.1, launched=t)
        maker.copy(t + 0.1, t + 0.2)

    (trace,) = single(events)
    sampled = replace(trace, remarks=("It is a sample: of 100 host events.",))
    verdict = told([sampled]).verdict
    assert [one.cause for one in verdict] == ["input_stall", "unexplained"]
    assert "since the trace is a sample" in verdict[1].evidence


def test_ranks_without_a_trace_are_named_only_where_some_are_missing():
    """Of two ranks, the second lacks all calls but one in four."""
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for rank, maker in enumerate(makers):
        for number in range(12):
            at, lasts = float(number), 0.4 if number % 4 == 2 else 0.1
            maker.step(number + 1, at, at + 1.0)
            maker.kernel(at, at + 0.5, launched=at)
            if rank == 0 or number % 4 == 0:
                maker.call("all_reduce", at + 0.5, at + 0.5 + lasts, launched=at, sequence=number)
            maker.kernel(at + 0.5 + lasts, at + 1.0, launched=at)
    whole = simdp.diagnose([maker.trace() for maker in makers], remedies=False)
    assert any("traces lack events of other ranks" in one.evidence for one in whole.verdict)
    assert not any("traces are not here" in one.evidence for one in whole.verdict)
    alone = told([makers[0].trace()])
    assert any("traces are not here" in one.evidence for one in alone.verdict)
