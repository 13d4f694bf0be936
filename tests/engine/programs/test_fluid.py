"""Fluid sharing of links between whole calls."""

import numpy as np
import pytest

from simdp.engine.programs.baton import Baton
from simdp.engine.programs.fluid import Fluid, Job


def play(*jobs):
    """When each place of each job is done; jobs are (begin, lengths of its places, links)."""
    baton = Baton(1, lambda rank: None)
    fluid = Fluid(baton, 8)
    ends = [{} for _ in jobs]
    over = []

    def start(number):
        _, lengths, links = jobs[number]
        nominal = baton.now + np.array(lengths)

        def reached(places, instant):
            ends[number].update(dict.fromkeys(places.tolist(), instant))

        fluid.begin(Job(nominal, np.array(links), reached, lambda: over.append(number)))

    def body(rank):
        for number, (begin, _, _) in enumerate(jobs):
            baton.at(begin, lambda number=number: start(number))

    baton.run(body, lambda: AssertionError("stuck"))
    assert sorted(over) == list(range(len(jobs)))
    return [[end for _, end in sorted(each.items())] for each in ends]


def test_a_call_alone_takes_its_time_to_the_last_bit():
    assert play((0.1, [0.2, 0.7, 0.2], [0, 1])) == [[0.1 + 0.2, 0.1 + 0.7, 0.1 + 0.2]]


def test_calls_without_a_common_link_do_not_feel_each_other():
    assert play((0.0, [3.0], [0, 1]), (1.0, [5.0], [2])) == [[3.0], [6.0]]


def test_two_calls_share_a_link_while_both_are_under_way():
    # Alone for 1 s; at half speed until the short one has done its 2 s; alone again.
    assert play((0.0, [4.0], [0]), (1.0, [2.0], [0])) == [[6.0], [5.0]]


def test_a_call_is_as_slow_as_its_most_used_link():
    long, *others = play((0.0, [6.0], [0, 1]), (0.0, [1.0], [0]), (0.0, [1.0], [1, 0]))
    assert others == [[3.0], [3.0]]
    assert long == [8.0]


def test_places_that_are_done_early_are_done_early_at_half_speed_too():
    early, late = play((0.0, [1.0, 4.0], [0]), (0.0, [3.0], [0]))
    assert early == pytest.approx([2.0, 7.0])
    assert late == pytest.approx([6.0])


def test_equal_calls_that_share_a_link_take_as_long_as_one_after_the_other():
    found = play(*[(0.0, [1.0], [3])] * 5)
    np.testing.assert_allclose(found, np.full((5, 1), 5.0), rtol=1e-12)
