"""Traces of different jobs are refused, in one line each."""

import numpy as np
import pytest
from trace_maker import RankMaker, job

import simdp
from simdp.errors import ScenarioError


def refused(traces, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        simdp.diagnose(traces, remedies=False)
    assert len(caught.value.problems) == 1


def test_two_traces_of_one_rank_are_refused():
    one = job([[0, 0.1]] * 3)
    refused(
        [*one, one[0]], "rank0.json: is of rank 0, as rank0.json is; give the traces of one run"
    )


def test_traces_of_jobs_of_different_sizes_are_refused():
    one, other = job([[0, 0.1]] * 3), job([[0, 0.1, 0]] * 3)
    refused([one[0], other[1]], "is of a job of 3 ranks, but rank0.json of one of 2")


def test_ranks_that_share_no_collective_are_refused():
    traces = job([[0, 0.1]] * 4)
    maker = RankMaker(1, 2, None)
    for i, end in enumerate([0.13, 0.71, 5.2, 5.9, 9.3]):
        maker.call("broadcast", end - 0.01, end, 17 + i)
    refused(
        [traces[0], maker.trace()], "none of its . collectives ends with one of .* another rank"
    )


def test_ranks_of_two_jobs_with_the_same_collectives_are_refused():
    random = np.random.default_rng(5)
    makers = [RankMaker(rank, 2, None) for rank in range(2)]
    for maker in makers:
        for end in np.cumsum(random.uniform(0.05, 0.4, 40)):
            maker.call("all_reduce", end - 0.01, end)
    words = "none of its 40 collectives ends with one of .* or of another rank"
    refused([maker.trace() for maker in makers], words)


def test_no_traces_are_refused():
    refused([], "none given")


def test_traces_without_collectives_are_not():
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for maker in makers:
        maker.step(1, 0.0, 1.0)
        maker.kernel(0.0, 1.0, launched=0.0)
    found = simdp.diagnose([maker.trace() for maker in makers], remedies=False)
    assert found.num_ranks == 2
    assert found.compute_s == pytest.approx(1.0)
    assert found.exposed_comm_s == 0


def test_ranks_without_a_common_step_are_refused():
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for rank, maker in enumerate(makers):
        maker.step(1 + rank, 0.0, 1.0)
        maker.call("all_reduce", 0.2, 0.3, sequence=1, launched=0.1)
    words = "no step in it is in the traces of all 2 ranks; profile the same steps"
    refused([maker.trace() for maker in makers], words)
