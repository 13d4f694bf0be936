"""FSDP2 and device meshes on virtual ranks: the weights of real processes with gloo, to the bit."""

import pytest

torch = pytest.importorskip("torch")

from simdp.errors import ProgramError  # noqa: E402

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 33), nn.Linear(33, 16)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


found = {}
mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, options in {"plain": {}, "hsdp": {"mesh": mesh}, "mixed": {"mp_policy": mixed}}.items():
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)], nn.Linear(16, 4))
    for block in model[:3]:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        model(torch.randn(8, 16, generator=generator)).float().square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    for key, value in model.state_dict().items():
        found[f"{name}.{key}"] = value.full_tensor()
torch.save(found, f"{sys.argv[1]}/{rank}.pt")
"""


def test_weights_are_those_of_real_processes(same):
    result, found = same(SCRIPT, 4)
    assert {name.partition(".")[0] for name in found} == {"plain", "hsdp", "mixed"}
    names = " ".join(result.trace.names)
    assert "all_gather_into_tensor" in names
    assert "reduce_scatter_tensor" in names


def test_a_mesh_that_nobody_gives_is_of_the_devices_that_the_script_uses(virtually, tmp_path):
    virtually(
        """
        import sys
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        found = []
        for options in ({}, {"mesh": init_device_mesh("cuda", (2,))}):
            torch.manual_seed(0)
            model = fully_shard(nn.Linear(6, 4).cuda(), **options)
            model(torch.ones(3, 6, device="cuda")).square().sum().backward()
            found.append(model.weight.grad.full_tensor())
        assert (found[0] == found[1]).all(), found
        """
    )


FSDP1 = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("gloo")
rank = dist.get_rank()
device = torch.device("cpu")
if torch.cuda.is_available():
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
found = {}
for name, options in {
    "plain": {},
    "mixed": {"mixed_precision": half},
    "after forward": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "none": {"sharding_strategy": ShardingStrategy.NO_SHARD},
}.items():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 16)) for _ in range(2)]
    model = nn.ModuleList(blocks)
    policy = ModuleWrapPolicy({nn.Sequential})
    model = FSDP(nn.Sequential(*model), auto_wrap_policy=policy, device_id=device, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        x = torch.randn(8, 16, generator=generator).to(device)
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with FSDP.summon_full_params(model):
        for key, value in model.named_parameters():
            found[f"{name}.{key}"] = value.detach().cpu().clone()
torch.save(found, f"{sys.argv[1]}/{rank}.pt")
"""


def test_weights_under_fsdp1_are_those_of_real_processes(same):
    result, found = same(FSDP1, 2)
    assert {name.partition(".")[0] for name in found} == {"plain", "mixed", "after forward", "none"}
    assert "all_gather_into_tensor" in " ".join(result.trace.names)


def test_memory_that_a_collective_uses_is_not_freed(virtually):
    text = """
    import torch
    import torch.distributed as dist
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    x = torch.ones(8, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    {wait}
    x.untyped_storage().resize_(0)
    """
    virtually(text.format(wait="work.wait()"))
    with pytest.raises(ProgramError, match=r"resize_: a pending collective or message uses this"):
        virtually(text.format(wait=""))
