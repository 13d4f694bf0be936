"""Mixed precision with autocast and a GradScaler, as the AMP recipe has it, under DDP."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_model(in_size, out_size, num_layers):
    layers = []
    for _ in range(num_layers - 1):
        layers.append(nn.Linear(in_size, in_size))
        layers.append(nn.ReLU())
    layers.append(nn.Linear(in_size, out_size))
    return nn.Sequential(*layers)


def main():
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(local)
    torch.manual_seed(11)
    net = make_model(32, 8, 3).to(device)
    net = DistributedDataParallel(net, device_ids=[local] if device == "cuda" else None)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=4)
    loss_fn = nn.MSELoss()
    generator = torch.Generator().manual_seed(dist.get_rank())
    scales = []
    for _ in range(8):
        x = torch.randn(16, 32, generator=generator).to(device)
        y = torch.randn(16, 8, generator=generator).to(device)
        with torch.autocast(device_type=device, dtype=torch.float16):
            output = net(x)
            assert output.dtype is torch.float16
            loss = loss_fn(output, y)
            assert loss.dtype is torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        scales.append(scaler.get_scale())
    if dist.get_rank() == 0:
        state = {k: v.cpu() for k, v in net.module.state_dict().items()}
        torch.save({"model": state, "scales": scales}, "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
