"""Stragglers drawn from measured distributions have the figures that were measured."""

from math import gamma, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

import simdp
from simdp.cluster import Cluster
from simdp.cluster.stragglers import CV, AnyStraggler
from simdp.engine.slowdown import Slowdown
from simdp.results.metrics import per_rank
from simdp.spec import problems

POINTS = [(0, 0.9), (0.5, 1.0), (0.9, 1.2), (1, 3.0)]
QUANTILES = [{"quantile": at, "factor": factor} for at, factor in POINTS]


def slowdown(world_size, *stragglers, seed=0, **keys):
    raw = {"world_size": world_size, "device": "t4-16gb", "link": "pcie3-x16", **keys}
    return Slowdown(Cluster.model_validate({**raw, "stragglers": stragglers}), seed)


def factors(num_steps, *args, **keys):
    together = slowdown(*args, **keys)
    return np.array([together.factors(step) for step in range(num_steps)])


def refusal(base="", **raw):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyStraggler).validate_python(raw, context={"base": base})
    return [found.line for found in problems(caught.value, raw)]


def expected_maximum(cdf, n, most):
    """E[max] of n values above 0: the integral of 1 - F^n."""
    x = np.linspace(0, most, 400_001)
    return np.trapezoid(1 - np.array([cdf(each) for each in x[::100]]) ** n, x[::100])


# The slowest of n ---------------------------------------------------------------------------------


@for_each(("n", "sigma"), [(8, 0.1), (32, 0.13), (64, 0.5)])
def test_the_slowest_of_n_lognormal_ranks_is_as_the_integral_says(n, sigma):
    normal = NormalDist()
    want = expected_maximum(lambda x: normal.cdf(np.log(x) / sigma) if x else 0.0, n, 20)
    drawn = factors(2500, n, {"kind": "lognormal", "sigma": sigma}).max(axis=1)
    assert drawn.mean() == pytest.approx(want, rel=0.01)


def test_the_slowest_of_n_exponential_ranks_is_a_harmonic_number():
    """A gamma factor with cv 1 is exponential, the slowest of n then H_n on average."""
    drawn = factors(1, 16 * 20_000, {"kind": "gamma", "cv": 1}).reshape(-1, 16).max(axis=1)
    assert drawn.mean() == pytest.approx(sum(1 / k for k in range(1, 17)), rel=0.01)


# Gamma --------------------------------------------------------------------------------------------


@for_each("cv", [0.05, 0.5, 1.5])
def test_gamma_has_mean_one_and_the_given_spread(cv):
    drawn = factors(1, 400_000, {"kind": "gamma", "cv": cv})
    assert drawn.mean() == pytest.approx(1, abs=0.01)
    assert drawn.std() == pytest.approx(cv, rel=0.02)


def test_gamma_has_its_third_moment():
    drawn = factors(1, 400_000, {"kind": "gamma", "cv": 0.5})
    assert (drawn**3).mean() == pytest.approx(gamma(7) / gamma(4) / 4**3, rel=0.02)


def test_gamma_without_spread_is_no_jitter():
    assert factors(2, 4, {"kind": "gamma", "cv": 0}).tolist() == [[1.0] * 4] * 2


def test_a_wrong_gamma_is_refused():
    assert refusal(kind="gamma", cv=-1) == ["cv: -1 is out of range; it must be >= 0.0."]
    assert refusal(kind="gamma", cv=4) == ["cv: 4 is out of range; it must be <= 3.0."]


# Empirical ----------------------------------------------------------------------------------------


def test_quantiles_come_back():
    drawn = factors(1, 200_000, {"kind": "empirical", "quantiles": QUANTILES})
    assert drawn.min() >= 0.9
    assert drawn.max() <= 3.0
    assert np.quantile(drawn, [0.25, 0.5, 0.9, 0.95]) == pytest.approx(
        [0.95, 1.0, 1.2, 2.1], rel=0.02
    )


def test_quantiles_of_a_file_are_those_of_the_scenario(tmp_path):
    rows = [f"{at},{factor}" for at, factor in POINTS]
    (tmp_path / "steps.csv").write_text("\n".join(["# measured", "quantile,factor", *rows]))
    read = TypeAdapter(AnyStraggler).validate_python(
        {"kind": "empirical", "path": "steps.csv"}, context={"base": tmp_path}
    )
    written = TypeAdapter(AnyStraggler).validate_python(
        {"kind": "empirical", "quantiles": QUANTILES}
    )
    for step in range(3):
        a, b = (one.slowdown(step, 50, np.random.default_rng(step)) for one in (read, written))
        np.testing.assert_array_equal(a, b)


@for_each(
    ("options", "line"),
    [
        (
            {},
            "give either quantiles, [{quantile: 0, factor: 0.9}, ..., {quantile: 1, factor: 2}], "
            "or path, a CSV file with these columns.",
        ),
        (
            {"quantiles": QUANTILES[1:]},
            "quantiles: goes from quantile 0.5 to 1; begin with 0, the smallest factor, and end "
            "with 1, the largest.",
        ),
        (
            {"quantiles": [QUANTILES[0], QUANTILES[2], QUANTILES[1], QUANTILES[3]]},
            "quantiles: quantile 0.5 with factor 1 comes after quantile 0.9 with factor 1.2; put "
            "them in rising order.",
        ),
        (
            {"quantiles": [{"quantile": 0, "factor": 0}, QUANTILES[3]]},
            "quantiles.0.factor: 0 is out of range; it must be > 0.0.",
        ),
    ],
)
def test_wrong_quantiles_are_refused(options, line):
    assert refusal(kind="empirical", **options) == [line]


