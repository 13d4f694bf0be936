"""Measures the times of layers with hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from simdp.probes.device import DeviceClock, Stepper, clock
from simdp.probes.figures import (
    LayerEvent,
    LayerTimes,
    backward_of,
    forward_of,
    median,
)

WHOLE = (nn.MultiheadAttention,)
"""Modules that compute with their children's weights, without calling them."""


def measure(stepper: Stepper, warm_up: int, steps: int) -> LayerTimes:
    """Time the layers with parameters, as medians over ``steps`` after ``warm_up``."""
    layers = dict(_layers(stepper.module))
    watch = clock(stepper.device)
    found = [_step(stepper, layers, watch) for _ in range(warm_up + steps)][warm_up:]
    names = list(found[0][0])
    return LayerTimes(
        names,
        [median([ahead[name] for ahead, _, _ in found]) for name in names],
        [median([to_weight.get(name, 0.0) for _, to_weight, _ in found]) for name in names],
        [median([to_input.get(name, 0.0) for _, _, to_input in found]) for name in names],
        [4 * sum(p.numel() for p in layers[name].parameters()) for name in names],
    )


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the called modules with parameters, by name."""
    whole = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, WHOLE))
    for name, child in module.named_modules():
        is_layer = isinstance(child, WHOLE) or not list(child.children())
        if is_layer and list(child.parameters()) and not name.startswith(whole):
            yield name, child


def _step(
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
        def hook(module: Any, given: Any, out: Any) -> None:
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
