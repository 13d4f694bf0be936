"""The tape of a recorded script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simdp.errors import SimdpError
from simdp.files import format_yaml, put_text, whole_files
from simdp.torch.kernels import OperatorKernels, Sizes, launched_by, moved, tensors_in
from simdp.workload.layers.base import ModelGraph
from simdp.workload.layers.operator import KeptSizes, KernelSizes
from simdp.workload.models.operators import Operators, RecordedCall, Recording
from simdp.workload.step_costs import forward_flops

# Fakes --------------------------------------------------------------------------------------------


class AsOnDevices(TorchFunctionMode):
    """Runs calls that CPUs split as devices do: dropout and attention in one kernel.

    Tensors requested on a device are on the host, like all others here.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {name: _on_host(value) for name, value in (kwargs or {}).items()}
        args = tuple(_on_host(value) for value in args)
        if func is functional.dropout or func is torch.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> torch.Tensor:
    if not (training if train is None else train) or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run one kernel each way; key heads shared by several queries stay unchanged."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        share = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(share, dim=-3)
        value = value.repeat_interleave(share, dim=-3)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
    )[0]


@contextmanager
def faked() -> Iterator[FakeTensorMode]:
    """Give tensors created inside shapes and no memory."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


@contextmanager
def bare(module: torch.nn.Module) -> Iterator[None]:
    """Remove the hooks by which FSDP2 gathers and frees parameters."""
    hooks = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks")
    units = [part for part in module.modules() if isinstance(part, FSDPModule)]
    with ExitStack() as stack:
        for registered in (getattr(unit, name) for unit in units for name in hooks):
            stack.callback(registered.update, dict(registered))
            registered.clear()
        yield


def fake_leaf(tensor: torch.Tensor, learned: bool) -> torch.Tensor:
    """Return a tensor like it, without its numbers."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return made.requires_grad_(learned)


def resized(value: Any, batch: int, wanted: int) -> Any:
    """Return a sample with another number of samples, in every tensor with them on axis 0."""

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        counted = tensor.ndim > 0 and tensor.shape[0] == batch
        shape = (wanted, *tensor.shape[1:]) if counted else tensor.shape
        return torch.empty(shape, dtype=tensor.dtype, device="cpu")

    return mapped(value, resize)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the same nested value with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(inner, change) for inner in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(inner, change) for inner in value)
    return value


