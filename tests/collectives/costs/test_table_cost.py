"""Measured tables: between their sizes, beyond them, and for other ranks and collectives."""

from math import inf
from pathlib import Path

import pytest
from for_each import for_each

from simdp.collectives.costs import Wiring
from simdp.collectives.costs.table import TableCost
from simdp.errors import ScenarioError

GOLDEN = Path(__file__).parents[2] / "golden"

TABLE = """# collective: all_reduce
# nranks: 4
size_bytes,time_us
1024,20
4096,20
1048576,200
4194304,800
"""


def wiring(n):
    return Wiring(n, 1, n, 1e-6, 1e9, 0.0, inf, 0)


@pytest.fixture
def table(tmp_path):
    def table(text=TABLE):
        (tmp_path / "job.csv").write_text(text)
        return TableCost(path="job.csv").settled(tmp_path)

    return table


def test_measured_sizes_take_what_they_took(table):
    for nbytes, micro in ((1024, 20), (1048576, 200), (4194304, 800)):
        assert table().seconds("all_reduce", nbytes, wiring(4)) == pytest.approx(micro * 1e-6)


def test_between_sizes_logarithms_lie_on_a_line(table):
    assert table().seconds("all_reduce", 2**16, wiring(4)) == pytest.approx(1e-6 * 4000**0.5)


def test_beyond_the_table_bandwidth_holds_and_below_it_the_floor(table):
    assert table().seconds("all_reduce", 2**26, wiring(4)) == pytest.approx(800e-6 * 16)
    assert table().seconds("all_reduce", 1, wiring(4)) == pytest.approx(20e-6)


def test_more_ranks_send_more_bytes_and_raise_the_floor_by_the_logarithm(table):
    ratio = (2 * 15 / 16) / (2 * 3 / 4)
    same_bytes = 2**22 / ratio
    wanted = 800e-6 + 20e-6 * (4 / 2 - 1)
    assert table().seconds("all_reduce", same_bytes, wiring(16)) == pytest.approx(wanted)
    assert table().seconds("all_reduce", 1, wiring(2)) == pytest.approx(10e-6)


def test_another_collective_takes_as_long_as_the_same_bytes_on_the_wire(table):
    assert table().seconds("all_gather", 2**22, wiring(4)) == pytest.approx(
        table().seconds("all_reduce", 2**21, wiring(4))
    )
    assert table().seconds("barrier", 0, wiring(4)) == pytest.approx(20e-6)


def test_a_log_of_several_collectives_serves_each_by_its_own(table):
    both = TABLE + "# collective: all_gather\nsize_bytes,time_us\n1024,7\n2048,8\n"
    assert table(both).seconds("all_gather", 1024, wiring(4)) == pytest.approx(7e-6)
    assert table(both).seconds("broadcast", 1024, wiring(4)) == pytest.approx(20e-6)


def test_a_single_rank_takes_no_time(table):
    assert table().seconds("all_reduce", 2**20, wiring(1)) == 0


def test_a_real_log_and_a_real_csv_are_read():
    log = TableCost(path="nccl_all_reduce_2x4.log").settled(GOLDEN)
    assert log.seconds("all_reduce", 1024, wiring(8)) == pytest.approx(80e-6)
    name = "nccl/a100-sxm4-80-nvswitch-mpi_1x8_all_reduce.csv"
    assert TableCost(path=name).settled(GOLDEN).seconds("all_reduce", 2**25, wiring(8)) > 0


def test_equal_files_make_equal_costs(table):
    assert table() == table()
    assert table() != table(TABLE.replace("800", "900"))


def test_a_table_must_be_read_first():
    with pytest.raises(ValueError, match=r"job\.csv has not been read; call settled"):
        TableCost(path="job.csv").seconds("all_reduce", 1, wiring(4))


@for_each(
    ("text", "said"),
    [
        ("hello\n", "has no table of nccl-tests"),
        (TABLE.replace("# nranks: 4\n", ""), "has no number of ranks; add"),
        (TABLE.replace("nranks: 4", "nranks: 1"), "is a log of a single rank; give"),
        (TABLE.replace("all_reduce", "hypercube"), "has hypercube only; give a log of all_reduce"),
        (TABLE.replace("# collective: all_reduce\n", ""), "has no name of its collective; add"),
        (TABLE + "12,x\n", "job.csv:8: size 12 with time x"),
    ],
)
def test_what_is_no_such_log_is_refused_with_the_reason(table, text, said):
    with pytest.raises(ScenarioError) as caught:
        table(text)
    assert said in caught.value.problems[0]
