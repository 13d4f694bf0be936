"""Base classes of optimizers, and parameter groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from math import prod, sqrt
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from simdp.arrays import Array
from simdp.spec import Bool, Float, Spec, problem, problems

# Parameter groups ---------------------------------------------------------------------------------


class ParamGroup(Spec):
    """Parameters with names that match a pattern, and arguments of their own.

    Every key besides ``params`` is an argument of the group's optimizer, which checks it.
    """

    model_config = ConfigDict(extra="allow")

    params: tuple[str, ...] = Field(min_length=1)
    """Patterns in which ``*`` matches any text, including dots, ``?`` one character and ``[ab]``
    one of some; case-sensitive."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The group's own arguments by name."""
        return dict(self.model_extra or {})

    def matches(self, name: str) -> bool:
        """Whether a name matches; the first group that matches a parameter holds it."""
        return any(fnmatchcase(name, pattern) for pattern in self.params)


def read_groups(optimizer: type[Spec], value: object) -> tuple[ParamGroup, ...]:
    """Check groups, a list of mappings or groups, against the fields of an optimizer.

    Raises pydantic.ValidationError if a group has no parameters, an unknown argument or an invalid
    value.
    """
    if isinstance(value, list | tuple):
        value = [
            member.model_dump() if isinstance(member, ParamGroup) else member for member in value
        ]
    return tuple(ParamGroup(**_written(group)) for group in _grammar(optimizer)(value))


@cache
def _grammar(optimizer: type[Spec]) -> Callable[[Any], list[Spec]]:
    """Make the validator of groups: the optimizer's own fields, each optional.

    Its classes stay in this module, since pickle does not find classes made at run time.
    """
    fields: dict[str, Any] = {
        name: (field.rebuild_annotation() | None, None)
        for name, field in optimizer.model_fields.items()
        if name not in ("kind", "param_groups")
    }
    fields = {"params": (Annotated[list[str], Field(min_length=1)], ...), **fields}
    group = create_model(f"{optimizer.__name__}Group", __base__=Spec, **fields)
    groups: Any = list[group]
    return TypeAdapter[list[Spec]](groups).validate_python


def _written(group: Spec) -> dict[str, Any]:
    return {name: value for name, value in group if value is not None}


# Optimizers ---------------------------------------------------------------------------------------

State = dict[str, Array]

BLOCK = 16384
"""Elements updated at a time, so that temporaries fit the processor's cache."""

CHUNK, MAX_BLOCKS = 65536, 320
"""Elements per block of a kernel over lists of tensors, and blocks per launch."""

MAX_TENSORS = (110, 64, 48, 36, 30)
"""Parameters per launch, by number of tensors of each, from 1."""

MAX_DEPTH = len(MAX_TENSORS)


