"""What events at the borders of layers say of their times; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Event(NamedTuple):
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


def forward_of(calls: Sequence[Event], end: float) -> dict[str, float]:
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
    events: Sequence[Event], begin: float, end: float
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
