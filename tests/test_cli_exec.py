"""``python -m simdp exec``: what it prints and writes, and what it refuses."""

import inspect
import json
from pathlib import Path

import pytest

from simdp.cli import run_command_line
from simdp.cli.exec import execute
from simdp.distributed.launch import DEFAULT
from simdp.reports.trace_names import STREAM

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[1] / "scenarios"

HELLO = """\
import os, sys
import simdp.distributed as dist
dist.init_process_group()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
print(*[os.environ[name] for name in names], *sys.argv[1:])
dist.compute(seconds=1e-3)
"""


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run a program; return status, output, and lines of errors."""
    monkeypatch.chdir(tmp_path)
    Path("hello.py").write_text(HELLO)

    def say(*arguments):
        status = run_command_line(["exec", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def test_the_tutorials_program_sums_what_torch_sums(say):
    status, out, err = say(PROGRAMS / "all_reduce.py", "--world-size", 4)
    assert (status, err) == (0, [])
    lines = out.splitlines()
    assert lines[:4] == [f"rank {r} has [{1 + 2 * r} {2 + 2 * r}]" for r in range(4)]
    assert [line.split(" after ")[0] for line in lines[4:8]] == [
        f"rank {r} has [16 20]" for r in range(4)
    ]
    assert lines[8].startswith("4 ranks on dgx-a100: ")
    assert lines[8].endswith(" simulated; files in runs/all_reduce")
    assert sorted(path.name for path in Path("runs/all_reduce").iterdir()) == [
        "timeline.png",
        "trace.json",
    ]


def test_overlap_is_faster_and_stands_in_the_trace(say):
    status, out, _ = say(PROGRAMS / "overlap.py", "--world-size", 2, "--no-plots", "--", "3")
    assert status == 0
    times = [float(line.split()[1]) for line in out.splitlines()[:2]]
    assert times[1] < times[0]
    events = json.loads(Path("runs/overlap/trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    compute = [e for e in spans if e["tid"] == STREAM and " layer" in e["name"]]
    comm = [e for e in spans if e["name"].startswith("nccl")]
    assert len(compute) == 6
    beside = [
        c["name"]
        for c in comm
        for k in compute
        if k["ts"] < c["ts"] + c["dur"] - 1e-3 and c["ts"] < k["ts"] + k["dur"] - 1e-3
    ]
    assert len(beside) == 2  # all but the last of the asynchronous ones


def test_the_default_cluster_is_that_of_launch():
    assert inspect.signature(execute).parameters["cluster"].default == Path(DEFAULT)


def test_torchruns_options_place_the_ranks(say):
    status, out, _ = say("hello.py", "--nnodes", 2, "--nproc-per-node", 4, "--", "--lr", "0.1")
    assert status == 0
    assert out.splitlines()[:8] == [f"{r} {r % 4} 8 4 --lr 0.1" for r in range(8)]
    status, out, _ = say("hello.py", "--nproc-per-node", 2, "--quiet")
    assert out.splitlines() == ["0 0 2 2", "1 1 2 2"]


def test_json_is_all_that_stands_on_standard_output(say):
    status, out, err = say("hello.py", "--world-size", 2, "--json", "--no-plots", "--out", "here")
    assert status == 0
    assert json.loads(out) == {
        "program": "hello.py",
        "cluster": "dgx-a100",
        "world_size": 2,
        "simulated_s": 1e-3,
        "rank_s": [1e-3, 1e-3],
    }
    assert err == ["0 0 2 2", "1 1 2 2"]
    assert [path.name for path in Path("here").iterdir()] == ["trace.json"]


def test_a_scenario_gives_its_cluster(say):
    Path("box.yaml").write_text(
        "name: box\ncluster:\n  world_size: 3\n  device: a100-sxm4-80gb\n  link: nvlink3\n"
        "  stragglers: [{kind: slow_rank, rank: 1, factor: 2}]\n"
    )
    status, out, _ = say("hello.py", "--cluster", "box.yaml")
    assert status == 0
    assert out.splitlines()[-1] == "3 ranks on box: 2 ms simulated; files in runs/hello"


def test_a_program_that_takes_no_time_has_a_trace_and_no_picture(say):
    Path("empty.py").write_text("print('done')\n")
    status, out, _ = say("empty.py", "--world-size", 1)
    assert status == 0
    assert out.splitlines() == ["done", "1 rank on dgx-a100: 0 s simulated; files in runs/empty"]
    assert [path.name for path in Path("runs/empty").iterdir()] == ["trace.json"]


def test_a_program_that_raises_says_where_and_leaves_no_files(say):
    Path("wrong.py").write_text("import os\nif os.environ['RANK'] == '1':\n    raise KeyError(7)\n")
    status, out, err = say("wrong.py", "--world-size", 2)
    assert (status, out) == (2, "")
    assert err == [
        "rank 1 raised:",
        "Traceback (most recent call last):",
        '  File "wrong.py", line 3, in <module>',
        "    raise KeyError(7)",
        "KeyError: 7",
    ]
    assert not Path("runs").exists()


def test_a_deadlock_has_a_status_of_its_own(say):
    Path("stuck.py").write_text(
        "import simdp.distributed as dist\ndist.init_process_group()\n"
        "if dist.get_rank():\n    dist.barrier()\n"
    )
    assert say("stuck.py", "--world-size", 2) == (
        4,
        "",
        [
            "deadlock: rank 1 waits in barrier() of group default, call 1, for rank 0; rank 0 has "
            "ended"
        ],
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py"], "nowhere.py: there is no such file."),
        (["hello.py", "--world-size", 0], "--world-size 0: must be >= 1."),
        (["hello.py", "--nnodes", -1], "--nnodes -1: must be >= 1."),
        (["hello.py", "--nproc-per-node", 0], "--nproc-per-node 0: must be >= 1."),
        (
            ["hello.py", "--world-size", 4, "--nnodes", 2],
            "--world-size 4: is not --nnodes x --nproc-per-node = 2; leave it out.",
        ),
        (
            ["hello.py", "--world-size", 12],
            "dgx-a100: cluster.world_size 12 is neither one partly used node of 8 devices nor a "
            "multiple of devices_per_node; use 8 or 16.",
        ),
    ],
)
def test_wrong_input_is_one_line(say, arguments, said):
    assert say(*arguments) == (2, "", [said])


def test_a_rank_that_closes_its_output_closes_no_other(say):
    Path("closes.py").write_text(
        "import sys, simdp.distributed as dist\ndist.init_process_group()\n"
        "if not dist.get_rank():\n    sys.stdout.close()\n    sys.stderr.close()\n"
        "dist.barrier()\nprint(dist.get_rank())\n"
    )
    status, out, err = say("closes.py", "--world-size", 2, "--quiet", "--no-plots")
    assert (status, sorted(out.split()), err) == (0, ["0", "1"], [])


def test_a_rank_that_leaves_at_once_leaves_alone(say):
    for call, told in {"_exit(9)": "_exit(9)", "abort()": "abort()"}.items():
        Path("leaves.py").write_text(f"import os\nos.{call}\n")
        status, _, err = say("leaves.py", "--world-size", 2)
        assert (status, err) == (2, [f"rank 0 left with os.{told}."])
    Path("leaves.py").write_text("import os\nos._exit(0)\n")
    assert say("leaves.py", "--world-size", 2, "--quiet", "--no-plots")[0] == 0
    Path("leaves.py").write_text(
        "import os\npid = os.fork()\nif not pid:\n    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert say("leaves.py", "--world-size", 1, "--quiet", "--no-plots")[1].split() == ["7"]
