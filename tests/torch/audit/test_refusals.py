"""What an audit of a script refuses, in one line each."""

import pytest
from for_each import for_each

from simdp.errors import ScenarioError, SimdpError

pytest.importorskip("torch")

from simdp.torch.audit import ScriptAudit, audit_script

SAVED = {"save_arg": "--save {checkpoint}", "resume_arg": "--resume {checkpoint}"}


def refused(**given):
    with pytest.raises(ScenarioError) as raised:
        audit_script(ScriptAudit(**given))
    (problem,) = raised.value.problems
    assert "\n" not in problem
    return problem


@for_each(
    ("given", "message"),
    [
        ({"ranks": (2, 2)}, "--ranks 2,2: give two numbers of ranks at least, as 1,2."),
        (
            {"save_arg": "--save", "resume_arg": "--resume {checkpoint}"},
            "--save-arg '--save': has no {checkpoint}, which stands for the path; write "
            "'--save {checkpoint}'.",
        ),
        (
            {"save_arg": "--save {checkpoint}"},
            "--save-arg: needs --resume-arg as well, to stop the script and resume it.",
        ),
        (
            {"resume_arg": "--resume {checkpoint}"},
            "--resume-arg: needs --save-arg as well, to stop the script and resume it.",
        ),
        (
            {"at_step": 3},
            "--at-step: needs --save-arg and --resume-arg, to resume from there.",
        ),
        (
            {**SAVED, "at_step": 24},
            "--at-step 24: nothing is left of 24 steps; give --max-steps 48.",
        ),
        (
            {"batch_arg": "--batch-size 8"},
            "--batch-arg '--batch-size 8': has none of {per_rank}, {global_batch} and {ranks}; "
            "write for example '--batch-size {per_rank}'.",
        ),
    ],
)
def test_options_that_do_not_fit(given, message):
    assert refused(script="train.py", **given) == message


TRAINS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--save")
given = parser.parse_args()
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(given.steps):
    (model(torch.ones(2, 3)).sum() / given.steps).backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    return "train.py"


@for_each(
    ("given", "message"),
    [
        (
            {"arguments": ("--steps", "0")},
            "audit: train.py makes no optimizer step; audit a script that trains, with arguments "
            "that let it.",
        ),
        (
            {"arguments": ("--stops", "0")},
            "audit: the script fails on 1 rank: train.py: error: unrecognized arguments: "
            "--stops 0; run it with simdp torchrun --nproc-per-node 1 first.",
        ),
        (
            SAVED,
            "--save-arg: no checkpoint was written on 2 ranks within 3 steps; give an argument "
            "that writes {checkpoint}, and an interval below --max-steps.",
        ),
        (
            {**SAVED, "save_arg": "--keep {checkpoint}"},
            "--save-arg: the script fails on 2 ranks: train.py: error: unrecognized arguments: "
            "--keep *",
        ),
        (
            {"batch_arg": "--steps {ranks}", "arguments": ("--steps", "0")},
            "--batch-arg: the samples of a step on 2 ranks were not found; give the script's own "
            "arguments, and leave --batch-arg out.",
        ),
    ],
)
def test_scripts_that_cannot_be_compared(script, given, message):
    found = refused(script=script, ranks=(1, 2), **given)
    beginning, star, _ = message.partition("*")
    assert found.startswith(beginning) if star else found == message


KILLED = """
import os, signal
print("bye", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(KILLED)
    message = r"^audit: a run on (1 rank|2 ranks) ended without a result: bye$"
    with pytest.raises(SimdpError, match=message):
        audit_script(ScriptAudit("train.py", ranks=(1, 2)))


SPAWNS = """
import torch
import torch.multiprocessing as mp
from torch import nn

def train(rank):
    torch.distributed.init_process_group("gloo", rank=rank, world_size=3)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()

if __name__ == "__main__":
    mp.spawn(train, nprocs=3)
"""


def test_a_script_that_starts_its_own_number_of_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SPAWNS)
    assert refused(script="train.py", ranks=(1, 2)) == (
        "audit: the script starts 3 ranks itself where 1 are asked for; let it start as many as "
        "torch.cuda.device_count(), or give their number by --batch-arg, as '--world-size {ranks}'."
    )
