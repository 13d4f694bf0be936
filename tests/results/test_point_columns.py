"""Columns: a row for each point, values of one type in each, and what has failed."""

import sys

import pytest

from simdp.errors import ScenarioError
from simdp.results.metrics import Metrics
from simdp.results.result import FailedPoint, Result, Study, columns_of, figures_of

METRICS = Metrics(
    **{
        "step_time_s": 0.5,
        "mfu": None,
        "bytes_sent_per_rank": [5],
        "fits_memory": True,
        "memory_bytes": {"parameters": 8, "gradients": 4},
        "peak_memory_bytes": [3, 9, 2],
        "loss": [2.0, 1.0],
        "loss_per_rank": [[2.0], [1.0]],
    }
)


def study():
    scenario = {"name": "x", "cluster": {"world_size": 2}, "sweep": {"a": [1, 2]}}
    there = Result(scenario, {"a": 1}, METRICS, cost={"step": {"cost_usd": 3.0}})
    return Study("0", scenario, [there], [FailedPoint(1, {"a": 2}, ["no.", "never."])])


def test_lists_become_one_value_and_what_is_inside_gets_a_dotted_name():
    found = figures_of(METRICS, {"step": {"cost_usd": 3.0}}, None)
    assert found == {
        "step_time_s": 0.5,
        "bytes_sent_per_rank": 5,
        "memory_bytes.parameters": 8,
        "memory_bytes.gradients": 4,
        "peak_memory_bytes": 9,
        "fits_memory": True,
        "last_loss": 1.0,
        "cost.step.cost_usd": 3.0,
    }


def test_a_study_has_a_row_for_each_point_in_the_order_of_the_grid():
    columns = study().columns()
    assert columns["a"] == [1, 2]
    assert columns["step_time_s"] == [0.5, None]
    assert columns["cost.step.cost_usd"] == [3.0, None]
    assert columns["failed"] == [None, "no; never."]
    assert list(columns)[-1] == "failed"


def test_values_of_several_types_are_text():
    rows = [{"x": "ddp", "y": 1, "z": 1}, {"x": {"kind": "fsdp"}, "y": 2.5}, {"x": [1], "z": None}]
    assert columns_of(rows) == {
        "x": ["ddp", '{"kind": "fsdp"}', "[1]"],
        "y": [1.0, 2.5, None],
        "z": [1, None, None],
        "failed": [None] * 3,
    }


@pytest.mark.extra
def test_a_data_frame_has_these_columns():
    pandas = pytest.importorskip("pandas")
    frame = study().to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(study().columns())
    assert frame["step_time_s"][0] == 0.5


def test_without_pandas_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ScenarioError, match=r"needs pandas; pip install 'simdp\[table\]'"):
        study().to_dataframe()
