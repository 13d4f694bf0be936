from __future__ import annotations

import numpy as np
import pytest
from measured_times import row, step, two_clusters, validation

from simdp.collectives.costs.nccl import NETWORKS as COST_NETWORKS
from simdp.collectives.costs.nccl import PEERS
from simdp.reports.charts.validation import NETWORKS


def markers(ax):
    return [line for line in ax.lines if line.get_linestyle() == "None"]


def values(lines):
    return sorted((x, y) for line in lines for x, y in zip(*line.get_data(), strict=True))


def test_every_point_stands_at_its_times_and_at_its_error(drawn):
    points = [step(0.1, 0.11), step(0.2, 0.19, role="calibration"), step(0.4, 0.4, cluster="rack")]
    top, bottom = drawn("simulated_against_measured", validation(points))
    assert top.get_xlabel() == bottom.get_xlabel() == "Measured time [ms]"
    assert top.get_ylabel() == "Simulated time [ms]"
    expected = [(100, 110), (200, 190), (400, 400)]
    assert values(markers(top)) == [pytest.approx(pair) for pair in expected]
    errors = [(100, 10), (200, -5), (400, 0)]
    assert values(markers(bottom)) == [pytest.approx(pair) for pair in errors]


def test_predicted_points_are_filled_and_calibrated_ones_hollow(drawn):
    points = [step(0.1, 0.11), step(0.2, 0.19, role="calibration")]
    top, _ = drawn("simulated_against_measured", validation(points))
    shown = [line for line in markers(top) if len(line.get_xdata())]
    fills = {line.get_xdata()[0]: line.get_markerfacecolor() for line in shown}
    assert fills == {100.0: "#000000", 200.0: "none"}
    labels = [text.get_text() for text in top.get_legend().get_texts()]
    assert labels == ["box: 10.0 %", "calibration", "within 10 %"]


@pytest.mark.slow
def test_few_clusters_differ_in_colour_and_marker(drawn):
    points = [step(cluster=f"cluster{i}") for i in range(8)]
    top, _ = drawn("simulated_against_measured", validation(points))
    looks = {(line.get_color(), line.get_marker()) for line in markers(top)}
    assert len(looks) == 8


@pytest.mark.slow
def test_many_clusters_are_grouped_by_the_class_of_their_network(drawn):
    classes = ["", *PEERS, *COST_NETWORKS]
    assert [*NETWORKS] == classes
    points = [step(0.1, 0.12, cluster=f"c{i}", joined=classes[i % 9]) for i in range(21)]
    top, bottom = drawn("simulated_against_measured", validation(points))
    labels = [text.get_text() for text in top.get_legend().get_texts()]
    assert labels == [*(f"{name}: 20.0 %" for name in NETWORKS.values()), "within 10 %"]
    assert len(values(markers(top))) == len(values(markers(bottom))) == 21


def test_the_band_is_ten_percent_wide(drawn):
    top, bottom = drawn("simulated_against_measured", validation([step()]))
    (band,) = top.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx(1.1 * corners[:, 0].max())
    assert corners[:, 1].min() == pytest.approx(0.9 * corners[:, 0].min())
    (errors,) = bottom.collections
    assert np.ptp(errors.get_paths()[0].vertices[:, 1]) == pytest.approx(20)


def test_an_error_that_would_hide_the_others_stands_at_the_edge(drawn):
    _, bottom = drawn("simulated_against_measured", validation([step(0.1, 0.9), step()]))
    assert values(markers(bottom))[-1][1] == 50
    assert bottom.get_ylim() == pytest.approx((-55, 55))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "title"),
    [
        (validation([step()]), "Simulated against measured step times"),
        (validation(rows=[row(1, 1e-5, 1e-5)]), "Simulated against measured collective times"),
        (two_clusters(), "Simulated against measured step and collective times"),
    ],
)
def test_the_title_says_what_was_timed(study, title, drawn):
    assert drawn("simulated_against_measured", study)[0].get_title(loc="left") == title
