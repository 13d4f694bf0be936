"""Writes real_diloco.json: weights of ranks that real torch trains by DiLoCo over gloo.

``python tests/golden/real_diloco.py`` on a machine with torch; the file here is torch 2.14.1's
(CPU). Each rank's own optimizer takes ``local_steps`` steps; then the weights are divided by the
number of ranks and summed, and ``torch.optim`` updates a copy of the weights of before with their
difference for a gradient.
"""

import json
import os
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

WIDTHS = (5, 8, 6, 2)
STEPS, GLOBAL_BATCH = 12, 12
KEPT = (4, 7, 12)
"""Steps after which the weights are kept."""

ADAMW = ("AdamW", {"lr": 0.02})
NESTEROV = ("SGD", {"lr": 0.7, "momentum": 0.9, "nesterov": True})
CASES = {
    "adamw, 2 ranks, every 4": (2, 4, ADAMW, NESTEROV),
    "adamw, 3 ranks, every 2": (3, 2, ADAMW, NESTEROV),
    "sgd, 2 ranks, every 3, outer sgd": (
        *(2, 3, ("SGD", {"lr": 0.1, "momentum": 0.9})),
        ("SGD", {"lr": 1.0}),
    ),
    "adamw, 2 ranks, every step, outer adam": (2, 1, ADAMW, ("Adam", {"lr": 0.05})),
}
"""Ranks, local steps, inner and outer optimizer."""


def first_weights():
    """Of all layers: weight, bias."""
    drawn = np.random.default_rng(22)
    for inputs, outputs in pairwise(WIDTHS):
        yield drawn.uniform(-1, 1, (outputs, inputs)) / np.sqrt(inputs)
        yield drawn.uniform(-1, 1, outputs) / np.sqrt(inputs)


def data():
    """Inputs and targets of all steps, in order."""
    drawn, size = np.random.default_rng(23), STEPS * GLOBAL_BATCH
    return drawn.standard_normal((size, WIDTHS[0])), drawn.standard_normal((size, WIDTHS[-1]))


def train(rank, world_size, local_steps, inner, outer):
    """Train one rank; return its weights, flat, after each of `KEPT`."""
    import torch
    import torch.distributed as dist

    layers = [torch.nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
    model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    model.double()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), first_weights(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    kept = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()]
    local = getattr(torch.optim, inner[0])(model.parameters(), **inner[1])
    whole = getattr(torch.optim, outer[0])(kept, **outer[1])
    x, y = (torch.from_numpy(array).split(GLOBAL_BATCH) for array in data())
    found = []
    for step in range(1, STEPS + 1):
        mine = [batch[step - 1].chunk(world_size)[rank] for batch in (x, y)]
        local.zero_grad()
        torch.nn.functional.mse_loss(model(mine[0]), mine[1]).backward()
        local.step()
        if step % local_steps == 0:
            with torch.no_grad():
                for own, before in zip(model.parameters(), kept, strict=True):
                    own /= world_size
                    dist.all_reduce(own)
                    before.grad = before - own
                whole.step()
                for own, before in zip(model.parameters(), kept, strict=True):
                    own.copy_(before)
        if step in KEPT:
            flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            found.append(flat.tolist())
    return found


def _process(rank, world_size, folder, options):
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29612")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    found = train(rank, world_size, *options)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main():
    """Start the processes, and write the file beside this one."""
    import torch
    from torch.multiprocessing import spawn

    found = {}
    for name, (world_size, *options) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            spawn(_process, (world_size, folder, options), nprocs=world_size)
            texts = [(Path(folder) / f"{rank}.json").read_text() for rank in range(world_size)]
        found[name] = [json.loads(text) for text in texts]
    text = {"torch": torch.__version__, "by": Path(__file__).name, **found}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in text.items())
    Path(__file__).with_suffix(".json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
