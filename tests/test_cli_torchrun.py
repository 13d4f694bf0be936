"""``python -m simdp torchrun``: what it prints and writes, and what it refuses."""

import io
import json
import signal
import sys
from importlib import metadata

import pytest
from for_each import for_each
from real_torch import torch_installed

from simdp.cli import run_command_line
from simdp.cli.torchrun import cluster_size, environment, output_prefixes
from simdp.distributed.launch import find

SCRIPT = """
import argparse, os
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--times", type=int)
arguments = parser.parse_args()
dist.init_process_group("nccl")
x = torch.ones(1_000_000)
for _ in range(arguments.times):
    dist.all_reduce(x)
print(os.environ["RANK"], x[0].item(), os.environ["MASTER_ADDR"], os.environ["ROLE_NAME"])
"""


@pytest.fixture
def torchrun(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    def torchrun(*arguments):
        status = run_command_line(["torchrun", *map(str, arguments)])
        found = capsys.readouterr()
        return status, found.out, found.err

    return torchrun


def needs_torch():
    pytest.importorskip("torch")


def test_a_script_prints_what_ranks_print_and_a_table(torchrun, tmp_path):
    needs_torch()
    status, out, err = torchrun(
        *("--nproc_per_node", 2, "-C", "dgx-h100", "--role", "mine", "--tee", 1),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "host:1234"),
        *("train.py", "--times", "2"),
    )
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [f"[mine{rank}]:{rank} 4.0 host mine" for rank in range(2)]
    assert lines[2].split() == [
        *("rank", "compute", "communication", "exposed", "wait", "idle", "end")
    ]
    assert lines[3].split()[0] == "0-1"
    assert lines[4].startswith("2 ranks on dgx-h100: ")
    assert lines[4].endswith(" simulated; files in runs/train")
    assert {path.name for path in (tmp_path / "runs/train").iterdir()} == {
        *("trace.json", "timeline.png")
    }


def test_json_has_every_ranks_times_which_add_up(torchrun, tmp_path):
    needs_torch()
    status, out, err = torchrun(
        *("--nproc-per-node", "gpu", "--json", "--no-plots", "--out", tmp_path / "out"),
        *("--local-ranks-filter", "3", "train.py", "--times", "1"),
    )
    assert (status, err) == (0, "3 8.0 127.0.0.1 default\n")
    told = json.loads(out)
    assert (told["world_size"], told["cluster"]) == (8, "dgx-a100")
    for row in told["ranks"]:
        parts = ("compute_s", "exposed_comm_s", "wait_s", "idle_s")
        assert sum(row[part] for part in parts) == pytest.approx(row["end_s"])
        assert row["comm_s"] == pytest.approx(row["exposed_comm_s"])
        assert row["comm_s"] > 0
    assert told["simulated_s"] == pytest.approx(max(told["rank_s"]))


def test_a_deadlock_and_a_failure_have_their_status(torchrun, tmp_path):
    needs_torch()
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank():\n    dist.barrier()"
    )
    status, _, err = torchrun("--nproc-per-node", 2, "train.py")
    assert status == 4
    assert "rank 1 waits in barrier() of group default, call 2, for rank 0" in err
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    status, _, err = torchrun("train.py")
    assert (status, err) == (
        2,
        "rank 0 left with sys.exit(3): exitcode 3, local_rank 0; it is the first that failed, and "
        "the others were stopped.\n",
    )


TRAINING = """
import os, signal, sys
import torch, torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, steps):
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://localhost:1234")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        if step == 20 and rank == 0 and "ctrl-c" in sys.argv:
            os.kill(os.getpid(), signal.SIGINT)
    print("trained")

if __name__ == "__main__":
    steps = int(sys.argv[1])
    if "spawn" in sys.argv:
        mp.spawn(train, args=(steps,), nprocs=2)
    else:
        train(int(os.environ["RANK"]), steps)
"""


def test_a_script_ends_after_max_steps_with_its_table_and_files(torchrun, tmp_path):
    needs_torch()
    (tmp_path / "train.py").write_text(TRAINING)
    status, out, err = torchrun("--nproc-per-node", 2, "--max-steps", 5, "train.py", 200)
    assert (status, err) == (0, "")
    assert "trained" not in out
    assert out.splitlines()[-2].startswith("5 steps of ")
    assert out.splitlines()[-1].startswith("2 ranks on dgx-a100: ")
    assert (tmp_path / "runs/train/trace.json").exists()
    status, out, _ = torchrun(
        *("--max-steps", 5, "--json", "--no-plots", "train.py", 200, "spawn"),
    )
    told = json.loads(out)
    assert (status, told["world_size"], told["steps"]) == (0, 2, 5)
    assert 0 < told["step_s"] < told["simulated_s"] / 4


