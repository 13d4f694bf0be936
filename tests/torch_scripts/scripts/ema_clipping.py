"""DDP with clipped gradients and averaged weights: EMA of a deep copy, SWA's AveragedModel, metrics
gathered as objects."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def blend(average, model, decay):
    own = dict(model.named_parameters())
    for name, parameter in average.named_parameters():
        parameter.mul_(decay).add_(own[name], alpha=1 - decay)
    for theirs, ours in zip(average.buffers(), model.buffers()):
        theirs.copy_(ours)


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    torch.manual_seed(rank)  # DDP takes rank 0's weights
    model = Net().to(device)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    average = copy.deepcopy(ddp.module).eval().requires_grad_(False)
    swa = AveragedModel(ddp.module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    norms = []
    for step in range(6):
        x = torch.randn(4, 8, device=device)
        y = torch.randint(0, 3, (4,), device=device)
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(ddp.parameters(), 0.5, error_if_nonfinite=True)
        nn.utils.clip_grad_value_(ddp.parameters(), 0.2)
        optimizer.step()
        blend(average, ddp.module, min(0.99, (1 + step) / (10 + step)))
        swa.update_parameters(ddp.module)
        norms.append(norm.item())

    with torch.no_grad():
        probe = torch.linspace(-1, 1, 16, device=device).view(2, 8)
        outputs = [average(probe).cpu(), swa(probe).cpu()]
    mine = {"rank": rank, "norms": norms, "who": f"rank {rank}" * (rank + 1)}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    told = [sum(each["norms"]) for each in everyone] if rank == 1 else [None, None]
    dist.broadcast_object_list(told, src=1)
    result = {"all": everyone, "told": told, "outputs": outputs}
    result["average"] = {name: t.cpu() for name, t in average.state_dict().items()}
    result["swa"] = {name: t.cpu() for name, t in swa.state_dict().items()}
    torch.save(result, f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
