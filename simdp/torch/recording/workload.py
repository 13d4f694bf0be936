"""Converts a torch module to a workload, by a forward and backward without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from simdp.errors import SimdpError
from simdp.torch.kernels import tensors_in
from simdp.torch.recording.sharded import optimizer_of
from simdp.torch.recording.tape import (
    AsOnDevices,
    RecordedWorkload,
    RecordingTape,
    Taped,
    bare,
    calls_of,
    fake_leaf,
    faked,
    resized,
)
from simdp.workload.layers.operator import Held, Learned
from simdp.workload.models.operators import FORMAT, GraphInput, Recording


class Call(NamedTuple):
    """Arguments of a module."""

    args: list[Any]
    kwargs: dict[str, Any]


Loss = Callable[..., torch.Tensor]


def workload(
    module: torch.nn.Module,
    sample: Any,
    *,
    target: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scales: bool = True,
) -> RecordedWorkload:
    """Convert a torch module to a workload: operators, parameters and the order of gradients.

    Forward and backward run on tensors without memory, so that a module of any size takes seconds;
    one on the ``meta`` device needs no memory either. Control flow must not depend on numbers.

    Parameters
    ----------
    module : torch.nn.Module
        In its current mode; its weights and buffers do not change.
    sample : Tensor, tuple, or dict
        A batch: the only argument, all of them, or all by name; only shapes and dtypes count. The
        first axis of its first tensor counts the samples.
    target : Tensor, tuple or dict, optional
        Arguments of the loss in addition to the output.
    loss : callable, optional
        ``loss(output, target)``, or ``loss(output)`` without a target. Without it backward begins
        at the output's ``loss``, if it has one, and else at all of its numbers.
    optimizer : torch.optim.Optimizer, optional
        Named in the scenario, with its arguments.
    scales : bool
        Whether to run a second batch, twice as large, to find the costs that grow with the samples;
        False takes the batch as one sample.

    Raises
    ------
    SimdpError
        If the module's operators depend on numbers or on the batch's size, or there is no tensor in
        the sample.
    """
    batch = _batch_of(sample)
    small = max(batch, 2) if scales else batch
    taped = [_taped(module, sample, target, loss, batch, small)]
    if scales:
        taped.append(_taped(module, sample, target, loss, batch, 2 * small))
    first, larger = taped[0], taped[1] if scales else None
    if not scales:
        first = first._replace(batch=1)
    keys = {} if optimizer is None else {"optimizer": optimizer_of(optimizer, module)}
    recording = _recording(module, first, larger)
    size, ready = batch if scales else 1, tuple(first.tape.ready)
    return RecordedWorkload(recording, size, keys, ready, tuple(first.tape.outputs))


def _batch_of(sample: Any) -> int:
    first = next((tensor for tensor in tensors_in(sample) if tensor.ndim), None)
    if first is None:
        raise SimdpError(
            "workload: the sample holds no tensor with an axis; give a batch, such as "
            "torch.empty(8, 3, 224, 224)."
        )
    return int(first.shape[0])


def _taped(
    module: torch.nn.Module, sample: Any, target: Any, loss: Loss | None, batch: int, wanted: int
) -> Taped:
    """Run forward and backward without memory, at a batch size."""
    # At its first pass autograd counts devices, and refuses forks if there are any: those of an
    # audit in this process. Here is none yet.
    torch.ones(1, requires_grad=True).backward()
    with faked():
        leaves = {name: fake_leaf(p, p.requires_grad) for name, p in module.named_parameters()}
        buffers = {name: fake_leaf(b, False) for name, b in module.named_buffers()}
        inputs = resized(sample, batch, wanted)
        aim = resized(target, batch, wanted)
        tape = RecordingTape(module, leaves, buffers, list(tensors_in([inputs, aim])))
        args, kwargs = _arguments(inputs)
        try:
            with bare(module), tape.recording(module), AsOnDevices():
                tensors = {**leaves, **buffers}
                out = torch.func.functional_call(module, tensors, args, kwargs, tie_weights=True)
                tape.returned(_plain(out))
                _backward(out, aim, loss)
        except (RuntimeError, NotImplementedError) as error:
            line = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
            raise SimdpError(
                f"workload: {type(module).__name__} cannot run without numbers: {line}"
            ) from error
        tape.finish()
    return Taped(wanted, tape)


def _arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(sample, torch.Tensor):
        return (sample,), {}
    if isinstance(sample, dict):
        return (), sample
    if isinstance(sample, Call):
        return tuple(sample.args), sample.kwargs
    return tuple(sample), {}


def _backward(out: Any, target: Any, loss: Loss | None) -> None:
    if loss is not None:
        (loss(out) if target is None else loss(out, target)).backward()
        return
    own = getattr(out, "loss", None)
    if isinstance(own, torch.Tensor):
        own.backward()
        return
    ends = [tensor for tensor in tensors_in(_plain(out)) if tensor.requires_grad]
    torch.autograd.backward(ends, [torch.empty_like(tensor) for tensor in ends])


def _plain(out: Any) -> Any:
    """Convert the output of transformers' modules, a special dictionary."""
    return dict(out) if hasattr(out, "items") else out


def _recording(module: torch.nn.Module, first: Taped, larger: Taped | None) -> Recording:
    tape = first.tape
    calls = calls_of(first, larger)
    if not calls:
        raise SimdpError(
            f"workload: {type(module).__name__} launches nothing; give a module that computes."
        )
    shapes = {name: tuple(leaf.shape) for name, leaf in tape.parameters.items()}
    learned = [leaf.requires_grad for leaf in tape.parameters.values()]
    return Recording(
        format=FORMAT,
        module=type(module).__name__,
        torch=torch.__version__,
        inputs=tuple(
            GraphInput(
                name="x" if number == 0 else f"x{number}",
                elements=tensor.numel() // first.batch,
                integers=not tensor.is_floating_point(),
            )
            for number, tensor in enumerate(tape.inputs)
        ),
        parameters=tuple(Learned(name, shape) for name, shape in shapes.items()),
        frozen=tuple(number for number, is_learned in enumerate(learned) if not is_learned),
        buffers=tuple(
            Held(name, tuple(buffer.shape), not buffer.is_floating_point())
            for name, buffer in tape.buffers.items()
        ),
        operators=tuple(calls),
        output=tape.first + len(calls) - 1,
    )
