"""The table of pieces that ``run --verbose`` prints."""

import io

import pytest
from rich.console import Console

from simdp.reports.batch_table import MAX_ROWS, batch_table
from simdp.results.batches import Piece


def step(number, sizes, micro_steps=1):
    return [
        Piece(number, micro, rank, ((size, 5),) if size else (), (size, 2))
        for micro in range(micro_steps)
        for rank, size in enumerate(sizes)
    ]


def printed(steps, world_size=8):
    stream = io.StringIO()
    Console(file=stream, width=100).print(batch_table(steps, world_size))
    return [line.split() for line in stream.getvalue().splitlines() if line.strip()]


def test_every_device_has_a_line_in_every_step():
    lines = printed([step(1, [4, 4, 2]), step(2, [1, 1, 0])])
    assert ["step", "device", "input", "size", "output", "size"] in lines
    assert ["1", "0", "[4,", "5]", "[4,", "2]"] in lines
    assert ["1", "2", "[2,", "5]", "[2,", "2]"] in lines
    assert ["2", "2", "nothing"] in lines


def test_micro_steps_have_a_column_where_there_are_several():
    assert not any("micro-step" in line for line in printed([step(1, [4])]))
    lines = printed([step(1, [4], micro_steps=2)])
    assert ["1", "1", "0", "[4,", "5]", "[4,", "2]"] in lines


@pytest.mark.parametrize("num_devices", [1, 8, 64])
def test_of_a_long_run_the_first_steps_and_the_last_one_are_shown(num_devices):
    lines = printed(step(number, [4] * num_devices) for number in range(1, 501))
    rows = [line for line in lines if line[0].isdigit() and "[4," in line]
    numbers = {int(row[0]) for row in rows}
    assert {1, 500} <= numbers
    assert len(rows) <= max(MAX_ROWS, 2 * num_devices)
    (left_out,) = [line for line in lines if "out" in line]
    assert int(left_out[0]) == 500 - len(numbers)


def test_a_run_without_shapes_has_no_table():
    assert batch_table([], 8) is None


def test_ranks_beyond_the_first_ones_are_left_out():
    lines = printed([step(1, [4] * 64)], world_size=1000)
    assert ["ranks", "64", "...", "999", "are", "left", "out"] in lines
    lines = printed((step(number, [4] * 64) for number in range(1, 5)), world_size=65)
    assert ["2", "steps", "and", "ranks", "64", "...", "64", "are", "left", "out"] in lines
