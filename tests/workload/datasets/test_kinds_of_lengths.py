"""Distributions of lengths: what is drawn, and what says nothing clear."""

from math import erf, log, sqrt

import numpy as np
import pytest
from for_each import for_each
from pydantic import ValidationError

from simdp.errors import ScenarioError
from simdp.workload.datasets.base import LENGTHS

NUM = 20_000


def points(*pairs):
    return [{"quantile": quantile, "length": length} for quantile, length in pairs]


EXAMPLES = {
    "empirical": {"quantiles": points((0, 16), (0.5, 150), (1, 1024))},
    "fixed": {"length": 128},
    "lognormal": {"mu": 5.0, "sigma": 1.0, "min": 16, "max": 1024},
    "uniform": {"min": 3, "max": 12},
}


def made(kind, **options):
    return LENGTHS[kind].model_validate({"kind": kind, **options})


def drawn(distribution, base=None, most=10**6, seed=0):
    return distribution.of_samples(NUM, most, seed, base)


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(LENGTHS)


@for_each("kind", sorted(LENGTHS))
def test_lengths_are_whole_within_their_bounds_and_the_seeds_own(kind):
    distribution = made(kind, **EXAMPLES[kind])
    found = drawn(distribution)
    assert found.dtype == np.int64
    assert found.min() >= distribution.shortest(None) >= 1
    assert found.max() <= distribution.longest(None)
    assert (found == drawn(distribution)).all()
    assert kind == "fixed" or (found != drawn(distribution, seed=1)).any()
    assert drawn(distribution, most=9).max() <= 9


def test_a_lognormal_is_cut_as_by_clip_and_keeps_its_median():
    found = drawn(made("lognormal", mu=5.0, sigma=1.0, min=16, max=1024))
    assert np.median(found) == pytest.approx(np.exp(5), rel=0.03)
    above = 0.5 - 0.5 * erf((log(1023.5) - 5) / sqrt(2))
    assert (found == 1024).mean() == pytest.approx(above, abs=0.004)
    assert (found == 16).mean() > 0


def test_a_lognormals_median_is_another_way_to_write_its_mu():
    one = drawn(made("lognormal", mu=log(48), sigma=0.5))
    assert (one == drawn(made("lognormal", median=48, sigma=0.5))).all()


def test_without_spread_all_are_as_long_as_the_median():
    assert set(drawn(made("lognormal", median=48, sigma=0.0))) == {48}


def test_quantiles_are_met_and_joined_by_straight_lines():
    found = drawn(made("empirical", quantiles=points((0, 10), (0.5, 20), (1, 120))))
    assert np.quantile(found, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        [10, 15, 20, 70, 120], rel=0.05
    )


def test_a_table_of_counts_is_drawn_from_by_its_counts(tmp_path):
    (tmp_path / "lengths.csv").write_text("# of a data set\nlength,count\n300,1\n20,3\n7,0\n")
    counted = made("empirical", path="lengths.csv")
    found = drawn(counted, tmp_path)
    assert (counted.shortest(tmp_path), counted.longest(tmp_path)) == (20, 300)
    assert set(found) == {20, 300}
    assert (found == 20).mean() == pytest.approx(0.75, abs=0.01)


@for_each(
    ("text", "line"),
    [
        (
            "length,count\nten,3\n",
            "2: length 'ten' is not a number of tokens; write 1 ... 1000000.",
        ),
        ("length,count\n0,3\n", "2: length '0' is not a number of tokens; write 1 ... 1000000."),
        ("length,count\n8,0\n", " counts no sample; give at least one length a count."),
    ],
)
def test_a_table_that_counts_no_lengths_is_refused(text, line, tmp_path):
    (tmp_path / "lengths.csv").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        drawn(made("empirical", path="lengths.csv"), tmp_path)
    assert caught.value.problems == [f"{tmp_path / 'lengths.csv'}:{line}"]


@for_each(
    ("kind", "options", "line"),
    [
        (
            "lognormal",
            {"sigma": 1.0},
            "mu or median defines the lengths, but neither of them is given; give one.",
        ),
        (
            "lognormal",
            {"mu": 5, "median": 150, "sigma": 1.0},
            "mu or median defines the lengths, but both are given; give one.",
        ),
        (
            "lognormal",
            {"mu": 5, "sigma": 1, "min": 100, "max": 50},
            "min 100 is above max 50; exchange them.",
        ),
        ("uniform", {"min": 9, "max": 8}, "min 9 is above max 8; exchange them."),
        (
            "empirical",
            {},
            "quantiles or path gives the lengths, but neither of them is given; give one.",
        ),
        (
            "empirical",
            {"quantiles": points((0.5, 10), (1, 20))},
            "quantiles must begin with 0, the shortest sample, and end with 1, the longest.",
        ),
        (
            "empirical",
            {"quantiles": points((0, 10), (0.5, 40), (1, 20))},
            "quantiles must rise, and their lengths with them; put them in order.",
        ),
        (
            "empirical",
            {"quantiles": points((0, 10), (0.5, 40), (0.5, 50), (1, 60))},
            "quantiles must rise, and their lengths with them; put them in order.",
        ),
    ],
)
def test_what_is_not_clear_is_refused(kind, options, line):
    with pytest.raises(ValidationError) as caught:
        made(kind, **options)
    assert [error["msg"] for error in caught.value.errors()] == [line]
