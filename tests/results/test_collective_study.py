"""CollectiveStudy: bandwidths, crossovers and errors of points that were made up."""

import json

import pytest

from simdp.results.collective import (
    Bottleneck,
    CollectiveCurve,
    CollectivePoint,
    CollectiveStudy,
    Crossover,
)


def point(nbytes, seconds, algorithm="ring", measured=None):
    link = Bottleneck("the link from rank 0 to rank 1", 0.5)
    return CollectivePoint(nbytes, seconds, algorithm, "vector fabric", link, {}, measured)


def study(*points, collective="all_reduce", world_size=4):
    curves = (CollectiveCurve("auto", world_size, points),)
    return CollectiveStudy("1", collective, "box", "float", 0, curves)


def test_a_crossover_is_the_first_size_of_the_new_algorithm():
    (curve,) = study(
        point(1, 1.0, "tree"), point(2, 1.0, "tree"), point(4, 1.0), point(8, 1.0, "direct")
    ).curves
    assert curve.crossovers() == [Crossover(4, "ring", "tree"), Crossover(8, "direct", "ring")]


def test_the_error_is_of_the_time_and_only_where_it_was_measured():
    (curve,) = study(point(1, 1.1, measured=1.0), point(2, 1.0)).curves
    assert curve.errors() == {1: pytest.approx(0.1)}


def test_bandwidths_are_none_where_nothing_moves_or_no_time_passes():
    made = study(point(1000, 1e-6))
    assert made.algbw(1000, 1e-6) == pytest.approx(1e9)
    assert made.busbw(1000, 1e-6, 4) == pytest.approx(1.5e9)
    assert made.algbw(1000, 0.0) is made.algbw(0, 1e-6) is made.busbw(1000, 0.0, 1) is None
    assert study(point(0, 1e-6), collective="barrier").busbw(8, 1e-6, 4) is None


def test_the_json_has_units_in_its_names_and_the_errors_of_a_curve():
    made = json.loads(
        study(point(1024, 1.1, measured=1.0), point(4096, 0.8, measured=1.0)).to_json()
    )
    (curve,) = made["curves"]
    assert curve["mean_error"] == pytest.approx(0.15)
    assert curve["max_error"] == pytest.approx(0.2)
    assert curve["points"][0] == {
        "size_bytes": 1024,
        "count": 256,
        "type": "float",
        "redop": "sum",
        "root": -1,
        "time_s": 1.1,
        "algbw_bytes_per_s": pytest.approx(1024 / 1.1),
        "busbw_bytes_per_s": pytest.approx(1.5 * 1024 / 1.1),
        "algorithm": "ring",
        "fabric": "vector fabric",
        "bottleneck": {"name": "the link from rank 0 to rank 1", "utilization": 0.5},
        "candidates_s": None,
        "low_s": None,
        "high_s": None,
        "measured_time_s": 1.0,
        "error": pytest.approx(0.1),
    }


def test_a_json_without_a_log_has_null_in_its_place():
    (curve,) = json.loads(study(point(1024, 1.0)).to_json())["curves"]
    assert curve["mean_error"] is curve["max_error"] is curve["points"][0]["error"] is None
