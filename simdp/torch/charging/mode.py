"""The dispatch mode that charges time for operators.

The cluster's ``overheads.hook`` is the time of a gradient's hook with the launches of its copy into
the bucket and back, charged when the gradient is copied in, as in scenarios. The copies' bytes are
charged separately.

A device runs a dropout as one kernel each way; it is charged for the mask, and the operators after
it are free.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from simdp.engine.programs.runtime import Activity
from simdp.errors import ProgramError
from simdp.torch.cuda import faking
from simdp.torch.cuda.machine import PLAIN, VirtualMachine
from simdp.torch.cuda.tensors import placed, results
from simdp.torch.kernels import OperatorKernels, Sizes, launched_by, mean_itemsize
from simdp.workload.layers.tensor_ops import dropout_cost

aten = torch.ops.aten

INTO = {aten.mul.out, aten.copy_.default, aten.div_.Scalar, aten.div_.Tensor}
"""Operators that copy a gradient into a bucket: divided, unchanged if a hook divides, or in place.
"""


def hook_extra(func: Any, args: Any, kwargs: Any, hook: float, launch: float) -> float:
    """Return the extra time of a gradient's hook; negative if it saves a launch [s].

    ``func`` is one of `INTO`; ``hook`` is the cluster's overhead and ``launch`` the launch time of
    a kernel [s]. Negative for a gradient that is copied back, 0 for a tensor that is not a gradient
    in a bucket.
    """
    copies = func is aten.copy_.default
    if copies and args[1].untyped_storage().bucket and not args[0].untyped_storage().bucket:
        return -min(launch, hook)
    node: Any = torch._C._current_autograd_node()
    if node is None or node.name() != "torch::autograd::AccumulateGrad":
        return 0.0
    storage = kwargs.get("out", args[0]).untyped_storage()
    if func is not aten.mul.out and not copies and not storage.bucket:
        return 0.0
    storage.bucket = True
    return max(hook - launch, 0.0)


IN_CUDNN = {aten.convolution.default, aten.convolution_backward.default}
"""Operators whose products torch runs in cuDNN."""

# Dropouts -----------------------------------------------------------------------------------------

CONCERNED = {aten.bernoulli_.float, aten.div_.Scalar, aten.mul.Tensor}
"""The operators of a dropout."""


def stage(func: Any, args: Any, backward: bool) -> str:
    """Return an operator's stage in a dropout: ``"drawn"``, ``"counted"``, ``"backward"`` or ""."""
    if func is aten.bernoulli_.float:
        args[0].untyped_storage().mask = True
        return "drawn"
    if func is aten.div_.Scalar:
        return "counted" if _is_mask(args[0]) else ""
    if _is_mask(args[0]) or _is_mask(args[1]):
        return "backward" if backward else "counted"
    return ""


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.untyped_storage().mask)


def counted(part: str, launched: OperatorKernels, args: Any) -> OperatorKernels:
    """Return the kernels of a dropout on a device, instead of the CPU's."""
    if part == "counted":
        return OperatorKernels()
    if part in ("drawn", "backward"):
        kernel = dropout_cost(float(args[0].numel()), 0)  # without the numbers, the mask is left
        return OperatorKernels((Sizes(kernel.flops, 2.0 * args[0].numel(), kernel.nbytes),))
    return launched


# Mode ---------------------------------------------------------------------------------------------

PASSED = frozenset({"c10d", "_c10d_functional", "c10d_functional", "profiler", "symm_mem", "prim"})
"""Namespaces of operators that launch no kernels on a device."""

MOVED = "moved"
"""Key of a rank's bytes that operators move: of all under ``""``, of unknown ones by name."""

MAX_KEPT = 2**16
"""Limit of cached kinds of calls."""


