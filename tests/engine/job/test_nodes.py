"""Nodes: who is used, who stands by, who is away; and for how long they were there."""

from simdp.engine.job.run import Nodes


def test_a_spare_takes_the_place_of_a_node_that_is_away():
    nodes = Nodes(4, 1)
    assert nodes.in_use([3, 4]) == [3]
    nodes.take(10.0, [1], 50.0)
    assert nodes.used == 3
    assert nodes.claim() == 1
    assert (nodes.used, nodes.idle, nodes.in_use([1, 4])) == (4, [], [4])
    assert not nodes.due(1, 49.0)
    assert nodes.give(50.0, [1]) == [1]
    assert (nodes.used, nodes.idle) == (4, [1])
    nodes.count(100.0)
    assert nodes.seconds == 5 * 100 - 40


def test_a_node_that_is_taken_twice_comes_back_once_and_late():
    nodes = Nodes(2)
    nodes.take(0.0, [0], 50.0)
    nodes.take(10.0, [0], 20.0)
    assert not nodes.due(0, 20.0)
    assert nodes.due(0, 50.0)
    assert nodes.give(50.0, [0]) == [0]
    assert nodes.give(60.0, [0]) == []
    assert nodes.claim() == 1
