"""Times layers and whole steps of a torch script.

A record is the CSV of the model ``profile``, or a YAML with the keys of ``compute: profile`` and
the CSV's ``path``, or those of ``compute: measured``.

With whole steps, each operator takes a part of the time proportional to its roofline. The sum of a
pass is known at its end: the first forward of a batch size takes its remaining time at its end, the
first backward is scaled like that forward and completed at its end, and later ones are exact.

A layer's time is the interval of the record: in forward from its call to that of the next layer, or
of another module with parameters, and in backward from its output's gradient to that of the next;
the loss counts with the last layer. Operators inside are free, except those that one device does
not run: gradients that are added or copied into buckets. Modules inside a layer are part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from simdp.cluster.hardware import Device
from simdp.engine.compute.profile_times import scaling
from simdp.errors import ProgramError, ScenarioError
from simdp.files import read_yaml
from simdp.spec import Spec, problems
from simdp.torch.cuda.machine import VirtualMachine, machine, place_of
from simdp.torch.kernels import tensors_in
from simdp.torch.ranks import Patches, Rank, RankLocal
from simdp.workload.compute import FromMeasurements, FromProfile, time_at
from simdp.workload.layers.operator import TimedLayer
from simdp.workload.models.operators import read_layers

# Record files -------------------------------------------------------------------------------------


class LayerSeconds(NamedTuple):
    """Times of a layer [s]."""

    # forward, gradient, tail: of its forward; from its output's gradient to its parameters'; and
    # the rest of backward
    forward: float
    gradient: float
    tail: float


class LayerRecord(NamedTuple):
    """A record of layers."""

    path: Path  # the CSV
    spec: FromProfile  # device and samples of the measurement
    layers: tuple[TimedLayer, ...]  # in file order; elements are bytes

    def times(self, layer: TimedLayer, device: Device, sharers: int, samples: int) -> LayerSeconds:
        """Return the times of a layer, as counted by ``compute: profile``.

        ``layer`` is one of `layers`; ``sharers`` ranks share the device; ``samples`` are of this
        micro-step.
        """
        longer = scaling(self.spec, "float32", device)
        factor = layer.products * longer.products + (1 - layer.products) * longer.memory
        factor *= sharers
        if self.spec.microbatch is not None:
            factor *= samples / self.spec.microbatch
        return LayerSeconds(
            max(layer.forward_time * factor, layer.forward_host),
            max(layer.gradient_time * factor, layer.gradient_host),
            layer.input_time * factor,
        )


class MeasuredRecord(NamedTuple):
    """A record of whole steps."""

    path: Path  # the YAML
    spec: FromMeasurements  # its points


def read_record(path: Path) -> LayerRecord | MeasuredRecord:
    """Read a record.

    Raises
    ------
    ScenarioError
        If it is unreadable, or of another kind.
    """
    if path.suffix not in (".yaml", ".yml"):
        return LayerRecord(path, FromProfile(), tuple(read_layers(path, 1)))
    raw = read_yaml(path)
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind == "measured":
        return MeasuredRecord(path, _validated(FromMeasurements, path, raw))
    if kind != "profile" or "path" not in raw:
        raise ScenarioError(
            f"--compute {path}: needs kind: profile and the path of a CSV of layers, and may "
            "have microbatch, device, dtype and update; or kind: measured and points, both as "
            "in workload.compute."
        )
    csv = path.parent / str(raw.pop("path"))
    return LayerRecord(csv, _validated(FromProfile, path, raw), tuple(read_layers(csv, 1)))


def _validated(kind: type[Spec], path: Path, raw: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        lines = [f"--compute {path}: {problem.line}" for problem in problems(error, raw)]
        raise ScenarioError(lines) from None


OUTSIDE = ("torch::autograd::AccumulateGrad",)
"""Autograd nodes outside of layers' backward, and of a measured step."""


