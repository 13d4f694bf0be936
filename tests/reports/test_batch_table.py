"""The table of pieces that ``run --verbose`` prints."""

import io

from for_each import for_each
from rich.console import Console

from simdp.reports.batch_table import MAX_ROWS, batch_table
from simdp.results.result import MicrobatchPiece


def step(number, sizes, micro_steps=1):
    return [
        MicrobatchPiece(number, micro, rank, ((size, 5),) if size else (), (size, 2))
        for micro in range(micro_steps)
        for rank, size in enumerate(sizes)
    ]


def printed(steps, world_size=8):
    stream = io.StringIO()
    Console(file=stream, width=100).print(batch_table(steps, world_size))
    return [line.split() for line in stream.getvalue().splitlines() if line.strip()]


def test_devices_that_get_the_same_share_a_line_in_every_step():
    lines = printed([step(1, [4, 4, 2]), step(2, [1, 1, 0])])
    assert ["steps", "devices", "input", "size", "output", "size"] in lines
    assert ["1", "0-1", "[4,", "5]", "[4,", "2]"] in lines
    assert ["1", "2", "[2,", "5]", "[2,", "2]"] in lines
    assert ["2", "2", "nothing"] in lines


def test_steps_that_are_alike_share_their_lines():
    lines = printed([*(step(number, [4, 4]) for number in range(1, 21)), step(21, [4, 3])])
    rows = [line for line in lines if line[0][0].isdigit()]
    assert rows == [
        ["1-20", "0-1", "[4,", "5]", "[4,", "2]"],
        ["21", "0", "[4,", "5]", "[4,", "2]"],
        ["21", "1", "[3,", "5]", "[3,", "2]"],
    ]


def test_micro_steps_have_a_column_where_there_are_several():
    assert not any("micro-step" in line for line in printed([step(1, [4])]))
    lines = printed([step(1, [4], micro_steps=2)])
    assert ["1", "1", "0", "[4,", "5]", "[4,", "2]"] in lines


@for_each("num_devices", [1, 8, 64])
def test_of_a_long_run_the_first_steps_and_the_last_one_are_shown(num_devices):
    sizes = [[number, *range(2, num_devices + 1)] for number in range(1, 501)]
    lines = printed(step(number, one) for number, one in enumerate(sizes, 1))
    rows = [line for line in lines if line[0].isdigit() and "[" in line[2]]
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
    sizes = [*range(1, 65)]
    lines = printed((step(number, sizes[number:]) for number in range(1, 5)), world_size=65)
    assert ["2", "steps", "and", "ranks", "64", "...", "64", "are", "left", "out"] in lines
