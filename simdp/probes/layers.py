"""Measures layers.

Writes a CSV of each model, micro-batch and precision, which ``model: {kind: profile}`` reads, and
``steps.yaml``: the machine, and each model's ``compute: measured``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from simdp.probes import arguments, networks
from simdp.probes.arguments import require_torch, run, say
from simdp.probes.device import DeviceClock, Stepper, clock, median, milliseconds, percentiles
from simdp.probes.record import measured_compute, write_text, write_yaml

# Intervals ----------------------------------------------------------------------------------------


class LayerEvent(NamedTuple):
    """Something that happened to a layer, and when.

    Attributes
    ----------
    layer : str
        Its name.
    kind : {"call", "output", "ready"}
        It is called; the gradient of its output is there; that of one of its parameters is.
    at : float
        Seconds from the start of the step [s].
    """

    layer: str
    kind: Literal["call", "output", "ready"] | str
    at: float


class LayerTimes(NamedTuple):
    """Layer times of a model, in forward order; lists of one length.

    Attributes
    ----------
    names : list of str
        Layers that have parameters.
    forward : list of float
        From a layer's call to that of the next one [s].
    weight_grad : list of float
        From the gradient of its output to the last one of its parameters [s].
    input_grad : list of float
        From there to the gradient of the next output [s].
    gradient_bytes : list of int
        Of its parameters [bytes].
    """

    names: list[str]
    forward: list[float]
    weight_grad: list[float]
    input_grad: list[float]
    gradient_bytes: list[int]


def forward_of(calls: Sequence[LayerEvent], end: float) -> dict[str, float]:
    """Seconds of each layer's forward, in order of the calls.

    What comes before the first call, from instant 0 on, counts with the first layer, and what has
    no parameters with the layer before it.
    """
    starts = [0.0, *(event.at for event in calls[1:]), end]
    found: dict[str, float] = {}
    for event, begin, finish in zip(calls, starts, starts[1:], strict=False):
        found[event.layer] = found.get(event.layer, 0.0) + finish - begin
    return found


def backward_of(
    events: Sequence[LayerEvent], begin: float, end: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each layer's backward: up to its gradients, and after them.

    What comes before the first output's gradient, the loss, counts with that layer. A layer's
    turn lasts until the next output's gradient is there; gradients of its parameters that come
    later than that are those of calls that autograd put off, and count as ready at its end.

    Parameters
    ----------
    events : sequence of Event
        Of kind ``output`` and ``ready``, in order of time.
    begin, end : float
        Of backward [s].
    """
    outputs = [event for event in events if event.kind == "output"]
    starts = [begin, *(event.at for event in outputs[1:]), end]
    to_weight: dict[str, float] = {}
    to_input: dict[str, float] = {}
    for output, start, finish in zip(outputs, starts, starts[1:], strict=False):
        layer = output.layer
        ready = [e.at for e in events if e.layer == layer and e.kind == "ready"]
        inside = [at for at in ready if start <= at <= finish]
        cut = max(inside) if inside and len(inside) == len(ready) else finish
        to_weight[layer] = to_weight.get(layer, 0.0) + cut - start
        to_input[layer] = to_input.get(layer, 0.0) + finish - cut
    return to_weight, to_input


# Layers -------------------------------------------------------------------------------------------

MODES = ("eager", "compiled")

COLUMNS = ("name", "forward_us", "weight_grad_us", "input_grad_us", "gradient_bytes")


def parser() -> arguments.Parser:
    """The probe's arguments."""
    found = arguments.Parser(prog="simdp.probes.layers", description=__doc__)
    arguments.add_device(found)
    arguments.add_precision(found)
    found.add_argument("--models", type=arguments.listed(str), default=["mlp", "transformer"])
    found.add_argument("--set", action="append", default=[], help="resnet50.image_size=64")
    found.add_argument("--microbatch", type=arguments.listed(arguments.positive), default=[1, 8])
    optimizers = arguments.one_of("optimizer", ("sgd", "adam", "adamw"))
    found.add_argument("--optimizer", type=optimizers, default="sgd")
    found.add_argument("--warm-up", type=arguments.positive, default=5)
    found.add_argument("--steps", type=arguments.positive, default=20)
    modes = arguments.one_of("mode", MODES)
    found.add_argument(
        "--modes",
        type=arguments.listed(modes),
        default=["eager"],
        help="eager, compiled: as it is, and under torch.compile, whose layers have no times",
    )
    arguments.add_traces(found)
    found.add_argument("--out", type=Path, default=Path("probe_layers"), help="folder")
    return found


