"""Changes of a run, each of which neutralises one suspect.

A change is a part of the launcher. It is installed before the observer, so that the observer
records what the change has left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from torch.utils.data import DataLoader, Subset, dataloader
from torch.utils.data._utils import fetch as fetching

from simdp.rng import stream
from simdp.torch.audit.lines import Line, directly, running
from simdp.torch.audit.loaders import has_epoch, samplers
from simdp.torch.audit.observation import mine, unobserved
from simdp.torch.audit.observer import inner_optimizer
from simdp.torch.audit.sketches import values
from simdp.torch.cuda.machine import Patches
from simdp.torch.isolation import restore_generators
from simdp.torch.ranks import Rank, RankLocal, current


class Change(RankLocal):
    """A change of a run."""

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


def _together() -> bool:
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


# Loss ---------------------------------------------------------------------------------------------


class WeightedLosses(Change):
    """Multiplies the loss of each backward pass; ``factors`` by rank and number of the pass."""

    def __init__(self, factors: Mapping[tuple[int, int], float]) -> None:
        self.factors = dict(factors)

    def begin(self, rank: Rank) -> None:
        rank.state["backward passes"] = 0

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch.autograd, "backward", self._around)

    def _around(self, original: Any) -> Any:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            rank = current()
            if rank is None or torch._C._current_graph_task_id() != -1:
                return original(tensors, grad_tensors, *args, **kwargs)
            number = rank.state["backward passes"]
            rank.state["backward passes"] = number + 1
            factor = self.factors.get((rank.rank, number), 1.0)
            if factor != 1:
                listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
                tensors = [one * factor for one in listed]
            return original(tensors, grad_tensors, *args, **kwargs)

        return backward


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
                if number > 0:
                    self.found[line] = number
        return result


# Gradients ----------------------------------------------------------------------------------------


class AveragedAtStep(Change):
    """Averages gradients over ranks before each step; ``names`` are those of parameters, or all."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = None if names is None else set(names)

    def patch(self, patches: Patches) -> None:
        patches.undo(register_optimizer_step_pre_hook(self._average).remove)

    def _average(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        from simdp.torch.audit.observer import _name

        here = mine()
        if here is None or not _together() or here.stepping:
            return
        count = dist.get_world_size()
        with unobserved(), torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if not parameter.requires_grad or hasattr(parameter, "_local_tensor"):
                        continue
                    if self.names is not None and _name(here, id(parameter)) not in self.names:
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
        patches.undo(register_optimizer_step_pre_hook(self._scale).remove)

    def _scale(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = mine()
        if here is None or here.stepping:
            return
        with unobserved(), torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
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
        patches.undo(register_optimizer_step_pre_hook(self._clip).remove)

    def _later(self, name: str, original: Any) -> Any:
        def clip(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Any:
            rank = current()
            if rank is None:
                return original(parameters, limit, *args, **kwargs)
            listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            key = (name, tuple(id(one) for one in listed))
            rank.state["clips"][key] = (original, listed, limit, args, kwargs)
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

    def _clip(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        rank, here = current(), mine()
        if rank is None or here is None or here.stepping:
            return
        with unobserved(), torch.no_grad():
            for parameter, hook in rank.state["hooks"]:
                if parameter.grad is not None:
                    found = hook(parameter.grad)
                    if found is not None:
                        parameter.grad.copy_(found)
            for original, listed, limit, more, named in rank.state["clips"].values():
                original(listed, limit, *more, **named)
        rank.state["clips"] = {}


class ImposedRates(Change):
    """Sets the learning rates, momenta and other numbers of each step, by optimizer and step."""

    def __init__(self, settings: Mapping[tuple[int, int], tuple[dict[str, Any], ...]]) -> None:
        self.settings = dict(settings)

    def begin(self, rank: Rank) -> None:
        rank.state["rates"] = {}

    def patch(self, patches: Patches) -> None:
        patches.undo(register_optimizer_step_pre_hook(self._set).remove)
        patches.undo(register_optimizer_step_post_hook(self._restore).remove)

    def _set(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = mine()
        if here is None or here.stepping:
            return
        number = here.optimizers.setdefault(id(optimizer), len(here.optimizers))
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
        if not _together():
            return
        for tensor in (*module.parameters(), *module.buffers()):
            if not hasattr(tensor, "_local_tensor") and tensor.is_floating_point():
                flat = tensor.detach().contiguous()
                dist.broadcast(flat, 0)
                tensor.copy_(flat)


class Nudged(FirstCall):
    """Moves every parameter by one unit in the last place, and every gradient by a few.

    A sum over ranks rounds by units of its tensor's scale, also where an element is zero, and
    adaptive optimizers enlarge that.
    """

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        patches.undo(register_optimizer_step_pre_hook(self._gradients).remove)

    def act(self, module: Any) -> None:
        drawn = stream(0, "nudged weights")
        for parameter in module.parameters():
            local = getattr(parameter, "_local_tensor", parameter)
            if not local.is_floating_point() or local.is_meta:
                continue
            signs = torch.from_numpy(drawn.choice([-1.0, 1.0], size=tuple(local.shape)))
            away = signs.to(local.dtype) * float("inf")
            with torch._C._DisableTorchDispatch():
                local.copy_(torch.nextafter(local.detach().cpu(), away))

    def _gradients(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = mine()
        if here is None or here.stepping:
            return
        drawn = stream(0, "nudged gradients", len(here.record.steps))
        with unobserved(), torch.no_grad(), torch._C._DisableTorchDispatch():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    grad = getattr(parameter.grad, "_local_tensor", parameter.grad)
                    if grad is None or grad.is_meta or grad.layout is not torch.strided:
                        continue
                    noise = torch.from_numpy(drawn.standard_normal(tuple(grad.shape)))
                    scale = grad.double().pow(2).mean().sqrt() * torch.finfo(grad.dtype).eps
                    grad.add_((noise * scale * UNITS).to(grad.dtype))


UNITS = 2
"""Units in the last place, of the root mean square of its tensor, that move a gradient."""


class AveragedBuffers(Change):
    """Averages the buffers of a module over ranks before each of its calls that trains."""

    def patch(self, patches: Patches) -> None:
        def around(called: Any) -> Any:
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
                here = mine()
                if here is not None and here.depth == 1 and torch.is_grad_enabled():
                    _averaged(self)
                return called(self, *args, **kwargs)

            return __call__

        patches.wrap(nn.Module, "__call__", around)


def _averaged(module: Any) -> None:
    if not _together():
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
    if not _together():
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


class EpochsSet(Change):
    """Calls ``set_epoch`` of samplers with the number of the iteration."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(DataLoader, "__iter__", self._around)

    def _around(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            here = mine()
            if here is not None:
                number = here.iterations.get(here.loaders.get(id(loader), -1), 0)
                for one in (*samplers(loader), loader.dataset):
                    if hasattr(one, "set_epoch"):
                        one.set_epoch(number)
                    elif has_epoch(one):
                        one.epoch = number
            return original(loader)

        return __iter__


# Layers -------------------------------------------------------------------------------------------


class FrozenBatchNorm(Change):
    """Normalises by the running statistics in place of those of the batch."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._around)

    def _around(self, original: Any) -> Any:
        def batch_norm(
            input: Any,
            running_mean: Any,
            running_var: Any,
            weight: Any = None,
            bias: Any = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Any:
            if running_mean is None:
                running_mean = input.new_zeros(input.shape[1])
                running_var = input.new_ones(input.shape[1])
            return original(input, running_mean, running_var, weight, bias, False, momentum, eps)

        return batch_norm


class _Summed(torch.autograd.Function):
    """Sum over ranks; so is its gradient, of a loss that is the mean over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        found = tensor.contiguous().clone()
        dist.all_reduce(found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = grads[0].contiguous().clone()
        with unobserved():
            dist.all_reduce(found)
        return found


class SyncedBatchNorm(Change):
    """Normalises by the statistics of all ranks' batches."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "batch_norm", self._around)

    def _around(self, original: Any) -> Any:
        def batch_norm(
            input: Any,
            running_mean: Any,
            running_var: Any,
            weight: Any = None,
            bias: Any = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Any:
            if not training or not _together():
                return original(
                    input, running_mean, running_var, weight, bias, training, momentum, eps
                )
            axes = [axis for axis in range(input.ndim) if axis != 1]
            shape = [1, -1, *([1] * (input.ndim - 2))]
            with unobserved():
                number = torch.tensor(float(input.numel() // input.shape[1]), dtype=input.dtype)
                dist.all_reduce(number)
                count = float(number)
                mean = _Summed.apply(input.sum(axes)) / count
                centred = input - mean.view(shape)
                var = _Summed.apply(centred.pow(2).sum(axes)) / count
            if running_mean is not None:
                with torch.no_grad():
                    running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                    running_var.lerp_((var * count / (count - 1)).to(running_var.dtype), momentum)
            out = centred * (var + eps).rsqrt().view(shape)
            if weight is not None:
                out = out * weight.view(shape) + bias.view(shape)
            return out

        return batch_norm


class TiedDropout(Change):
    """Draws each sample's dropout by its index and the step, on whichever rank it is."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "dropout", self._dropout)
        patches.wrap(functional, "scaled_dot_product_attention", _without_attention_dropout)

    def _dropout(self, original: Any) -> Any:
        def dropout(
            input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Any:
            here = mine()
            if here is None or not training or p == 0:
                return original(input, p, training, inplace)
            samples = _samples(here)
            if len(samples) != input.shape[0]:
                return input
            mask = torch.empty(input.shape, dtype=input.dtype)
            place = here.next_draw()
            for row, sample in enumerate(samples):
                drawn = torch.Generator().manual_seed(
                    (sample * 1_000_003 + here.step * 7919 + place) % 2**62
                )
                mask[row] = torch.rand(input.shape[1:], generator=drawn) >= p
            return input * mask.to(input.device) / (1 - p)

        return dropout


def _samples(here: Any) -> tuple[int, ...]:
    if here.batch is not None:
        return tuple(here.record.batches[here.batch].samples)
    return tuple(here.rows)


class NoDropout(Change):
    """Drops nothing."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(functional, "dropout", lambda original: lambda input, *_, **__: input)
        patches.wrap(functional, "scaled_dot_product_attention", _without_attention_dropout)


def _without_attention_dropout(original: Any) -> Any:
    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return scaled_dot_product_attention


class TiedDraws(Change):
    """Draws random numbers of a step by sample, where they have a row for each sample."""

    NAMES = ("randn", "rand", "bernoulli", "normal", "randint")

    def patch(self, patches: Patches) -> None:
        for name in self.NAMES:
            patches.wrap(torch, name, self._around)

    def _around(self, original: Any) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            here = mine()
            if here is None or here.batch is None or running() is None:
                return original(*args, **kwargs)
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            samples = _samples(here)
            found = original(*args, **kwargs)
            if not isinstance(found, torch.Tensor) or not found.ndim:
                return found
            if found.shape[0] != len(samples):
                return found
            place, rows = here.next_draw(), []
            for sample in samples:
                drawn = torch.Generator().manual_seed(
                    (sample * 1_000_003 + here.step * 7919 + place) % 2**62
                )
                rows.append(original(*args, **{**kwargs, "generator": drawn})[:1])
            return torch.cat(rows)

        return draw


# Data ---------------------------------------------------------------------------------------------


class GivenIndices(Change):
    """Loads given samples: ``indices`` by rank, loader and number of its batch."""

    def __init__(self, indices: Mapping[tuple[int, int, int], Sequence[int]]) -> None:
        self.indices = dict(indices)

    def patch(self, patches: Patches) -> None:
        patches.wrap(fetching._MapDatasetFetcher, "fetch", self._around)

    def _around(self, original: Any) -> Any:
        change = self

        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            rank, here = current(), mine()
            if rank is None or here is None or here.loading is None:
                return original(self, possibly_batched_index)
            given = change.indices.get((rank.rank, *here.loading))
            if given is None:
                return original(self, possibly_batched_index)
            here.fetched = tuple(given)
            before, dataset = self.dataset, self.dataset
            while isinstance(dataset, Subset):
                dataset = dataset.dataset
            self.dataset = dataset
            try:
                index = list(given) if isinstance(possibly_batched_index, list) else given[0]
                return original(self, index)
            finally:
                self.dataset = before

        return fetch


class GivenBatches(Change):
    """Returns given batches of loaders without indices: by rank, loader and number."""

    def __init__(self, batches: Mapping[tuple[int, int, int], Any]) -> None:
        self.batches = dict(batches)

    def patch(self, patches: Patches) -> None:
        patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._around)

    def _around(self, original: Any) -> Any:
        change = self

        def __next__(self: Any) -> Any:  # noqa: N807
            rank, here = current(), mine()
            found = original(self)
            if rank is None or here is None or here.loading is None:
                return found
            return change.batches.get((rank.rank, *here.loading), found)

        return __next__


class GivenDraws(Change):
    """Returns given random integers where the script draws its batches: by rank and number."""

    def __init__(self, draws: Mapping[tuple[int, int], Any]) -> None:
        self.draws = dict(draws)

    def begin(self, rank: Rank) -> None:
        rank.state["integer draws"] = 0

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch, "randint", self._around)

    def _around(self, original: Any) -> Any:
        def randint(*args: Any, **kwargs: Any) -> Any:
            found, rank = original(*args, **kwargs), current()
            if rank is None or running() is None:
                return found
            number = rank.state["integer draws"]
            rank.state["integer draws"] = number + 1
            return self.draws.get((rank.rank, number), found)

        return randint


class GivenRows(ByMode):
    """Takes given rows where the script indexes tensors by its batch: by rank and backward pass.

    The indices are the observed samples, also where none are given: then it only records. A mode is
    needed, since a method of tensors cannot be replaced.
    """

    def __init__(
        self, rows: Mapping[tuple[int, int], tuple[Sequence[int], Sequence[int]]] | None = None
    ) -> None:
        super().__init__()
        self.rows = dict(rows or {})

    def mode(self, rank: Rank) -> TorchFunctionMode:
        return _Rows(self.rows)


class _Rows(TorchFunctionMode):
    def __init__(self, rows: dict[tuple[int, int], tuple[Sequence[int], Sequence[int]]]) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and directly() is not None:
            args = (args[0], self._index(args[1]))
        return func(*args, **(kwargs or {}))

    def _index(self, index: Any) -> Any:
        rank, here = current(), mine()
        if not isinstance(index, torch.Tensor) or index.ndim != 1 or index.dtype != torch.int64:
            return index
        if rank is None or here is None:
            return index
        with torch._C.DisableTorchFunction():
            listed = values(index).astype(int).tolist()
            before, after = self.rows.get((rank.rank, len(here.record.backwards)), ((), ()))
            if before and list(before) == listed:
                listed = list(after)
                index = torch.tensor(listed, dtype=torch.int64)
        here.index = tuple(listed)
        return index


class IntegerDraws(Change):
    """Records the random integers that the script draws; ``found`` by rank and number."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int], Any] = {}

    def begin(self, rank: Rank) -> None:
        rank.state["recorded draws"] = 0

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch, "randint", self._around)

    def _around(self, original: Any) -> Any:
        def randint(*args: Any, **kwargs: Any) -> Any:
            found, rank = original(*args, **kwargs), current()
            if rank is not None and running() is not None:
                number = rank.state["recorded draws"]
                rank.state["recorded draws"] = number + 1
                self.found[rank.rank, number] = found.clone()
            return found

        return randint


class KeptBatches(Change):
    """Keeps the batches of loaders; ``found`` by rank, loader and number."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, int, int], Any] = {}

    def patch(self, patches: Patches) -> None:
        patches.wrap(dataloader._BaseDataLoaderIter, "__next__", self._around)

    def _around(self, original: Any) -> Any:
        change = self

        def __next__(self: Any) -> Any:  # noqa: N807
            found, rank, here = original(self), current(), mine()
            if rank is not None and here is not None and here.loading is not None:
                change.found[(rank.rank, *here.loading)] = found
            return found

        return __next__


class WholeSlices(ByMode):
    """Gives every rank all rows where it takes every n-th one of a tensor without gradients."""

    def mode(self, rank: Rank) -> TorchFunctionMode:
        return _Slices(rank.runtime.cluster.world_size)


class _Slices(TorchFunctionMode):
    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and not torch.is_grad_enabled():
            index = args[1]
            if isinstance(index, slice) and index.step == self.world_size > 1:
                args = (args[0], slice(None))
        return func(*args, **(kwargs or {}))


class WholeEvaluation(Change):
    """Gives every rank all samples of loaders that do not train, one in each batch."""

    def __init__(self, samples: Mapping[int, Sequence[int]]) -> None:
        self.samples = {loader: list(given) for loader, given in samples.items()}

    def patch(self, patches: Patches) -> None:
        patches.wrap(DataLoader, "__iter__", self._iterate)
        patches.wrap(DataLoader, "__len__", self._length)

    def _given(self, loader: Any) -> list[int] | None:
        here = mine()
        return None if here is None else self.samples.get(here.loaders.get(id(loader), -1))

    def _iterate(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            given = self._given(loader)
            if given is None:
                return original(loader)
            dataset = loader.dataset
            while isinstance(dataset, Subset):
                dataset = dataset.dataset
            with unobserved():
                whole: Any = DataLoader(
                    dataset, batch_size=1, sampler=given, collate_fn=loader.collate_fn
                )
            return original(whole)

        return __iter__

    def _length(self, original: Any) -> Any:
        def __len__(loader: Any) -> int:  # noqa: N807
            given = self._given(loader)
            return int(original(loader)) if given is None else len(given)

        return __len__


# Resuming -----------------------------------------------------------------------------------------


class RestoredOptimizers(Change):
    """Loads the state of optimizers before the first step: by rank and optimizer."""

    def __init__(self, states: Mapping[tuple[int, int], Any]) -> None:
        self.states = dict(states)

    def patch(self, patches: Patches) -> None:
        patches.undo(register_optimizer_step_pre_hook(self._load).remove)

    def _load(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here, rank = mine(), current()
        if here is None or rank is None or here.stepping:
            return
        number = here.optimizers.setdefault(id(optimizer), len(here.optimizers))
        if any(one.optimizer == number for one in here.record.steps):
            return
        state = self.states.get((rank.rank, number))
        if state is None:
            return
        with unobserved():
            inner_optimizer(optimizer).load_state_dict(state[0])


class RestoredGenerators(FirstCall):
    """Sets the random generators before the first training forward pass, by rank."""

    def __init__(self, states: Mapping[tuple[int, int], Any]) -> None:
        self.states = {rank: state[1] for (rank, number), state in states.items() if not number}

    def begin(self, rank: Rank) -> None:
        super().begin(rank)
        rank.state["generators restored"] = False

    def act(self, module: Any) -> None:
        rank = _rank()
        states = self.states.get(rank.rank)
        if rank.state["generators restored"] or states is None:
            return
        rank.state["generators restored"] = True
        restore_generators(states)


# Precision ----------------------------------------------------------------------------------------

LOWER = (torch.float32, torch.bfloat16, torch.float16)


class NoAutocast(Change):
    """Disables autocast."""

    def patch(self, patches: Patches) -> None:
        kind = torch.amp.autocast_mode.autocast
        patches.wrap(kind, "__enter__", self._around)

    def _around(self, original: Any) -> Any:
        def __enter__(self: Any) -> Any:  # noqa: N807
            self._enabled = False
            return original(self)

        return __enter__


class Float64(NoAutocast):
    """Computes in float64: parameters, data and autocast."""

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
