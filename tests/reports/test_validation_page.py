"""The page of a validation."""

import re

from measured_times import row, step, two_clusters, validation

from simdp.reports.validation_table import page, pictures


def section(text, head):
    """What stands between a heading and the next one."""
    return text.split(f"## {head}\n")[1].split("\n## ")[0]


def test_every_table_has_as_many_cells_in_each_row_as_in_its_head():
    text = page(two_clusters(), {}, 0.1)
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(blocks) > 5
    for block in blocks:
        counts = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1


def test_a_missed_point_says_what_is_missing_and_how_much():
    points = [
        step(0.1, 0.12, note="the switch is shared: 20 ms"),
        step(0.1, 0.14, scenario="bert"),
        step(0.1, 0.2, role="calibration", scenario="vgg"),
        step(0.1, 0.101, scenario="gpt2"),
    ]
    missed = section(page(validation(points), {}, 0.1), "Missed by more than 10.0 %")
    assert "the switch is shared: 20 ms" in missed
    assert re.search(r"bert .* no effect is known", missed)
    assert "vgg" not in missed
    assert "gpt2" not in missed


def test_a_missed_table_is_one_whose_mean_is():
    rows = [row(2**20, 1.0, 1.4, note="slow start"), row(2**21, 1.0, 1.0, table=1)]
    missed = section(page(validation(rows=rows), {}, 0.1), "Missed by more than 10.0 %")
    assert missed.count("all_reduce") == 1
    assert "slow start" in missed


def test_a_page_without_misses_says_so():
    assert "No predicted step, and no table in its mean." in page(validation([step()]), {}, 0.1)


def test_the_page_says_where_the_ring_formula_is_nearer():
    text = page(validation([step(0.1, 0.13, ring=0.12)]), {}, 0.1)
    lost = section(text, "The ring formula is nearer, by more than the noise")
    assert "- steps on box: 20.0 % against 30.0 %" in lost


def test_what_was_left_out_stands_with_its_reason_and_figures_with_their_source():
    text = page(two_clusters(), {}, 0.1)
    assert "a shared \\| machine" in section(text, "Left out")
    assert "- `rack_resnet`: made up" in section(text, "Sources")


def test_pictures_are_shown_and_described():
    text = page(two_clusters(), {"a.png": "Two clusters"}, 0.1)
    assert "![Two clusters](a.png)" in text


def test_there_is_a_picture_of_steps_one_of_collectives_and_one_per_cluster_with_curves():
    assert [one.file for one in pictures(two_clusters())] == [
        "simulated_against_measured.png",
        "collectives_against_measured.png",
        "reliability.png",
        "throughput_box.png",
        "throughput_rack.png",
    ]
    assert pictures(validation([step()]))[0].part.rows == ()
    assert [one.kind for one in pictures(validation([step()]))] == ["simulated_against_measured"]
    rows = validation(rows=[row(2**20, 1.0, 1.0, cluster="a/b")])
    assert [one.file for one in pictures(rows)] == ["collectives_against_measured.png"]
