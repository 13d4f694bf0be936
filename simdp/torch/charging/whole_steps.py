"""Whole steps: kernels of a script that take together what a step of its batch was measured to.

Each takes its part by its roofline. What this sums to is known of a pass once it is over: the first
forward of a batch size takes its time at its end, the first backward is stretched as that forward
was and completed at its end, and later ones come out exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from simdp.errors import ProgramError
from simdp.torch.charging.record_files import MeasuredRecord
from simdp.torch.cuda.machine import Machine
from simdp.torch.kernels.sizes import tensors_in
from simdp.workload.compute.measured import time_at

OUTSIDE = ("torch::autograd::AccumulateGrad",)


class WholeSteps:
    """Which pass of a measured step it is, on one rank.

    Parameters
    ----------
    record : MeasuredRecord
        What steps take.
    here : Machine
        The rank's.

    Attributes
    ----------
    called : list of str
        Classes of modules that the script called and that train nothing.
    is_met : bool
        Whether it called one that trains.
    """

    def __init__(self, record: MeasuredRecord, here: Machine) -> None:
        self.record, self.here = record, here
        self.called: list[str] = []
        self.is_met = False
        self._model: tuple[str, int] | None = None
        self._depth = self._samples = 0
        self._pass = ""
        self._sum = self._taken = self._updating = 0.0
        self._place = -1
        self._whole: dict[tuple[str, int], float] = {}

    def call(self, called: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module; the outermost one that trains begins a forward."""
        trains = not self._depth and torch._C._current_graph_task_id() < 0 and _trains(module)
        if trains:
            self._begin(module, args, kwargs)
        self._depth += 1
        try:
            return called(module, *args, **kwargs)
        finally:
            self._depth -= 1

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._end()
        inner = getattr(module, "module", module)
        model = type(inner).__name__, sum(one.numel() for one in inner.parameters())
        known = self._model or model
        if known != model:
            raise ProgramError(
                f"--compute {self.record.path}: a measured step is of one model, and the script "
                f"trains {known[0]} and {model[0]}; give a record of layers."
            )
        self._model, self.is_met = model, True
        tensors = [one for one in tensors_in([args, kwargs]) if one.ndim]
        self._samples, self._pass = int(tensors[0].shape[0]) if tensors else 1, "forward"

    def _end(self) -> None:
        """Come to the end of a pass; the first of a batch size takes what is left of its time."""
        if not self._pass:
            return
        key, self._pass = (self._pass, self._samples), ""
        if key not in self._whole and self._sum:
            self._charge(self._target(key[0]) - self._taken, key[0])
        if self._sum:
            self._whole[key] = self._sum
        self._sum = self._taken = 0.0

    def _target(self, activity: str) -> float:
        """What a pass takes at this batch size [s]."""
        spec, speed = self.record.spec, self.here.speed
        points = [(p.microbatch, p.step_time) for p in spec.of_device(speed.device.name)]
        if not points:
            raise ProgramError(
                f"--compute {self.record.path}: no point is of {speed.device.name}; add one, or "
                "one without a device."
            )
        whole = time_at(points, self._samples, lambda samples: samples) * speed.sharers
        part = spec.forward_fraction if activity == "forward" else 1 - spec.forward_fraction
        return part * max(whole - self._updating, 0.0)

    def _charge(self, seconds: float, activity: Any) -> None:
        if seconds <= 0:
            return
        if self._place >= 0:
            self.here.charge(self._place, seconds, activity)
        else:
            self.here.rank.charge(seconds, activity, activity)

    def scaled(self, seconds: float, place: int, backward: bool) -> float:
        """What an operator takes [s].

        Parameters
        ----------
        seconds : float
            By its roofline [s].
        place : int
            Its device, -1 without.
        backward : bool
            Whether autograd runs it.
        """
        node: Any = torch._C._current_autograd_node() if backward else None
        if backward and (node is None or node.name() in OUTSIDE):
            return seconds
        if backward and self._pass == "forward":
            self._end()
            self._pass = "backward"
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._end)
        elif not backward and self._pass == "backward":
            self._end()
        if not self._pass or (not backward and not torch.is_grad_enabled()):
            return seconds
        self._place = place
        factor = self._factor()
        self._sum += seconds
        self._taken += factor * seconds
        return factor * seconds

    def _factor(self) -> float:
        key = self._pass, self._samples
        if key in self._whole:
            return self._target(self._pass) / self._whole[key]
        ahead = self._whole.get(("forward", self._samples))
        if self._pass == "forward" or ahead is None:
            return 0.0
        return self._target("forward") / ahead

    def covers(self, func: Any, backward: bool) -> bool:
        """Nothing is free: all kernels take their parts."""
        return False

    def update(self, parameter: Any, count: int) -> None:
        """An optimizer's step takes what it moves, as in scenarios."""

    def updated(self, seconds: float) -> None:
        """An optimizer has stepped, which a measured step has in it [s]."""
        self._end()
        self._updating = seconds


def _trains(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters())
