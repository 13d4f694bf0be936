"""What a plan looks like on a terminal of 80 columns."""

import io

from for_each import for_each
from rich.console import Console

from simdp.reports.plan_table import MAX_FRONT, table
from simdp.results.plan import InfeasiblePoints, Option, PlanResult


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
    return PlanResult("0", {"name": "x"}, "cheapest", limits, None, {}, best, best, **more)


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


@for_each("order", ["sure: really", ""])
def test_it_says_how_sure_the_order_is(order):
    assert ("order: sure" in text(plan((option(1),), order=order))) == bool(order)


def test_each_option_has_its_chance_and_what_it_changes():
    options = (
        option(1, chance_to_meet=0.55, chance_by_luck=0.83, low_s=0.08, high_s=0.12),
        option(2, chance_to_meet=0.999, changes_training=["averaging: weights every 8 steps"]),
    )
    shown = " ".join(text(plan(options)).split())
    assert "55 %" in shown
    assert "99 %" in shown
    assert "number 1 meets the deadline and budget with 55 %" in shown
    assert "if a step takes exactly 100 ms, with 83 %" in shown
    assert "add --sure 90%" in shown
    assert "2*" in shown
    assert "2: averaging: weights every 8 steps" in shown


def test_where_the_best_option_trains_otherwise_the_best_that_does_not_is_named():
    options = (option(1, changes_training=["x: 1 in place of 2"]), option(2))
    assert "the best that trains as the scenario does is number 2" in text(plan(options))
    assert "all options listed change the training" in text(plan(options[:1]))


def test_why_points_are_infeasible_is_written_with_what_frees_them():
    rows = [
        InfeasiblePoints("a batch", 12, "--global-batch 96"),
        InfeasiblePoints("misses the deadline", 3, "--deadline"),
        *(InfeasiblePoints(f"r{number}", 2, None) for number in range(8)),
    ]
    shown = text(plan((option(1),), infeasible=rows, pruned={"impossible": 28, "deadline": 3}))
    assert "12: a batch; try --global-batch 96" in shown
    assert "28 are infeasible, 3 miss the deadline" in " ".join(shown.split())
    assert "6: other reasons, which are in plan.json" in shown
    assert "misses the deadline; try" not in shown
