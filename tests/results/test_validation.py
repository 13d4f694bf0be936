"""What measured and simulated times say of a cluster."""

import json

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from measured_times import row, step, two_clusters, validation

from simdp.results.validation import kendall_tau, summary

MiB = 2**20


def test_the_error_is_that_of_the_simulated_time():
    assert step(0.1, 0.11).error == pytest.approx(0.1)
    assert step(0.1, 0.09).error == pytest.approx(-0.1)


@for_each(("measured", "is_inside"), [(0.09, True), (0.11, True), (0.111, False)])
def test_a_measured_time_is_inside_up_to_the_ends(measured, is_inside):
    assert step(measured, 0.1, low=0.09, high=0.11).is_inside is is_inside


def test_a_summary_counts_predicted_points_alone():
    points = [
        step(0.1, 0.11, linear=0.13),
        step(0.1, 0.08, linear=0.09),
        step(0.1, 0.2, role="calibration", linear=0.3),
    ]
    found = summary("box", points, 0.02)
    assert (found.num_points, found.num_predicted, found.noise) == (3, 2, 0.02)
    assert found.mean_error == pytest.approx(0.15)
    assert found.worst_error == pytest.approx(0.2)
    assert found.inside == 0.5
    assert found.linear_error == pytest.approx(0.2)
    assert found.ring_error == pytest.approx(1.0)


def test_what_does_not_apply_is_none():
    found = summary("box", [step(role="calibration")], 0.0)
    nothing = found.mean_error, found.worst_error, found.tau, found.inside, found.large_error
    assert nothing == (None,) * 5
    assert summary("box", [step()], 0.0).linear_error is None


def test_large_collectives_are_those_from_64_mib_on():
    rows = [row(MiB, 1.0, 2.0), row(64 * MiB - 1, 1.0, 2.0), row(64 * MiB, 1.0, 1.1)]
    assert summary("box", rows, 0.0).large_error == pytest.approx(0.1)


# Kendall's tau -----------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 50)),
        min_size=2,
        max_size=12,
        unique_by=(lambda pair: pair[0], lambda pair: pair[1]),
    )
)
def test_tau_without_noise_and_ties_is_scipys(pairs):
    from scipy.stats import kendalltau

    points = [step(float(measured), float(simulated)) for measured, simulated in pairs]
    expected = kendalltau(*zip(*pairs, strict=True)).statistic
    assert kendall_tau(points, 0.0) == pytest.approx(expected)


def test_tau_passes_over_pairs_that_the_noise_may_have_swapped():
    points = [step(1.0, 1.02), step(1.01, 1.0), step(2.0, 2.0)]
    assert kendall_tau(points, 0.0) == pytest.approx(1 / 3)
    assert kendall_tau(points, 0.02) == 1.0
    assert kendall_tau(points, 5.0) is None


def test_tau_passes_over_pairs_of_two_calibrated_points():
    wrong = [step(1.0, 2.0, role="calibration"), step(2.0, 1.0, role="calibration")]
    assert kendall_tau(wrong, 0.0) is None
    assert kendall_tau([*wrong, step(3.0, 3.0)], 0.0) == 1.0


def test_equal_simulated_times_are_half_right():
    assert kendall_tau([step(1.0, 1.0), step(2.0, 1.0)], 0.0) == 0.0


# Clusters ----------------------------------------------------------------------------------------


def test_clusters_and_scenarios_have_summaries_of_their_own():
    points = [
        step(0.1, 0.11, scenario="a"),
        step(0.1, 0.12, scenario="b"),
        step(0.1, 0.14, scenario="c", cluster="rack"),
    ]
    found = validation(points)
    assert [one.name for one in found.step_summaries()] == ["box", "rack"]
    errors = [one.mean_error for one in found.step_summaries()]
    assert errors == pytest.approx([0.15, 0.4])
    parts = found.scenario_summaries("box")
    assert [one.name for one in parts] == ["a", "b"]
    assert [one.mean_error for one in parts] == pytest.approx([0.1, 0.2])


def test_all_clusters_are_summed_up_without_an_order_among_them():
    points = [step(0.1, 0.11), step(0.2, 0.26, cluster="rack")]
    found = validation(points).overall()
    assert (found.num_points, found.tau) == (2, None)
    assert found.mean_error == pytest.approx(0.2)
    assert validation(rows=[row(MiB, 1.0, 1.0)]).overall() is None


def test_a_clusters_tables_count_alike_however_long_they_are():
    rows = [row(MiB, 1.0, 1.3), row(MiB, 1.0, 1.1, table=1), row(2 * MiB, 1.0, 1.1, table=1)]
    (found,) = validation(rows=rows).collective_summaries()
    assert found.mean_error == pytest.approx((0.3 + 0.1) / 2)
    assert [len(table) for table in validation(rows=rows).tables()] == [1, 2]


def test_a_limit_is_held_against_steps_and_collectives_of_each_cluster():
    points = [step(0.1, 0.11), step(0.1, 0.15, cluster="rack"), step(role="calibration")]
    found = validation(points, [row(MiB, 1.0, 1.3)])
    beyond = [(cluster, what) for cluster, what, _ in found.beyond(0.2)]
    assert beyond == [("rack", "steps"), ("box", "collectives")]
    assert found.beyond(0.6) == []


def test_a_part_holds_one_cluster():
    whole = two_clusters()
    part = whole.of("rack")
    assert part.clusters == ["rack"]
    assert {point.cluster for point in part.points} == {"rack"}
    assert (part.rows, part.excluded) == ((), ())
    assert len(whole.of("box").rows) == 3


def test_json_has_every_point_with_its_error_and_units_in_the_names():
    found = json.loads(two_clusters().to_json())
    assert [one["name"] for one in found["clusters"]] == ["box", "rack"]
    assert len(found["points"]) == 12
    first = found["points"][0]
    assert first["error"] == first["simulated_s"] / first["measured_s"] - 1
    assert {"low_s", "high_s", "ring_s", "linear_s", "set", "role"} <= set(first)
    assert [one["nbytes"] for one in found["collective_points"]] == [2**10, 2**20, 2**30]
    assert found["excluded"][0]["reason"] == "a shared | machine"
