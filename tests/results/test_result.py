"""Results: what is written loads again, what JSON cannot say is null, whose weights are kept."""

import json

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.errors import ScenarioError
from simdp.keys import written
from simdp.results.metrics import LABELS, Metrics
from simdp.results.result import Result, Study, as_json

KNOWN = {
    "step_time_s": 0.5,
    "bytes_sent_per_rank": [],
    "memory_bytes": {},
    "peak_memory_bytes": [],
    "fits_memory": True,
    "loss": [1.0, 2.0],
}
SCENARIO = {"name": "tiny", "seed": 0, "cluster": {"world_size": 2}}


def result(metrics=None, replicas=None, chosen=None):
    return Result(SCENARIO, chosen or {}, Metrics.of(metrics or {}), replicas=replicas)


def study(*points):
    return Study("0.1.0", SCENARIO, list(points))


def test_a_study_is_written_as_the_contract_says():
    text = study(result(KNOWN)).to_json()
    assert text.endswith("}\n")
    assert json.loads(text) == {
        "simdp": "0.1.0",
        "scenario": SCENARIO,
        "points": [{"set": {}, "metrics": dict.fromkeys(LABELS) | KNOWN}],
    }


@for_each("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_what_json_has_no_word_for_is_null(value):
    metrics = {"loss": [1.0, value], "loss_per_rank": [[value]], "step_time_s": value}
    (point,) = json.loads(study(result(metrics)).to_json())["points"]
    nulls = {"loss": [1.0, None], "loss_per_rank": [[None]], "step_time_s": None}
    assert nulls.items() <= point["metrics"].items()
    assert metrics["loss"][1] is value  # the result itself keeps what it has


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


def trees(leaves):
    """Lists and dictionaries of leaves, inside each other."""
    return st.recursive(leaves, lambda tree: st.lists(tree) | st.dictionaries(st.text(), tree))


@pytest.mark.slow
@given(trees(PLAIN.filter(lambda value: value not in (np.inf, -np.inf))))
def test_a_file_has_the_form_that_json_gives_it_with_an_indent(tree):
    assert as_json({"x": tree}) == json.dumps({"x": tree}, indent=1)


@pytest.mark.slow
@given(trees(PLAIN | st.floats()))
def test_every_number_of_a_file_is_finite_and_in_its_place(tree):
    def expected(value):
        if isinstance(value, dict):
            return {key: expected(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [expected(inner) for inner in value]
        return value if not isinstance(value, float) or np.isfinite(value) else None

    assert json.loads(as_json({"x": tree})) == {"x": expected(tree)}


def test_a_number_of_numpy_or_a_tuple_is_written_as_json_would():
    found = as_json({"x": (np.float64(0.1), 1), "y": [np.float64(2.0), 3]})
    assert json.loads(found) == {"x": [0.1, 1], "y": [2.0, 3]}


def test_a_saved_study_loads_and_is_written_again_as_it_was(tmp_path):
    saved = study(
        result({"loss": [0.1, 1 / 3, 1e-300]}, chosen={"cluster.world_size": 1}),
        result({"loss": None, "bytes_sent_per_rank": [1, 2.5]}, chosen={"cluster.world_size": 2}),
    )
    saved.save(tmp_path / "deep" / "result.json")
    loaded = Study.load(tmp_path / "deep" / "result.json")
    assert loaded.to_json() == saved.to_json() == (tmp_path / "deep/result.json").read_text()
    assert [point.world_size for point in loaded.points] == [1, 2]
    assert [point.metrics for point in loaded.points] == [point.metrics for point in saved.points]
    assert loaded.points[0].trace is loaded.points[0].replicas is None


@for_each("text", ["[]", "{}", "3", '{"scenario": {}}', '{"simdp": 1, "points": []}'])
def test_another_json_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=r"other.json: is not a result.json of simdp\."):
        Study.load(path)


@for_each(
    "content",
    [
        {"simdp": "0.1.0", "scenario": {"cluster": 3}, "points": [{"set": {}, "metrics": {}}]},
        {"simdp": "0.1.0", "scenario": [], "points": [{"set": {}, "metrics": {}}]},
        {"simdp": "0.1.0", "scenario": SCENARIO, "points": [{"set": 3, "metrics": {}}]},
    ],
)
def test_a_result_of_the_wrong_shape_is_refused(tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ScenarioError, match="is not a result"):
        Study.load(path)


# Weights


def test_equal_replicas_are_stored_once():
    first = {"w": np.ones(3), "b": np.zeros(1)}
    kept = result(replicas=[first, {name: array.copy() for name, array in first.items()}]).weights()
    assert list(kept) == ["w", "b"]
    assert kept["w"] is first["w"]


def test_what_differs_on_a_rank_is_stored_under_its_number():
    ranks = [{"w": np.full(2, value), "b": np.zeros(1)} for value in (1.0, 1.0, 5.0)]
    ranks[1]["b"] = np.array([-0.0])  # equal as a number, not as bits
    kept = result(replicas=ranks).weights()
    assert list(kept) == ["w", "b", "rank1/b", "rank2/w"]
    np.testing.assert_array_equal(kept["rank2/w"], [5.0, 5.0])


def test_weights_that_are_no_number_are_equal_if_their_bits_are():
    broken = np.array([np.nan, np.inf])
    assert list(result(replicas=[{"w": broken}, {"w": broken.copy()}]).weights()) == ["w"]


@for_each("array", [np.float32(2).reshape(()), np.ones((3, 2)).T, np.ones((0, 2))])
def test_weights_of_any_shape_are_compared(array):
    """Such as torch's num_batches_tracked, which has no axis at all."""
    kept = result(replicas=[{"w": array}, {"w": array + 1}, {"w": array + 0}]).weights()
    assert set(kept) == ({"w", "rank1/w"} if array.size else {"w"})


def test_a_run_without_numerics_has_no_weights():
    assert result().weights() == {}


def test_a_label_shows_the_head_of_a_long_list():
    assert written([1, [2.5, True]]) == "[1, [2.5, true]]"
    assert written(list(range(3000))).endswith("14, 15, ... (3,000)]")
