"""Logs of nccl-tests, new and old, alone and among other output; their figures are made up."""

import re
from pathlib import Path

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.results.collective import NcclRow, read_nccl_tables, read_nccl_tests

GOLDEN = Path(__file__).parents[1] / "golden"
NEW = (GOLDEN / "nccl_all_reduce_2x4.log").read_text()
OLD = (GOLDEN / "nccl_all_gather_old.log").read_text()
CSV = (GOLDEN / "nccl_measured.csv").read_text()


@pytest.fixture
def read(tmp_path):
    """Write a log under a name that says nothing, and read it."""

    def read(text, collective="all_reduce", name="job.out"):
        path = tmp_path / name
        path.write_text(text)
        return read_nccl_tests(path, collective)

    return read


@pytest.fixture
def refused(read, tmp_path):
    def refused(text, collective="all_reduce", name="job.out"):
        with pytest.raises(ScenarioError) as caught:
            read(text, collective, name)
        (line,) = caught.value.problems
        return line.removeprefix(f"{tmp_path}/")

    return refused


def test_a_log_gives_sizes_and_out_of_place_times(read):
    log = read(NEW)
    assert len(log.rows) == 9
    assert log.rows[0] == NcclRow(1024, pytest.approx(80e-6))
    assert log.rows[-1] == NcclRow(67108864, pytest.approx(10e-3))
    assert (log.collective, log.world_size, log.dtype, log.redop, log.root) == (
        "all_reduce",
        8,
        "float",
        "sum",
        -1,
    )


def test_an_old_log_lacks_columns_and_counts_errors(read):
    log = read(OLD, "all_gather")
    assert [row.nbytes for row in log.rows] == [1024, 32768, 1048576]  # and no empty one
    assert log.rows[1].seconds == pytest.approx(24e-6)
    assert (log.collective, log.world_size, log.redop, log.root) == (None, 4, "none", None)


def test_a_csv_is_read_by_its_columns(read):
    log = read(CSV)
    assert log.rows == (NcclRow(1024, pytest.approx(20e-6)), NcclRow(65536, pytest.approx(40e-6)))
    assert (log.collective, log.world_size, log.dtype) == ("all_reduce", 8, None)


@for_each("tag", ["[1,0]<stdout>:", "[1,12]<stdout>: ", "0: ", "  7: "])
def test_what_launchers_write_before_each_line_is_taken_off(tag, read):
    tagged = "".join(tag + line for line in NEW.splitlines(keepends=True))
    assert read(tagged).rows == read(NEW).rows


@for_each(("unit", "scale"), [("us", 1), ("ms", 1e3), ("s", 1e6)])
def test_the_unit_of_time_is_the_tables(unit, scale, read):
    found = read(NEW.replace("(us)", f"({unit})"))
    assert found.rows[0].seconds == pytest.approx(80e-6 * scale)


def test_repeated_sizes_are_averaged(read):
    again = NEW.replace("    80.00  ", "   120.00  ")
    assert read(NEW + again).rows[0].seconds == pytest.approx(100e-6)


def test_of_a_log_of_several_collectives_one_is_taken(read):
    both = NEW + "# Collective test starting: all_gather_perf\n" + OLD
    assert read(both, "all_gather").rows == read(OLD, "all_gather").rows
    assert read(both).rows == read(NEW).rows
    assert (read(both).world_size, read(both, "all_gather").world_size) == (8, 4)


@for_each("name", ["nccl_all_gather.log", "2x8-AllGather.txt", "allgather.out"])
def test_a_files_name_may_tell_the_collective(name, read, refused):
    assert read(OLD, "all_gather", name).collective == "all_gather"
    assert refused(OLD, "broadcast", name) == f"{name}: is a log of all_gather, not of broadcast."


# What is refused ---------------------------------------------------------------------------------


def test_a_file_without_a_table_is_refused(refused):
    assert refused("Segmentation fault\n") == (
        "job.out: has no table of nccl-tests: no line that begins with # and names the columns "
        "size, time and busbw, with rows below; give the output of all_reduce_perf."
    )


def test_a_table_without_rows_is_none(refused):
    head = NEW[: NEW.index("        1024 ")]
    assert "has no table of nccl-tests" in refused(head)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"none\.log: there is no such file"):
        read_nccl_tests(tmp_path / "none.log", "all_reduce")


def test_a_log_of_another_collective_is_refused(refused):
    assert refused(NEW, "all_gather") == "job.out: is a log of all_reduce, not of all_gather."


