"""Changes of a run, each of which neutralises one suspect.

A change is a part of the launcher. It is installed before the observer, so that the observer
records what the change has left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
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
from simdp.torch.ranks import Patches, Rank, RankLocal, current


class Change(RankLocal):
    """A change of a run."""

    def rewritten(self, code: CodeType) -> CodeType:
        """Return the script's code, compiled anew if the change needs it."""
        return code

    def patch(self, patches: Patches) -> None:
        """Replace functions while the script runs."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.patch(Patches(stack))
            yield


def _rank() -> Rank:
    rank = current()
    assert rank is not None
    return rank


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
        self.modes: dict[int, Any] = {}

    def mode(self, rank: Rank) -> TorchFunctionMode:
        """Return a rank's mode."""
        raise NotImplementedError

    def begin(self, rank: Rank) -> None:
        self.modes[rank.rank] = self.mode(rank)
        self.modes[rank.rank].__enter__()

    def end(self, rank: Rank) -> None:
        if rank.rank in self.modes:
            self.modes.pop(rank.rank).__exit__(None, None, None)


class Placed(Change):
    """Lets the observer compare tensors that ranks do not share, as of experts.

    ``places`` are by number of ranks, rank and name.
    """

    def __init__(self, places: Mapping[tuple[int, int, str], Place]) -> None:
        self.places = dict(places)

    def begin(self, rank: Rank) -> None:
        mine = rank.runtime.cluster.world_size, rank.rank
        rank.state["places"] = {
            name: place for (*where, name), place in self.places.items() if tuple(where) == mine
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
        patches.wrap(torch.autograd, "backward", self._around)

    def _around(self, original: Any) -> Any:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            rank, here = current(), mine()
            if rank is None or here is None or torch._C._current_graph_task_id() != -1:
                return original(tensors, grad_tensors, *args, **kwargs)
            number = len(here.record.backwards) - 1  # that of this one is already there
            listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            factor = self.factors.get((rank.rank, number), 1.0)
            if self.count is not None:
                factor = self._share(listed[0])
            if factor != 1:
                tensors = [one * factor for one in listed]
            return original(tensors, grad_tensors, *args, **kwargs)

        return backward

    def _share(self, loss: Any) -> float:
        """Return this rank's count over the mean of all ranks'."""
        here = mine()
        found = None
        if self.count is not None and here is not None and here.backward is not None:
            found = self.count(here.backward)
        if not several_ranks():
            return 1.0
        with unobserved(), torch.no_grad():
            total = loss.new_tensor([found or 0.0])
            dist.all_reduce(total)
            number = float(values(total)[0])
        return (found or 0.0) * dist.get_world_size() / number if number else 1.0


class ScalarTrace(ByMode):
    """Records the numbers that the script computes between two backward passes, by line."""

    def mode(self, rank: Rank) -> TorchFunctionMode:
        return _Scalars()

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch.autograd, "backward", self._around)

    def _around(self, original: Any) -> Any:
        def backward(*args: Any, **kwargs: Any) -> Any:
            rank, here = current(), mine()
            if rank is not None and here is not None and here.backward is not None:
                mode = self.modes[rank.rank]
                here.backward.scalars = mode.found
                here.backward.sizes = mode.sizes
                mode.found, mode.sizes = {}, {}
            return original(*args, **kwargs)

        return backward


