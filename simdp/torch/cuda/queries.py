"""Queries of torch.cuda, and refused calls.

A tensor is an ordinary one of the CPU. Its virtual device is stored on its storage, so that views,
saved tensors and gradients have it too; device queries of torch read it there, and a dispatch mode
(`simdp.torch.charging.mode`) passes it on from arguments to results.
"""

from __future__ import annotations

import logging
import re
import warnings
from importlib import import_module
from typing import Any

import torch
import torch.distributed.rpc as rpc

from simdp.cluster.hardware import driver_name
from simdp.errors import ProgramError
from simdp.torch.cuda.machine import VirtualMachine, machine
from simdp.torch.ranks import Patches

# Queries ------------------------------------------------------------------------------------------

NCCL_VERSION = (2, 27, 3)


def here(call: str) -> VirtualMachine:
    """Return the machine of the current thread's rank.

    Raises
    ------
    ProgramError
        If the thread is not a rank's.
    """
    mine = machine()
    if mine is None:
        raise ProgramError(
            f"torch.cuda.{call}: this code runs on no rank; call it in the rank's own thread."
        )
    return mine


class Properties:
    """Result of ``torch.cuda.get_device_properties`` for a device."""

    def __init__(self, device: Any = None) -> None:
        mine = here("get_device_properties")
        device = mine.devices[mine.device_of(device).index]
        hardware = device.speed.device
        name = hardware.name or "simulated device"
        self.major, self.minor = map(int, hardware.capability.split("."))
        self.multi_processor_count = hardware.multiprocessors
        self.name = driver_name(name) or name
        self.total_memory = device.ledger.capacity
        self.is_integrated = self.is_multi_gpu_board = 0
        self.warp_size = 32
        self.max_threads_per_multi_processor = 2048
        self.max_threads_per_block = 1024
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.L2_cache_size = 0
        self.gcnArchName = f"sm_{self.major}{self.minor}"
        self.uuid = f"simulated-{device.index}"
        self.pci_bus_id, self.pci_device_id, self.pci_domain_id = device.index, 0, 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def device_count() -> int:
    """Return the number of devices of the rank's node."""
    mine = machine()
    return 0 if mine is None else len(mine.devices)


def is_available(*_: Any) -> bool:
    """Return whether there is any device."""
    return device_count() > 0


def current_device() -> int:
    """Return the number of the current device."""
    mine = here("current_device")
    return mine.use(mine.place).index


def set_device(device: Any) -> None:
    """Set the current device."""
    index = index_of(device)
    if index >= 0:
        mine = here("set_device")
        mine.place = mine.use(index).index
        mine.settle(index)
        mine.follow()


def index_of(device: Any, optional: bool = True, allow_cpu: bool = False) -> int:
    """Return the number of a device given by a script; None is the current one.

    Raises
    ------
    ValueError
        As torch's, if it is not a CUDA device.
    """
    if isinstance(device, int):
        return device
    device = here("device").device_of(device)
    if device.type == "cuda":
        return int(device.index)
    if allow_cpu and device.type == "cpu":
        return -1
    raise ValueError(f"Expected a cuda device, but got: {device}")


class device:  # noqa: N801
    """``with torch.cuda.device(...)``: another current device within the context."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = exchange_device(self.idx)

    def __exit__(self, *_: Any) -> None:
        mine = here("device")
        mine.place = self.prev_idx
        mine.follow()


class device_of(device):  # noqa: N801
    """The same, with the device of a tensor."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else None)


def exchange_device(index: int) -> int:
    """Set the current device, and return the previous one; a negative number changes nothing."""
    before = here("device").place
    if index >= 0:
        set_device(index)
    return before


def get_device_name(device: Any = None) -> str:
    """Return the name of a device."""
    return Properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of a device."""
    properties = Properties(device)
    return properties.major, properties.minor


def is_initialized() -> bool:
    """Return whether the script has used a device."""
    mine = machine()
    return mine is not None and mine.used


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether products may be in bfloat16."""
    return including_emulation or get_device_capability() >= (8, 0)


def is_tf32_supported() -> bool:
    """Return whether products may be in tfloat32."""
    return get_device_capability() >= (8, 0)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return whether two devices can access each other's memory."""
    mine = here("can_device_access_peer")
    place, peer = index_of(device), index_of(peer_device)
    return place != peer and mine.use(place).speed.device.peer_to_peer


def get_arch_list() -> list[str]:
    """Return the compiled architectures: only that of the device."""
    return ["sm_{}{}".format(*get_device_capability())]