def test_a_wrong_file_of_quantiles_is_refused(tmp_path):
    path = tmp_path / "steps.csv"

    def wrong(*rows):
        path.write_text("\n".join(["quantile,factor", *rows]))
        return refusal(tmp_path, kind="empirical", path="steps.csv")

    assert wrong("0,0", "1,2") == [f"{path}: factor 0 is out of range; it must be > 0."]
    assert wrong("0,1", "half,2") == [f"{path}:3: quantile 'half' is not a number; give 0 ... 1."]
    assert wrong("0.5,1", "1,2") == [
        f"{path}: goes from quantile 0.5 to 1; begin with 0, the smallest factor, and end with 1, "
        "the largest."
    ]
    path.unlink()
    (line,) = refusal(tmp_path, kind="empirical", path="steps.csv")
    assert line.startswith(f"{path}: ")


# Slow node ----------------------------------------------------------------------------------------


NODES = {"devices_per_node": 4, "inter_node": {"link": "ib-hdr"}}


def test_a_slow_node_slows_all_its_ranks_and_no_others():
    drawn = factors(2, 12, {"kind": "slow_node", "node": 1, "factor": 1.5}, **NODES)
    assert drawn.tolist() == [[1.0] * 4 + [1.5] * 4 + [1.0] * 4] * 2


def test_a_slow_node_is_idle_where_it_does_not_exist():
    drawn = factors(1, 4, {"kind": "slow_node", "node": 1, "factor": 1.5}, **NODES)
    assert drawn.tolist() == [[1.0] * 4]


def test_a_wrong_slow_node_is_refused():
    assert refusal(kind="slow_node", node=-1, factor=0) == [
        "node: -1 is out of range; it must be >= 0.",
        "factor: 0 is out of range; it must be > 0.0.",
    ]


# Shared hosts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", ["p25", "p50", "p75"])
def test_ten_workers_differ_in_an_iteration_as_those_of_pai(load):
    """Over many jobs: the mean of unbiased variances over the ten, by the square of the mean."""
    chosen = TypeAdapter(AnyStraggler).validate_python({"kind": "shared_host", "load": load})
    random, nodes = np.random.default_rng(0), np.zeros(10, dtype=np.int64)
    drawn = np.array(
        [chosen.lasting(nodes, random) * chosen.slowdown(0, 10, random) for _ in range(7_000)]
    )
    cv = sqrt(drawn.var(axis=1, ddof=1).mean()) / drawn.mean()
    assert cv == pytest.approx(CV[load], rel=0.03)


@for_each("load", ["p25", "p50", "p75", "p90"])
def test_a_hundred_thousand_workers_have_the_published_coefficient_of_variation(load):
    drawn = factors(1, 200_000, {"kind": "shared_host", "load": load})
    assert drawn.mean() == pytest.approx(1, abs=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(CV[load], rel=0.02)


def test_what_lasts_of_a_shared_host_is_its_part_of_the_variance():
    drawn = np.log(factors(400, 2000, {"kind": "shared_host", "load": "p75"}))
    assert drawn.mean(axis=0).var() / drawn.var() == pytest.approx(0.7, abs=0.02)


@for_each(("part", "lasts"), [(0, False), (1, True)])
def test_a_shared_host_may_be_all_luck_or_all_fate(part, lasts):
    drawn = factors(3, 8, {"kind": "shared_host", "persistent_variance": part})
    assert (drawn == drawn[0]).all() == lasts
    assert len(np.unique(drawn[0])) == 8


def test_a_wrong_shared_host_is_refused():
    assert refusal(kind="shared_host", persistent_variance=2) == [
        "persistent_variance: 2 is out of range; it must be <= 1.0."
    ]


# Measured jobs ------------------------------------------------------------------------------------


def test_one_of_four_replicas_is_as_much_slower_as_in_a_measured_job():
    """The slowest over the mean in stage 0 of the job AR; the others take 19.23 s."""
    compute = 19.23 * factors(1, 4, {"kind": "slow_rank", "rank": 2, "factor": 2.355})[0]
    assert compute.max() / compute.mean() == pytest.approx(4 * 2.355 / (3 + 2.355), rel=1e-12)
    assert round(compute.max() / compute.mean(), 3) == 1.759


def test_a_run_of_that_job_has_the_ratio_that_was_measured(load):
    """Forward and backward of a micro-batch take 19.23 s on three of the four replicas."""
    device = {
        "peak": {"float32": "100 TFLOP/s"},
        "memory": "80 GB",
        "memory_bandwidth": "2 TB/s",
        "launch": "0 s",
    }
    cluster = {
        "world_size": 4,
        "device": device,
        "link": "nvlink3",
        "stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 2.355}],
    }
    workload = {
        "model": {"kind": "parameters", "num_params": 1000},
        "compute": {"kind": "measured", "points": [{"microbatch": 32, "step_time": "19.23 s"}]},
        "optimizer": "none",
        "microbatch": 32,
        "steps": 3,
    }
    result = simdp.simulate(load(cluster=cluster, workload=workload, numerics=False))
    compute = per_rank(result.trace, 4, 3).compute_s
    assert compute[0] == pytest.approx(19.23, rel=1e-6)
    assert compute.max() / compute.mean() == pytest.approx(1.7591, abs=1e-4)
    assert result.metrics["step_time_s"] == pytest.approx(2.355 * 19.23, rel=1e-4)
