"""Measures steps of models without DDP, and the times of their layers with hooks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from simdp.probes.arguments import progress
from simdp.probes.device import DeviceClock, Stepper, clock, free
from simdp.probes.figures import (
    LayerEvent,
    LayerTimes,
    StepSeconds,
    backward_of,
    csv,
    forward_of,
    median,
    medians,
    milliseconds,
    percentiles,
)
from simdp.probes.record import (
    FullStep,
    HostTimes,
    LayersStep,
    ModelSteps,
    PrecisionSteps,
    StepMemory,
    measured_compute,
    write_text,
)
from simdp.probes.traces import record_trace
from simdp.probes.zoo import Settings

# Steps --------------------------------------------------------------------------------------------


class _Case(NamedTuple):
    """What is measured at every micro-batch."""

    args: Namespace
    name: str  # of the model
    settings: Settings
    device: torch.device
    mode: str
    precision: str

    def stem(self, microbatch: int) -> str:
        """Return the beginning of names of files."""
        return f"{self.name}_{self.precision}_{microbatch}"

    def title(self, microbatch: int) -> str:
        """Describe the case."""
        place = f"micro-batches of {microbatch}, on {self.args.device}"
        return f"{self.name}, {self.mode}, {self.precision}, {place}"


def measure_model(
    args: Namespace, name: str, settings: Settings, device: torch.device
) -> ModelSteps:
    """Measure one model in every mode, precision and micro-batch."""
    modes = {
        mode: {
            precision: _steps(_Case(args, name, settings, device, mode, precision))
            for precision in args.precision
        }
        for mode in args.modes
    }
    return ModelSteps(
        model=asdict(settings), precisions=modes.get("eager"), compiled=modes.get("compiled")
    )


def _steps(case: _Case) -> PrecisionSteps:
    """Measure one model at every micro-batch."""
    times: dict[int, StepSeconds] = {}
    steps: list[LayersStep | FullStep] = []
    for microbatch in case.args.microbatch:
        title = case.title(microbatch)
        try:
            step, times[microbatch] = _step(case, microbatch)
            steps.append(step)
            progress(f"{title}: {milliseconds(median(times[microbatch].step))}")
        except torch.OutOfMemoryError:
            steps.append(FullStep(microbatch=microbatch))
            progress(f"{title}: does not fit into the device's memory")
        free(case.device)
    return PrecisionSteps(steps=steps, compute=measured_compute(times) if times else None)


def _step(case: _Case, microbatch: int) -> tuple[LayersStep, StepSeconds]:
    """Return one micro-batch's part of the record, and the times of its steps."""
    args, stem = case.args, case.stem(microbatch)
    stepper = Stepper(case.settings, microbatch, case.precision, args.optimizer, case.device)
    is_eager = case.mode == "eager"
    model = stepper.module if is_eager else _compiled(stepper.module)
    times = stepper.run(model, args.warm_up, args.steps)
    on_gpu = case.device.type == "cuda"
    step = LayersStep(
        microbatch=microbatch,
        step_time=percentiles(times.step),
        **medians(times.parts),
        **(_of_device(args, stepper, model, f"{stem}_{case.mode}") if on_gpu else {}),
        **(_of_layers(args, stepper, stem, case.title(microbatch)) if is_eager else {}),
    )
    if args.traces is not None:
        record_trace(stepper, model, args.traces / f"{stem}_{case.mode}")
    return step, times


def _compiled(module: nn.Module) -> nn.Module:
    """Return a compiled module, for this micro-batch alone."""
    torch._dynamo.reset()  # else a second micro-batch is compiled for any size
    return torch.compile(module, dynamic=False)


def _of_device(
    args: Namespace, stepper: Stepper, model: nn.Module, stem: str
) -> dict[str, HostTimes | StepMemory]:
    """Measure what only a GPU has: the host's time for a step, and the allocator's memory."""
    issued = stepper.issue(model, args.steps)
    path = args.memory and args.memory / f"{stem}.pickle"
    return {
        "host": HostTimes(**medians(issued._asdict())),
        "memory": stepper.memory(model, path),
    }


def _of_layers(args: Namespace, stepper: Stepper, stem: str, about: str) -> dict[str, str]:
    """Time the layers of a model, write their profile, and print their sums."""
    layers = measure(stepper, args.warm_up, args.steps)
    write_text(args.out / f"{stem}.csv", csv(layers, about))
    whole = sum(layers.forward) + sum(layers.weight_grad) + sum(layers.input_grad)
    return {"sum_of_layers": milliseconds(whole), "profile": f"{stem}.csv"}


# Layers -------------------------------------------------------------------------------------------

WHOLE = (nn.MultiheadAttention,)
"""Modules that compute with their children's weights, without calling them."""


def measure(stepper: Stepper, warm_up: int, steps: int) -> LayerTimes:
    """Time the layers with parameters, as medians over ``steps`` after ``warm_up``."""
    layers = dict(_layers(stepper.module))
    watch = clock(stepper.device)
    timed = [_layers_of_step(stepper, layers, watch) for _ in range(warm_up + steps)][warm_up:]
    names = list(timed[0][0])
    return LayerTimes(
        names,
        [median([ahead[name] for ahead, _, _ in timed]) for name in names],
        [median([to_weight.get(name, 0.0) for _, to_weight, _ in timed]) for name in names],
        [median([to_input.get(name, 0.0) for _, _, to_input in timed]) for name in names],
        [4 * sum(p.numel() for p in layers[name].parameters()) for name in names],
    )


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the called modules with parameters, by name."""
    whole = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, WHOLE))
    for name, child in module.named_modules():
        is_layer = isinstance(child, WHOLE) or not list(child.children())
        if is_layer and list(child.parameters()) and not name.startswith(whole):
            yield name, child


def _layers_of_step(
    stepper: Stepper, layers: dict[str, nn.Module], watch: DeviceClock
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Run one step; return seconds of forward, up to the gradient, and after it, by layer."""
    noted: list[tuple[str, str, int]] = []
    with _hooks(layers, watch, noted):
        watch.mark()
        loss = stepper.forward(stepper.module)
        middle = watch.mark()
        loss.backward()
        end = watch.mark()
    stepper.optimizer.zero_grad(set_to_none=True)
    at = watch.seconds()
    events = [LayerEvent(layer, kind, at[mark]) for layer, kind, mark in noted]
    ahead = [event for event in events if event.kind == "call"]
    back = [event for event in events if event.kind != "call"]
    return (forward_of(ahead, at[middle]), *backward_of(back, at[middle], at[end]))


@contextmanager
def _hooks(
    layers: dict[str, nn.Module], watch: DeviceClock, noted: list[tuple[str, str, int]]
) -> Iterator[None]:
    """Record calls, gradients of outputs, and complete gradients of parameters."""

    def note(layer: str, kind: str) -> None:
        noted.append((layer, kind, watch.mark()))

    def called(layer: str) -> Any:
        return lambda module, given: note(layer, "call")

    def returned(layer: str) -> Any:
        def hook(module: nn.Module, given: object, out: Tensor | tuple[Tensor, ...]) -> None:
            first = out[0] if isinstance(out, tuple) else out
            first.register_hook(lambda gradient: note(layer, "output"))

        return hook

    def complete(layer: str) -> Any:
        return lambda parameter: note(layer, "ready")

    handles: list[Any] = []
    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(called(name)))
        handles.append(layer.register_forward_hook(returned(name)))
        for parameter in layer.parameters():
            handles.append(parameter.register_post_accumulate_grad_hook(complete(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