UNKNOWN = """
import torch

weight = torch.nn.Parameter(torch.eye(64))
optimizer = torch.optim.SGD([weight], 0.0)
for step in range(4):
    torch.linalg.cholesky(weight.detach())
    (weight @ weight).sum().backward()
    optimizer.step()
"""


def test_an_operator_without_a_formula_is_named(torchrun, tmp_path):
    needs_torch()
    (tmp_path / "train.py").write_text(UNKNOWN)
    status, out, err = torchrun("--no-plots", "train.py")
    assert (status, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("counted as elementwise: ")]
    status, out, _ = torchrun("--no-plots", "--json", "train.py")
    ((name, part),) = json.loads(out)["counted_as_elementwise"].items()
    assert name == "aten::linalg_cholesky_ex"
    assert line == f"counted as elementwise: {name}, {part:.1%}".replace("%", " %") + (
        " of the step's bytes"
    )
    assert 0.05 < part < 0.3
    (tmp_path / "train.py").write_text(UNKNOWN.replace("torch.linalg.cholesky", "torch.tril"))
    status, out, _ = torchrun("--no-plots", "train.py")
    assert (status, "counted as elementwise" in out) == (0, False)


def test_a_run_that_goes_on_prints_a_table_after_ten_steps(torchrun, tmp_path, monkeypatch):
    needs_torch()
    (tmp_path / "train.py").write_text(TRAINING)
    monkeypatch.setattr(sys, "__stderr__", report := io.StringIO())
    status, out, _ = torchrun("--nproc-per-node", 2, "--no-plots", "train.py", 10)
    assert (status, out.count("trained"), report.getvalue()) == (0, 2, "")
    status, out, _ = torchrun("--nproc-per-node", 2, "--no-plots", "train.py", 12)
    heading, *_, last = report.getvalue().splitlines()
    assert (status, heading.split()[0]) == (0, "rank")
    assert last.startswith("after 10 steps of ")
    assert last.endswith(" each; the run goes on, and Ctrl-C ends it with its table and files")


