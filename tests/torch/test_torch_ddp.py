"""DistributedDataParallel on virtual ranks: the weights of real processes with gloo, to the bit."""

import pytest

torch = pytest.importorskip("torch")

PREAMBLE = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


found = {}


def save(name, **values):
    found.update({f"{name}.{key}": value.detach().clone() for key, value in values.items()})


def batches(epochs=2):
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(48, 20), torch.randint(5, (48,)))
    sampler = DistributedSampler(data)
    torch.manual_seed(100 + rank)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from DataLoader(data, batch_size=4, sampler=sampler)


def model():
    torch.manual_seed(rank)  # DDP makes them equal
    return nn.Sequential(
        nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)
    )


def loss_of(net, x, y):
    return nn.functional.cross_entropy(net(x), y)
"""

PLAIN = """
ddp = DDP(model(), bucket_cap_mb=0.002)
optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
for x, y in batches():
    loss = loss_of(ddp, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
save("plain", loss=loss.detach(), drawn=torch.rand(3), **ddp.module.state_dict())
"""

ACCUMULATED = """
ddp = DDP(model(), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
for number, (x, y) in enumerate(batches()):
    if number % 2 == 0:
        with ddp.no_sync():
            loss_of(ddp, x, y).backward()
    else:
        loss_of(ddp, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
save("no_sync", **ddp.module.state_dict())
"""

UNUSED = """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(20, 8), nn.Linear(20, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.last(self.first(x) if x[0, 0] > 0 else self.second(x))


torch.manual_seed(3)
ddp = DDP(Branches(), find_unused_parameters=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for x, y in batches():
    optimizer.zero_grad()
    loss_of(ddp, x, y).backward()
    optimizer.step()
save("unused", **ddp.module.state_dict())
"""

STATIC = """
ddp = DDP(model(), static_graph=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for x, y in batches():
    optimizer.zero_grad()
    loss_of(ddp, x, y).backward()
    optimizer.step()
save("static", **ddp.module.state_dict())
"""

HOOKS = """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook


def own(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].div_(world))


power = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, use_error_feedback=True)
for name, state, hook in (
    ("own", None, own),
    ("fp16", None, default_hooks.fp16_compress_hook),
    ("power", power, powerSGD_hook.powerSGD_hook),
    ("builtin", None, None),
):
    ddp = DDP(model())
    if hook is None:
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    else:
        ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for x, y in batches(1):
        optimizer.zero_grad()
        loss_of(ddp, x, y).backward()
        optimizer.step()
    save(name, **ddp.module.state_dict())
"""

ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer

ddp = DDP(model())
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
for x, y in batches():
    optimizer.zero_grad()
    loss_of(ddp, x, y).backward()
    optimizer.step()
optimizer.consolidate_state_dict(0)
save("zero", **ddp.module.state_dict())
"""

JOIN = """
ddp = DDP(model())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
with ddp.join():
    for x, y in list(batches())[: 3 + rank]:
        optimizer.zero_grad()
        loss_of(ddp, x, y).backward()
        optimizer.step()
save("join", **ddp.module.state_dict())
"""


END = """
torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
"""


def test_weights_are_those_of_real_processes(same):
    parts = PREAMBLE, PLAIN, ACCUMULATED, UNUSED, STATIC, HOOKS, ZERO, JOIN, END
    result, found = same("".join(parts), 3)
    assert {name.partition(".")[0] for name in found} == {
        *("plain", "no_sync", "unused", "static", "own", "fp16", "power", "builtin", "zero"),
        "join",
    }
    assert result.simulated_s > 0
