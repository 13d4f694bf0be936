"""Eight virtual ranks of a torch script beside one process with all of their samples.

    python -m benchmarks.torchrun [--steps N]

CPU time of a language model of ten million parameters under DDP and AdamW: ``simdp torchrun`` with
eight ranks of four samples each, and plain torch with 32. Both train as many steps; what a run of
one step takes, imports above all, is taken off, and said by itself. Needs torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Row, show

RANKS, SAMPLES, TOKENS = 8, 4, 128

SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

VOCABULARY, WIDTH, LAYERS = 2048, 320, 7
steps, samples, tokens = map(int, sys.argv[1:])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 5, 4 * WIDTH, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


torch.manual_seed(0)
model = Model()
together = "RANK" in os.environ
if together:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    model = nn.parallel.DistributedDataParallel(model.to(device), device_ids=[device])
else:
    device = "cpu"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(steps):
    x = torch.randint(VOCABULARY, (samples, tokens), device=device)
    loss = cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def cpu_seconds(folder: Path, command: list[str]) -> float:
    """CPU time of a process [s]."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = str(Path(__file__).parents[1])
    environ["PYTHONPATH"] = os.pathsep.join([root, environ.get("PYTHONPATH", "")])
    before = os.times()
    subprocess.run(
        [sys.executable, *command], check=True, cwd=folder, env=environ, capture_output=True
    )
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def measured(steps: int) -> tuple[float, float, float, float]:
    """CPU time per step of all ranks and of one process; of a run of one step of each [s]."""
    ranks = ["-m", "simdp", "torchrun", "--cluster", "dgx-a100", "--no-plots", "--quiet"]
    ranks += ["--nproc-per-node", str(RANKS), "train.py"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)

        def run(command: list[str], count: int, samples: int) -> float:
            arguments = [str(count), str(samples), str(TOKENS)]
            return cpu_seconds(folder, [*command, *arguments])

        one = [run(["train.py"], count, RANKS * SAMPLES) for count in (1, 1 + steps)]
        all_of_them = [run(ranks, count, SAMPLES) for count in (1, 1 + steps)]
    each = [(last - first) / steps for first, last in (all_of_them, one)]
    return each[0], each[1], all_of_them[0], one[0]


def rows(steps: int) -> list[Row]:
    """What was measured."""
    ranks, one, begun, alone = measured(steps)
    ratio = ranks / one
    return [
        ("a step of one process, 32 samples", f"{one:.2f} s", "", True),
        (f"a step of {RANKS} virtual ranks, {SAMPLES} samples each", f"{ranks:.2f} s", "", True),
        ("virtual ranks over one process", f"{ratio:.2f}", "<= 2", ratio <= 2),
        ("a run of one step, one process", f"{alone:.1f} s", "", True),
        (f"a run of one step, {RANKS} virtual ranks", f"{begun:.1f} s", "", True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torchrun")
    parser.add_argument("--steps", type=int, default=6, help="steps that are compared")
    return show("torch scripts, CPU time", rows(parser.parse_args().steps))


if __name__ == "__main__":
    raise SystemExit(main())