@pytest.fixture
def interruptible():
    """Let SIGINT interrupt, which a shell's background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", ["ranks", "spawn"])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_script_with_its_table_and_files(torchrun, tmp_path, how):
    needs_torch()
    (tmp_path / "train.py").write_text(TRAINING)
    ranks = 1 if how == "spawn" else 2
    status, out, err = torchrun(
        *("--nproc-per-node", ranks, "--no-plots", "train.py", 100_000, "ctrl-c", how)
    )
    assert (status, err.splitlines()[-1]) == (130, "stopped")
    assert "trained" not in out
    assert out.splitlines()[-2].split()[1:3] == ["steps", "of"]
    assert out.splitlines()[-1].startswith("2 ranks on dgx-a100: ")
    assert (tmp_path / "runs/train/trace.json").exists()


@for_each(
    ("arguments", "told"),
    [
        (
            ["--no-python"],
            "--no-python: other programs cannot run on virtual ranks; give a script.",
        ),
        (["--node-rank", 1], "--node-rank 1: this command runs all nodes; leave it out."),
        (["--rdzv-backend", "etcd"], "--rdzv-backend: unknown name 'etcd'; known: c10d, static."),
        (
            ["--max-restarts", 3],
            "--max-restarts 3: simdp does not restart ranks; leave it out, or write 0.",
        ),
        (["--max-restarts", -1], "--max-restarts -1: simdp does not restart ranks; leave it out"),
        (
            ["--standalone", "--nnodes", 2],
            "--nnodes 2: --standalone is for one node; leave one of them out.",
        ),
        (["--redirects", 3], "--redirects 3: lines of ranks are not written to files; leave it"),
        (["-r", "0:1,1:2"], "--redirects 0:1,1:2: lines of ranks are not written to files;"),
        (["--log-dir", "logs"], "--log-dir logs: lines of ranks are not written to files; leave"),
        (["--logs-specs", "mine"], "--logs-specs mine: lines of ranks are not written to files;"),
        (["--duplicate-stdout-filters", "a"], "--duplicate-stdout-filters a: lines of ranks are"),
        (["--duplicate_stderr_filters", "a"], "--duplicate-stderr-filters a: lines of ranks are"),
        (["--numa-binding", "node"], "--numa-binding node: cores that a process is bound to are"),
        (["--virtual-local-rank"], "--virtual-local-rank: a rank keeps its LOCAL_RANK and sees"),
        (["--signals-to-handle", "SIGUSR1"], "--signals-to-handle SIGUSR1: no signal is passed"),
        (["--event-log-handler", "console"], "--event-log-handler console: no agent runs that"),
        (["--print-completion", "zsh"], "--print-completion zsh: is for torchrun alone; write"),
        (["--rdzv-conf", "timeout"], "--rdzv-conf timeout: must be KEY=VALUE,..., as timeout=60."),
        (["--monitor-interval", "often"], "--monitor-interval often: must be seconds, as 0.1."),
        (["--shutdown-timeout", "1.5"], "--shutdown-timeout 1.5: must be whole seconds, as 30."),
        (["--start-method", "thread"], "--start-method thread: must be spawn, fork or forkserver."),
        (["--run-path", "-m"], "--run-path: runs a file, and -m a module; leave one of them out."),
        (["--max-steps", 0], "--max-steps 0: must be >= 1; leave it out for all steps."),
    ],
)
def test_flags_that_cannot_be_served_are_refused(torchrun, arguments, told):
    status, out, err = torchrun(*arguments, "train.py")
    assert (status, out) == (2, "")
    assert err.startswith(told)
    assert err.count("\n") == 1


VARIABLES = """
import os
names = ("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME")
print(*(os.environ[name] for name in names), end=" ")
print(*(os.environ[f"TORCHELASTIC_{name}"] for name in ("RUN_ID", "MAX_RESTARTS")))
"""


@for_each(
    ("arguments", "variables"),
    [
        ([], "127.0.0.1 29500 default none 0"),
        (["--max-restarts", 0], "127.0.0.1 29500 default none 0"),
        (["--rdzv-id", "job"], "127.0.0.1 29500 default job 0"),
        (["--master-addr", "a", "--local-addr", "b"], "a 29500 default none 0"),
        (["--local-addr", "b", "--master-port", 1], "b 1 default none 0"),
        (["--master-addr", "a", "--local-addr", "b", "--rdzv-backend", "c10d"], "b 29500 default"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "host:0"], "host 29400 default none 0"),
        (["--standalone", "--rdzv-endpoint", "host:1", "--rdzv-id", 7], "127.0.0.1 29500 default"),
        (["--nnodes", "1:1", "--standalone", "--role", "mine"], "127.0.0.1 29500 mine none 0"),
        (
            [
                *("--rdzv-conf", "timeout=60,join_timeout=9", "--monitor-interval", ".5"),
                *("--shutdown-timeout", 9, "--start-method", "fork", "--run-path"),
                *("--signals-to-handle", "SIGTERM,SIGINT", "--event-log-handler", "null"),
                *("--redirects", 0, "--node-rank", 0),
            ],
            "127.0.0.1 29500 default none 0",
        ),
    ],
)
def test_flags_without_an_effect_are_seen_in_the_environment_alone(
    torchrun, tmp_path, arguments, variables
):
    needs_torch()
    (tmp_path / "train.py").write_text(VARIABLES)
    status, out, err = torchrun("--no-plots", "--quiet", *arguments, "train.py")
    assert (status, err) == (0, "")
    assert out.startswith(variables)


def test_every_option_of_torchrun_is_accepted_or_refused_and_so_is_its_variable():
    needs_torch()
    import typer
    from torch.distributed.run import get_args_parser

    from simdp.cli.torchrun import command

    ours = {name: one for one in typer.main.get_command(command).params for name in one.opts}
    for action in get_args_parser()._actions:
        for name in set(action.option_strings) - {"-h", "--help"}:
            option = ours[name]
            assert action.nargs != 0 or option.is_flag or "completion" in name, name
            if type(action).__name__ in ("env", "check_env"):
                assert f"PET_{action.dest.upper()}" in str(option.envvar), name


def test_variables_of_torchrun_are_read(torchrun, tmp_path, monkeypatch):
    needs_torch()
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['WORLD_SIZE'])")
    for name, value in {"NNODES": "2", "NPROC_PER_NODE": "2", "STANDALONE": "0"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    assert torchrun("--no-plots", "--quiet", "train.py") == (0, "4\n" * 4, "")
    monkeypatch.setenv("PET_REDIRECTS", "3")
    assert torchrun("train.py")[2].startswith("--redirects 3 (PET_REDIRECTS): lines of ranks are")


def test_options_without_an_effect_are_named_in_one_note(torchrun, tmp_path, monkeypatch):
    needs_torch()
    (tmp_path / "train.py").write_text(VARIABLES)
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    options = [
        *("--rdzv-conf", "timeout=60", "--monitor-interval", ".5", "--shutdown-timeout", 0),
        *("--start-method", "fork", "--run-path", "--signals-to-handle", "SIGTERM"),
        *("--event-log-handler", "null", "--redirects", 0, "--tee", 0, "--role", "mine"),
    ]
    status, out, err = torchrun("--no-plots", "--nnodes", "1:2", *options, "train.py")
    assert (status, out.splitlines()[:2]) == (0, ["127.0.0.1 29500 mine none 0"] * 2)
    assert err.splitlines() == [
        "no effect on virtual ranks: --max-restarts (PET_MAX_RESTARTS), --rdzv-conf, "
        "--monitor-interval, --shutdown-timeout, --start-method, --run-path, --signals-to-handle, "
        "--event-log-handler",
        "--nnodes 1:2: the number of nodes does not change; takes 2",
    ]
    status, _, err = torchrun("--max-restarts", 2, "train.py")  # wins over the variable
    assert (status, err.partition(":")[0]) == (2, "--max-restarts 2")
    monkeypatch.setenv("PET_MAX_RESTARTS", "0")
    for nodes in ("2", "2:2"):
        assert torchrun("--no-plots", "--nnodes", nodes, "train.py")[2] == ""
    assert torchrun("--no-plots", "--quiet", *options, "train.py")[2] == ""


def test_the_mark_of_lines_follows_its_template():
    where = find("dgx-h100", 4, 2)
    marks = output_prefixes(
        "1", "", "mine", where, "${hostname}/${rank}/${local_rank} ${role_name} "
    )
    assert [mark["stdout"] for mark in marks[1:3]] == ["node0/1/1 mine ", "node1/2/0 mine "]


def test_without_torch_it_says_so(torchrun):
    if torch_installed():
        pytest.skip("torch is there")
    assert torchrun("train.py") == (
        2,
        "",
        "torchrun: needs torch, which is not installed; pip install 'simdp[torch]'.\n",
    )


def test_numbers_of_ranks_are_torchruns(tmp_path):
    found = cluster_size("dgx-h100", "1:2", "4")
    assert (found.where.cluster.world_size, found.where.cluster.local_size) == (8, 4)
    assert found.device_count == 8
    assert cluster_size("dgx-h100", "2", "auto").where.cluster.world_size == 16
    path = tmp_path / "slow.yaml"
    slow = "{kind: slow_rank, rank: 1, factor: 3}"
    path.write_text(f"cluster: {{machine: dgx-h100, stragglers: [{slow}]}}")
    assert cluster_size(path, "1", "2").device_count == 2


@for_each(
    ("call", "told"),
    [
        (
            lambda: cluster_size("dgx-h100", "0", "1"),
            "--nnodes 0: must be a number >= 1, or a range",
        ),
        (
            lambda: cluster_size("dgx-h100", "x:2", "1"),
            "--nnodes x:2: must be a number >= 1, or a range",
        ),
        (
            lambda: cluster_size("dgx-h100", "1", "cpu"),
            "--nproc-per-node cpu: must be a number >= 1, auto",
        ),
        (
            lambda: environment("", 1, "host:x", "", ""),
            "--rdzv-endpoint host:x: must be HOST:PORT",
        ),
        (
            lambda: output_prefixes("4", "", "", find("dgx-h100", 2, 2)),
            "--tee 4: must be 0, 1 (stdout), 2",
        ),
        (
            lambda: output_prefixes("0", "0,2", "", find("dgx-h100", 2, 2)),
            "--local-ranks-filter 0,2: must be some of 0 ... 1, as 0,1.",
        ),
    ],
)
def test_values_of_flags_are_checked(call, told):
    from simdp.errors import ScenarioError

    with pytest.raises(ScenarioError) as caught:
        call()
    assert str(caught.value).startswith(told)


def test_an_old_torch_is_refused(torchrun, monkeypatch):
    for old in ("2.4.1+cu121", "2.13.0"):
        monkeypatch.setattr(metadata, "version", lambda name, old=old: old)
        status, out, err = torchrun("train.py")
        assert (status, out) == (2, "")
        assert err == (
            f"torchrun: torch {old} is installed; needs 2.14 or later: pip install 'torch>=2.14'.\n"
        )
