"""Records a script's run: a part of the launcher whose patches record and change nothing."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
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
    RankRecord,
    StepRecord,
)
from simdp.torch.audit.sketches import is_shard, probe, sketch, values
from simdp.torch.generators import generator_states
from simdp.torch.process_groups import Virtual
from simdp.torch.ranks import DONE, Patches, Rank, RankLocal, StepsDone, current
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
        known = self._spawned.get(rank.rank) if SPAWNED in rank.state else None
        rank.state[KEY] = known or Observation()
        if SPAWNED in rank.state:  # started twice, ranks continue the same record
            self.started = rank.runtime.cluster.world_size
            self._spawned[rank.rank] = rank.state[KEY]
        given = rank.state.get("places", {})
        rank.state[KEY].places = {place.name: place for place in given.values()}
        rank.state[KEY].renamed = {name: place.name for name, place in given.items()}
        self.records[rank.rank] = rank.state[KEY].record

    def end(self, rank: Rank) -> None:
        observation: Observation | None = rank.state.get(KEY)
        if observation is not None:
            with unobserved():
                self._finish(rank, observation)

    def _finish(self, rank: Rank, here: Observation) -> None:
        """Record last values: learning rates, and those of modules without an optimizer."""
        here.record.ended = DONE not in rank.state
        here.record.rates = [_rates(optimizer) for optimizer in here.stepped]
        known = set(here.parameters)
        for number, root in enumerate(here.roots):
            tensors = [*root.named_parameters(), *root.named_buffers()]
            if any(id(tensor) in known for _, tensor in tensors):
                continue
            for name, tensor in tensors:
                found = probe(tensor) if tensor.is_floating_point() else None
                if found is not None:
                    here.record.states[f"module {number}.{clean(name)}"] = found
        for root in here.roots:
            if isinstance(root, DistributedDataParallel):
                for parameter in root.parameters():
                    if id(parameter) not in here.wrapped and id(parameter) in here.names:
                        here.record.late.append(here.names[id(parameter)])
        for key, name in here.names.items():
            here.record.creators[name] = here.creators.get(key)
            here.record.makers[name] = here.makers.get(key)
            here.record.callers[name] = here.callers.get(key)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            patches = Patches(stack)
            loaders.patch(patches)
            self._patch_model(patches)
            self._patch_optimizer(patches)
            self._patch_calls(patches)
            yield

    # Model ----------------------------------------------------------------------------------------

    def _patch_model(self, patches: Patches) -> None:
        called = nn.Module.__call__
        observer = self

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            here = seen()
            if here is None:
                return called(self, *args, **kwargs)
            line = directly()
            if here.depth == 0:
                here.by_library = line is None
                observer._called(here, self, args, kwargs)
            elif line is not None and (here.inner is None or here.depth <= here.inner[0]):
                here.inner = here.depth, line
            core = id(self) in here.cores if here.cores else here.depth == 0
            if core and not here.buffers and torch.is_grad_enabled():
                _record_buffers(here, self)
            here.depth += 1
            try:
                return called(self, *args, **kwargs)
            finally:
                here.depth -= 1

        patches.put(nn.Module, "__call__", __call__)
        patches.wrap(nn.Module, "register_parameter", _registering)
        patches.wrap(DistributedDataParallel, "__init__", after(_wrapped))
        patches.wrap(functional, "batch_norm", before(_normalising))
        patches.wrap(functional, "dropout", before(_dropping))
        for kind in (nn.modules.dropout._DropoutNd, nn.MultiheadAttention):
            patches.wrap(kind, "__init__", after(_dropout_made))
        patches.wrap(nn.Module, "__setattr__", _assigning)
        patches.wrap(torch, "load", before(partial(_loading, "file")))
        patches.wrap(functional, "scaled_dot_product_attention", before(_attending))
        for name in DRAWS:
            patches.wrap(torch, name, before(partial(_drawing, name)))
        for name in LOSSES:
            patches.wrap(functional, name, before(partial(_counting, name)))
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(torch.amp.autocast_mode.autocast, "__enter__", before(_casting))
        patches.wrap(torch, "compile", before(_compiling))
        patches.wrap(DistributedDataParallel, "register_comm_hook", before(_hooking_reduction))
        patches.wrap(nn.DataParallel, "forward", before(_replicating))

    def _called(self, here: Observation, module: Any, args: Any, kwargs: Any) -> None:
        """Observe a call of a module by the script, not by another module."""
        if id(module) not in here.root_ids:
            here.root_ids.add(id(module))
            here.roots.append(module)
            _mixing(here, module)
            if not here.record.steps:
                here.names.clear()
        trains = torch.is_grad_enabled() and any(
            one.requires_grad for one in module.parameters(recurse=True)
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
                skipped = here.inside_ddp
                line = calling(lambda owner: id(owner) in skipped)
                if line not in here.record.bypasses:
                    here.record.bypasses.append(line)
            for parameter in module.parameters():
                if id(parameter) not in here.callers:
                    here.callers[id(parameter)] = running()
        add(here.record.trained, running())
        loaders.match(here, (args, kwargs))
        found = loaders.first_tensor((args, kwargs))
        if found is not None:
            here.num_rows = int(found.shape[0])
            if here.batch is None:
                here.rows = loaders.row_hashes(found)

    def check(self, here: Observation) -> None:
        """End the rank if its steps are done."""
        rank = current()
        if rank is None:
            return
        done = here.step
        over = done >= self.max_steps
        if rank.rank == 0 and self.stop is not None and done and not over:
            over = self.stop(done)
        if over:
            if rank.rank == 0:
                self.stopped_at = done
            rank.state[DONE] = True
            raise StepsDone

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            here = seen()
            if here is None or here.backward is not None:
                return original(tensors, grad_tensors, *args, **kwargs)
            self.check(here)
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            record = self._begin_backward(here, given[0])
            here.backward = record
            try:
                return original(tensors, grad_tensors, *args, **kwargs)
            finally:
                here.backward = None
                here.since += 1

        return backward

    def _begin_backward(self, here: Observation, loss: Any) -> BackwardRecord:
        trained, here.used = here.trained, None
        batch = None if trained is None else here.record.batches[trained]
        samples = here.rows if batch is None else batch.samples
        indexed = batch is None and len(here.index) > 0 and len(here.index) == len(samples)
        if indexed:
            samples = here.index
        number = float(values(loss)[0]) if loss.numel() == 1 and not loss.is_meta else float("nan")
        rows = len(samples) if samples else here.num_rows
        line = here.inner[1] if here.by_library and here.inner is not None else running()
        here.inner = None
        record = BackwardRecord(
            trained, samples, number, line, here.step, rows, here.num_rows, indexed
        )
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
        patches.wrap(Optimizer, "add_param_group", self._adding)
        patches.undo(register_optimizer_step_pre_hook(before_step(self._before)).remove)
        patches.undo(register_optimizer_step_post_hook(self._after).remove)
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                patches.wrap(owner, name, _clipping)
        patches.wrap(LRScheduler, "__init__", _scheduler_made)
        patches.wrap(LRScheduler, "step", before(_scheduling))
        patches.wrap(torch.Tensor, "register_hook", before(_hooking))
        for owner, kind in (
            (Optimizer, "optimizer"),
            (LRScheduler, "scheduler"),
            (torch.amp.grad_scaler.GradScaler, "scaler"),
            (nn.Module, "model"),
        ):
            patches.wrap(owner, "state_dict", before(partial(_saving, kind)))
            patches.wrap(owner, "load_state_dict", before(partial(_loading, kind)))
        patches.wrap(torch, "save", before(partial(_saving, "file")))

    def _adding(self, original: Any) -> Any:
        observer = self

        def add_param_group(self: Any, group: Any) -> Any:
            found = original(self, group)
            here = seen()
            if here is not None:
                for parameter in self.param_groups[-1]["params"]:
                    observer._watch(here, parameter)
            return found

        return add_param_group

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
            found = _sketch(here, name, grad)
            if found is not None:
                before = backward.local.get(name)
                backward.local[name] = found if before is None else before + found

        with unobserved():
            parameter.register_hook(hook)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = seen()
        if here is None:
            return
        here.stepping += 1
        if here.stepping > 1:
            return
        rank = current()
        assert rank is not None
        number = here.number_of_optimizer(optimizer)
        count = sum(one.optimizer == number for one in here.record.steps)
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
            (number, _digest(state)) for number, state in sorted(here.own_states.items())
        )
        here.buffers = {}
        record.scheduled = here.scheduled
        kept = (rank.rank, number) in self.states
        if self.state_at is not None and record.at >= self.state_at and not kept:
            with torch._C._DisableTorchDispatch():
                state = copy.deepcopy(inner_optimizer(optimizer).state_dict())
            self.states[rank.rank, number] = state, here.states, here.own_states
        with unobserved():
            self._gradients(rank, here, optimizer, record)
        here.record.steps.append(record)
        here.states, here.own_states, here.since, here.messaged = None, {}, 0, False

    def _gradients(self, rank: Rank, here: Observation, optimizer: Any, record: StepRecord) -> None:
        whole = rank.rank == 0
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
            known = grad is not None and not grad.is_meta
            record.grad_probes[name] = _probe(here, name, grad) if known else None
            if whole or shard:
                record.grads[name] = _sketch(here, name, grad) if known else None
            record.before[name] = _probe(here, name, parameter)
            for key, value in (states.get(parameter) or {}).items():
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    found = probe(value)
                    if found is not None:
                        record.state[f"{name}: {key}"] = found

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        here = seen()
        if here is None or not here.stepping:
            return
        here.stepping -= 1
        if here.stepping or not here.record.steps:
            return
        rank = current()
        assert rank is not None
        record = here.record.steps[-1]
        with unobserved():
            for parameter in parameters_of(optimizer):
                name = parameter_name(here, id(parameter))
                if parameter.is_meta:
                    continue
                record.after_probes[name] = _probe(here, name, parameter)
                if rank.rank == 0 or name in record.shards:
                    record.after[name] = _sketch(here, name, parameter)

    # Collectives ----------------------------------------------------------------------------------

    def _patch_calls(self, patches: Patches) -> None:
        call, barrier = Virtual._call, Virtual.barrier

        def _call(
            self: Any,
            name: str,
            collective: str,
            inputs: Any,
            outputs: Any,
            *rest: Any,
            **more: Any,
        ) -> Any:
            here = seen()
            if here is not None:
                _record_call(here, self, name, inputs or outputs, more.get("more", ""))
            return call(self, name, collective, inputs, outputs, *rest, **more)

        def _barrier(self: Any, opts: Any = None) -> Any:
            here = seen()
            if here is not None:
                record = CallRecord("barrier", (), "", running(), here.step, False, "", None)
                here.record.calls.append(record)
            return barrier(self, opts)

        patches.put(Virtual, "_call", _call)
        patches.put(Virtual, "barrier", _barrier)
        for name in ("send", "recv", "recv_anysource"):
            patches.wrap(Virtual, name, before(_messaging))


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


def _registering(original: Any) -> Any:
    def register_parameter(self: Any, name: str, param: Any) -> None:
        original(self, name, param)
        here = seen()
        if here is not None and param is not None and id(param) not in here.creators:
            here.creators[id(param)] = running()
            here.makers[id(param)] = calling(lambda owner: isinstance(owner, nn.Module))

    return register_parameter


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
                found = probe(buffer)
                if found is not None:
                    here.buffers[clean(name)] = found


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
    for depth in range(3, 3 + callers):
        line = getattr(sys._getframe(depth).f_locals.get("self"), "_audited_line", None)
        if line is not None:
            return line
    return None


def _assigning(original: Any) -> Any:
    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if name in self.__dict__.get("_buffers", ()):
            here = seen()
            if here is not None and here.depth:
                here.record.buffer_lines.setdefault(name, directly())
        original(self, name, value)

    return __setattr__


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
    line = directly(3)
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
        reduction = str(options.get("reduction", "mean"))
        rows = int(input.shape[0]) if input.ndim else 1
        here.counts.append(LossCount(name, reduction, count, rows, running()))


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
        for one in (getattr(state, "_mp_policy", None), policy):
            for name in ("param_dtype", "reduce_dtype"):
                _shorten(here, getattr(one, name, None))


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


def _clipping(original: Any) -> Any:
    @wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        here = seen()
        if here is None:
            return original(parameters, *args, **kwargs)
        line, named = running(), kwargs.get("max_norm", kwargs.get("clip_value", 0.0))
        limit = args[0] if args else named
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with unobserved():
            found = original(listed, *args, **kwargs)
        norm = None
        if isinstance(found, torch.Tensor) and not hasattr(found, "_local_tensor"):
            norm = None if found.is_meta else float(values(found)[0])
        here.record.clips.append(ClipRecord(line, here.step, float(limit), norm, here.since))
        return found

    return clip


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


def _scheduler_made(original: Any) -> Any:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        here = seen()
        if here is None:
            original(self, *args, **kwargs)
            return
        here.building += 1
        try:
            original(self, *args, **kwargs)
        finally:
            here.building -= 1
        here.record.schedulers.append(tuple(line for _, line in reversed(stack())))

    return __init__


def _scheduling(here: Observation, *_: Any, **__: Any) -> None:
    if not here.building:
        here.scheduled += 1
        here.record.scheduler_steps.append((directly(3) is not None, running()))


def _saving(kind: str, here: Observation, *_: Any, **__: Any) -> None:
    if (kind, running()) not in here.record.saves:
        here.record.saves.append((kind, running()))


def _loading(kind: str, here: Observation, *_: Any, **__: Any) -> None:
    if not here.record.steps:
        here.record.loads.append((kind, running()))


# Collectives --------------------------------------------------------------------------------------


def _messaging(here: Observation, *_: Any, **__: Any) -> None:
    here.messaged = True


def _record_call(here: Observation, group: Any, name: str, buffers: Any, more: str) -> None:
    first = buffers[0]
    size = sum(each.size for each in buffers)
    found: Floats | None = None
    if size <= SMALL and first.real and first.array.dtype.kind in "fiu":
        found = np.concatenate([each.array.astype(float) for each in buffers])
    inside = here.backward is not None or torch._C._current_graph_task_id() != -1
    dtype = str(first.dtype).removeprefix("torch.")
    line, at = running(), here.step
    here.record.calls.append(
        CallRecord(name, (first.size,), dtype, line, at, inside, more, found, stack())
    )
    if here.stepping and found is None and name.startswith(("all_reduce", "reduce")):
        here.record.steps[-1].reduces = True


# Generators ---------------------------------------------------------------------------------------


def hash_of(states: Any) -> int:
    """Return a number for the states of generators."""
    if states is None:
        return 0
    text = bytes(values(states[0]).astype(np.uint8)) + repr(states[1]).encode()
    return int.from_bytes(loaders.digest(text + states[2][1].tobytes()), "big")


def _digest(state: Any) -> int:
    return int.from_bytes(loaders.digest(bytes(values(state).astype(np.uint8))), "big")