class _Scalars(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Line, float] = {}
        self.sizes: dict[Line, float] = {}  # elements of larger results

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.ndim and not result.is_meta:
            line = directly()
            if line is not None and result.numel():
                self.sizes[line] = float(result.numel())
        elif isinstance(result, torch.Tensor) and not result.is_meta:
            line = running()
            if line is not None and not result.requires_grad:
                with torch._C.DisableTorchFunction():
                    number = float(values(result)[0])
                if number > 0 and torch.is_grad_enabled():
                    self.found[line] = number
                elif number > 0:  # of a metric, more often than of the loss
                    self.found.setdefault(line, number)
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

    def begin(self, rank: Rank) -> None:
        rank.state["clips"], rank.state["hooks"] = {}, []

    def patch(self, patches: Patches) -> None:
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                patches.wrap(owner, name, functools.partial(self._later, name))
        patches.wrap(torch.Tensor, "register_hook", self._hook_later)
        at_each_step(patches, self._clip)

    def _later(self, name: str, original: Any) -> Any:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            rank = current()
            if rank is None:
                return original(parameters, *args, **kwargs)
            listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            key = (name, tuple(id(one) for one in listed))
            rank.state["clips"][key] = (original, listed, args, kwargs)
            if name == "clip_grad_value_":
                return None
            grads = [one.grad for one in listed if one.grad is not None]
            return nn.utils.get_total_norm(grads)

        return clip

    def _hook_later(self, original: Any) -> Any:
        def register_hook(self: Any, hook: Any) -> Any:
            rank = current()
            if rank is None or not isinstance(self, nn.Parameter) or running() is None:
                return original(self, hook)
            if getattr(hook, "__module__", "").startswith("simdp."):
                return original(self, hook)
            rank.state["hooks"].append((self, hook))
            return original(self, lambda grad: None)

        return register_hook

    def _clip(self, here: Observation, optimizer: Any) -> None:
        rank = _rank()
        with unobserved(), torch.no_grad():
            for parameter, hook in rank.state["hooks"]:
                if parameter.grad is not None:
                    found = hook(parameter.grad)
                    if found is not None:
                        parameter.grad.copy_(found)
            for original, listed, more, named in rank.state["clips"].values():
                original(listed, *more, **named)
        rank.state["clips"] = {}