def test_a_log_that_adds_is_none_of_what_does_not(refused):
    nameless = NEW.replace("all_reduce_perf", "test")
    assert refused(nameless, "all_gather") == (
        "job.out: its redop is sum, but all_gather does not add; this is the log of another "
        "collective."
    )
    assert refused(OLD) == (
        "job.out: its redop is none, but all_reduce adds; this is the log of another collective."
    )


def test_a_log_without_a_root_is_none_of_what_has_one(refused):
    nameless = NEW.replace("all_reduce_perf", "test")
    assert refused(nameless, "reduce") == (
        "job.out: its root is -1, but reduce has a root; this is the log of another collective."
    )
    rooted = nameless.replace("     sum      -1 ", "     sum       0 ")
    assert refused(rooted) == (
        "job.out: its root is 0, but all_reduce has no root; this is the log of another collective."
    )


def test_a_row_that_was_cut_off_is_refused_with_its_line(refused):
    number = next(i for i, line in enumerate(NEW.splitlines(), 1) if "16777216 " in line)
    cut = (
        "\n".join(NEW.splitlines()[: number - 1]) + "\n    16777216       4194304     float  sum\n"
    )
    assert refused(cut) == (f"job.out:{number}: has 4 cells for 13 columns; is the log cut off?")


@for_each("time", ["N/A", "0.00", "nan", "-1.0"])
def test_a_time_that_is_none_is_refused_with_its_line(time, refused):
    number = next(i for i, line in enumerate(NEW.splitlines(), 1) if "   80.00 " in line)
    assert refused(NEW.replace("   80.00 ", f"   {time} ")) == (
        f"job.out:{number}: size 1024 with time {time}; they must be whole bytes and a time > 0."
    )


@for_each("size", ["1e400", "1e300", "1024.5"])
def test_a_size_that_is_none_is_refused_with_its_line(size, refused):
    line = refused(CSV.replace("1024,", f"{size},"))
    assert (
        line == f"job.out:6: size {size} with time 20.00; they must be whole bytes and a time > 0."
    )


def test_an_unknown_unit_is_refused_with_its_line(refused):
    line = refused(NEW.replace("(us)", "(min)"))
    assert line.startswith("job.out:")
    assert line.endswith(": time in min; known: us, ms, s.")


def test_tables_of_different_world_sizes_are_refused(refused):
    smaller = "\n".join(line for line in NEW.splitlines() if "node1" not in line)
    assert refused(NEW + smaller + "\n") == (
        "job.out: has tables of 8 and 4 ranks; keep those of one."
    )


def test_ranks_may_be_listed_in_any_order(tmp_path):
    log = (Path(__file__).parents[1] / "golden" / "nccl_all_reduce_2x4.log").read_text()
    lines = log.splitlines(keepends=True)
    ranks = [line for line in lines if re.match(r"#\s+Rank", line)]
    assert len(ranks) > 1
    first = lines.index(ranks[0])
    turned = lines[:first] + ranks[::-1] + lines[first + len(ranks) :]
    file = tmp_path / "all_reduce.log"
    file.write_text("".join(turned))
    assert read_nccl_tests(file, "all_reduce").world_size == len(ranks)


def test_every_collective_of_a_log_is_read(tmp_path):
    path = tmp_path / "job.out"
    path.write_text(NEW + "\n# collective: all_gather\nsize_bytes,time_us\n8,5\n")
    logs = read_nccl_tables(path)
    assert [log.collective for log in logs] == ["all_gather", "all_reduce"]
    assert logs[0].rows == (NcclRow(8, pytest.approx(5e-6)),)


def test_the_hosts_of_the_ranks_are_the_nodes(read):
    assert read(NEW).num_nodes == 2
    assert read(CSV).num_nodes is None


def test_sizes_that_were_measured_twice_tell_how_far_they_differ(read):
    log = read(CSV + "1024,50.00,0.05,0.09\n")
    assert log.rows[0] == NcclRow(1024, pytest.approx(35e-6), pytest.approx(2.5))
    assert log.rows[1].spread == 1


def test_a_table_of_an_unknown_collective_is_refused(tmp_path):
    path = tmp_path / "job.csv"
    path.write_text("size_bytes,time_us\n8,5\n")
    with pytest.raises(ScenarioError) as caught:
        read_nccl_tables(path)
    assert caught.value.problems == [
        f"{path}: has no name of its collective; add a line such as # collective: all_reduce, or "
        "name the file so."
    ]
