"""Records the training of rank 0 of a running script as a scenario.

The first forward under gradients gives the module and the shapes of its batch, which are recorded
without memory at the end of the script. Operators between that forward and its backward are the
loss, and are recorded when they run. The optimizer's first step gives the number of micro-steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from simdp.distributed.launch import Where
from simdp.errors import SimdpError
from simdp.torch.kernels import tensors_in
from simdp.torch.ranks import Rank, RankLocal, current
from simdp.torch.recording.sharded import optimizer_of, precision_of, strategy_of, with_shares
from simdp.torch.recording.tape import RecordedWorkload, RecordingTape, Taped, calls_of, mapped
from simdp.torch.recording.workload import Call, workload
from simdp.workload.models.operators import RecordedCall, Recording

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


class ScriptRecorder(RankLocal):
    """Watches rank 0 until its optimizer has stepped once; ``found`` is the scenario's data."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Any] = {"micro_steps": 0}
        self._tape: RecordingTape | None = None
        self._saving: Any = None
        self._inside = self._over = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        called = nn.Module.__call__
        nn.Module.__call__ = _method(self._call, called)
        hook = register_optimizer_step_pre_hook(self._step)
        try:
            yield
        finally:
            hook.remove()
            nn.Module.__call__ = called

    def end(self, rank: Rank) -> None:
        if rank.rank == 0:
            self._stop_tape()

    # What the script does -------------------------------------------------------------------------

    def _mine(self) -> bool:
        rank = current()
        return rank is not None and rank.rank == 0 and not self._over

    def _call(self, called: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._inside or not self._mine() or not _trains(module):
            return called(module, *args, **kwargs)
        self._stop_tape()
        self._inside = True
        try:
            out = called(module, *args, **kwargs)
        finally:
            self._inside = False
        self.found["micro_steps"] += 1
        if "module" not in self.found:
            inner = module.module if isinstance(module, WRAPPERS) else module
            shapes = mapped((list(args), dict(kwargs)), _shape)
            self.found.update(module=inner, sample=shapes, strategy=strategy_of(module), out=out)
            self.found["precision"] = precision_of()
            self._start_tape(list(tensors_in(dict(out) if hasattr(out, "items") else out)))
        return out

    def _start_tape(self, outputs: list[torch.Tensor]) -> None:
        self._tape = RecordingTape(nn.Identity(), {}, {}, outputs, begun=True)
        saved = self._tape.saved
        self._saving = torch.autograd.graph.saved_tensors_hooks(saved, lambda kept: kept)
        self._saving.__enter__()
        self._tape.__enter__()

    def _stop_tape(self) -> None:
        if self._tape is None:
            return
        self._tape.__exit__(None, None, None)
        self._saving.__exit__(None, None, None)
        self._tape.finish()
        self.found["loss"] = self._tape
        self._tape = None

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._mine() and "module" in self.found:
            self._stop_tape()
            self.found["optimizer"] = optimizer
            self._over = True

    # The scenario ---------------------------------------------------------------------------------

    def write(self, where: Where, cluster: Path) -> Path:
        """Write the scenario for the script's cluster, with the operators next to it.

        Raises
        ------
        SimdpError
            If the script trained nothing, or its training cannot be recorded.
        """
        found = self.found
        if "module" not in found:
            raise SimdpError(
                "--record: no module ran forward under gradients on rank 0; record a script that "
                "trains."
            )
        args, kwargs = found["sample"]
        with _disable_current_modes():
            made = workload(found["module"], Call(args, kwargs))
        keys: dict[str, Any] = {"optimizer": "none"}
        if "optimizer" in found:
            keys["optimizer"] = optimizer_of(found["optimizer"], found["module"])
            found["strategy"] = with_shares(found["strategy"], found["optimizer"])
        if found["micro_steps"] > 1:
            keys["grad_accum"] = found["micro_steps"]
        if found["precision"] is not None:
            keys["precision"] = found["precision"]
        recording = _with_loss(made, found.get("loss"))
        whole = RecordedWorkload(recording, made.microbatch, keys, made.ready)
        return whole.save(self.path, cluster_section(where, cluster), strategy=found["strategy"])


def _method(call: Any, called: Any) -> Any:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        return call(called, self, args, kwargs)

    return __call__


def _trains(module: nn.Module) -> bool:
    if not (module.training and torch.is_grad_enabled()):
        return False
    return any(parameter.requires_grad for parameter in module.parameters())


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _with_loss(made: RecordedWorkload, tape: RecordingTape | None) -> Recording:
    """Return the module's operators, followed by those of the loss."""
    recording, ends = made.recording, made.outputs or (made.recording.output,)
    if tape is None or not tape.ran:
        return recording
    first = len(recording.inputs)
    moved = first + len(recording.operators) - tape.first

    def place(value: int) -> int:
        return ends[min(value, len(ends) - 1)] if value < tape.first else value + moved

    behind: list[RecordedCall] = []
    for call in calls_of(Taped(made.microbatch, tape), None):
        takes = tuple(place(value) for value in call.takes)
        behind.append(call.model_copy(update={"takes": takes, "name": f"loss.{call.name}"}))
    operators = (*recording.operators, *behind)
    last = first + len(operators) - 1
    return recording.model_copy(update={"operators": operators, "output": last})


def cluster_section(where: Where, named: Path) -> dict[str, Any]:
    """Return the cluster's section of a scenario: by the machine's name, or written out."""
    cluster = where.cluster
    sizes = {"world_size": cluster.world_size, "devices_per_node": cluster.local_size}
    if not named.suffix:
        return {"machine": str(named), **sizes}
    raw = cluster.model_dump(mode="json", exclude_none=True)
    return {**raw, **sizes}
