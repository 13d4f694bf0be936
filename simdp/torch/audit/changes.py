"""Changes of a run, each of which neutralises one suspect.

A change is a part of the launcher. It is installed before the observer, so that the observer
records what the change has left.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

from simdp.rng import stream
from simdp.torch.audit.lines import Line, directly, running
from simdp.torch.audit.observation import (
    DRAWS,
    PLACES,
    Observation,
    before_step,
    inner_optimizer,
    mine,
    parameter_name,
    parameters_of,
    unobserved,
)
from simdp.torch.audit.records import BackwardRecord, Place
from simdp.torch.audit.sketches import values
from simdp.torch.generators import restore_generators
from simdp.torch.kernels import as_list
from simdp.torch.ranks import Patches, Rank, RankLocal, current


class Change(RankLocal):
    """A change of a run."""

    def rewritten(self, code: CodeType) -> CodeType:
        """Return the script's code, compiled anew if the change needs it."""
        return code


def at_each_step(patches: Patches, act: Callable[[Observation, Any], None]) -> None:
    """Act before each step, with the rank's observation and the optimizer, when it is outermost."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        here = mine()
        if here is not None and not here.stepping:
            act(here, optimizer)

    patches.undo(register_optimizer_step_pre_hook(before_step(hook)).remove)


def several_ranks() -> bool:
    """Return whether the script runs on several ranks, in a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class ByMode(Change):
    """A change by a mode of each rank, which sees the calls of torch's functions."""

    def __init__(self) -> None:
        self.modes: dict[Rank, TorchFunctionMode] = {}

    def call(self, rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of torch."""
        raise NotImplementedError

    def begin(self, rank: Rank) -> None:
        self.modes[rank] = _CallMode(partial(self.call, rank))
        self.modes[rank].__enter__()

    def end(self, rank: Rank) -> None:
        if rank in self.modes:
            self.modes.pop(rank).__exit__(None, None, None)


class _CallMode(TorchFunctionMode):
    def __init__(self, call: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})


class Placed(Change):
    """Lets the observer compare tensors that ranks do not share, as of experts.

    ``places`` are by number of ranks, rank and name.
    """

    def __init__(self, places: Mapping[tuple[int, int, str], Place]) -> None:
        self.places = dict(places)

    def begin(self, rank: Rank) -> None:
        own = rank.runtime.cluster.world_size, rank.rank
        rank.state[PLACES] = {
            name: place for (*where, name), place in self.places.items() if tuple(where) == own
        }


# Loss ---------------------------------------------------------------------------------------------


class WeightedLosses(Change):
    """Multiplies the loss of each backward pass.

    Parameters
    ----------
    factors : mapping
        Factors by rank and number of the pass.
    count : callable, optional
        Returns what the loss of a backward pass is a mean of. The factors are those of the counts
        that ranks have then, in place of ``factors``: for ranks that make one pass in each step.
    """

    def __init__(
        self,
        factors: Mapping[tuple[int, int], float],
        count: Callable[[BackwardRecord], float | None] | None = None,
    ) -> None:
        self.factors, self.count = dict(factors), count

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch.autograd, "backward", self._backward, mine)

    def _backward(
        self, here: Observation, original: Any, tensors: Any, *args: Any, **kw: Any
    ) -> Any:
        if torch._C._current_graph_task_id() == -1:
            losses = as_list(tensors)
            number = len(here.record.backwards) - 1  # that of this one is already there
            factor = self.factors.get((here.rank.rank, number), 1.0)
            if self.count is not None:
                count = None if here.backward is None else self.count(here.backward)
                factor = _share(losses[0], count or 0.0)
            if factor != 1:
                tensors = [loss * factor for loss in losses]
        return original(tensors, *args, **kw)


def _share(loss: Any, count: float) -> float:
    """Return this rank's count over the mean of all ranks'."""
    if not several_ranks():
        return 1.0
    with unobserved(), torch.no_grad():
        total = loss.new_tensor([count])
        dist.all_reduce(total)
        number = float(values(total)[0])
    return count * dist.get_world_size() / number if number else 1.0


class ScalarTrace(ByMode):
    """Records the numbers that the script computes between two backward passes, by line."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars: dict[Rank, dict[Line, float]] = {}
        self.sizes: dict[Rank, dict[Line, float]] = {}  # elements of larger results

    def begin(self, rank: Rank) -> None:
        self.scalars[rank], self.sizes[rank] = {}, {}
        super().begin(rank)

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch.autograd, "backward", self._backward, mine)

    def _backward(self, here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
        if here.backward is not None:
            here.backward.scalars, self.scalars[here.rank] = self.scalars[here.rank], {}
            here.backward.sizes, self.sizes[here.rank] = self.sizes[here.rank], {}
        return original(*args, **kwargs)

    def call(self, rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.ndim and not result.is_meta:
            line = directly(3)
            if line is not None and result.numel():
                self.sizes[rank][line] = float(result.numel())
        elif isinstance(result, torch.Tensor) and not result.is_meta:
            line = running()
            if line is not None and not result.requires_grad:
                with torch._C.DisableTorchFunction():
                    number = float(values(result)[0])
                if number > 0 and torch.is_grad_enabled():
                    self.scalars[rank][line] = number
                elif number > 0:  # of a metric, more often than of the loss
                    self.scalars[rank].setdefault(line, number)
        return result


# Gradients ----------------------------------------------------------------------------------------


class AveragedAtStep(Change):
    """Averages gradients over ranks before each step; ``names`` are those of parameters, or all."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = None if names is None else set(names)

    def patch(self, patches: Patches) -> None:
        at_each_step(patches, self._average)

    def _average(self, here: Observation, optimizer: Any) -> None:
        if not several_ranks():
            return
        count = dist.get_world_size()
        with unobserved(), torch.no_grad():
            for parameter in parameters_of(optimizer):
                if not parameter.requires_grad or hasattr(parameter, "_local_tensor"):
                    continue
                if self.names is not None and parameter_name(here, id(parameter)) not in self.names:
                    continue
                grad = parameter.grad
                if grad is None:
                    grad = parameter.grad = torch.zeros_like(parameter)
                flat = grad.contiguous()
                dist.all_reduce(flat)
                grad.copy_(flat / count)


class ScaledAtStep(Change):
    """Multiplies gradients before each step."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def patch(self, patches: Patches) -> None:
        at_each_step(patches, self._scale)

    def _scale(self, here: Observation, optimizer: Any) -> None:
        with unobserved(), torch.no_grad():
            for parameter in parameters_of(optimizer):
                if parameter.grad is not None:
                    parameter.grad.mul_(self.factor)


class ClippedAtStep(Change):
    """Clips gradients before each step, in place of the script's calls and hooks."""

    def __init__(self) -> None:
        # by function and parameters; and parameters with their hooks
        self.clips: dict[Rank, dict[Any, Callable[[], Any]]] = {}
        self.hooks: dict[Rank, list[tuple[Any, Callable[[Any], Any]]]] = {}

    def begin(self, rank: Rank) -> None:
        self.clips[rank], self.hooks[rank] = {}, []

    def patch(self, patches: Patches) -> None:
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                patches.wrap(owner, name, partial(self._clip_later, name), current)
        patches.wrap(torch.Tensor, "register_hook", self._hook_later, current)
        at_each_step(patches, self._clip)

    def _clip_later(
        self, name: str, rank: Rank, original: Any, parameters: Any, *args: Any, **kwargs: Any
    ) -> Any:
        parameters = as_list(parameters)
        key = (name, tuple(id(parameter) for parameter in parameters))
        self.clips[rank][key] = partial(original, parameters, *args, **kwargs)
        if name == "clip_grad_value_":
            return None
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return nn.utils.get_total_norm(grads)

    def _hook_later(self, rank: Rank, original: Any, tensor: Any, hook: Any) -> Any:
        by_simdp = getattr(hook, "__module__", "").startswith("simdp.")
        if not isinstance(tensor, nn.Parameter) or running() is None or by_simdp:
            return original(tensor, hook)
        self.hooks[rank].append((tensor, hook))
        return original(tensor, lambda grad: None)

    def _clip(self, here: Observation, optimizer: Any) -> None:
        clips, self.clips[here.rank] = self.clips[here.rank], {}
        with unobserved(), torch.no_grad():
            for parameter, hook in self.hooks[here.rank]:
                changed = None if parameter.grad is None else hook(parameter.grad)
                if changed is not None:
                    parameter.grad.copy_(changed)
            for clip in clips.values():
                clip()


class ImposedRates(Change):
    """Sets the learning rates, momenta and other numbers of each step, by optimizer and step."""

    def __init__(self, settings: Mapping[tuple[int, int], tuple[dict[str, Any], ...]]) -> None:
        self.settings = dict(settings)

        self.replaced: dict[int, list[dict[str, Any]]] = {}  # by the optimizer's identity

    def patch(self, patches: Patches) -> None:
        at_each_step(patches, self._set)
        patches.undo(register_optimizer_step_post_hook(self._restore).remove)

    def _set(self, here: Observation, optimizer: Any) -> None:
        number = here.number_of_optimizer(optimizer)
        settings = self.settings.get((number, here.steps_of(number)), ())
        pairs = list(zip(optimizer.param_groups, settings, strict=False))
        self.replaced[id(optimizer)] = [
            {key: group[key] for key in imposed if key in group} for group, imposed in pairs
        ]
        for group, imposed in pairs:
            group.update({key: value for key, value in imposed.items() if key in group})

    def _restore(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        replaced = self.replaced.pop(id(optimizer), [])
        for group, settings in zip(optimizer.param_groups, replaced, strict=False):
            group.update(settings)


# Weights ------------------------------------------------------------------------------------------


class FirstCall(Change):
    """Calls `act` with each module that trains, before its first call by the script."""

    def __init__(self) -> None:
        self.called: dict[Rank, set[int]] = {}  # identities of modules

    def begin(self, rank: Rank) -> None:
        self.called[rank] = set()

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", self._call, current)

    def _call(self, rank: Rank, called: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and id(module) not in self.called[rank]:
            self.called[rank] |= {id(part) for part in module.modules()}
            with unobserved(), torch.no_grad():
                self.act(rank, module)
        return called(module, *args, **kwargs)

    def act(self, rank: Rank, module: Any) -> None:
        """Change a module."""
        raise NotImplementedError


class BroadcastWeights(FirstCall):
    """Gives every rank the parameters and buffers of rank 0."""

    def act(self, rank: Rank, module: Any) -> None:
        _from_rank_0(module)


class Nudged(FirstCall):
    """Moves every parameter by one unit in the last place, and every gradient by a few.

    A sum over ranks rounds by units of its tensor's scale, also where an element is zero, and
    adaptive optimizers enlarge that. ``unit`` is that of a shorter data type in which a script
    computes, to which weights are rounded by half a unit.
    """

    def __init__(self, unit: float = 0.0) -> None:
        super().__init__()
        self.unit = unit

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        at_each_step(patches, self._gradients)

    def act(self, rank: Rank, module: Any) -> None:
        generator = stream(0, "nudged weights")
        for parameter in module.parameters():
            local = getattr(parameter, "_local_tensor", parameter)
            if not local.is_floating_point() or local.is_meta:
                continue
            signs = torch.from_numpy(generator.choice([-1.0, 1.0], size=tuple(local.shape)))
            away = signs.to(local.dtype) * float("inf")
            with torch._C._DisableTorchDispatch():
                moved = torch.nextafter(local.detach().cpu(), away)
                local.copy_(moved * (1 + signs.to(local.dtype) * self.unit / 2))

    def _gradients(self, here: Observation, optimizer: Any) -> None:
        generator = stream(0, "nudged gradients", len(here.record.steps))
        with unobserved(), torch.no_grad(), torch._C._DisableTorchDispatch():
            for parameter in parameters_of(optimizer):
                grad = getattr(parameter.grad, "_local_tensor", parameter.grad)
                if grad is None or grad.is_meta or grad.layout is not torch.strided:
                    continue
                noise = torch.from_numpy(generator.standard_normal(tuple(grad.shape)))
                unit = max(self.unit, torch.finfo(grad.dtype).eps)
                scale = grad.double().pow(2).mean().sqrt() * unit
                grad.add_((noise * scale * UNITS).to(grad.dtype))


UNITS = 2
"""Units in the last place, of the root mean square of its tensor, that move a gradient."""


class NoCommHooks(Change):
    """Lets DDP reduce gradients itself, whatever hooks the script registers."""

    def patch(self, patches: Patches) -> None:
        patches.put(DistributedDataParallel, "register_comm_hook", lambda *_: None)


class AveragedBuffers(Change):
    """Averages the buffers of a module over ranks before and after its calls that train."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", self._call, mine)

    def _call(self, here: Observation, called: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        trains = here.depth == 1 and torch.is_grad_enabled() and several_ranks()
        if trains:
            self._average(module)
        value = called(module, *args, **kwargs)
        if trains:
            self._average(module)
        return value

    def _average(self, module: Any) -> None:
        with unobserved(), torch.no_grad():
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    flat = buffer.detach().contiguous().clone()
                    dist.all_reduce(flat)
                    buffer.copy_(flat / dist.get_world_size())


class SyncedModules(Change):
    """Gives modules without an optimizer the weights of rank 0 before each call by the script."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "__call__", self._call, mine)

    def _call(self, here: Observation, called: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        if here.depth == 1 and here.parameters:
            own = {id(parameter) for parameter in module.parameters()}
            if own and own.isdisjoint(here.parameters):
                _from_rank_0(module)
        return called(module, *args, **kwargs)


def _from_rank_0(module: Any) -> None:
    if not several_ranks():
        return
    with unobserved(), torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and not hasattr(tensor, "_local_tensor"):
                flat = tensor.detach().contiguous().clone()
                dist.broadcast(flat, 0)
                tensor.copy_(flat)


class FindUnused(Change):
    """Lets DistributedDataParallel find unused parameters."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(DistributedDataParallel, "__init__", self._initialise)

    def _initialise(self, original: Any, *args: Any, **kwargs: Any) -> None:
        original(*args, **{**kwargs, "find_unused_parameters": True, "static_graph": False})


# Resuming -----------------------------------------------------------------------------------------


class RestoredOptimizers(Change):
    """Loads the state of optimizers before the first step: by rank and optimizer."""

    def __init__(self, states: Mapping[tuple[int, int], Any]) -> None:
        self.states = dict(states)

    def patch(self, patches: Patches) -> None:
        at_each_step(patches, self._load)

    def _load(self, here: Observation, optimizer: Any) -> None:
        number = here.number_of_optimizer(optimizer)
        state = self.states.get((here.rank.rank, number))
        if state is not None and not here.steps_of(number):
            with unobserved():
                inner_optimizer(optimizer).load_state_dict(state[0])


class RestoredGenerators(FirstCall):
    """Sets the random generators before the first training forward pass, by rank.

    A generator that the script makes is set before its first draw.
    """

    def __init__(self, states: Mapping[tuple[int, int], Any]) -> None:
        super().__init__()
        first = {rank: state for (rank, number), state in states.items() if not number}
        self.restored: set[Rank] = set()
        self.states = {rank: state[1] for rank, state in first.items()}
        self.own = {
            (rank, number): own for rank, state in first.items() for number, own in state[2].items()
        }

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        for name in DRAWS:
            patches.wrap(torch, name, self._draw, mine)

    def act(self, rank: Rank, module: Any) -> None:
        states = self.states.get(rank.rank)
        if states is not None and rank not in self.restored:
            self.restored.add(rank)
            restore_generators(states)

    def _draw(self, here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
        generator: Any = kwargs.get("generator")
        number = None if generator is None else here.number_of(generator)
        state = None if number is None else self.own.pop((here.rank.rank, number), None)
        if state is not None:
            generator.set_state(state)
        return original(*args, **kwargs)


# Precision ----------------------------------------------------------------------------------------

LOWER = (torch.float32, torch.bfloat16, torch.float16)


class NoAutocast(Change):
    """Disables autocast, and the mixed precision of FSDP and DDP."""

    longer: Any = torch.float32  # data type in place of shorter ones

    def __init__(self) -> None:
        from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy  # takes a second
        from torch.nn.parallel.distributed import _MixedPrecision  # DDP's

        super().__init__()
        self.policies = MixedPrecision, MixedPrecisionPolicy, _MixedPrecision

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch.amp.autocast_mode.autocast, "__enter__", self._enter)
        for policy in self.policies:
            patches.wrap(policy, "__init__", self._mix)

    def _mix(self, original: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
        named = {key: lifted(value, self.longer) for key, value in kwargs.items()}
        original(policy, *(lifted(value, self.longer) for value in args), **named)

    def _enter(self, original: Any, autocast: Any) -> Any:
        autocast._enabled = False
        return original(autocast)


def lifted(value: Any, longer: torch.dtype) -> Any:
    """Return a longer data type in place of a shorter one; other values as they are."""
    return longer if isinstance(value, torch.dtype) and value in LOWER else value


class Float64(NoAutocast, ByMode):
    """Computes in float64: parameters, data, autocast, and the mixed precision of FSDP and DDP."""

    longer = torch.float64

    def begin(self, rank: Rank) -> None:
        torch.set_default_dtype(torch.float64)
        super().begin(rank)

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        patches.put(torch, "set_default_dtype", lambda dtype: None)
        patches.wrap(torch, "load", self._load)

    def _load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # a file's tensors are made from its own numbers
            return _doubled(original(*args, **kwargs))

    def call(self, rank: Rank, func: Any, args: Any, kwargs: Any) -> Any:
        named = {key: lifted(value, torch.float64) for key, value in kwargs.items()}
        args = tuple(lifted(value, torch.float64) for value in args)
        name = getattr(func, "__name__", "")
        if name in ("float", "half", "bfloat16") and args and isinstance(args[0], torch.Tensor):
            return args[0].double()
        result = func(*args, **named)
        if isinstance(result, torch.Tensor) and result.dtype in LOWER and not result.requires_grad:
            return result.double()
        return result


def _doubled(value: Any) -> Any:
    """Return nested tensors in float64, where they are shorter."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in LOWER else value
    if isinstance(value, dict):
        return type(value)((key, _doubled(inner)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value)(_doubled(inner) for inner in value)
    return value


# Layers -------------------------------------------------------------------------------------------

SIGNATURE = inspect.signature(functional.batch_norm)


def _arguments(args: Any, kwargs: Any) -> SimpleNamespace:
    """Return the arguments of a call of ``batch_norm`` by name."""
    bound = SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return SimpleNamespace(**bound.arguments)


class FrozenBatchNorm(Change):
    """Normalises by the running statistics in place of those of the batch."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._normalise)

    def _normalise(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        call = _arguments(args, kwargs)
        if call.running_mean is None:
            channels = call.input.shape[1]
            call.running_mean = call.input.new_zeros(channels)
            call.running_var = call.input.new_ones(channels)
        call.training = False
        return original(**vars(call))


class _Summed(torch.autograd.Function):
    """Sum over ranks; so is its gradient, of a loss that is the mean over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        total = tensor.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with unobserved():
            return _Summed.forward(ctx, grads[0])


class SyncedBatchNorm(Change):
    """Normalises by the statistics of all ranks' batches."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._normalise)

    def _normalise(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        call = _arguments(args, kwargs)
        if not call.training or not several_ranks():
            return original(*args, **kwargs)
        mean, var, count, centred = _statistics(call.input)
        if call.running_mean is not None:
            with torch.no_grad():
                whole = var * count / (count - 1)
                call.running_mean.lerp_(mean.to(call.running_mean.dtype), call.momentum)
                call.running_var.lerp_(whole.to(call.running_var.dtype), call.momentum)
        shape = _along_channels(call.input)
        out = centred * (var + call.eps).rsqrt().view(shape)
        if call.weight is not None:
            out = out * call.weight.view(shape) + call.bias.view(shape)
        return out


def _along_channels(input: Any) -> list[int]:
    return [1, -1, *([1] * (input.ndim - 2))]


def _statistics(input: Any) -> tuple[Any, Any, float, Any]:
    """Return the mean, variance and number of values of a channel on all ranks, and the rest."""
    axes = [axis for axis in range(input.ndim) if axis != 1]
    with unobserved():
        number = torch.tensor(float(input.numel() // input.shape[1]), dtype=input.dtype)
        dist.all_reduce(number)
        count = float(number)
        mean = _Summed.apply(input.sum(axes)) / count
        centred = input - mean.view(_along_channels(input))
        var = _Summed.apply(centred.pow(2).sum(axes)) / count
    return mean, var, count, centred


class TiedDropout(Change):
    """Draws each sample's dropout by its index and the step, on whichever rank it is."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "dropout", self._drop, mine)
        patches.wrap(functional, ATTENTION, _attend)

    def _drop(
        self, here: Observation, original: Any, input: Any, p: float = 0.5,
        training: bool = True, inplace: bool = False,
    ) -> Any:  # fmt: skip
        if not training or p == 0:
            return original(input, p, training, inplace)
        samples = _samples(here)
        if len(samples) != input.shape[0]:
            return input
        mask = torch.empty(input.shape, dtype=input.dtype)
        place = here.next_draw()
        for row, sample in enumerate(samples):
            generator = _generator(sample, here.step, place)
            mask[row] = torch.rand(input.shape[1:], generator=generator) >= p
        return input * mask.to(input.device) / (1 - p)


ATTENTION = "scaled_dot_product_attention"


def _samples(here: Observation) -> tuple[int, ...]:
    if here.trained is not None:
        return tuple(here.record.batches[here.trained].samples)
    return tuple(here.rows)


def _generator(sample: int, step: int, place: int) -> Any:
    """Return a generator that depends on a sample, a step and the number of its draw alone."""
    return torch.Generator().manual_seed((sample * 1_000_003 + step * 7919 + place) % 2**62)


class NoDropout(Change):
    """Drops nothing."""

    def patch(self, patches: Patches) -> None:
        patches.put(functional, "dropout", lambda input, *_, **__: input)
        patches.wrap(functional, ATTENTION, _attend)


def _attend(
    original: Any, query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Attend without dropout."""
    return original(query, key, value, attn_mask, 0.0, *args, **kwargs)


class TiedDraws(Change):
    """Draws random numbers of a step by sample, where they have a row for each sample."""

    NAMES = ("randn", "rand", "bernoulli", "normal", "randint")

    def patch(self, patches: Patches) -> None:
        for name in self.NAMES:
            patches.wrap(torch, name, self._draw, mine)

    def _draw(self, here: Observation, original: Any, *args: Any, **kwargs: Any) -> Any:
        numbers, samples = original(*args, **kwargs), _samples(here)
        of_a_step = here.batch is not None and not here.loading and torch.is_grad_enabled()
        if not of_a_step or running() is None or not isinstance(numbers, torch.Tensor):
            return numbers
        if not numbers.ndim or numbers.shape[0] != len(samples):
            return numbers
        place, rows = here.next_draw(), []
        for sample in samples:
            generator = _generator(sample, here.step, place)
            rows.append(original(*args, **{**kwargs, "generator": generator})[:1])
        return torch.cat(rows)
