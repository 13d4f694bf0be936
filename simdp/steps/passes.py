"""Forward and backward pass of a micro-step, with hooks in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simdp.steps.facts import Facts, Ops, StateTensor, Tags
from simdp.steps.ops import (
    Backward,
    Batch,
    Broadcast,
    Exchange,
    Forward,
    MicrobatchDone,
    Scatter,
    Tail,
    Wait,
)
from simdp.steps.partition import Group, MiB, assign

BROADCAST_NBYTES = 250 * MiB
"""Buffer size of broadcasts of parameters [bytes] (torch: _sync_module_states)."""

AtCall = Callable[[int], Ops]
"""Runs before or after a call of the model, given its number."""


def nothing(about: object) -> Ops:
    """Do nothing."""
    yield from ()


def forward(facts: Facts, micro: int, before: AtCall = nothing, after: AtCall = nothing) -> Ops:
    """Run the model and the loss on a micro-batch, with hooks like those of torch's modules.

    ``before`` and ``after`` run around each call.
    """
    yield Batch(micro)
    for call in range(len(facts.graph.calls)):
        yield from before(call)
        yield from _forward_of(facts, micro, call)
        yield from after(call)
    yield Forward(micro, len(facts.graph.calls))


def _forward_of(facts: Facts, micro: int, call: int, again: bool = False, gil: float = 0.0) -> Ops:
    yield Forward(micro, call, again, gil)
    if call in facts.exchanges:
        yield Exchange(micro, call, "all_gather", facts.exchanges[call].gathered)


def scatter(facts: Facts, micro: int, targets: bool = False) -> Ops:
    """Let rank 0 take a micro-batch and scatter it, optionally with its targets."""
    yield Batch(micro, root=0)
    if not facts.workload.model.timed:  # else samples are unknown
        for name in (*facts.graph.inputs, *["y"] * targets):
            yield Scatter(micro, name)


def forward_of_all(facts: Facts, micro: int, gil: float = 0.0, losses: bool = False) -> Ops:
    """Run the model on every rank with samples, without collectives.

    ``gil`` is the fraction of a kernel's launch that runs on one rank at a time, as in threads of
    one interpreter. With ``losses`` each rank also computes the loss of its own piece.
    """
    for call in range(len(facts.graph.calls) + losses):
        yield Forward(micro, call, gil=gil)


def backward(
    facts: Facts,
    micro: int,
    hook: Callable[[str], Ops] = nothing,
    before: AtCall = nothing,
    after: AtCall = nothing,
    gil: float = 0.0,
) -> Ops:
    """Add the micro-batch's gradients to those of the step, the last layer first.

    Parameters
    ----------
    facts, micro
        As of `forward`.
    hook : callable
        Called with each parameter's name when its gradient is complete, like torch's hooks.
    before, after : callable
        Run around each call.
    gil : float
        As of `Forward`, for recomputed calls.
    """
    graph = facts.graph
    yield Backward(micro, len(graph.calls))
    for call in reversed(range(len(graph.calls))):
        yield from before(call)
        for inside in facts.recomputed.get(call, ()):
            yield from _forward_of(facts, micro, inside, True, gil)
        if call in facts.exchanges:
            yield Exchange(micro, call, "all_reduce", facts.exchanges[call].summed)
        yield Backward(micro, call)
        for name in graph.ready_at[call]:
            yield from hook(name)
        if call in facts.tails:
            yield Tail(micro, call)
        yield from after(call)
    yield MicrobatchDone(micro)


def send_all(
    facts: Facts,
    tensors: Sequence[StateTensor],
    label: str,
    root: int,
    numbers: Tags,
    group: Group = None,
) -> Ops:
    """Broadcast tensors of one dtype in buffers of `BROADCAST_NBYTES`, and wait for each."""
    for number, names in enumerate(packed(facts, tensors, BROADCAST_NBYTES)):
        yield from send(facts, names, f"{label} {number}", root, next(numbers), group)


def send(
    facts: Facts,
    tensors: Sequence[StateTensor],
    label: str,
    root: int,
    tag: int,
    group: Group = None,
) -> Ops:
    """Broadcast tensors together, and wait for the broadcast."""
    names = tuple(tensor.name for tensor in tensors)
    yield Broadcast(tag, label, nbytes_of(facts, tensors), names, root, group)
    yield Wait((tag,))


def send_buffers(facts: Facts, root: int, numbers: Tags, group: Group = None) -> Ops:
    """Broadcast the model's buffers."""
    for integer, label in ((False, "buffers"), (True, "counters")):
        chosen = [buffer for buffer in facts.buffers if buffer.integer == integer]
        yield from send_all(facts, chosen, label, root, numbers, group)


def packed(facts: Facts, tensors: Sequence[StateTensor], cap: float) -> list[list[StateTensor]]:
    """Sort tensors of one dtype into buffers of about ``cap`` bytes."""
    if not tensors:
        return []
    by_name = {tensor.name: tensor for tensor in tensors}
    sorted_out = assign(tensors, facts.itemsize_of(tensors[0]), [cap])
    return [[by_name[name] for name in names] for names in sorted_out]


def nbytes_of(facts: Facts, tensors: Sequence[StateTensor]) -> float:
    """Size of tensors in a collective [bytes]."""
    return float(sum(tensor.num_elements * facts.itemsize_of(tensor) for tensor in tensors))