def launches_over_lists(sizes: Iterable[int], depth: int) -> int:
    """Count the launches of one kernel over lists of ``depth`` tensors (1 to 5) per parameter.

    torch, aten/src/ATen/native/cuda/MultiTensorApply.cuh: a launch is full with `MAX_BLOCKS`
    chunks, or with the last chunk of its last tensor; a tensor may continue in the next one.
    Parameters without elements are skipped.
    """
    launches = blocks = tensors = 0
    for size in sizes:
        left = -(-size // CHUNK)
        tensors += left > 0
        while left:
            taken = min(left, MAX_BLOCKS - blocks)
            blocks, left = blocks + taken, left - taken
            if blocks == MAX_BLOCKS or (not left and tensors == MAX_TENSORS[depth - 1]):
                launches, blocks, tensors = launches + 1, 0, int(left > 0)
    return launches + (blocks > 0)


class Temporaries(NamedTuple):
    """Peak number of tensors of the parameter's size in an update, besides its state.

    In torch's ``_single_tensor`` functions, and in its ``_multi_tensor`` functions, which make one
    for every parameter of a group.
    """

    tensor_by_tensor: int
    all_at_once: int


class Optimizer(Spec):
    """Base of optimizers.

    Attributes
    ----------
    betas : tuple of float
        Decay rates of the averages of the gradient and of its square.
    eps : float
        Keeps denominators above 0.
    weight_decay : float
        Factor of the parameter that is added to its gradient.
    maximize : bool
        Whether to maximise the loss instead of minimising it.
    """

    whole_tensors: ClassVar[bool] = False
    """Whether the update of an element depends on others of its tensor."""

    trusts: ClassVar[bool] = False
    """Whether it does so only by norms, which ranks with shards can compute together."""

    indexes_gradients: ClassVar[bool] = False
    """Whether torch's update indexes gradients, which it refuses for those of fully_shard."""

    kind: str
    lr: Float = Field(1e-3, ge=0)
    """Learning rate."""
    foreach: Bool | None = None
    """False updates tensor by tensor, with kernels for each, as torch does on request, and did
    before 2.0; None and True update all tensors at once, with the few launches of torch's kernels
    over lists of tensors."""
    param_groups: tuple[ParamGroup, ...] | None = None
    """Parameters with arguments of their own; the first group that matches a name holds it, and
    unmatched parameters have the optimizer's arguments."""

    @field_validator("param_groups", mode="before")
    @classmethod
    def _groups_set_arguments(cls, value: object) -> object:
        return None if value is None else read_groups(cls, value)

    @model_validator(mode="after")
    def _groups_go_with_the_rest(self) -> Self:
        """Check the arguments of each group together; each one is checked already."""
        if not self.param_groups or _conflicts(self, {}):  # reported by the optimizer itself
            return self
        errors = [
            InitErrorDetails(type=problem(line), loc=("param_groups", i), input=group)
            for i, group in enumerate(self.param_groups)
            for line in _conflicts(self, group.arguments)
        ]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @abstractmethod
    def starting_state(self) -> dict[str, float]:
        """Names and initial values of the tensors kept per parameter."""

    @abstractmethod
    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        """Update a block of a parameter and of its state in place.

        Parameters
        ----------
        parameter, gradient : ndarray
            One-dimensional, of equal length; or the tensor itself with `whole_tensors`. The
            gradient is not modified.
        state : dict of str to ndarray
            The tensors of `starting_state`.
        lr : float
            Learning rate of this step.
        t : int
            Number of this step, from 1.
        """

    def momentum_of(self) -> float | None:
        """Momentum, or first beta, that a schedule can change; None if there is none."""
        if hasattr(self, "betas"):
            return float(self.betas[0])
        return getattr(self, "momentum", None) or None

    def with_momentum(self, momentum: float | None) -> Self:
        """The same optimizer with another momentum, or first beta; None leaves it."""
        if momentum is None:
            return self
        if hasattr(self, "betas"):
            return self.model_copy(update={"betas": (momentum, self.betas[1])})
        return self.model_copy(update={"momentum": momentum})

    @abstractmethod
    def num_kernels(self) -> int:
        """Number of kernels that update one tensor (torch's ``_single_tensor`` functions)."""

    @abstractmethod
    def temporaries(self) -> Temporaries:
        """Number of temporary tensors of the parameter's size."""

    def num_temporaries(self) -> int:
        """As `temporaries`, for the selected implementation."""
        if self.is_fused:
            return 0
        per_tensor, all_at_once = self.temporaries()
        return per_tensor if self.foreach is False else all_at_once

    def launches_per_tensor(self) -> int:
        """Kernels that the host launches for every tensor; 0 for kernels over lists."""
        return self.num_kernels() if self.foreach is False and not self.is_fused else 0

    def list_depths(self) -> tuple[int, ...]:
        """Tensors per parameter of each kernel over lists of tensors, kernel by kernel.

        Empty if tensors are updated one by one. 2 is the middle of torch's ``_foreach`` functions,
        which take 1 (``mul_``) to 3 (``addcmul_``).
        """
        if self.is_fused:
            return (min(2 + len(self.starting_state()), MAX_DEPTH),)
        return () if self.foreach is False else (2,) * self.num_kernels()

    @property
    def is_fused(self) -> bool:
        """Whether one kernel does the whole update; only some optimizers can."""
        return bool(getattr(self, "fused", None))

    def step(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        """Update one tensor of any shape, block by block; arguments as in `update`."""
        if self.whole_tensors:
            self.update(parameter, gradient, state, lr, t)
            return
        flat, grad = parameter.reshape(-1), gradient.reshape(-1)
        kept = {name: tensor.reshape(-1) for name, tensor in state.items()}
        for begin in range(0, flat.size, BLOCK):
            part = slice(begin, begin + BLOCK)
            block = {name: tensor[part] for name, tensor in kept.items()}
            self.update(flat[part], grad[part], block, lr, t)

    def state_names(self) -> list[str]:
        """Names of the tensors kept per parameter."""
        return list(self.starting_state())

    def state_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors kept for a parameter of this shape, by name."""
        return dict.fromkeys(self.starting_state(), shape)

    def state_elements(self, shape: tuple[int, ...]) -> list[int]:
        """Elements of each of those tensors."""
        return [prod(kept) for kept in self.state_shapes(shape).values()]

    def new_state(self, parameter: Array) -> State:
        """Initial state."""
        starts = self.starting_state()
        return {
            name: np.full(shape, starts[name], parameter.dtype)
            for name, shape in self.state_shapes(parameter.shape).items()
        }

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Bytes read and written in a step: by default the gradient once, the others twice."""
        return (3 + 2 * len(self.state_names())) * num_elements * itemsize

    def flops(self, shape: tuple[int, ...]) -> float:
        """Arithmetic of matrix products in an update of a tensor of this shape [FLOP]."""
        return 0.0

    def problem_with(self, name: str, shape: tuple[int, ...]) -> str | None:
        """Reason why a parameter of this shape cannot be updated, or None."""
        return None

    def for_parameter(self, name: str) -> Optimizer:
        """The optimizer of one parameter by name, with its group's arguments and without groups."""
        return _for_parameter(self, name) if self.param_groups is not None else self

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Patterns of the groups that match none of these parameter names."""
        known = list(names)
        return [
            pattern
            for group in self.param_groups or ()
            for pattern in group.params
            if not any(fnmatchcase(name, pattern) for name in known)
        ]


def effective_gradient(
    parameter: Array, gradient: Array, weight_decay: float, maximize: bool
) -> Array:
    """``g + weight_decay p``, with ``-g`` for g to maximize; the gradient is not modified."""
    gradient = -gradient if maximize else gradient
    return gradient + weight_decay * parameter if weight_decay else gradient


def decouple(parameter: Array, lr: float, weight_decay: float, decoupled: bool) -> float:
    """Apply decoupled weight decay in place, as in AdamW, if requested.

    Returns the weight decay left for `effective_gradient`.
    """
    if not decoupled:
        return weight_decay
    parameter *= 1 - lr * weight_decay
    return 0.0


def _with_arguments(optimizer: Optimizer, arguments: Mapping[str, object]) -> Optimizer:
    """A copy without groups and with some arguments replaced."""
    own = {name: value for name, value in optimizer if name != "param_groups"}
    return type(optimizer)(**{**own, **arguments})


def _conflicts(optimizer: Optimizer, arguments: Mapping[str, object]) -> list[str]:
    """Errors of these arguments in combination with the others."""
    try:
        _with_arguments(optimizer, arguments)
    except ValidationError as error:
        return [wrong.line for wrong in problems(error, {})]
    return []


@lru_cache(maxsize=4096)
def _for_parameter(optimizer: Optimizer, name: str) -> Optimizer:
    group = next((group for group in optimizer.param_groups or () if group.matches(name)), None)
    return _with_arguments(optimizer, group.arguments if group else {})


class Fusable(Optimizer):
    """Base of optimizers for which torch has one fused kernel."""

    fused: Bool | None = None
    """True reads and writes every tensor once and makes no temporaries: 28 bytes for each element
    of AdamW in float32. False runs kernel by kernel, so that intermediate results are moved too.
    None counts the bytes of the former, and the temporaries and launches of the latter."""

    @model_validator(mode="after")
    def _one_way_at_a_time(self) -> Self:
        if self.fused and self.foreach:
            raise problem("fused and foreach are both true; keep one of them.")
        return self

    @abstractmethod
    def passes(self) -> int:
        """Number of tensors that the kernels of one update read and write, one by one."""

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        if self.fused is False:
            return self.passes() * num_elements * itemsize
        return super().nbytes_moved(num_elements, itemsize)


class NoOptimizer(Optimizer):
    """Leaves the parameters unchanged and takes no time."""

    kind: Literal["none"] = "none"
    lr: Literal[0] = 0

    def starting_state(self) -> dict[str, float]:
        return {}

    def num_kernels(self) -> int:
        # No kernels.
        return 0

    def temporaries(self) -> Temporaries:
        return Temporaries(0, 0)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        """Do nothing."""

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        return 0.0


class TrustRatio(Optimizer):
    """Base of updates in two parts, with norms of whole tensors in between."""

    trusts: ClassVar[bool] = True
    whole_tensors: ClassVar[bool] = True

    weight_decay: float
    """Factor of the parameter that is added to its update; tensors for which it is 0, such as
    biases in a group of their own, have a ratio of 1."""
    always_adapt: bool
    """Whether these have a ratio too."""

    @abstractmethod
    def measured(self, parameter: Array, gradient: Array, state: State, t: int) -> Array:
        """First part, for any elements: update the state, return the tensor to be measured."""

    @abstractmethod
    def finish(
        self, parameter: Array, measured: Array, state: State, lr: float, t: int, ratio: float
    ) -> None:
        """Second part: update the parameter in place."""

    @abstractmethod
    def ratio(self, weight_norm: float, measured_norm: float) -> float:
        """Trust ratio of a tensor, from two norms above 0."""

    def ratio_of(self, weight_squares: float, measured_squares: float) -> float:
        """Trust ratio from sums of squares over the whole tensor; 1 if it has none."""
        adapts = self.always_adapt or self.weight_decay
        if not (adapts and weight_squares and measured_squares):
            return 1.0
        return self.ratio(sqrt(weight_squares), sqrt(measured_squares))

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        measured = self.measured(parameter, gradient, state, t)
        ratio = self.ratio_of(squares(parameter), squares(measured))
        self.finish(parameter, measured, state, lr, t, ratio)


def squares(tensor: Array) -> float:
    """Sum of the squares of all elements."""
    return float(np.vdot(tensor, tensor))
