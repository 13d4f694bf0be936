"""What a plan's file holds, and that it reads back."""

import json
from dataclasses import replace

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.results.plan import Option, PlanResult

FAST = Option(
    {"cluster.machine": "dgx-h100", "strategy": {"kind": "ddp"}}, 0.1, 60.0, 4.0, 1.0, 3e9
)
CHEAP = Option({"cluster.machine": "dgx-a100"}, 0.2, 120.0, 3.0, None, 2e9, 0.15, 0.25)
NAMED = [
    "step_time_s",
    "finish_s",
    "cost_usd",
    "energy_kwh",
    "peak_memory_bytes",
    "low_s",
    "high_s",
    "why",
    "set",
]


def plan(**changed):
    limits = {"deadline": 3600.0}
    start = PlanResult(
        "0.1.0", {"name": "x"}, "cheapest", limits, None, {}, (CHEAP, FAST), (FAST, CHEAP)
    )
    return PlanResult(**{**vars(start), **changed})


def test_its_file_has_the_fixed_fields():
    written = json.loads(plan(num_points=9, num_simulated=2, binding="budget").to_json())
    for option in [*written["best"], *written["front"]]:
        assert set(NAMED) <= set(option)
    assert (written["num_points"], written["num_simulated"]) == (9, 2)
    assert written["binding"] == "budget"


@for_each("nearest", [None, CHEAP])
def test_its_file_reads_back(tmp_path, nearest):
    found = plan(nearest=nearest, notes=("a note",))
    path = tmp_path / "plan.json"
    path.write_text(found.to_json())
    assert PlanResult.load(path) == found


@for_each("text", ["{}", "[]", '{"simdp": "0.1.0", "best": 3}'])
def test_another_file_is_refused_in_a_line(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=r"is not a plan\.json of simdp"):
        PlanResult.load(path)


def test_the_interval_of_the_finish_is_that_of_the_step_in_proportion():
    assert CHEAP.finish_interval == pytest.approx((90.0, 150.0))
    assert FAST.finish_interval is None
    assert replace(CHEAP, step_time_s=0.0).finish_interval is None


def test_options_are_told_once():
    assert plan().options == (CHEAP, FAST)
    assert plan(best=(), front=(), nearest=FAST).options == (FAST,)


def test_an_option_is_written_in_short():
    assert FAST.label == "machine: dgx-h100, ddp"


def test_the_interval_of_the_end_is_that_of_a_step():
    assert CHEAP.finish_interval == pytest.approx((90.0, 150.0))
    assert FAST.finish_interval is None
