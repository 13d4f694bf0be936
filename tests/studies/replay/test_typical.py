"""Ranks that begin their only step late are found on one clock."""

import numpy as np
import pytest
from for_each import for_each
from trace_maker import RankMaker

from simdp.studies.replay.timeline import ClusterCharges, StepWork, step_work, windows
from simdp.studies.replay.typical import start_skew, typical
from simdp.traces.timeline import timeline

ENDS = np.cumsum([0.1, 0.07, 0.2, 0.11, 0.4, 0.09, 0.31, 0.15, 0.05, 0.21])
"""Ends of ten collectives [s]."""


def skew(lost, name="all_reduce", late=0.04, clock=5.0):
    """The second rank begins late, on a clock of its own; each rank's trace lacks some calls."""
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for rank, maker in enumerate(makers):
        begin = rank * clock
        maker.step(1, begin + late * rank, begin + 2.0)
        maker.kernel(begin + late * rank + 0.01, begin + 1.9)
        for i, end in enumerate(ENDS):
            if i not in lost[rank]:
                kind = name if rank else "all_reduce"
                maker.call(kind, begin + end - 0.01, begin + end, launched=begin + 0.05)
    lines = [timeline(maker.trace(), place) for place, maker in enumerate(makers)]
    works = [step_work(line.trace, windows(line)[0], ClusterCharges()) for line in lines]
    return start_skew(lines, works)


@for_each("lost", [((), ()), ((1,), (8,))])
def test_clocks_are_one_even_if_traces_lack_events(lost):
    late, whole = skew(lost)
    assert late == {1: pytest.approx(0.04)}
    assert whole == pytest.approx(1.9)


def step(work, lead=0.0, names=("gemm", "add"), length=100.0):
    """Two kernels that take ``work`` [s], after ``lead`` seconds of the host."""
    zero, nothing = np.zeros(2, dtype=int), np.zeros(2)
    busy, idle = np.array(work, dtype=float), np.array([lead, 0.0])
    return StepWork(names, zero, busy, idle, nothing, nothing, nothing, 0.0, 0.0, length, ())


@for_each(("lead", "late"), [(1.0, {}), (1.5, {2: 1.5})])
def test_a_rank_is_late_above_a_hundredth_of_a_step(lead, late):
    found = typical({0: [step((1, 1))], 1: [step((1, 1))], 2: [step((1, 1), lead)]})
    assert found.late == late


def test_a_typical_step_is_the_mean_of_those_with_the_most_common_kernels():
    steps = [step((1, 3)), step((3, 1)), step((2, 2)), step((9, 0), names=("gemm", "copy"))]
    np.testing.assert_allclose(typical({0: steps}).step.busy, [2.625, 2.625])
    steps = [
        step((1, 1), names=(f"{i}", "add"), length=length) for i, length in enumerate((3, 1, 2))
    ]
    assert typical({0: steps}).step.names == ("2", "add")


def test_ranks_with_other_collectives_have_steps_of_their_own():
    late, whole = skew(((), ()), "all_gather")
    assert late == {}
    assert whole == pytest.approx(1.88)
