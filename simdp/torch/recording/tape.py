"""Tape: the operators of one forward and backward, in their order, with what they take and keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from simdp.torch.kernels.launched import launched_by
from simdp.torch.kernels.sizes import Launched, Sizes, moved, tensors_in

SUMS = ("add", "add_")
"""How autograd adds gradients of a value that was used twice, which no scenario's layer counts."""

PASSED = frozenset({"prim", "c10d", "_c10d_functional", "c10d_functional"})
"""Namespaces of operators that are no kernels of a device."""

LEAF = 2**63
"""Nodes of parameters have larger numbers."""

Storage = int
"""Identity of the memory behind a tensor; the tape keeps what it has seen alive."""


def storage_of(tensor: torch.Tensor) -> Storage:
    """Views share it."""
    return int(tensor.untyped_storage()._cdata)


@dataclass
class Ran:
    """An operator of forward.

    Attributes
    ----------
    name : str
        Path of its module and its own name.
    launched : Launched
        By its forward.
    takes : list of int
        Values, as they are numbered in `Tape`.
    learned : list of str
        Parameters that it takes.
    elements : float
        Real numbers of its first output.
    backward : list of Sizes
        Kernels of its backward.
    products : float
        FLOPs of the products among them.
    kept : dict of Storage to Tensor
        What autograd saved for it.
    """

    name: str
    launched: Launched
    takes: list[int]
    learned: list[str]
    elements: float
    backward: list[Sizes] = field(default_factory=list)
    products: float = 0.0
    kept: dict[Storage, torch.Tensor] = field(default_factory=dict)


class Tape(TorchDispatchMode):
    """Notes what runs while it is the active mode; see `simdp.torch.recording`.

    Parameters
    ----------
    module : torch.nn.Module
        Whose submodules name the operators.
    parameters : dict of str to Tensor
        Leaves by name; those that are learned get gradients.
    buffers : dict of str to Tensor
        By name; they are there, whatever runs.
    inputs : sequence of Tensor
        The values that there are from the beginning, in their order.
    begun : bool
        Whether forward has begun before the tape, which has nothing of that part's backward.

    Attributes
    ----------
    ran : list of Ran
        Forward's operators that launch kernels.
    ready : list of str
        Parameters, in the order in which their gradients were complete.
    value_of : dict of Storage to int
        The value that each memory holds: inputs first, then what each operator made.
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
    def recording(self, module: torch.nn.Module) -> Iterator[Tape]:
        """Note what runs inside, also what autograd saves and in which module."""
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
            return NotImplemented  # what it calls comes here again, operator by operator
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

    def _note_backward(self, launched: Launched, node: Any) -> None:
        if self._begin and (node is None or not self._begin <= node._sequence_nr() < LEAF):
            return
        if node is not None:
            self._last = self._operator_of(node._sequence_nr())
        if self.ran:
            self.ran[self._last].backward += launched.kernels
            self.ran[self._last].products += launched.products

    def _operator_of(self, sequence: int) -> int:
        """The operator that an autograd node belongs to; gradients that are added, to the last."""
        if sequence in self._made_by:
            return self._made_by[sequence]
        before = [made for made in self._made_by if made <= sequence]
        return self._made_by[max(before)] if before and sequence < LEAF else self._last

    def _note_forward(
        self, func: Any, launched: Launched, given: list[torch.Tensor], out: Any
    ) -> None:
        nodes = range(self._since, self._sequence())
        self._since = nodes.stop
        made = list(tensors_in(out))
        self._alive += made
        if not launched.kernels:
            self._note_view(nodes, given, made)
            return
        number = len(self.ran)
        for node in nodes:
            self._made_by[node] = number
        for tensor in given:
            for node in self._views.pop(storage_of(tensor), ()):
                self._made_by[node] = number
        stores = list(dict.fromkeys(storage_of(tensor) for tensor in given))
        self.ran.append(
            Ran(
                f"{self._path[-1]}.{func.overloadpacket.__name__}".lstrip("."),
                launched,
                [self.value_of[store] for store in stores if store in self.value_of],
                list(dict.fromkeys(self.name_of[one] for one in stores if one in self.name_of)),
                moved(made[:1]).elements if made else 0.0,
            )
        )
        for tensor in made:
            self.value_of[storage_of(tensor)] = self.first + number
        self.beside.update(storage_of(tensor) for tensor in made[1:])

    def _note_view(self, nodes: range, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """It makes no value of its own; its part of backward goes with the first who takes it."""
        for tensor in made:
            store = storage_of(tensor)
            self._views.setdefault(store, []).extend(nodes)

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd saves; of `torch.autograd.graph.saved_tensors_hooks`."""
        if not self._in_backward:
            self._alive.append(tensor)
            self._pending.setdefault(self._sequence() - 1, []).append(tensor)
        return tensor

    def returned(self, out: Any) -> None:
        """Note what the module made: a script holds it until the loss's backward is through."""
        made = [self.value_of.get(storage_of(tensor)) for tensor in tensors_in(out)]
        self.outputs = [value for value in made if value is not None]
        self.of_module = len(self.ran)

    def finish(self) -> None:
        """Give what autograd saved to the operators that it was saved for."""
        for sequence, tensors in self._pending.items():
            if self.ran:
                kept = self.ran[self._operator_of(sequence)].kept
                kept.update((storage_of(tensor), tensor) for tensor in tensors)
