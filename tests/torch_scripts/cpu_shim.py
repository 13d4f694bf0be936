"""Lets a script that names CUDA run on a CPU: every "cuda" becomes "cpu", every "nccl" "gloo"."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def on_cpu(value):
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class Renamed(TorchFunctionMode):
    """Tensors that are asked to go to a GPU stay where they are."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in ("cuda", "pin_memory"):
            return args[0]
        if name == "to":
            moved = [CPU if type(arg) is int else on_cpu(arg) for arg in args[1:]]
            args = (args[0], *moved)
        if "device" in kwargs:
            place = kwargs["device"]
            kwargs = {**kwargs, "device": CPU if type(place) is int else on_cpu(place)}
        return func(*args, **kwargs)


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's is for GPUs; this one adds sums up over the ranks, and autograd does the rest."""

    def forward(self, x):
        axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
        count = x.numel() / x.shape[1] * dist.get_world_size()
        mean = all_reduce(x.sum(axes)) / count
        variance = all_reduce((x - mean.view(shape)).square().sum(axes)) / count
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        hat = (x - mean.view(shape)) * (variance.view(shape) + self.eps).rsqrt()
        return hat * self.weight.view(shape) + self.bias.view(shape)


def install(num_devices):
    """Change torch, for as long as the process lives."""
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: num_devices
    torch.cuda.set_device = lambda device: None
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = lambda seed: None
    torch.load = functools.partial(_load, torch.load)
    torch.amp.GradScaler = functools.partial(_for_cpu, torch.amp.GradScaler)
    torch.autocast = functools.partial(_for_cpu, torch.autocast)
    real_start = dist.init_process_group
    dist.init_process_group = functools.partial(_start, real_start)
    import torch.distributed.distributed_c10d as c10d

    c10d.init_process_group = dist.init_process_group
    made = nn.parallel.DistributedDataParallel.__init__
    nn.parallel.DistributedDataParallel.__init__ = lambda self, module, device_ids=None, **keys: (
        made(self, module, **keys)
    )
    nn.parallel.DistributedDataParallel._passing_sync_batchnorm_handle = lambda *given: None
    nn.SyncBatchNorm.forward = SyncBatchNorm.forward
    Renamed().__enter__()


def _start(real, backend=None, *args, **keys):
    return real("gloo" if backend == "nccl" else backend, *args, **keys)


def _load(real, *args, map_location=None, **keys):
    return real(*args, map_location="cpu", **keys)


def _for_cpu(real, device=None, *args, **keys):
    if "device_type" in keys:
        return real(**{**keys, "device_type": "cpu"})
    return real("cpu", *args, **keys)
