"""Tables of a validation in the terminal."""

import io
import re

import pytest
from for_each import for_each
from measured_times import row, step, two_clusters, validation
from rich.console import Console

from simdp.reports import validation as words
from simdp.reports.page.validation import page
from simdp.reports.sections import Verdict
from simdp.reports.validation_table import validation_tables
from simdp.results.validation import binomial_tail


def printed(study, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(validation_tables(study, width), soft_wrap=True)
    return console.export_text()


def cells(text, start):
    """Cells of the first line that begins with a word."""
    (line, *_) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return re.split(r"\s{2,}", line.strip())


WIDE = 120


def test_every_point_stands_in_its_clusters_table_below_its_scenario():
    study = validation([step(0.1, 0.11, set={"strategy.overlap": False})])
    lines = printed(study, WIDE).splitlines()
    assert [line.strip() for line in lines[:1]] == ["box"]
    assert lines[4].strip() == "resnet"
    assert cells(lines[5], "overlap") == [
        "overlap false",
        "8",
        "predicted",
        "100 ms",
        "110 ms",
        "99 ... 121 ms",
        "+10.0 %",
        "yes",
    ]


def test_a_narrow_terminal_has_a_line_for_each_row_and_fewer_columns():
    keys = {"strategy.bucket_cap": "25 MiB", "workload.microbatch": 64}
    studies = [step(set={**keys, "strategy.overlap": overlap}) for overlap in (True, False)]
    points = [*studies, step(cluster="a" * 90, scenario="b" * 90)]
    rows = [row(2**20, 1.0, 1.2, set={f"collectives.cost.{'c' * 60}": 1})]
    text = printed(validation(points, rows))
    assert max(map(len, text.splitlines())) <= 80
    assert cells(text, "overlap true")[1:5] == ["8", "predicted", "100 ms", "100 ms"]
    assert cells(text, "overlap true")[5:] == ["90 ... 110 ms", "+0.0 %"]
    assert "Not shown in 80 columns: inside, " in text
    assert "b...b" in text
    wide = printed(validation(points, rows), 400)
    assert "Not shown" not in wide
    assert "..." not in wide.replace(" ... ", "")


def test_settings_that_do_not_tell_points_apart_are_not_shown():
    compute = {f"workload.compute.points.0.{key}": 1 for key in ("microbatch", "step_time")}
    one = {"workload.microbatch": 1, "strategy": "single"}
    points = [
        step(set={**one, **compute}, world_size=1),
        step(set={"workload.microbatch": 2, "workload.precision": "amp"}),
    ]
    assert words.needless_keys(points) == ["cluster.world_size", *compute, "strategy"]
    fewer = [step(set={"workload.microbatch": 1, **compute}), step(set={"workload.microbatch": 1})]
    assert words.needless_keys(fewer) == ["cluster.world_size", "workload.microbatch"]


def test_what_a_step_waits_for_gradients_has_a_table_of_its_own():
    told = step(0.1, 0.11, exposed_measured=0.03, exposed_simulated=0.025)
    text = printed(validation([told, step(0.2, 0.2)]))
    head = text.index("box: waiting for gradients when backward is over")
    row = cells(text[head : text.index("Step times")], "-")
    assert row[3:] == ["30 ms", "25 ms", "-5 ms"]
    assert "waiting" not in printed(validation([step(0.2, 0.2)]))


def test_a_cluster_is_summed_up_with_its_naive_predictors():
    points = [step(0.1, 0.11, linear=0.15), step(0.2, 0.2, role="calibration")]
    text = printed(validation(points), WIDE)
    # points, predicted, mean, worst, noise, tau, inside, linear, ring
    assert cells(text[text.index("Step times") :], "box")[1:] == [
        "2",
        "1",
        "10.0 %",
        "10.0 %",
        "2.0 %",
        "1.00",
        "100.0 %",
        "50.0 %",
        "100.0 %",
    ]


def test_scenarios_have_rows_of_their_own_where_a_cluster_has_several():
    one = printed(validation([step()]))
    two = printed(validation([step(), step(scenario="bert")]))
    assert "- resnet" not in one
    assert "- resnet" in two
    assert "- bert" in two


def test_several_clusters_have_a_row_for_all_of_them():
    assert "all clusters" not in printed(validation([step()]))
    text = printed(validation([step(0.1, 0.11), step(0.1, 0.13, cluster="rack")]), WIDE)
    assert cells(text, "all clusters")[1:5] == ["2", "2", "20.0 %", "30.0 %"]


def test_a_table_of_a_collective_has_a_row_and_its_cluster_a_mean():
    rows = [row(2**20, 1.0, 1.2), row(2**26, 1.0, 1.1, set={"cluster.world_size": 8})]
    text = printed(validation(rows=rows), WIDE)
    said = ["all_reduce", "8", "2", "2", "15.0 %", "20.0 %", "10.0 %", "50.0 %", "50.0 %"]
    assert cells(text, "all_reduce") == said
    assert "mean over tables" in text
    assert "Step times" not in text


def test_sizes_of_collectives_sort_by_bytes_on_the_page():
    sizes = (1024, 25_000_000, 2**20, 2**30)
    found = page(validation([], [row(nbytes, 1e-3, 1e-3) for nbytes in sizes]))
    (table,) = [section for section in found.sections if section.title == "Every collective"]
    cells = [line[table.heads.index("size")] for line in table.rows]
    assert cells == ["1 KiB", "25 MB", "1 MiB", "1 GiB"]
    assert [cell.value for cell in cells] == list(sizes)


def test_where_the_ring_formula_is_nearer_by_more_than_the_noise_it_is_said():
    points = [step(0.1, 0.13, ring=0.12), step(0.1, 0.13, ring=0.129, cluster="rack")]
    text = printed(validation(points, [row(2**20, 1.0, 1.4, ring=1.1)]))
    said = text[text.index("nearer, by more than the noise") :]
    assert "steps on box: 20.0 % against 30.0 %" in said
    assert "all_reduce on box, 8 ranks: 10.0 % against 40.0 %" in said
    assert "rack" not in said
    assert "nearer" not in printed(validation([step(0.1, 0.12, ring=0.2)]))


def test_no_number_is_cut_on_a_narrow_terminal():
    assert "…" not in printed(two_clusters())


@for_each(
    ("chosen", "said"),
    [
        ({}, ""),
        ({"cluster.world_size": 8, "strategy.overlap": False}, "world_size 8, overlap false"),
        ({"strategy.kind": "single"}, "strategy single"),
        ({"strategy": {"kind": "ddp", "bucket_cap": "1 MiB"}}, "strategy ddp(bucket_cap 1 MiB)"),
        ({"cluster.stragglers.0": None, "x.ends": [1, 2.5]}, "stragglers.0 none, ends [1, 2.5]"),
    ],
)
def test_what_a_point_sets_is_written_short(chosen, said):
    assert words.setting(chosen) == said


def test_values_with_keys_of_their_own_are_named_by_their_kind():
    points = [{"microbatch": 64, "step_time": "97 ms"}]
    compute = {"kind": "measured", "points": points, "forward_fraction": 0.33}
    said = words.setting({"workload.compute": compute})
    assert said == "compute measured(forward_fraction 0.33)"


def test_keys_in_common_are_those_that_would_be_written_alike():
    a = {"x.compute": {"kind": "measured", "points": [1]}, "x.batch": 1, "x.size": 2}
    b = {"x.compute": {"kind": "measured", "points": [2]}, "x.batch": 3}
    assert words.in_common([a, b]) == ["x.compute"]
    assert words.in_common([a]) == list(a)


def test_times_have_the_unit_that_suits_them():
    assert [words.time(t) for t in (2.0, 0.0125, 5e-6)] == ["2 s", "12.5 ms", "5 us"]
    assert words.interval(0.9, 1.1) == "0.9 ... 1.1 s"


def test_intervals_sort_by_seconds_whatever_their_unit():
    rising = [(90e-6, 95e-6), (5e-3, 6e-3), (0.8, 0.99), (0.9, 1.1), (2.0, 3.0)]
    assert [words.interval(*ends).value for ends in rising] == pytest.approx(
        [low for low, _ in rising]
    )


def covered(inside, num_points):
    """Steps of which some lie in their intervals, which `step` makes 10 % wide each way."""
    return validation([step(0.1, 0.1 if i < inside else 0.2) for i in range(num_points)])


def test_intervals_that_hold_fewer_than_chance_explains_are_said_to_be_too_narrow():
    """Of 100 steps at 90 %, fewer than 85 are inside by chance in 4 of 100 cases."""
    for inside, num_points, is_low in ((77, 100, True), (84, 100, True), (86, 100, False)):
        study = covered(inside, num_points)
        (coverage,) = study.coverages()
        assert (coverage.inside, coverage.num_points) == (inside, num_points)
        assert coverage.is_too_low is is_low
        assert ("intervals are too narrow" in " ".join(printed(study).split())) is is_low
    assert not covered(7, 9).coverages()[0].is_too_low  # so few tell nothing
    assert covered(5, 9).coverages()[0].is_too_low


def test_a_validation_whose_intervals_are_too_narrow_gets_no_tick():
    for inside, level in ((77, "note"), (92, "good")):
        first, *warnings = page(covered(inside, 100), "", target=1.0).sections
        assert first.level == level
        said = [line for one in warnings if isinstance(one, Verdict) for line in one.lines]
        assert any("intervals are too narrow" in line for line in said) == (level == "note")


def test_the_binomial_tail_is_the_sum_of_its_terms():
    assert binomial_tail(1, 3, 0.9) == pytest.approx(0.001 + 3 * 0.9 * 0.01)
    assert binomial_tail(3, 3, 0.9) == pytest.approx(1.0)
