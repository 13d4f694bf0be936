"""Records a script's run: a part of the launcher whose patches record and change nothing."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from simdp.arrays import Floats
from simdp.torch.audit import loaders
from simdp.torch.audit.lines import Line, calling, directly, running, stack
from simdp.torch.audit.observation import (
    DRAWS,
    KEY,
    LOSSES,
    PLACES,
    Observation,
    add,
    after,
    before,
    before_step,
    clean,
    inner_optimizer,
    parameter_name,
    parameters_of,
    seen,
    unobserved,
)
from simdp.torch.audit.records import (
    BackwardRecord,
    CallRecord,
    ClipRecord,
    LossCount,
    Place,
    RankRecord,
    StepRecord,
)
from simdp.torch.audit.sketches import is_shard, probe, sketch, values
from simdp.torch.generators import generator_states
from simdp.torch.kernels import as_list
from simdp.torch.process_groups import Virtual
from simdp.torch.ranks import DONE, Patches, Rank, RankLocal, StepsDone
from simdp.torch.spawning import SPAWNED

MOST_ROWS = 1024
"""Rows of a parameter that are compared one by one, to find parts of a stack of experts."""

SMALL = 16
"""Elements of a collective whose values are recorded."""


class Observer(RankLocal):
    """Observes every rank.

    Parameters
    ----------
    max_steps : int
        A rank ends when it begins a step after this number.
    stop : callable, optional
        Called with rank 0's number of steps whenever it begins another one; True ends it.
    state_at : int, optional
        Step of which each optimizer's whole state is kept, before it.
    """

    def __init__(
        self,
        max_steps: int,
        stop: Callable[[int], bool] | None = None,
        state_at: int | None = None,
    ) -> None:
        self.max_steps, self.stop, self.state_at = max_steps, stop, state_at
        self.records: dict[int, RankRecord] = {}
        self.states: dict[tuple[int, int], Any] = {}  # by rank and optimizer
        self.stopped_at: int | None = None
        self.started: int | None = None  # ranks that the script starts itself
        self._spawned: dict[int, Observation] = {}  # of those

    def begin(self, rank: Rank) -> None:
        observation = Observation(rank)
        if SPAWNED in rank.state:  # started twice, ranks continue the same record
            self.started = rank.runtime.cluster.world_size
            observation = self._spawned.setdefault(rank.rank, observation)
            observation.rank = rank
        places: dict[str, Place] = rank.state.get(PLACES, {})
        observation.places = {place.name: place for place in places.values()}
        observation.renamed = {name: place.name for name, place in places.items()}
        rank.state[KEY] = observation
        self.records[rank.rank] = observation.record

    def end(self, rank: Rank) -> None:
        observation: Observation | None = rank.state.get(KEY)
        if observation is not None:
            with unobserved():
                self._finish(observation)

    def _finish(self, here: Observation) -> None:
        """Record last values: learning rates, and those of modules without an optimizer."""
        here.record.ended = DONE not in here.rank.state
        here.record.rates = [_rates(optimizer) for optimizer in here.stepped]
        for number, root in enumerate(here.roots):
            tensors = [*root.named_parameters(), *root.named_buffers()]
            if any(id(tensor) in here.parameters for _, tensor in tensors):
                continue
            for name, tensor in tensors:
                sketched = probe(tensor) if tensor.is_floating_point() else None
                if sketched is not None:
                    here.record.states[f"module {number}.{clean(name)}"] = sketched
        for root in here.roots:
            if isinstance(root, DistributedDataParallel):
                for parameter in root.parameters():
                    if id(parameter) not in here.wrapped and id(parameter) in here.names:
                        here.record.late.append(here.names[id(parameter)])
        for key, name in here.names.items():
            here.record.creators[name] = here.creators.get(key)
            here.record.makers[name] = here.makers.get(key)
            here.record.callers[name] = here.callers.get(key)

    def patch(self, patches: Patches) -> None:
        loaders.patch(patches)
        self._patch_optimizer(patches)
        calls: list[tuple[Any, str, Callable[..., Any]]] = [
            (nn.Module, "__call__", self._call),
            (nn.Module, "register_parameter", _register),
            (nn.Module, "__setattr__", _assign),
            (torch.autograd, "backward", self._backward),
            (Virtual, "_call", _call_group),
            *((kind, "__init__", after(observe)) for kind, observe in CREATIONS),
            *((owner, name, before(observe)) for owner, name, observe in CALLS),
            *((torch, name, before(partial(_drawing, name))) for name in DRAWS),
            *((functional, name, before(partial(_counting, name))) for name in LOSSES),
        ]
        for owner, name, call in calls:
            patches.wrap(owner, name, call, seen)

    # Model ----------------------------------------------------------------------------------------

    def _call(self, here: Observation, called: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        line = directly(3)
        if here.depth == 0:
            here.by_library = line is None
            self._observe(here, module, args, kwargs)
        elif line is not None and (here.inner is None or here.depth <= here.inner[0]):
            here.inner = here.depth, line
        core = id(module) in here.cores if here.cores else here.depth == 0
        if core and not here.buffers and torch.is_grad_enabled():
            _record_buffers(here, module)
        here.depth += 1
        try:
            return called(module, *args, **kwargs)
        finally:
            here.depth -= 1

    def _observe(self, here: Observation, module: Any, args: Any, kwargs: Any) -> None:
        """Observe a call of a module by the script, not by another module."""
        if id(module) not in here.root_ids:
            here.root_ids.add(id(module))
            here.roots.append(module)
            _mixing(here, module)
            if not here.record.steps:
                here.names.clear()
        trains = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in module.parameters()
        )
        if not trains:
            if here.record.steps:
                add(here.record.frozen, running())
            return
        self.check(here)
        if here.states is None:
            here.states = generator_states()
        if not isinstance(module, DistributedDataParallel):
            if id(module) in here.inside_ddp and module.training:
                add(here.record.bypasses, calling(lambda owner: id(owner) in here.inside_ddp))
            for parameter in module.parameters():
                if id(parameter) not in here.callers:
                    here.callers[id(parameter)] = running()
        add(here.record.trained, running())
        loaders.match(here, (args, kwargs))
        batch = loaders.first_tensor((args, kwargs))
        if batch is not None:
            here.num_rows = int(batch.shape[0])
            if here.batch is None:
                here.rows = loaders.row_hashes(batch)

    def check(self, here: Observation) -> None:
        """End the rank if its steps are done."""
        rank, done = here.rank, here.step
        over = done >= self.max_steps
        if rank.rank == 0 and self.stop is not None and done and not over:
            over = self.stop(done)
        if over:
            if rank.rank == 0:
                self.stopped_at = done
            rank.state[DONE] = True
            raise StepsDone

    def _backward(
        self, here: Observation, original: Any, tensors: Any, *args: Any, **kw: Any
    ) -> Any:
        if here.backward is not None:
            return original(tensors, *args, **kw)
        self.check(here)
        here.backward = self._begin_backward(here, as_list(tensors)[0])
        try:
            return original(tensors, *args, **kw)
        finally:
            here.backward = None
            here.since += 1

    def _begin_backward(self, here: Observation, loss: Any) -> BackwardRecord:
        trained, here.used = here.trained, None
        batch = None if trained is None else here.record.batches[trained]
        samples = here.rows if batch is None else batch.samples
        indexed = batch is None and len(here.index) > 0 and len(here.index) == len(samples)
        if indexed:
            samples = here.index
        rows = len(samples) if samples else here.num_rows
        line = here.inner[1] if here.by_library and here.inner is not None else running()
        here.inner = None
        record = BackwardRecord(trained, samples, line, here.step, rows, here.num_rows, indexed)
        record.counts = list(here.counts)
        if loss.numel() > 1 and here.messaged and here.record.staged is None:
            here.record.staged = line
        if batch is not None:
            loader = here.record.loaders[batch.loader]
            loader.iterated = batch.line
        here.record.backwards.append(record)
        here.counts = []
        return record

    # Optimizer ------------------------------------------------------------------------------------

    def _patch_optimizer(self, patches: Patches) -> None:
        patches.wrap(Optimizer, "add_param_group", after(self._watch_group), seen)
        patches.undo(register_optimizer_step_pre_hook(before_step(self._before)).remove)
        patches.undo(register_optimizer_step_post_hook(self._after).remove)
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                patches.wrap(owner, name, _clip, seen)
        patches.wrap(LRScheduler, "__init__", _create_scheduler, seen)

    def _watch_group(self, here: Observation, optimizer: Any) -> None:
        for parameter in parameters_of(optimizer, -1):
            self._watch(here, parameter)

    def _watch(self, here: Observation, parameter: Any) -> None:
        """Record the gradients of a parameter before they are reduced."""
        key = id(parameter)
        if key in here.parameters:
            return
        here.parameters[key] = parameter
        if not parameter.requires_grad or hasattr(parameter, "_local_tensor"):
            return

        def hook(grad: Any) -> None:
            backward = here.backward
            if backward is None or grad is None or grad.is_meta:
                return
            name = parameter_name(here, key)
            sketched = _sketch(here, name, grad)
            if sketched is not None:
                earlier = backward.local.get(name)
                backward.local[name] = sketched if earlier is None else earlier + sketched

        with unobserved():
            parameter.register_hook(hook)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = seen()
        if here is None:
            return
        here.stepping += 1
        if here.stepping > 1:
            return
        number = here.number_of_optimizer(optimizer)
        count = here.steps_of(number)
        if count >= self.max_steps:
            self.check(here)
        record = StepRecord(
            number,
            count,
            here.begin_step(number),
            running(),
            len(here.record.calls),
            _rates(optimizer),
            tuple(_numbers(group) for group in optimizer.param_groups),
        )
        record.generators, record.buffers = hash_of(here.states), here.buffers
        record.own_generators = tuple(
            (number, loaders.number_from(bytes(values(state).astype(np.uint8))))
            for number, state in sorted(here.own_states.items())
        )
        here.buffers = {}
        record.scheduled = here.scheduled
        key = here.rank.rank, number
        if self.state_at is not None and record.at >= self.state_at and key not in self.states:
            with torch._C._DisableTorchDispatch():
                state = copy.deepcopy(inner_optimizer(optimizer).state_dict())
            self.states[key] = state, here.states, here.own_states
        with unobserved():
            self._gradients(here, optimizer, record)
        here.record.steps.append(record)
        here.states, here.own_states, here.since, here.messaged = None, {}, 0, False

    def _gradients(self, here: Observation, optimizer: Any, record: StepRecord) -> None:
        whole = here.rank.rank == 0
        states = inner_optimizer(optimizer).state
        for parameter in parameters_of(optimizer):
            self._watch(here, parameter)
            name, grad = parameter_name(here, id(parameter)), parameter.grad
            place = here.places.get(name)
            shard = is_shard(parameter) or (place is not None and place.leads)
            if shard:
                record.shards.add(name)
                if record.number == 0 and place is None:
                    here.record.follows = _followed(here, parameter)
            if record.number == 0:
                by_row = parameter.ndim > 1 and len(parameter) <= MOST_ROWS
                rows = loaders.row_hashes(parameter if by_row else parameter[None])
                if rows:
                    here.record.contents[name] = parameter.numel(), rows
            real = grad is not None and not grad.is_meta
            record.grad_probes[name] = _probe(here, name, grad) if real else None
            if whole or shard:
                record.grads[name] = _sketch(here, name, grad) if real else None
            record.before[name] = _probe(here, name, parameter)
            for key, value in (states.get(parameter) or {}).items():
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    sketched = probe(value)
                    if sketched is not None:
                        record.state[f"{name}: {key}"] = sketched

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = seen()
        if here is None or not here.stepping:
            return
        here.stepping -= 1
        if here.stepping or not here.record.steps:
            return
        record = here.record.steps[-1]
        with unobserved():
            for parameter in parameters_of(optimizer):
                name = parameter_name(here, id(parameter))
                if parameter.is_meta:
                    continue
                record.after_probes[name] = _probe(here, name, parameter)
                if here.rank.rank == 0 or name in record.shards:
                    record.after[name] = _sketch(here, name, parameter)


def _sketch(here: Observation, name: str, tensor: Any) -> Floats | None:
    """Return the sketch of a parameter or of its gradient, which may be a part of a stack."""
    place = here.places.get(name)
    return sketch(tensor) if place is None else sketch(tensor, place.offset, place.total)


def _probe(here: Observation, name: str, tensor: Any) -> Floats | None:
    """Return the probe of a parameter or of its gradient; None for a part of a stack."""
    place = here.places.get(name)
    return probe(tensor) if place is None or place.total == tensor.numel() else None


def _followed(here: Observation, parameter: Any) -> int | None:
    """Return the rank whose samples this one has too, since it has another part of its weights.

    So it is in tensor parallelism; FSDP's ranks have samples of their own. None for that rank.
    """
    groups = [
        group
        for root in here.roots
        for module in root.modules()
        if hasattr(module, "_get_fsdp_state")
        for group in module._get_fsdp_state()._fsdp_param_groups
    ]
    by_samples = groups[0].mesh_info.mesh.ndim if groups else 0
    mesh = parameter.device_mesh
    place = mesh.get_coordinate()
    if place is None or not any(place[by_samples:]):
        return None
    first = [*place[:by_samples], *(0 for _ in place[by_samples:])]
    return int(mesh.mesh[tuple(first)])


def _rates(optimizer: Any) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def _numbers(group: Any) -> dict[str, Any]:
    """Return the numbers of a group, such as its learning rate and momentum."""
    kinds = (int, float, tuple)
    return {key: value for key, value in group.items() if isinstance(value, kinds)}


# Model --------------------------------------------------------------------------------------------


def _register(here: Observation, original: Any, module: Any, name: str, param: Any) -> None:
    original(module, name, param)
    if param is not None and id(param) not in here.creators:
        here.creators[id(param)] = running()
        here.makers[id(param)] = calling(lambda owner: isinstance(owner, nn.Module))


def _wrapped(here: Observation, module: Any) -> None:
    here.record.wrappers.append(running())
    here.cores.add(id(module.module))
    here.inside_ddp |= {id(inner) for inner in module.modules() if inner is not module}
    here.wrapped |= {id(parameter) for parameter in module.parameters()}
    here.record.broadcasts_buffers &= bool(module.broadcast_buffers)
    if id(module) not in here.root_ids:
        here.root_ids.add(id(module))
        here.roots.insert(0, module)
        here.names.clear()


def _record_buffers(here: Observation, module: Any) -> None:
    with unobserved():
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point() and not buffer.is_meta:
                sketched = probe(buffer)
                if sketched is not None:
                    here.buffers[clean(name)] = sketched


def _normalising(
    here: Observation,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    *_: Any,
    **__: Any,
) -> None:
    if training and torch.is_grad_enabled():
        add(here.record.norms, here.creators.get(id(weight), running()))


def _dropout_made(here: Observation, module: Any) -> None:
    module._audited_line = running()


def _made(callers: int) -> Line | None:
    """Return the line that makes the module of one of the nearest callers, if it is recorded.

    The callers are those of the function that `before` wraps.
    """
    for depth in range(4, 4 + callers):
        line = getattr(sys._getframe(depth).f_locals.get("self"), "_audited_line", None)
        if line is not None:
            return line
    return None


def _assign(here: Observation, original: Any, module: Any, name: str, value: Any) -> None:
    if here.depth and name in vars(module).get("_buffers", ()):
        here.record.buffer_lines.setdefault(name, directly(3))
    original(module, name, value)


def _dropping(
    here: Observation, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> None:
    if training and p and torch.is_grad_enabled():
        add(here.record.dropouts, _made(1) or running())


def _attending(
    here: Observation,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *_: Any,
    **__: Any,
) -> None:
    if dropout_p and torch.is_grad_enabled():
        add(here.record.dropouts, _made(2) or running())


def _drawing(name: str, here: Observation, *_: Any, generator: Any = None, **__: Any) -> None:
    line = directly(4)
    if line is None:
        return
    if name == "randint":
        add(here.record.index_draws, line)
    if generator is not None:
        number = here.number_of(generator)
        if number is not None and number not in here.own_states:
            here.own_states[number] = generator.get_state()
    of_a_step = here.batch is not None and here.loading is None  # not of the data set
    if of_a_step and torch.is_grad_enabled():
        add(here.record.draws, line)


def _counting(
    name: str, here: Observation, input: Any, target: Any, *_: Any, **options: Any
) -> None:
    if torch.is_grad_enabled() and getattr(input, "requires_grad", False):
        with unobserved():
            count = _terms(name, input, target, options)
        here.counts.append(LossCount(str(options.get("reduction", "mean")), count, running()))


def _terms(name: str, input: Any, target: Any, kwargs: Any) -> float:
    """Return the number that a mean divides by."""
    if name not in ("cross_entropy", "nll_loss"):
        return float(input.shape[0] if kwargs.get("reduction") == "batchmean" else input.numel())
    if target.is_floating_point():
        return float(target.shape[0]) if target.ndim > 0 else 1.0
    labels = values(target)
    kept = labels != kwargs.get("ignore_index", -100)
    weight = kwargs.get("weight")
    if weight is None:
        return float(kept.sum())
    return float(values(weight)[labels[kept].astype(int)].sum())


def _mixing(here: Observation, root: Any) -> None:
    """Record the mixed precision of FSDP or DDP."""
    for module in root.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        policy = getattr(module, "mixed_precision", None)
        for mixed in (getattr(state, "_mp_policy", None), policy):
            for name in ("param_dtype", "reduce_dtype"):
                _shorten(here, getattr(mixed, name, None))


def _shorten(here: Observation, dtype: Any) -> None:
    """Record that a script computes in a shorter data type than that of its parameters."""
    if dtype in (torch.bfloat16, torch.float16):
        here.record.autocast = max(here.record.autocast, float(torch.finfo(dtype).eps))


def _casting(here: Observation, autocast: Any) -> None:
    if autocast._enabled:
        _shorten(here, autocast.fast_dtype)


def _compiling(here: Observation, *_: Any, **__: Any) -> None:
    here.record.compiled = True


# Optimizer ----------------------------------------------------------------------------------------


def _clip(here: Observation, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    line = running()
    with unobserved():
        total = original(as_list(parameters), *args, **kwargs)
    norm = None
    if isinstance(total, torch.Tensor) and not hasattr(total, "_local_tensor"):
        norm = None if total.is_meta else float(values(total)[0])
    here.record.clips.append(ClipRecord(line, norm))
    return total


def _hooking(here: Observation, tensor: Any, hook: Any) -> None:
    line = running()
    if isinstance(tensor, nn.Parameter) and line is not None:
        add(here.record.hooks, line)


def _hooking_reduction(here: Observation, ddp: Any, state: Any, hook: Any) -> None:
    by_torch = str(getattr(hook, "__module__", "")).partition(".")[0] == "torch"
    here.record.comm_hooks.append((by_torch, running()))


def _replicating(here: Observation, parallel: Any, *_: Any, **__: Any) -> None:
    if len(parallel.device_ids) > 1 and here.record.replicated is None:
        here.record.replicated = running()


def _create_scheduler(here: Observation, original: Any, *args: Any, **kwargs: Any) -> None:
    here.building += 1
    try:
        original(*args, **kwargs)
    finally:
        here.building -= 1
    here.record.schedulers.append(tuple(line for _, line in reversed(stack())))


def _scheduling(here: Observation, *_: Any, **__: Any) -> None:
    if not here.building:
        here.scheduled += 1
        here.record.scheduler_steps.append((directly(4) is not None, running()))


def _saving(kind: str, here: Observation, *_: Any, **__: Any) -> None:
    if (kind, running()) not in here.record.saves:
        here.record.saves.append((kind, running()))


def _loading(kind: str, here: Observation, *_: Any, **__: Any) -> None:
    if not here.record.steps:
        here.record.loads.append((kind, running()))


# Collectives --------------------------------------------------------------------------------------


def _messaging(here: Observation, *_: Any, **__: Any) -> None:
    here.messaged = True


def _waiting(here: Observation, *_: Any, **__: Any) -> None:
    record = CallRecord("barrier", (), "", running(), here.step, False, "", None)
    here.record.calls.append(record)


def _call_group(
    here: Observation, original: Any, group: Any, name: str, collective: str, inputs: Any,
    outputs: Any, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    buffers, more = inputs or outputs, kwargs.get("more", "")
    first = buffers[0]
    numbers: Floats | None = None
    is_small = sum(buffer.size for buffer in buffers) <= SMALL
    if is_small and first.real and first.array.dtype.kind in "fiu":
        numbers = np.concatenate([buffer.array.astype(float) for buffer in buffers])
    inside = here.backward is not None or torch._C._current_graph_task_id() != -1
    dtype = str(first.dtype).removeprefix("torch.")
    line, at = running(), here.step
    here.record.calls.append(
        CallRecord(name, (first.size,), dtype, line, at, inside, more, numbers, stack())
    )
    if here.stepping and numbers is None and name.startswith(("all_reduce", "reduce")):
        here.record.steps[-1].reduces = True
    return original(group, name, collective, inputs, outputs, *args, **kwargs)


# Generators ---------------------------------------------------------------------------------------


def hash_of(states: Any) -> int:
    """Return a number for the states of generators."""
    if states is None:
        return 0
    text = bytes(values(states[0]).astype(np.uint8)) + repr(states[1]).encode()
    return loaders.number_from(text + states[2][1].tobytes())


# Patches ------------------------------------------------------------------------------------------

CREATIONS = (
    (DistributedDataParallel, _wrapped),
    (nn.modules.dropout._DropoutNd, _dropout_made),
    (nn.MultiheadAttention, _dropout_made),
)
"""Classes, and what observes a new object."""

STATES = {
    "optimizer": Optimizer,
    "scheduler": LRScheduler,
    "scaler": torch.amp.grad_scaler.GradScaler,
    "model": nn.Module,
}
"""Classes whose states are saved and loaded, by kind."""

CALLS: tuple[tuple[Any, str, Callable[..., None]], ...] = (
    (functional, "batch_norm", _normalising),
    (functional, "dropout", _dropping),
    (functional, "scaled_dot_product_attention", _attending),
    (torch.amp.autocast_mode.autocast, "__enter__", _casting),
    (torch, "compile", _compiling),
    (DistributedDataParallel, "register_comm_hook", _hooking_reduction),
    (nn.DataParallel, "forward", _replicating),
    (LRScheduler, "step", _scheduling),
    (torch.Tensor, "register_hook", _hooking),
    (torch, "save", partial(_saving, "file")),
    (torch, "load", partial(_loading, "file")),
    *((owner, "state_dict", partial(_saving, kind)) for kind, owner in STATES.items()),
    *((owner, "load_state_dict", partial(_loading, kind)) for kind, owner in STATES.items()),
    (Virtual, "barrier", _waiting),
    *((Virtual, name, _messaging) for name in ("send", "recv", "recv_anysource")),
)
"""Functions, and what observes a call before it is made."""
