"""A perceptron under AdamW, on one device or under DDP, with what DDP can do to its gradients."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("told")
parser.add_argument("--widths", type=int, nargs="+")
parser.add_argument("--batch", type=int)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--hook", choices=["fp16", "bf16"])
parser.add_argument("--view", action="store_true")
parser.add_argument("--optimizer", choices=["AdamW", "SGD"], default="AdamW")
args = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
layers = []
for fan_in, fan_out in zip(args.widths, args.widths[1:], strict=False):
    layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
net = nn.Sequential(*layers[:-1]).cuda()
if together := dist.get_world_size() > 1:
    device = torch.cuda.current_device()
    net = DistributedDataParallel(net, device_ids=[device], gradient_as_bucket_view=args.view)
    if args.hook:
        net.register_comm_hook(None, getattr(default_hooks, f"{args.hook}_compress_hook"))
optimizer = getattr(torch.optim, args.optimizer)(net.parameters(), lr=0.01)
x = torch.randn(args.batch, args.widths[0], device="cuda")
y = torch.randint(args.widths[-1], (args.batch,), device="cuda")
for _ in range(4):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    optimizer.zero_grad()
    for micro in range(args.accumulate):
        is_last = micro == args.accumulate - 1
        with nullcontext() if is_last or not together else net.no_sync():
            loss = nn.functional.cross_entropy(net(x), y)
            if args.accumulate > 1:
                loss = loss / args.accumulate
            loss.backward()
    optimizer.step()
    end.record()
torch.cuda.synchronize()
if dist.get_rank() == 0:
    with open(args.told, "w") as file:
        file.write(str(begin.elapsed_time(end) / 1e3))
dist.destroy_process_group()
