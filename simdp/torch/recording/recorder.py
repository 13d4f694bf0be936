"""Records the training of rank 0 of a running script as a scenario.

The first forward under gradients gives the module and the shapes of its batch, which are recorded
without memory at the end of the script. Operators between that forward and its backward are the
loss, and are recorded when they run. The optimizer's first step gives the number of micro-steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from simdp.distributed.launch import Where
from simdp.errors import SimdpError
from simdp.torch.kernels import tensors_in
from simdp.torch.ranks import Patches, Rank, RankLocal, current
from simdp.torch.recording.sharded import optimizer_of, precision_of, strategy_of, with_shares
from simdp.torch.recording.tape import RecordedWorkload, RecordingTape, Taped, calls_of, mapped
from simdp.torch.recording.workload import Call, workload
from simdp.workload.models.operators import RecordedCall, Recording

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


class RecordedModule(NamedTuple):
    """A module that trains, at its first forward."""

    module: nn.Module
    sample: tuple[list[Any], dict[str, Any]]  # its arguments, without numbers
    strategy: dict[str, Any]  # sections of the scenario
    precision: dict[str, Any] | None


class ScriptRecorder(RankLocal):
    """Watches rank 0 until its optimizer has stepped once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._recorded: RecordedModule | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._loss: RecordingTape | None = None
        self._micro_steps = 0
        self._tape: RecordingTape | None = None
        self._saving: Any = None
        self._inside = self._over = False

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", self._call, self._watched)
        patches.undo(register_optimizer_step_pre_hook(self._step).remove)

    def end(self, rank: Rank) -> None:
        if rank.rank == 0:
            self._stop_tape()

    # What the script does -------------------------------------------------------------------------

    def _watched(self) -> Rank | None:
        """Return rank 0 where it runs, until it has stepped."""
        rank = current()
        return None if rank is None or rank.rank or self._over else rank

    def _call(self, rank: Rank, called: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._inside or not _trains(module):
            return called(module, *args, **kwargs)
        self._stop_tape()
        self._inside = True
        try:
            out = called(module, *args, **kwargs)
        finally:
            self._inside = False
        self._micro_steps += 1
        if self._recorded is None:
            inner = module.module if isinstance(module, WRAPPERS) else module
            shapes = mapped((list(args), dict(kwargs)), _shape)
            self._recorded = RecordedModule(inner, shapes, strategy_of(module), precision_of())
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
        self._loss, self._tape = self._tape, None

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._watched() is not None and self._recorded is not None:
            self._stop_tape()
            self._optimizer, self._over = optimizer, True

    # The scenario ---------------------------------------------------------------------------------

    def write(self, where: Where, cluster: Path) -> Path:
        """Write the scenario for the script's cluster, with the operators next to it.

        Raises
        ------
        SimdpError
            If the script trained nothing, or its training cannot be recorded.
        """
        if self._recorded is None:
            raise SimdpError(
                "--record: no module ran forward under gradients on rank 0; record a script that "
                "trains."
            )
        module, sample, strategy, precision = self._recorded
        with _disable_current_modes():
            made = workload(module, Call(*sample))
        keys: dict[str, Any] = {"optimizer": "none"}
        if self._optimizer is not None:
            keys["optimizer"] = optimizer_of(self._optimizer, module)
            strategy = with_shares(strategy, self._optimizer)
        if self._micro_steps > 1:
            keys["grad_accum"] = self._micro_steps
        if precision is not None:
            keys["precision"] = precision
        recording = _with_loss(made, self._loss)
        whole = RecordedWorkload(recording, made.microbatch, keys, made.ready)
        return whole.save(self.path, cluster_section(where, cluster), strategy=strategy)


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