def _refused(name: str, instead: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ProgramError(f"{name}: virtual devices run no such thing; {instead}.")

    if not name.rpartition(".")[2][0].isupper():
        return refuse
    return type(name.rpartition(".")[2], (), {"__new__": refuse})


GRAPHS = (
    "leave the graph out (torchtitan: --training.disable_cuda_graphs), and set "
    "workload.cuda_graphs in a scenario to price one"
)

REFUSED = {
    "CUDAGraph": GRAPHS,
    "graph": GRAPHS,
    "ExternalStream": "take torch.cuda.Stream()",
    "CUDAPluggableAllocator": "leave torch's own allocator",
    "change_current_allocator": "leave torch's own allocator",
    "caching_allocator_alloc": "take a tensor of bytes",
    "cudart": "take the functions of torch.cuda",
    "_compile_kernel": "write the kernel with torch's operators",
    "jiterator": "write the kernel with torch's operators",
    "utilization": "read the result of the run",
    "temperature": "read the result of the run",
    "power_draw": "read the result of the run",
    "clock_rate": "read the result of the run",
}
"""Features that virtual devices lack, and remedies."""


def patch(patches: Patches) -> None:
    """Install all of them."""
    cuda = torch.cuda
    for function in (
        device_count, is_available, current_device, set_device, device, device_of,
        get_device_name, get_device_capability, is_bf16_supported, is_tf32_supported,
        can_device_access_peer, get_arch_list,
    ):  # fmt: skip
        patches.put(cuda, function.__name__, function)
    patches.put(cuda, "get_device_properties", Properties)
    patches.put(cuda, "_get_device_index", index_of)
    patches.put(torch.cuda._utils, "_get_device_index", index_of)
    for name in ("_exchange_device", "_maybe_exchange_device"):
        patches.put(cuda, name, exchange_device)
    for name in ("_lazy_init", "init", "ipc_collect"):
        patches.put(cuda, name, lambda: None)
    patches.put(cuda, "_lazy_call", lambda call, **_: call())
    patches.put(cuda, "is_initialized", is_initialized)
    patches.put(cuda, "_is_in_bad_fork", lambda: False)
    patches.put(cuda, "is_current_stream_capturing", lambda: False)
    patches.put(cuda.nccl, "version", lambda: NCCL_VERSION)
    patches.put(cuda.nccl, "is_available", lambda tensors: True)
    patches.wrap(cuda, "make_graphed_callables", _ungraphed, machine)
    patches.put(torch.version, "cuda", torch.version.cuda or "12.8")
    for name, instead in REFUSED.items():
        patches.put(cuda, name, _refused(f"torch.cuda.{re.sub('^_', '', name)}", instead))


# Refusals -----------------------------------------------------------------------------------------

KERNELS = ("load", "load_inline", "CUDAExtension", "CppExtension")
"""Functions that compile a script's kernels."""


def extensions() -> Any:
    """Return torch's module of them, which warns of hosts without GPUs when imported."""
    log = logging.getLogger("torch.utils.cpp_extension")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        return import_module("torch.utils.cpp_extension")
    finally:
        log.setLevel(before)


def patch_refusals(patches: Patches) -> None:
    """Install all of them."""
    cpp_extension = extensions()
    for name in KERNELS:
        patches.wrap(cpp_extension, name, _refuse_kernel, machine)
    patches.wrap(rpc, "init_rpc", _refuse_rpc, machine)
    patches.wrap(torch, "compile", _compile, machine)
    patches.wrap(torch.nn.Module, "compile", _compile_in_place, machine)


def _refuse_kernel(here: VirtualMachine, original: Any, *args: Any, **kwargs: Any) -> Any:
    raise ProgramError(
        f"torch.utils.cpp_extension.{original.__name__}: a virtual device cannot run "
        "kernels of a script's own, nor time them; write them with torch's operators."
    )


def _refuse_rpc(here: VirtualMachine, original: Any, *args: Any, **kwargs: Any) -> Any:
    raise ProgramError(
        "torch.distributed.rpc.init_rpc: virtual ranks call no functions of one another; "
        "exchange tensors with torch.distributed's collectives, send and recv, or run a "
        "scenario with a parameter server or a pipeline."
    )


REMARKS = "remarks"
"""Key of the warnings that a rank has given."""


def _remark(here: VirtualMachine, text: str) -> None:
    """Warn the script once in each rank."""
    remarks = here.rank.state.setdefault(REMARKS, set())
    if text not in remarks:
        remarks.add(text)
        warnings.warn(text, stacklevel=4)


COMPILED = (
    "torch.compile: operators run one by one here, with the times and memory of eager mode; "
    "workload.compile in a scenario prices fused kernels."
)

GRAPHED = (
    "torch.cuda.make_graphed_callables: operators are launched one by one here, with the times of "
    "eager mode; workload.cuda_graphs in a scenario prices graphs."
)


def _ungraphed(
    here: VirtualMachine, original: Any, callables: Any, *args: Any, **options: Any
) -> Any:
    """Return the callables as they are: the same numbers, at the times of eager mode."""
    _remark(here, GRAPHED)
    return callables


def _compile(here: VirtualMachine, original: Any, model: Any = None, **options: Any) -> Any:
    """Return the same numbers, at the times of uncompiled code."""
    _remark(here, COMPILED)
    return (lambda function: function) if model is None else model


def _compile_in_place(here: VirtualMachine, original: Any, *args: Any, **options: Any) -> None:
    _remark(here, COMPILED)