@dataclass(frozen=True)
class RecordedWorkload:
    """Result of `simdp.torch.workload`."""

    # operators, parameters and inputs, as a scenario's model of kind ``operators`` reads them
    recording: Recording
    microbatch: int  # samples of the given batch; 1 if the whole batch is one sample
    # further keys of the scenario's workload, such as its optimizer
    keys: dict[str, Any] = field(default_factory=dict)
    # parameters in the order in which autograd completed their gradients
    ready: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()  # values returned by the module, in order

    @cached_property
    def graph(self) -> ModelGraph:
        """Return simdp's graph of the module."""
        return Operators.of(self.recording).graph

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return self.graph.num_parameters

    @property
    def flops(self) -> float:
        """FLOPs of forward's products on one sample, as counted by publications."""
        shapes = [(sample.elements,) for sample in self.recording.inputs]
        return forward_flops(self.graph, shapes).products

    def workload(self, path: str, **keys: Any) -> dict[str, Any]:
        """Return the section ``workload`` of a scenario, with a file of this name next to it."""
        model = {"kind": "operators", "path": path}
        return {"model": model, "microbatch": self.microbatch, **self.keys, **keys}

    def save(
        self,
        path: str | Path,
        cluster: Mapping[str, Any],
        *,
        strategy: str | Mapping[str, Any] = "ddp",
        workload: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> Path:
        """Write a scenario, and the operators as a JSON file next to it; return its path.

        Parameters
        ----------
        path : str or Path
            Of the scenario, ending in .yaml; the other file has its stem and ``.operators.json``.
        cluster, strategy, workload, **sections
            Of the scenario, as plain data; ``workload`` is added to it.

        Raises
        ------
        ScenarioError
            If the folder cannot be written to.
        """
        target = Path(path)
        beside = f"{target.stem}.operators.json"
        scenario = {
            "cluster": dict(cluster),
            "workload": self.workload(beside, **(workload or {})),
            "strategy": strategy,
            **sections,
        }
        recorded = json.dumps(self.recording.model_dump(mode="json", exclude_defaults=True))
        with whole_files(target.parent) as add:
            add(beside, partial(put_text, recorded + "\n"))
            add(target.name, partial(put_text, format_yaml(scenario)))
        return target


# Tape ---------------------------------------------------------------------------------------------

SUMS = ("add", "add_")
"""Operators of autograd that add gradients of a value used twice, which no scenario's layer counts.
"""

PASSED = frozenset({"prim", "c10d", "_c10d_functional", "c10d_functional"})
"""Namespaces of operators that launch no kernels on a device."""

LEAF = 2**63
"""Nodes of parameters have larger numbers."""

Storage = int
"""Identity of the memory of a tensor; the tape keeps recorded memory alive."""


def storage_of(tensor: torch.Tensor) -> Storage:
    """Return the identity of a tensor's memory, shared by views."""
    return int(tensor.untyped_storage()._cdata)


@dataclass
class Ran:
    """An operator of forward."""

    name: str  # path of its module and its own name
    launched: OperatorKernels  # kernels of its forward
    takes: list[int]  # input values, numbered as in `Tape`
    learned: list[str]  # its parameters
    elements: float  # real numbers of its first output
    backward: list[Sizes] = field(default_factory=list)  # kernels of its backward
    products: float = 0.0  # FLOPs of the products among them
    # tensors that autograd saved for it
    kept: dict[Storage, torch.Tensor] = field(default_factory=dict)


class RecordingTape(TorchDispatchMode):
    """Records operators of a module while it is the active mode.

    Leaves ``parameters`` that are trained get gradients; ``inputs`` are the initial values. If
    forward has ``begun`` before, the tape lacks that part's backward.

    Attributes
    ----------
    ran : list of Ran
        Forward's operators that launch kernels.
    ready : list of str
        Parameters, in the order in which their gradients were complete.
    value_of : dict of Storage to int
        The value in each memory: inputs first, then each operator's result.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        inputs: Sequence[torch.Tensor],
        begun: bool = False,
    ) -> None:
        super().__init__()
        self.parameters, self.buffers, self.inputs = parameters, buffers, list(inputs)
        self.held = {storage_of(tensor) for tensor in (*parameters.values(), *buffers.values())}
        self.counted: set[Storage] = set()
        self.outputs: list[int] = []
        self.of_module = 0
        self.ran: list[Ran] = []
        self.ready: list[str] = []
        self.first = len(inputs)
        self.value_of = {storage_of(tensor): number for number, tensor in enumerate(inputs)}
        self.beside: set[Storage] = set()
        self.name_of = {storage_of(tensor): name for name, tensor in parameters.items()}
        self._names = {module: name for name, module in module.named_modules()}
        self._path: list[str] = [""]
        self._alive: list[Any] = [inputs, parameters, buffers]
        self._since = self._sequence()
        self._begin = self._since if begun else 0
        self._made_by: dict[int, int] = {}
        self._views: dict[Storage, list[int]] = {}
        self._pending: dict[int, list[torch.Tensor]] = {}
        self._in_backward = False
        self._last = 0
        for name, leaf in parameters.items():
            if leaf.requires_grad:
                leaf.register_post_accumulate_grad_hook(
                    lambda _, name=name: self.ready.append(name)
                )

    # Where we are ---------------------------------------------------------------------------------

    @contextmanager
    def recording(self, module: torch.nn.Module) -> Iterator[RecordingTape]:
        """Record operators inside, with the tensors saved by autograd and the module."""
        hooks = []
        for inner in module.modules():
            hooks.append(inner.register_forward_pre_hook(self._enter))
            hooks.append(inner.register_forward_hook(self._leave, always_call=True))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.saved, lambda kept: kept), self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._path.append(self._names.get(module, self._path[-1]))

    def _leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        self._path.pop()

    @staticmethod
    def _sequence() -> int:
        return int(torch._C._autograd._get_sequence_nr())

    # What runs ------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # its calls come here again, operator by operator
        out = func(*args, **(kwargs or {}))
        if func.namespace in PASSED:
            return out
        launched = launched_by(func, args, kwargs or {}, out)
        node = torch._C._current_autograd_node()
        if node is not None or self._in_backward:
            self._in_backward = True
            if func.overloadpacket.__name__ not in SUMS:
                self._note_backward(launched, node)
        else:
            self._note_forward(func, launched, list(tensors_in([args, kwargs or {}])), out)
        return out

    def _note_backward(self, launched: OperatorKernels, node: Any) -> None:
        if self._begin and (node is None or not self._begin <= node._sequence_nr() < LEAF):
            return
        if node is not None:
            self._last = self._operator_of(node._sequence_nr())
        if self.ran:
            self.ran[self._last].backward += launched.kernels
            self.ran[self._last].products += launched.products

    def _operator_of(self, sequence: int) -> int:
        """Return the operator of an autograd node; gradients that are added belong to the last."""
        if sequence in self._made_by:
            return self._made_by[sequence]
        before = [made for made in self._made_by if made <= sequence]
        return self._made_by[max(before)] if before and sequence < LEAF else self._last

    def _note_forward(
        self, func: Any, launched: OperatorKernels, inputs: list[torch.Tensor], out: Any
    ) -> None:
        nodes = range(self._since, self._sequence())
        self._since = nodes.stop
        made = list(tensors_in(out))
        self._alive += made
        if not launched.kernels:
            for tensor in made:  # of a view, whose part of backward counts with its first user
                self._views.setdefault(storage_of(tensor), []).extend(nodes)
            return
        number = len(self.ran)
        for node in nodes:
            self._made_by[node] = number
        for tensor in inputs:
            for node in self._views.pop(storage_of(tensor), ()):
                self._made_by[node] = number
        stores = list(dict.fromkeys(storage_of(tensor) for tensor in inputs))
        self.ran.append(
            Ran(
                f"{self._path[-1]}.{func.overloadpacket.__name__}".lstrip("."),
                launched,
                [self.value_of[store] for store in stores if store in self.value_of],
                list(dict.fromkeys(self.name_of[s] for s in stores if s in self.name_of)),
                moved(made[:1]).elements if made else 0.0,
            )
        )
        for tensor in made:
            self.value_of[storage_of(tensor)] = self.first + number
        self.beside.update(storage_of(tensor) for tensor in made[1:])

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a saved tensor; of `torch.autograd.graph.saved_tensors_hooks`."""
        if not self._in_backward:
            self._alive.append(tensor)
            self._pending.setdefault(self._sequence() - 1, []).append(tensor)
        return tensor

    def returned(self, out: Any) -> None:
        """Record the module's output: a script holds it until the end of the loss's backward."""
        made = [self.value_of.get(storage_of(tensor)) for tensor in tensors_in(out)]
        self.outputs = [value for value in made if value is not None]
        self.of_module = len(self.ran)

    def finish(self) -> None:
        """Assign tensors saved by autograd to their operators."""
        for sequence, tensors in self._pending.items():
            if self.ran:
                kept = self.ran[self._operator_of(sequence)].kept
                kept.update((storage_of(tensor), tensor) for tensor in tensors)


# Differences --------------------------------------------------------------------------------------


class Taped(NamedTuple):
    """A tape, and the number of samples of its batch."""

    batch: int
    tape: RecordingTape


def calls_of(small: Taped, large: Taped | None) -> list[RecordedCall]:
    """Return the operators of forward, with their cost per sample and their fixed cost.

    ``small`` has exact sizes; without a ``large`` batch, a sample is the whole batch, and nothing
    is constant.

    Raises
    ------
    SimdpError
        If other operators ran in the larger batch.
    """
    other = small if large is None else large
    if [ran.name for ran in small.tape.ran] != [ran.name for ran in other.tape.ran]:
        raise SimdpError(
            "workload: the module calls other operators when the batch is twice as large; give "
            "scales=False, to take the batch as one sample."
        )
    names = {name: number for number, name in enumerate(small.tape.name_of.values())}
    split = _Split(small, large)
    pairs = zip(small.tape.ran, other.tape.ran, strict=True)
    order = {name: place for place, name in enumerate(small.tape.ready)}
    return [_call(number, *pair, split, names, order) for number, pair in enumerate(pairs)]


class _Split:
    """Parts of a figure: per sample, and constant."""

    def __init__(self, small: Taped, large: Taped | None) -> None:
        self.small, self.large = small, large

    def of(self, small: float, large: float) -> tuple[float, float]:
        batch = self.small.batch
        if self.large is None:
            return small / batch, 0.0
        per_sample = (large - small) / (self.large.batch - batch)
        if per_sample < 0 or small - per_sample * batch < 0:  # not linear: exact for the small one
            return small / batch, 0.0
        return per_sample, small - per_sample * batch

    def kernels(self, smalls: Sequence[Sizes], larges: Sequence[Sizes]) -> Iterator[KernelSizes]:
        if len(smalls) != len(larges):
            raise SimdpError(
                "workload: backward launches other kernels when the batch is twice as large; give "
                "scales=False, to take the batch as one sample."
            )
        for small, large in zip(smalls, larges, strict=True):
            elements, fixed_elements = self.of(small.elements, large.elements)
            nbytes, fixed_nbytes = self.of(small.nbytes, large.nbytes)
            flops = small.flops / self.small.batch
            yield KernelSizes(flops, elements, nbytes, fixed_elements, fixed_nbytes)


def _call(
    number: int,
    small: Ran,
    large: Ran,
    split: _Split,
    names: dict[str, int],
    order: dict[str, int],
) -> RecordedCall:
    learned = sorted(small.learned, key=lambda name: order.get(name, len(order)))
    return RecordedCall(
        name=small.name,
        policy=small.launched.policy,
        takes=tuple(small.takes),
        elements=round(split.of(small.elements, large.elements)[0]),
        learned=tuple(names[name] for name in learned),
        products=small.launched.products / split.small.batch,
        forward=tuple(split.kernels(small.launched.kernels, large.launched.kernels)),
        backward=tuple(split.kernels(small.backward, large.backward)),
        keeps=_kept(number, small, large, split),
    )


def _kept(number: int, small: Ran, large: Ran, split: _Split) -> KeptSizes:
    inputs, output, own = _sorted_out(number, small, split.small.tape)
    other = own if split.large is None else _sorted_out(number, large, split.large.tape)[2]
    elements, fixed_elements = split.of(own.elements, other.elements)
    nbytes, fixed_nbytes = split.of(own.nbytes, other.nbytes)
    return KeptSizes(inputs, output, elements, nbytes, fixed_elements, fixed_nbytes)


def _sorted_out(number: int, ran: Ran, tape: RecordingTape) -> tuple[tuple[int, ...], bool, Sizes]:
    """Return kept inputs of an operator, whether it keeps its output, and further kept tensors."""
    inputs, output, beside = list[int](), False, list[Sizes]()
    for store, tensor in ran.kept.items():
        value = tape.value_of.get(store)
        if store in tape.held:
            continue
        flows = value is not None and store not in tape.beside and tensor.is_floating_point()
        if flows and value == tape.first + number:
            output = True
        elif value in ran.takes and (flows or value < tape.first):
            inputs.append(ran.takes.index(value))
        elif store not in tape.counted:
            tape.counted.add(store)
            beside.append(moved([tensor]))
    if number >= tape.of_module:
        inputs += [place for place, value in enumerate(ran.takes) if value in tape.outputs]
    elements, nbytes = (sum(sizes[place] for sizes in beside) for place in (1, 2))
    return tuple(sorted(set(inputs))), output, Sizes(0.0, elements, nbytes)