class Position:
    """Position of a rank in a record.

    ``called`` are classes of called modules that are not in the record; ``is_met`` is whether one
    that is was called.
    """

    def __init__(self, here: VirtualMachine) -> None:
        self.here = here
        self.called: list[str] = []
        self.is_met = False
        self._depth = self._samples = 0

    def call(self, called: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module; the outermost one may be that of the record."""
        if not self._depth and not _in_backward():
            self._begin(module, args, kwargs)
        self._depth += 1
        try:
            return called(module, *args, **kwargs)
        finally:
            self._depth -= 1

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        raise NotImplementedError

    def covers(self, func: Any, backward: bool) -> bool:
        """Return whether an operator's time is part of a layer's."""
        return False

    def scaled(self, seconds: float, place: int, backward: bool) -> float:
        """Return the time of an operator that is part of no layer's [s].

        ``seconds`` is its roofline's; ``place`` its device, -1 without; ``backward``, whether
        autograd runs it.
        """
        return seconds

    def update(self, parameter: Any, count: int) -> float | None:
        """Return the time of an optimizer's step for ``count`` elements [s]; None if unknown."""
        return None

    def updated(self, seconds: float) -> None:
        """Count an optimizer step [s]."""


class WholeSteps(Position):
    """Position in a measured step: its modules are those that train."""

    def __init__(self, record: MeasuredRecord, here: VirtualMachine) -> None:
        super().__init__(here)
        self.record = record
        self._model: tuple[str, int] | None = None
        self._pass = ""
        self._sum = self._taken = self._updating = 0.0
        self._place = -1
        self._whole: dict[tuple[str, int], float] = {}

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not _trains(module):
            return
        self._end()
        inner = getattr(module, "module", module)
        model = type(inner).__name__, sum(weight.numel() for weight in inner.parameters())
        first = self._model or model
        if first != model:
            raise ProgramError(
                f"--compute {self.record.path}: a measured step is of one model, and the script "
                f"trains {first[0]} and {model[0]}; give a record of layers."
            )
        self._model, self.is_met = model, True
        self._samples, self._pass = _num_samples(args, kwargs), "forward"

    def _end(self) -> None:
        """End a pass; the first of a batch size takes the rest of its time."""
        if not self._pass:
            return
        key, self._pass = (self._pass, self._samples), ""
        if key not in self._whole and self._sum:
            self._charge(self._target(key[0]) - self._taken, key[0])
        if self._sum:
            self._whole[key] = self._sum
        self._sum = self._taken = 0.0

    def _target(self, activity: str) -> float:
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
        """Return the part of the measured time that an operator takes [s]."""
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

    def updated(self, seconds: float) -> None:
        """Count an optimizer step, which a measured step includes [s]."""
        self._end()
        self._updating = seconds


def _trains(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(weight.requires_grad for weight in module.parameters())


def _num_samples(args: Any, kwargs: Any) -> int:
    """Return the samples of a call: the length of its first tensor with an axis."""
    return next((int(tensor.shape[0]) for tensor in tensors_in([args, kwargs]) if tensor.ndim), 1)


WRAPPED = "_checkpoint_wrapped_module."


class Border(NamedTuple):
    """A module that begins another layer's time when called."""

    name: str  # the module's
    # its lines of the record; empty if the record does not apply to it
    layers: tuple[TimedLayer, ...]


class Turns(Position):
    """Current layer of a record: its modules are those with layers there."""

    def __init__(self, record: LayerRecord, here: VirtualMachine) -> None:
        super().__init__(here)
        self.record = record
        self._elements = 0
        self._is_recorded: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        self._learned: dict[int, nn.Module] = {}
        self._passes = 0
        self._covered = self._backward = False
        self._done: set[tuple[int, int, bool]] = set()
        self._tail: tuple[int, float] | None = None

    # What the script calls ------------------------------------------------------------------------

    def call(self, called: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        try:
            return super().call(called, module, args, kwargs)
        finally:
            if not (self._depth or _in_backward() or torch.is_grad_enabled()):
                self._covered = False

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        inner = module
        if isinstance(module, nn.parallel.DistributedDataParallel):
            inner = module.module
        if inner not in self._is_recorded:
            self._is_recorded[inner] = self._meet(inner)
        if not self._is_recorded[inner]:
            return
        if isinstance(module, nn.DataParallel):
            raise ProgramError(
                f"--compute {self.record.path}: nn.DataParallel divides the batch among replicas; "
                "use DistributedDataParallel, or leave the record out."
            )
        self._finish()
        self._passes += 1
        self._samples = _num_samples(args, kwargs)

    def _meet(self, module: nn.Module) -> bool:
        """Hook into a module if it matches the record."""
        inner = module.module if isinstance(module, nn.DataParallel) else module
        borders = self._borders(inner)
        if borders is None:
            self.called.append(type(module).__name__)
            return False
        self.is_met = True
        for part, border in borders.items():
            part.register_forward_pre_hook(_entering(border))
            part.register_forward_hook(_leaving(border))
        return True

    def _borders(self, module: nn.Module) -> dict[nn.Module, Border] | None:
        """Return modules at which turns begin; None if the record has no layer of the module."""
        modules = {name.replace(WRAPPED, ""): part for name, part in module.named_modules()}
        tensors = {name.replace(WRAPPED, ""): weight for name, weight in module.named_parameters()}
        recorded: dict[str, list[TimedLayer]] = {}
        missing = []
        for layer in self.record.layers:
            if layer.name in modules:
                recorded.setdefault(layer.name, []).append(layer)
            elif layer.name in tensors:
                recorded.setdefault(layer.name.rpartition(".")[0], []).append(layer)
            else:
                missing.append(layer.name)
        if not recorded:
            return None
        if missing:
            own = [name for name, part in modules.items() if name and _own(part)]
            raise ProgramError(
                f"--compute {self.record.path}: {type(module).__name__} has no layer {missing[0]}; "
                f"its layers: {_some(own)}. Name the record's lines after them, or leave it out."
            )
        for name, layers in recorded.items():
            inner = f"{name}." if name else ""
            if not any(other != name and other.startswith(inner) for other in recorded):
                self._check(type(module).__name__, name, modules[name], layers, tensors)
        for parameter in tensors.values():
            self._learned[id(parameter)] = module
        self._elements = sum(weight.numel() for weight in tensors.values())
        borders = {modules[name]: Border(name, tuple(layers)) for name, layers in recorded.items()}
        for name, part in modules.items():
            inside = any(not up or name.startswith(f"{up}.") for up in recorded)
            if part not in borders and not inside and _own(part):
                borders[part] = Border(name, ())
        return borders

    def _check(
        self,
        model: str,
        name: str,
        module: nn.Module,
        layers: list[TimedLayer],
        tensors: dict[str, Any],
    ) -> None:
        """Refuse a record of a layer of another size."""
        recorded = sum(layer.num_elements for layer in layers)
        named = [tensors[layer.name] for layer in layers if layer.name in tensors]
        weights = named or list(module.parameters())
        count = sum(weight.numel() for weight in weights)
        nbytes = sum(weight.numel() * weight.element_size() for weight in weights)
        if recorded and recorded not in (nbytes, 4 * count):
            raise ProgramError(
                f"--compute {self.record.path}: layer {name} has gradients of {recorded} bytes in "
                f"the record, and of {nbytes} in {model}; measure the model that is run."
            )

    # Turns ----------------------------------------------------------------------------------------

    def enter(self, module: nn.Module, border: Border) -> None:
        """Begin the turn of a called module."""
        if not (self._depth or _in_backward()):
            return
        backward = _in_backward()
        self._take_tail()
        self._covered = bool(border.layers)
        self._take(module, border, "forward", self._passes, self._samples, backward)

    def listen(self, module: nn.Module, border: Border, out: Any) -> None:
        """Let the backward turn of a module begin with its output's gradient."""
        number, samples = self._passes, self._samples
        for tensor in tensors_in(dict(out) if hasattr(out, "items") else out):
            if tensor.requires_grad:
                tensor.register_hook(lambda _: self.turn_back(module, border, number, samples))
                return

    def turn_back(self, module: nn.Module, border: Border, number: int, samples: int) -> None:
        """Start the layer's backward: the gradient of its output is ready."""
        if not self._backward:
            self._backward = True
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._take_tail)
        self._take_tail()
        self._covered = bool(border.layers)
        self._take(module, border, "gradient", number, samples, True)

    def _take(
        self, module: nn.Module, border: Border, kind: str, number: int, samples: int, back: bool
    ) -> None:
        """Charge a layer's time once in a pass, since a record counts its calls together."""
        key = id(module), number, back and kind == "forward"
        if back and kind == "gradient":
            key = -id(module), number, True
        if not border.layers or key in self._done:
            return
        self._done.add(key)
        place = self._place(module)
        speed = self.here.devices[place].speed if place >= 0 else self.here.speed
        of_layers = [
            self.record.times(layer, speed.device, speed.sharers, samples)
            for layer in border.layers
        ]
        whole = LayerSeconds(*(sum(times) for times in zip(*of_layers, strict=True)))
        if kind == "forward":
            self.here.charge(place, whole.forward, "backward" if back else "forward")
            return
        self.here.charge(place, whole.gradient, "backward")
        self._tail = place, whole.tail

    def _take_tail(self) -> None:
        if self._tail is not None:
            (place, seconds), self._tail = self._tail, None
            self.here.charge(place, seconds, "backward")

    def _place(self, module: nn.Module) -> int:
        for parameter in module.parameters():
            return place_of(parameter)
        return self.here.place if self.here.used else -1

    def _finish(self) -> None:
        """End the time covered by the record."""
        self._take_tail()
        self._covered = self._backward = False

    # What runs ------------------------------------------------------------------------------------

    def covers(self, func: Any, backward: bool) -> bool:
        if backward:
            node: Any = torch._C._current_autograd_node()
            if node is None or node.name() in OUTSIDE:
                return False
        elif self._backward:
            self._finish()
        if not self._covered or func.namespace != "aten":
            return False
        return backward or self._depth > 0 or torch.is_grad_enabled()

    def update(self, parameter: Any, count: int) -> float | None:
        seconds = self.record.spec.update
        if seconds is None or id(parameter) not in self._learned:
            return None
        return seconds * count / self._elements


class Recorded(RankLocal):
    """Charges the times of a record, of layers or of whole steps."""

    def __init__(self, record: LayerRecord | MeasuredRecord) -> None:
        self.record = record
        self.turns: list[Position] = []

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", _call, machine)

    def begin(self, rank: Rank) -> None:
        here = machine()
        if here is not None:
            if isinstance(self.record, MeasuredRecord):
                here.turns = WholeSteps(self.record, here)
            else:
                here.turns = Turns(self.record, here)
            self.turns.append(here.turns)

    def check(self) -> None:
        """Refuse a record without an effect.

        Raises
        ------
        ScenarioError
            If no module of the script has its layers.
        """
        if any(turns.is_met for turns in self.turns):
            return
        if isinstance(self.record, MeasuredRecord):
            raise ScenarioError(
                f"--compute {self.record.path}: the script trains no module; leave it out."
            )
        called = list(dict.fromkeys(name for turns in self.turns for name in turns.called))
        problem = (
            f"--compute {self.record.path}: no module that the script calls has the record's "
            f"layers {_some([layer.name for layer in self.record.layers])}; it calls "
            f"{_some(called) or 'none'}. Name the record's lines after the model's modules."
        )
        raise ScenarioError(problem)


def _call(here: VirtualMachine, called: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if here.turns is None:
        return called(module, *args, **kwargs)
    return here.turns.call(called, module, args, kwargs)


def _entering(border: Border) -> Any:
    def hook(module: nn.Module, args: Any) -> None:
        here = machine()
        if here is not None and here.turns is not None:
            here.turns.enter(module, border)

    return hook


def _leaving(border: Border) -> Any:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        here = machine()
        if here is not None and here.turns is not None and torch.is_grad_enabled():
            here.turns.listen(module, border, out)

    return hook


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() >= 0)


def _own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} ... ({len(names)} in all)" if len(names) > 8 else shown
