"""What a plan looks like on a terminal of 80 columns."""

import io

import pytest
from rich.console import Console

from simdp.reports.plan_table import MAX_FRONT, table
from simdp.results.plan import Option, Plan


def option(number, **more):
    settings = {
        "cluster.machine": "dgx-h100",
        "strategy": "zero1",
        "workload.microbatch": 8,
        "cluster.world_size": 2**number,
    }
    figures = (0.1 * number, 60.0 * number, 90.0 / number, None, 1e9 * number)
    return Option(settings, *figures, why="the fastest", limit="compute", **more)


def text(found):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(found), soft_wrap=True)
    return console.export_text()


def plan(best, **more):
    limits = {"deadline": 3600.0, "budget": 100.0, "memory": 8e10}
    return Plan("0", {"name": "x"}, "cheapest", limits, None, {}, best, best, **more)


def test_it_shows_the_best_the_front_and_why():
    found = plan((option(1), option(2)), num_points=20, num_simulated=5, binding="budget")
    shown = text(found)
    assert "the cheapest, and what comes next" in shown
    assert "why: the fastest" in shown
    assert "budget binds" in shown
    assert "20 points, 5 simulated" in shown
    assert "all: machine: dgx-h100, strategy: zero1" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_of_a_long_front_some_are_shown_from_the_first_to_the_last():
    found = plan(tuple(option(number) for number in range(1, 41)))
    shown = text(found)
    assert f"({MAX_FRONT} of 40)" in shown
    assert str(2**40) in shown


def test_where_nothing_meets_the_limits_the_nearest_stands_alone():
    nearest = option(3, misses={"deadline": 2.0})
    shown = text(plan((), nearest=nearest, pruned={"deadline": 9}))
    assert "nothing meets the limits" in shown
    assert "9 miss the deadline" in shown


def test_why_points_were_not_simulated_is_said_of_one_and_of_more():
    shown = text(plan((option(1),), pruned={"memory": 1, "worse": 2, "budget": 0}))
    assert "of the others 1 needs more memory, 2 are no better than one" in shown.replace("\n", " ")
    assert "budget," not in shown.split("others")[1]


@pytest.mark.parametrize("order", ["sure: really", ""])
def test_it_says_how_sure_the_order_is(order):
    assert ("order: sure" in text(plan((option(1),), order=order))) == bool(order)