class Charging(TorchDispatchMode):
    """Runs each operator on the host, and charges its time to the virtual device."""

    supports_higher_order_operators = True

    def __init__(self, machine: VirtualMachine) -> None:
        super().__init__()
        self.machine = machine
        self._hook = machine.rank.runtime.cluster.overheads.hook
        self._launch = machine.speed.launch
        self._seen: dict[Any, bool] = {}
        self._charges: dict[Any, tuple[float, float, str]] = {}
        self._moved: dict[str, float] = defaultdict(float)
        machine.rank.state[MOVED] = self._moved

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports the compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator; of one of higher order, the operators within it."""
        if isinstance(func, HigherOrderOperator):
            with self:
                return func.dispatch(DispatchKey.CPU, *args, **(kwargs or {}))
        for kind in types:
            if kind not in PLAIN:
                if issubclass(kind, FakeTensor):  # torch infers an operator's output
                    return func(*args, **(kwargs or {}))
                return NotImplemented  # a wrapper's own operators come here again, one by one
        if is_composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        seen = self._seen.get(func)
        if seen is None:
            seen = self._seen[func] = launches_nothing(func)
        if seen:
            if self.machine.fake and func.namespace == "_c10d_functional":
                with self:
                    return faking.collective(func, args, kwargs or {})
            out = func(*args, **(kwargs or {}))
            if self.machine.used and func.namespace == "_c10d_functional":  # which creates its own
                results(self.machine, placed(self.machine, func, args, {})[0], out)
            return out
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        machine = self.machine
        place = -1
        device = kwargs.get("device")
        if machine.used or (device is not None and device.type == "cuda"):
            place, kwargs = placed(machine, func, args, kwargs)
        try:
            fake = machine.fake
            out = faking.run(machine, func, args, kwargs) if fake else func(*args, **kwargs)
        except RuntimeError as error:
            raise _of_memory(error, machine, place) from None
        if type(out) not in PLAIN and _is_fake(out):
            return out
        if place != -1:
            results(machine, place, out)
        if machine.quiet or machine.update is not None or (place < 0 and machine.used):
            return out
        activity: Activity = "backward" if torch._C._current_graph_task_id() >= 0 else "forward"
        if machine.turns is not None and machine.turns.covers(func, activity == "backward"):
            return out
        seconds = self._seconds(func, args, kwargs, out, place, activity == "backward")
        if machine.turns is not None:
            seconds = machine.turns.scaled(seconds, place, activity == "backward")
        if func in INTO and self._hook and place >= 0:
            seconds += hook_extra(func, args, kwargs, self._hook, self._launch)
        if seconds:
            machine.charge(place, seconds, activity)
        return out

    def _seconds(
        self, func: Any, args: Any, kwargs: Any, out: Any, place: int, backward: bool
    ) -> float:
        tf32 = torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()
        key = [func, place, tf32, self.machine.launches, backward]
        for arg in args:
            _describe(arg, key)
        for arg in kwargs.values():
            _describe(arg, key)
        _describe(out, key)
        if func in CONCERNED:
            key.append(stage(func, args, backward))
        kind = tuple(key)
        charge = self._charges.get(kind)
        if charge is None:
            if len(self._charges) >= MAX_KEPT:
                self._charges.clear()
            speed = self.machine.devices[place].speed if place >= 0 else self.machine.speed
            launched = launched_by(func, args, dict(kwargs), out)
            if func in CONCERNED:
                launched = counted(key[-1], launched, args)
            dtype = _dtype((out, *args))
            itemsize = mean_itemsize((args, kwargs, out)) or dtype.itemsize
            allow_tf32 = tf32[func in IN_CUDNN]
            activity: Activity = "backward" if backward else "forward"
            seconds = speed.seconds(launched, dtype, itemsize, allow_tf32, activity)
            seconds += (self.machine.launches - 1) * len(launched.kernels) * speed.launch
            nbytes = sum(kernel.elements * itemsize + kernel.nbytes for kernel in launched.kernels)
            charge = seconds, nbytes, "" if launched.is_known else func._schema.name
            self._charges[kind] = charge
        seconds, nbytes, unknown = charge
        for name in {"", unknown}:
            self._moved[name] += nbytes
        return seconds


def _is_fake(out: Any) -> bool:
    if isinstance(out, (list, tuple)):
        return any(isinstance(inner, FakeTensor) for inner in out)
    return isinstance(out, FakeTensor)


def _describe(value: Any, key: list[Any]) -> None:
    if isinstance(value, torch.Tensor):
        key.append(value.shape)
        key.append(value.dtype)
    elif isinstance(value, (list, tuple)):
        key.append(len(value))
        for inner in value:
            _describe(inner, key)
    elif isinstance(value, (bool, int)):
        key.append(value)


def _dtype(values: Any) -> torch.dtype:
    """Return the compute dtype of an operator: that of its first tensor of real numbers."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                return value.dtype
        elif isinstance(value, (list, tuple)):
            dtype = _dtype(value)
            if dtype is not torch.int64:
                return dtype
    return torch.int64


@cache
def is_composite(func: Any) -> bool:
    """Return whether torch only makes an operator of others.

    Autograd does so before it comes here; inference mode and flex attention do not.
    """
    has = func.has_kernel_for_dispatch_key
    return has(DispatchKey.CompositeImplicitAutograd) and not has(DispatchKey.CPU)


def launches_nothing(func: Any) -> bool:
    """Return whether an operator is a view, or launches no kernel on a device."""
    if func.namespace in PASSED:
        return True
    aliases = [returned.alias_info for returned in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


FULL = re.compile(r"DefaultCPUAllocator.{,80}allocate (\d+) bytes")
"""torch's message when host memory is exhausted."""


def _of_memory(error: RuntimeError, machine: VirtualMachine, place: int) -> Exception:
    """Return the same error; for exhausted host memory, an error of the device or with a remedy."""
    match = FULL.search(str(error))
    if match is None:
        return error
    wanted = int(match[1])
    if place >= 0:
        try:
            machine.devices[place].ledger.check(wanted)
        except torch.OutOfMemoryError as full:
            return full
    return ProgramError(
        f"the host has no room for a tensor of {wanted:,} bytes; run the script with --fake, which "
        "keeps no numbers."
    )
