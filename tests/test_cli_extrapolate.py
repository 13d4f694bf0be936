"""``python -m simdp extrapolate``: the table, the document, the files, and what it refuses."""

import json

import pytest
from for_each import for_each

from simdp.cli import run_command_line
from tests.studies.replay.kineto_job import Job
from tests.studies.test_extrapolate import JOB

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import torch.distributed as dist
dist.init_process_group("nccl")
model = nn.Sequential(nn.Linear(64, int(sys.argv[1])), nn.ReLU(), nn.Linear(int(sys.argv[1]), 10))
model = DistributedDataParallel(model.cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
print("trained")
"""


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB.split("measured: {s")[0])
    (tmp_path / "train.py").write_text(SCRIPT)
    Job().write(tmp_path / "rank0.json")

    def command(*arguments):
        status = run_command_line(["extrapolate", *map(str, arguments)])
        found = capsys.readouterr()
        return status, found.out, found.err

    return command


def test_a_scenario_gives_a_table_in_80_columns_and_files(command, tmp_path):
    on = ("--on", "dgx-a100,aws-p4d", "--gpus", "8:16", "--strategy", "ddp,fsdp")
    status, out, err = command("job.yaml", *on)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("job.yaml on 1 GPU: 20")
    assert sum("*" in line for line in lines[3:12]) == 2
    assert lines[-1] == "files in runs/job-extrapolate: a scenario of each machine"
    folder = tmp_path / "runs" / "job-extrapolate"
    assert {path.name for path in folder.iterdir()} == {
        *("extrapolation.json", "report.html", "dgx-a100.yaml", "aws-p4d.yaml")
    }
    page = (folder / "report.html").read_text()
    assert "aws-p4d" in page
    assert "extrapolate job.yaml" in page
    more = ("--set", "sweep={cluster.world_size: [8]}", "--quiet", "--no-plots")
    assert run_command_line(["run", str(folder / "aws-p4d.yaml"), *more]) == 0


@pytest.mark.long
def test_json_is_one_document_and_does_not_depend_on_workers(command, tmp_path):
    on = ("--on", "dgx-a100", "--gpus", "4,8", "--json", "--no-plots", "--out", tmp_path / "out")
    status, out, err = command("job.yaml", *on)
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["simdp", "recording", "points", "best", "remarks"]
    assert document["recording"]["device"] == "a100-sxm4-80gb"
    assert [point["gpus"] for point in document["points"]] == [4, 8]
    assert document["best"] == {"dgx-a100": 1}
    assert (tmp_path / "out" / "extrapolation.json").read_text() == out
    assert not (tmp_path / "out" / "report.html").exists()
    assert command("job.yaml", *on, "--workers", 2)[1] == out


def test_a_trace_is_replayed_and_its_profile_written(command, tmp_path):
    device = ("--device", "a100-sxm4-40gb", "--microbatch", 4)
    status, out, _ = command("rank0.json", "--gpus", "8", *device, "--no-plots")
    assert status == 0
    assert out.startswith("rank0.json on 2 GPUs: ")
    assert "aws-p4d" in out
    assert "- memory: of weights, gradients and optimizer; activations are in no trace" in out
    folder = tmp_path / "runs" / "rank0-extrapolate"
    assert (folder / "recording.csv").exists()
    more = ("--quiet", "--no-plots", "--out", str(tmp_path / "again"))
    assert run_command_line(["run", str(folder / "aws-p4d.yaml"), *more]) == 0


def test_quiet_prints_nothing(command):
    assert command("job.yaml", "--gpus", "2", "--quiet", "--no-plots") == (0, "", "")


@pytest.mark.extra
def test_a_script_is_recorded_on_one_virtual_gpu(command, tmp_path):
    pytest.importorskip("torch")
    status, out, err = command(
        *("--on", "dgx-h100", "--gpus", "8", "--no-plots", "train.py", "256")
    )
    assert (status, err) == (0, "trained\n")
    assert out.startswith("train.py on 1 GPU: ")
    assert "- compute: by each device's figures; --step-time takes one that was measured" in out
    assert (tmp_path / "runs/train-extrapolate/recording.operators.json").exists()


@for_each(
    "case",
    [
        (["job.yaml", "--gpus", "8", "--gradients", "1 MB"], "--gradients: is of traces, and job"),
        (["rank0.json", "--gpus", "8", "--step-time", "1 s"], "--step-time: is of scripts and"),
        (["job.yaml", "b.yaml", "--gpus", "8"], "b.yaml: one scenario is extrapolated at a time"),
        (["train.py", "--gpus", "8"], "--on: a script names no machine; write for example"),
        (["none", "--gpus", "8"], "none: there is no such file"),
        (["job.yaml", "--gpus", "0"], "--gpus 0: 0 is out of range"),
    ],
    ids=str,
)
def test_wrong_input_is_one_line(case, command):
    arguments, said = case
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1