def main(given: Sequence[str]) -> None:
    """Measure as the arguments say.

    Raises
    ------
    ProbeError
        If arguments do not fit together, or torch is missing.
    """
    args = parser().parse_args(given)
    arguments.check_device(args.device, "gloo", 1, args.precision)
    models = networks.chosen(args.models, args.set)
    require_torch()
    import torch

    from simdp.probes import device as devices
    from simdp.probes.arguments import RankPlacement, check_devices

    check_devices(1, RankPlacement("gloo", args.device, 1, args.threads))
    torch.set_num_threads(args.threads)
    device = torch.device(args.device, *([0] if args.device == "cuda" else []))
    made = {name: _of_model(args, name, settings, device) for name, settings in models.items()}
    record = {
        "probe": "layers",
        "machine": devices.machine(device, args.threads),
        "device": devices.figures(device, args.precision),
        "models": made,
    }
    path = args.out / "steps.yaml"
    write_yaml(path, record, "Written by python -m simdp.probes.layers.")
    say(f"record: {path}")


def _of_model(args: Any, name: str, settings: networks.Settings, device: Any) -> dict[str, Any]:
    """Measure one model in every mode, precision and micro-batch; its part of the record."""
    found: dict[str, Any] = {"model": settings}
    for mode in args.modes:
        part = {
            precision: _of_precision(args, name, settings, device, mode, precision)
            for precision in args.precision
        }
        found["precisions" if mode == "eager" else mode] = part
    return found


def _of_precision(
    args: Any, name: str, settings: networks.Settings, device: Any, mode: str, precision: str
) -> dict[str, Any]:
    """Measure one model at every micro-batch."""
    import torch

    from simdp.probes.device import Stepper
    from simdp.probes.record import record_trace

    points, notes = [], []
    for microbatch in args.microbatch:
        stepper = Stepper(settings, microbatch, precision, args.optimizer, device)
        model = stepper.module if mode == "eager" else torch.compile(stepper.module)
        times = stepper.run(model, args.warm_up, args.steps)
        points.append((microbatch, {part: [value] for part, value in times._asdict().items()}))
        note = {"microbatch": microbatch, "step_time": percentiles(times.step)}
        about = f"{name}, {mode}, {precision}, micro-batches of {microbatch}, on {args.device}"
        stem = f"{name}_{precision}_{microbatch}"
        if mode == "eager":
            note |= _of_layers(args, stepper, stem, about)
        notes.append(note)
        if args.traces is not None:
            record_trace(stepper, model, args.traces / f"{stem}_{mode}")
        say(f"{about}: {milliseconds(median(times.step))}")
    return {"steps": notes, "compute": measured_compute(points)}


def _of_layers(args: Any, stepper: Any, stem: str, about: str) -> dict[str, Any]:
    """Time the layers of a model, write their profile, and say what they sum to."""
    layers = measure(stepper, args.warm_up, args.steps)
    write_text(args.out / f"{stem}.csv", csv(layers, about))
    whole = sum(layers.forward) + sum(layers.weight_grad) + sum(layers.input_grad)
    return {"sum_of_layers": milliseconds(whole), "profile": f"{stem}.csv"}


def csv(layers: LayerTimes, about: str) -> str:
    """Write layer times as the model ``profile`` reads them.

    Parameters
    ----------
    layers : LayerTimes
        In forward order.
    about : str
        Stands in front, as a comment.
    """
    lines = [
        f"# {about}; what has no parameters is in the line of the layer before it",
        ",".join(COLUMNS),
    ]
    for name, forward, to_weight, to_input, nbytes in zip(*layers, strict=True):
        times = (f"{1e6 * seconds:.3f}" for seconds in (forward, to_weight, to_input))
        lines.append(",".join([name, *times, str(nbytes)]))
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))


# Layer times --------------------------------------------------------------------------------------

WHOLE = (nn.MultiheadAttention,)
"""Modules that compute with their children's weights, without calling them."""


def measure(stepper: Stepper, warm_up: int, steps: int) -> LayerTimes:
    """Time the layers of a model that have parameters.

    Parameters
    ----------
    stepper : Stepper
        Whose module it is, with its batch.
    warm_up, steps : int
        Steps that are not timed, and that are; medians over them count.
    """
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
    """The modules that hold parameters and are called, by their names."""
    whole = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, WHOLE))
    for name, child in module.named_modules():
        is_layer = isinstance(child, WHOLE) or not list(child.children())
        if is_layer and list(child.parameters()) and not name.startswith(whole):
            yield name, child


def _step(
    stepper: Stepper, layers: dict[str, nn.Module], watch: DeviceClock
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """One step: seconds of forward, up to the gradient, and after it, by layer."""
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
    """Note calls, gradients of outputs, and gradients of parameters that are complete."""

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