class ImposedRates(Change):
    """Sets the learning rates, momenta and other numbers of each step, by optimizer and step."""

    def __init__(self, settings: Mapping[tuple[int, int], tuple[dict[str, Any], ...]]) -> None:
        self.settings = dict(settings)

    def begin(self, rank: Rank) -> None:
        rank.state["rates"] = {}

    def patch(self, patches: Patches) -> None:
        at_each_step(patches, self._set)
        patches.undo(register_optimizer_step_post_hook(self._restore).remove)

    def _set(self, here: Observation, optimizer: Any) -> None:
        number = here.number_of_optimizer(optimizer)
        count = sum(one.optimizer == number for one in here.record.steps)
        settings = self.settings.get((number, count))
        if settings is None:
            return
        groups = optimizer.param_groups
        _rank().state["rates"][id(optimizer)] = [
            {key: group[key] for key in given if key in group}
            for group, given in zip(groups, settings, strict=False)
        ]
        for group, given in zip(groups, settings, strict=False):
            group.update({key: value for key, value in given.items() if key in group})

    def _restore(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here, rank = mine(), current()
        if here is None or rank is None:
            return
        for group, kept in zip(
            optimizer.param_groups, rank.state["rates"].pop(id(optimizer), []), strict=False
        ):
            group.update(kept)


# Weights ------------------------------------------------------------------------------------------


class FirstCall(Change):
    """Calls `act` with each module that trains, before its first call by the script."""

    def begin(self, rank: Rank) -> None:
        rank.state[self.key] = set()

    @property
    def key(self) -> str:
        """Key of the modules seen."""
        return f"first call {type(self).__name__}"

    def patch(self, patches: Patches) -> None:
        change = self

        def around(called: Any) -> Any:
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
                rank = current()
                if rank is not None and torch.is_grad_enabled():
                    seen: set[int] = rank.state[change.key]
                    if id(self) not in seen:
                        seen |= {id(one) for one in self.modules()}
                        with unobserved(), torch.no_grad():
                            change.act(self)
                return called(self, *args, **kwargs)

            return __call__

        patches.wrap(nn.Module, "__call__", around)

    def act(self, module: Any) -> None:
        """Change a module."""
        raise NotImplementedError


class BroadcastWeights(FirstCall):
    """Gives every rank the parameters and buffers of rank 0."""

    def act(self, module: Any) -> None:
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

    def act(self, module: Any) -> None:
        drawn = stream(0, "nudged weights")
        for parameter in module.parameters():
            local = getattr(parameter, "_local_tensor", parameter)
            if not local.is_floating_point() or local.is_meta:
                continue
            signs = torch.from_numpy(drawn.choice([-1.0, 1.0], size=tuple(local.shape)))
            away = signs.to(local.dtype) * float("inf")
            with torch._C._DisableTorchDispatch():
                moved = torch.nextafter(local.detach().cpu(), away)
                local.copy_(moved * (1 + signs.to(local.dtype) * self.unit / 2))

    def _gradients(self, here: Observation, optimizer: Any) -> None:
        drawn = stream(0, "nudged gradients", len(here.record.steps))
        with unobserved(), torch.no_grad(), torch._C._DisableTorchDispatch():
            for parameter in parameters_of(optimizer):
                grad = getattr(parameter.grad, "_local_tensor", parameter.grad)
                if grad is None or grad.is_meta or grad.layout is not torch.strided:
                    continue
                noise = torch.from_numpy(drawn.standard_normal(tuple(grad.shape)))
                unit = max(self.unit, torch.finfo(grad.dtype).eps)
                scale = grad.double().pow(2).mean().sqrt() * unit
                grad.add_((noise * scale * UNITS).to(grad.dtype))


UNITS = 2
"""Units in the last place, of the root mean square of its tensor, that move a gradient."""


class NoCommHooks(Change):
    """Lets DDP reduce gradients itself, whatever hooks the script registers."""

    def patch(self, patches: Patches) -> None:
        patches.put(DistributedDataParallel, "register_comm_hook", lambda *given: None)


class AveragedBuffers(Change):
    """Averages the buffers of a module over ranks before and after its calls that train."""

    def patch(self, patches: Patches) -> None:
        def around(called: Any) -> Any:
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
                here = mine()
                trains = here is not None and here.depth == 1 and torch.is_grad_enabled()
                if trains:
                    _averaged(self)
                found = called(self, *args, **kwargs)
                if trains:
                    _averaged(self)
                return found

            return __call__

        patches.wrap(nn.Module, "__call__", around)


def _averaged(module: Any) -> None:
    if not several_ranks():
        return
    with unobserved(), torch.no_grad():
        for buffer in module.buffers():
            if buffer.is_floating_point():
                flat = buffer.detach().contiguous().clone()
                dist.all_reduce(flat)
                buffer.copy_(flat / dist.get_world_size())


class SyncedModules(Change):
    """Gives modules without an optimizer the weights of rank 0 before each call by the script."""

    def patch(self, patches: Patches) -> None:
        def around(called: Any) -> Any:
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
                here = mine()
                if here is not None and here.depth == 1 and _without_optimizer(here, self):
                    _from_rank_0(self)
                return called(self, *args, **kwargs)

            return __call__

        patches.wrap(nn.Module, "__call__", around)


def _without_optimizer(here: Any, module: Any) -> bool:
    if not here.parameters:
        return False
    found = [id(parameter) for parameter in module.parameters()]
    return bool(found) and not any(key in here.parameters for key in found)


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
        found = _with_option(find_unused_parameters=True, static_graph=False)
        patches.wrap(DistributedDataParallel, "__init__", found)


def _with_option(**options: Any) -> Callable[[Any], Any]:
    def around(original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(self, *args, **{**kwargs, **options})

        return __init__

    return around


# Resuming -----------------------------------------------------------------------------------------


class RestoredOptimizers(Change):
    """Loads the state of optimizers before the first step: by rank and optimizer."""

    def __init__(self, states: Mapping[tuple[int, int], Any]) -> None:
        self.states = dict(states)

    def patch(self, patches: Patches) -> None:
        at_each_step(patches, self._load)

    def _load(self, here: Observation, optimizer: Any) -> None:
        number = here.number_of_optimizer(optimizer)
        state = self.states.get((_rank().rank, number))
        if state is not None and not any(one.optimizer == number for one in here.record.steps):
            with unobserved():
                inner_optimizer(optimizer).load_state_dict(state[0])


class RestoredGenerators(FirstCall):
    """Sets the random generators before the first training forward pass, by rank.

    A generator that the script makes is set before its first draw.
    """

    def __init__(self, states: Mapping[tuple[int, int], Any]) -> None:
        first = {rank: state for (rank, number), state in states.items() if not number}
        self.states = {rank: state[1] for rank, state in first.items()}
        self.own = {
            (rank, number): one for rank, state in first.items() for number, one in state[2].items()
        }

    def begin(self, rank: Rank) -> None:
        super().begin(rank)
        rank.state["generators restored"] = False

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        for name in DRAWS:
            patches.wrap(torch, name, self._around)

    def act(self, module: Any) -> None:
        rank = _rank()
        states = self.states.get(rank.rank)
        if rank.state["generators restored"] or states is None:
            return
        rank.state["generators restored"] = True
        restore_generators(states)

    def _around(self, original: Any) -> Any:
        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            here, rank, generator = mine(), current(), kwargs.get("generator")
            if here is not None and rank is not None and generator is not None:
                number = here.number_of(generator)
                state = None if number is None else self.own.pop((rank.rank, number), None)
                if state is not None:
                    generator.set_state(state)
            return original(*args, **kwargs)

        return draw


# Precision ----------------------------------------------------------------------------------------

LOWER = (torch.float32, torch.bfloat16, torch.float16)


class NoAutocast(Change):
    """Disables autocast, and the mixed precision of FSDP and DDP."""

    longer: Any = torch.float32  # data type in place of shorter ones

    def __init__(self) -> None:
        from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy  # takes a second
        from torch.nn.parallel.distributed import _MixedPrecision  # DDP's

        self.policies = MixedPrecision, MixedPrecisionPolicy, _MixedPrecision

    def patch(self, patches: Patches) -> None:
        kind = torch.amp.autocast_mode.autocast
        patches.wrap(kind, "__enter__", self._around)
        for policy in self.policies:
            patches.wrap(policy, "__init__", self._mixing)

    def _mixing(self, original: Any) -> Any:
        def lifted(dtype: Any) -> Any:
            return self.longer if isinstance(dtype, torch.dtype) and dtype in LOWER else dtype

        @functools.wraps(original)
        def __init__(policy: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            named = {key: lifted(value) for key, value in kwargs.items()}
            original(policy, *(lifted(value) for value in args), **named)

        return __init__

    def _around(self, original: Any) -> Any:
        def __enter__(self: Any) -> Any:  # noqa: N807
            self._enabled = False
            return original(self)

        return __enter__


class Float64(NoAutocast):
    """Computes in float64: parameters, data, autocast, and the mixed precision of FSDP and DDP."""

    longer = torch.float64

    def begin(self, rank: Rank) -> None:
        torch.set_default_dtype(torch.float64)
        mode = rank.state["float64"] = _Lifted()
        mode.__enter__()

    def end(self, rank: Rank) -> None:
        mode = rank.state.pop("float64", None)
        if mode is not None:
            mode.__exit__(None, None, None)

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        patches.wrap(torch, "set_default_dtype", lambda original: lambda dtype: None)
        patches.wrap(torch, "load", _loading)


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():  # a file's tensors are made from its own numbers
            found = original(*args, **kwargs)
            return _doubled(found)

    return load


def _doubled(value: Any) -> Any:
    """Return nested tensors in float64, where they are shorter."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in LOWER else value
    if isinstance(value, dict):
        return type(value)((key, _doubled(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(_doubled(one) for one in value)
    return value


class _Lifted(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {key: _lifted_dtype(value) for key, value in (kwargs or {}).items()}
        given = tuple(_lifted_dtype(value) for value in args)
        name = getattr(func, "__name__", "")
        if name in ("float", "half", "bfloat16") and given and isinstance(given[0], torch.Tensor):
            return given[0].double()
        result = func(*given, **named)
        if isinstance(result, torch.Tensor) and result.dtype in LOWER and not result.requires_grad:
            return result.double()
        return result


def _lifted_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in LOWER else value
