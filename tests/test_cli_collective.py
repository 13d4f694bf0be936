"""``python -m simdp collective``: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from for_each import for_each

from simdp.cli import run_command_line

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
BOX = """\
# Which algorithm for which size?
cluster:
  world_size: 8
  devices_per_node: 4
  device: a100-sxm4-80gb
  link: nvlink3
  inter_node: {link: 100gbe}
"""
LINKS = "collectives: {cost: links}\n"
"""Without it, and without an algorithm, NCCL's model times these devices."""


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Ask for an all_reduce on a small cluster; return status, output, and lines of errors."""
    monkeypatch.chdir(tmp_path)
    Path("box.yaml").write_text(BOX)
    Path("links.yaml").write_text(f"name: box\n{BOX}{LINKS}")
    for log in GOLDEN.glob("nccl_*"):
        Path(log.name).write_text(log.read_text())

    def say(*arguments, collective="all_reduce", cluster="box.yaml"):
        given = ["collective", collective, "--cluster", cluster, *arguments]
        status = run_command_line([str(argument) for argument in given])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def files():
    return sorted(str(p) for p in Path("runs").rglob("*") if p.is_file())


SHORT = "--sizes", "1KiB:64KiB:8"


def test_it_prints_a_table_and_writes_json_and_a_plot(say):
    status, out, err = say(*SHORT, "--algorithm", "ring")
    assert (status, err) == (0, [])
    assert "all_reduce, ring, on box: 8 ranks" in out
    assert out.splitlines()[-1] == "files in runs/collective"
    assert files() == ["runs/collective/bandwidth.png", "runs/collective/collective.json"]


@pytest.mark.long
def test_several_world_sizes_are_drawn_against_time(say):
    assert say(*SHORT, "--world-size", "2:8", "--out", "runs/a", "--quiet") == (0, "", [])
    assert files() == [
        f"runs/a/{f}" for f in ("bandwidth.png", "collective.json", "world_size.png")
    ]


def test_json_prints_the_file_and_nothing_else(say):
    status, out, err = say(*SHORT, "--json", "--no-plots", "--algorithm", "ring")
    assert (status, err) == (0, [])
    assert out == Path("runs/collective/collective.json").read_text()
    assert files() == ["runs/collective/collective.json"]
    assert json.loads(out)["curves"][0]["world_size"] == 8


def test_without_an_algorithm_auto_chooses_and_says_where_it_changes(say):
    _, out, _ = say("--no-plots", "--sizes", "1KiB:64MiB:4", cluster="links.yaml")
    (curve,) = json.loads(Path("runs/collective/collective.json").read_text())["curves"]
    assert curve["algorithm"] == "auto"
    assert curve["crossovers"]
    for crossover in curve["crossovers"]:
        assert f"on: {crossover['now']} instead of {crossover['before']}" in out


def test_sizes_reach_from_1_kib_to_1_gib_if_none_are_given(say):
    say("--no-plots", "--algorithm", "ring", "--quiet")
    (curve,) = json.loads(Path("runs/collective/collective.json").read_text())["curves"]
    assert [point["size_bytes"] for point in curve["points"]] == [1024 << k for k in range(21)]


def test_algorithms_may_have_options_and_be_repeated(say):
    _, out, _ = say(*SHORT, "--algorithm", "{kind: ring, slices: 4}", "--algorithm", "tree")
    assert "all_reduce, ring(slices=4), on box" in out
    assert "all_reduce, tree, on box" in out


def test_dtype_and_root_stand_in_their_columns(say):
    rooted = "--dtype", "half", "--root", "2", "--sizes", "1 KiB", "--no-plots"
    _, out, _ = say(*rooted, collective="broadcast")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["1024"])
    assert row[:5] == ["1024", "512", "half", "none", "2"]


def test_a_barrier_needs_no_sizes(say):
    status, out, _ = say("--world-size", "1:4", collective="barrier", cluster="links.yaml")
    assert status == 0
    assert out.count("barrier, recursive_doubling, on box") == 3
    assert "runs/collective/bandwidth.png" not in files()


def test_without_an_algorithm_or_a_cost_nccls_model_times_devices_of_the_catalogue(say):
    status, out, _ = say("--world-size", "1:4", collective="barrier")
    assert status == 0
    assert out.count("barrier, nccl, on box") == 3
    assert "clock: collectives.cost: nccl" in out
    assert "all_reduce, nccl, on box: 8 ranks" in say(*SHORT, "--no-plots")[1]


def test_process_groups_that_nccls_model_does_not_know_take_the_links(say):
    status, out, err = say(*SHORT, "--no-plots", "--split", "mod 2")
    assert (status, err) == (0, [])
    assert "all_reduce, auto, on box split mod 2: 4 ranks" in out


# --against ---------------------------------------------------------------------------------------


def against(log="nccl_all_reduce_2x4.log"):
    return "--no-plots", "--algorithm", "ring", "--against", log


def test_against_a_log_its_sizes_are_simulated(say):
    status, out, err = say(*against())
    assert (status, err) == (0, [])
    assert "time against nccl_all_reduce_2x4.log: mean error" in out
    (curve,) = json.loads(Path("runs/collective/collective.json").read_text())["curves"]
    assert [point["size_bytes"] for point in curve["points"]] == [1024 * 4**k for k in range(9)]
    assert all(point["measured_time_s"] for point in curve["points"])
    error = curve["points"][-1]["time_s"] / 10e-3 - 1
    assert curve["points"][-1]["error"] == pytest.approx(error)


def test_sizes_choose_among_those_of_a_log(say):
    say(*against(), "--sizes", "2KiB:1MiB:1024")
    (curve,) = json.loads(Path("runs/collective/collective.json").read_text())["curves"]
    sizes = [point["size_bytes"] for point in curve["points"]]
    assert sizes == [4096, 16384, 65536, 262144, 1048576]


def test_a_log_says_how_many_ranks_there_are(say):
    _, out, _ = say(*against("nccl_all_gather_old.log"), collective="all_gather")
    assert "all_gather, ring, on box: 4 ranks" in out


def test_a_csv_is_as_good_as_a_log(say):
    status, out, _ = say(*against("nccl_measured.csv"))
    assert status == 0
    assert "largest" in out


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("arguments", "line"),
    [
        (("--sizes", "1024"), '--sizes 1024: 1024 has no unit; write for example "25 MiB".'),
        (("--world-size", "x"), "--world-size x: is not 8, 2,4,8 or 2:64."),
        (
            ("--algorithm", "rign"),
            "--algorithm unknown all_reduce 'rign'. Did you mean 'ring'? ",
        ),
        (("--algorithm", "{kind: ring"), "--algorithm {kind: ring:1: is not valid YAML: "),
        (("--algorithm", "ring", "--algorithm", "ring"), "--algorithm ring: is given twice."),
        (("--algorithm", ""), "--algorithm unknown all_reduce 'none'; known: "),
        (("--root", "1"), "--root 1: all_reduce has no root; leave it out."),
        (("--root", "one"), "Invalid value for '--root': "),
        (("--dtype", "f32"), "--dtype: unknown dtype 'f32'. Did you mean 'float'? Known: "),
        (("--against", "no.log"), "no.log: there is no such file."),
        (("--world-size", "6"), "box.yaml: with world_size 6: cluster: world_size 6 is neither"),
        (
            (*against(), "--world-size", "4"),
            "--world-size 4: nccl_all_reduce_2x4.log is a log of 8 ranks; give 8.",
        ),
        (
            (*against(), "--world-size", "2:8"),
            "--world-size 2:8: a log is of one world size; give one.",
        ),
        (
            (*against(), "--sizes", "1 GiB"),
            "--sizes 1 GiB: nccl_all_reduce_2x4.log has sizes from 1024 B to 67108864 B, none of "
            "them in this range.",
        ),
        (against("nccl_all_gather_old.log"), "nccl_all_gather_old.log: is a log of all_gather, "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, line, say):
    status, out, err = say(*arguments)
    assert (status, out, len(err)) == (2, "", 1)
    assert err[0].startswith(line)
    assert not Path("runs").exists()


@pytest.mark.parametrize("option", ["--sizes", "--against"])
def test_a_barrier_moves_no_data(option, say):
    status, _, err = say(option, "1 KiB", collective="barrier")
    assert (status, err) == (2, [f"{option} 1 KiB: a barrier moves no data; leave it out."])


def test_nccl_tests_names_are_told_ours(say):
    assert say(collective="alltoall") == (2, "", ["'alltoall' is called all_to_all here."])


def test_a_machine_stands_for_a_cluster_and_a_cost_for_an_algorithm(say):
    status, out, err = say("--algorithm", "nccl", "--sizes", "8 MiB", cluster="dgx-a100")
    assert (status, err) == (0, [])
    assert "all_reduce, nccl, on dgx-a100: 8 ranks" in out
    assert "clock: collectives.cost: nccl" in out


def test_without_an_algorithm_the_scenarios_cost_is_taken(say, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("cluster: {machine: dgx-1}\ncollectives: {cost: {kind: nccl, launch: 7 ms}}\n")
    own, (nbytes, plain) = say("--sizes", "1 KiB", "--world-size", "8", cluster=path), (1024, 7e-3)
    assert own[0] == 0
    (point,) = json.loads(Path("runs/collective/collective.json").read_text())["curves"][0][
        "points"
    ]
    assert point["size_bytes"] == nbytes
    assert point["time_s"] > plain


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--algorithm", "{kind: nccl, launch: 5}"), "--algorithm launch: 5 has no unit"),
        (
            ("--algorithm", "nccl", "--split", "mod 2"),
            "--algorithm nccl: does not support process groups",
        ),
    ],
)
def test_a_cost_that_cannot_serve_is_refused(say, arguments, line):
    status, out, (found,) = say(*arguments, "--sizes", "1 KiB", cluster="dgx-1")
    assert (status, out) == (2, "")
    assert found.startswith(line)


def test_a_cluster_that_is_no_file_is_refused(say):
    status, out, (line,) = say(cluster="dgx-a900")
    assert (status, out) == (2, "")
    assert line.startswith(
        "--cluster dgx-a900: there is no such file, scenario or machine. Did you mean 'dgx-a100'?"
    )


def test_a_cluster_is_needed(capsys):
    assert run_command_line(["collective", "all_reduce"]) == 2
    assert capsys.readouterr().err.splitlines() == ["Missing option '--cluster'."]


def test_a_folder_that_cannot_be_written_to_gets_nothing(say):
    Path("taken").write_text("")
    status, out, err = say(*SHORT, "--out", "taken")
    assert (status, out, len(err)) == (2, "", 1)
    assert err[0].startswith("taken: is no folder; ")
