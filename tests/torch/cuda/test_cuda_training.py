"""Training on virtual devices: the numbers of training on the CPU, and FSDP2's overlap."""

import pytest

torch = pytest.importorskip("torch")

from simdp.torch.cuda.faking import faked  # noqa: E402

DDP = """
import os
import sys
import torch
import torch.distributed as dist
import torch.nn as nn

folder, kind = sys.argv[1:]
cuda = kind == "cuda"
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.BatchNorm1d(64), nn.Linear(64, 10)
).to(device)
ddp = nn.parallel.DistributedDataParallel(net, device_ids=[rank] if cuda else None)
adam = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
torch.manual_seed(rank)
for _ in range(3):
    x, y = torch.randn(4, 32).to(device), torch.randint(0, 10, (4,)).to(device)
    adam.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    adam.step()
    if cuda:
        held = torch.cuda.memory_allocated()
if cuda:  # weights and counters, two states, gradients, buckets
    nbytes = 4 * sum(p.numel() for p in net.parameters())
    assert 5 * nbytes <= held < 5 * nbytes + 20_000, (held, nbytes)
torch.save({name: t.cpu() for name, t in net.state_dict().items()}, f"{folder}/{kind}{rank}.pt")
"""

FSDP = """
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

folder, kind = sys.argv[1:]
dist.init_process_group()
rank = dist.get_rank()
if kind == "cuda":
    torch.cuda.set_device(rank)
torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))] * 1,
                    nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))).to(kind)
mesh = dist.init_device_mesh(kind, (dist.get_world_size(),))
for block in net:
    fully_shard(block, mesh=mesh)
fully_shard(net, mesh=mesh)
adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
torch.manual_seed(rank)
for _ in range(2):
    adam.zero_grad()
    net(torch.randn(4, 32).to(kind)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    adam.step()
whole = {name: t.full_tensor().cpu() for name, t in net.state_dict().items()}
torch.save(whole, f"{folder}/{kind}{rank}.pt")
"""


@pytest.mark.parametrize("text", [DDP, FSDP], ids=["ddp", "fsdp2"])
def test_weights_are_those_of_ranks_on_the_cpu(text, virtually, tmp_path):
    for kind in ("cpu", "cuda"):
        virtually(text, 2, tmp_path, kind)
    for rank in range(2):
        one, other = (torch.load(tmp_path / f"{kind}{rank}.pt") for kind in ("cpu", "cuda"))
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_ranks_without_numbers_take_as_long(virtually, tmp_path):
    real = virtually(DDP, 2, tmp_path, "cuda")
    with faked(True):
        fake = virtually(DDP, 2, tmp_path, "cuda")
    assert fake.clocks == pytest.approx(real.clocks, rel=1e-9)


def test_inference_mode_takes_as_long_as_no_grad_and_stays_on_the_device():
    from virtual_rank import virtual_rank

    seconds = []
    for mode in (torch.no_grad, torch.inference_mode):
        with virtual_rank() as here:
            net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).cuda()
            with mode():
                images = torch.ones(64, 256, dtype=torch.uint8).cuda()
                begin = here.rank.clock
                out = net(images.to(torch.float32).reshape(32, 2, 256)).flatten(1)
                assert out.is_cuda
            seconds.append(here.rank.clock - begin)
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)
    assert seconds[0] > 0


ASKING = """
import sys
import torch
import torch.distributed as dist
import torch.nn as nn

if sys.argv[1:]:
    torch.cuda.get_device_capability()  # of device 0, on all ranks
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
net = nn.parallel.DistributedDataParallel(nn.Linear(32, 64).cuda())
net(torch.ones(4, 32, device="cuda")).sum().backward()
"""


def test_a_query_of_another_device_moves_no_compute(virtually):
    spans = [list(virtually(ASKING, 2, *given).trace.spans) for given in ((), ("first",))]
    assert spans[0] == spans[1]
    assert {span.rank for span in spans[0] if span.activity == "backward"} == {0, 1}


WHOLE_NUMBERS = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
counts = torch.tensor([3 * dist.get_rank() + 2, -3 * dist.get_rank() - 2], device="cuda")
dist.all_reduce(counts, dist.ReduceOp.AVG)
assert counts.tolist() == [3, -3], counts
"""


def test_whole_numbers_are_averaged_towards_zero_on_gpus(virtually):
    virtually(WHOLE_NUMBERS)
