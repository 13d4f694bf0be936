"""Adding: reductions to the bits of real gloo, whatever backend they are timed as.

Tensors of these ranks lie on the host, where torch has gloo; who compares a script with its real
run compares with that. The order of additions is that of gloo's plans. Blocks that fit the
processor's cache go from all inputs to all outputs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from simdp.arrays import Array
from simdp.collectives import Collectives
from simdp.distributed.backends import BACKENDS
from simdp.engine.programs.folding import additions
from simdp.errors import ProgramError
from simdp.torch.buffers import SIXTEEN, halves

BLOCK = 2**15
"""Elements that are added up at once."""

OPS: dict[str, tuple[Any, Any]] = {
    "SUM": (np.add, torch.add),
    "AVG": (np.add, torch.add),
    "PREMUL_SUM": (np.add, torch.add),
    "PRODUCT": (np.multiply, torch.mul),
    "MIN": (np.minimum, torch.minimum),
    "MAX": (np.maximum, torch.maximum),
    "BAND": (np.bitwise_and, None),
    "BOR": (np.bitwise_or, None),
    "BXOR": (np.bitwise_xor, None),
}
"""By torch's name: what adds arrays, and what adds 16-bit numbers."""

GLOO = Collectives.model_validate(BACKENDS["gloo"])

Sum = tuple[Any, Any] | int
"""The number of an input, or the two sums that make a sum."""


class _Recipe(NamedTuple):
    """Where chunks begin, and what each is the sum of."""

    offsets: list[int]
    sums: list[Sum]


class Reduction(NamedTuple):
    """How elements are combined.

    Attributes
    ----------
    name : str
        A key of `OPS`.
    factor : float
        Of ``PREMUL_SUM``: what inputs are multiplied with first.
    """

    name: str
    factor: float = 1.0

    def __str__(self) -> str:
        return self.name if self.factor == 1.0 else f"{self.name} {self.factor:g}"


def reduction(op: Any, call: str, dtype: Any) -> Reduction:
    """Read torch's ReduceOp.

    Raises
    ------
    ProgramError
        If the reduction is not there for the dtype.
    """
    kind = op.op if hasattr(op, "op") else op
    name = str(kind).rpartition(".")[2]
    if name not in OPS:
        raise ProgramError(f"{call}: ReduceOp.{name} is not served; use one of {', '.join(OPS)}.")
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if name == "AVG" and whole:  # as torch says it
        raise RuntimeError("result type Float can't be cast to the desired output type Long")
    if (dtype.is_floating_point and dtype.itemsize == 1) or (name[0] == "B" and not whole):
        raise ProgramError(
            f"{call}: ReduceOp.{name} of {dtype} is not there; use another dtype, or all_gather."
        )
    factor = getattr(op, "factor", None) if name == "PREMUL_SUM" else None
    return Reduction(name, 1.0 if factor is None else float(factor))


def reduce_into(
    collective: str,
    inputs: Sequence[Any],
    outputs: Sequence[Array],
    how: Reduction,
    root: int = 0,
) -> None:
    """Reduce the inputs of all ranks into some arrays, which may be the inputs.

    Parameters
    ----------
    collective : {"all_reduce", "reduce"}
        Whose order.
    inputs : sequence of Buffer
        One per rank, or what has its array, dtype and size.
    outputs : sequence of ndarray, each shape `(num_elements,)`
        What gets the whole.
    how : Reduction
        What stands for adding.
    root : int
        Of a reduce.
    """
    n, size = len(inputs), inputs[0].size
    if not outputs or not size:
        return
    arrays = [each.array for each in inputs]
    recipe = _recipe(collective, n, size, arrays[0].itemsize, root)
    dtype, adds = inputs[0].dtype, OPS[how.name]
    scale: Callable[[Any], None] | None = None
    if how.name == "AVG":
        scale = _mean(n, dtype)
    with np.errstate(all="ignore"), torch._C._DisableTorchDispatch():
        if dtype in SIXTEEN:
            sources, add, room = halves(arrays, dtype), adds[1], torch.empty(BLOCK, dtype=dtype)
            targets = halves(outputs, dtype)
        else:
            sources, add, room = arrays, adds[0], np.empty(BLOCK, arrays[0].dtype)
            targets = list(outputs)
        if how.factor != 1.0:
            sources = [source * how.factor for source in sources]
        for begin, end, tree in zip(recipe.offsets, recipe.offsets[1:], recipe.sums, strict=False):
            for start in range(begin, end, BLOCK):
                cut = slice(start, min(start + BLOCK, end))
                pieces = [source[cut] for source in sources]
                found = _added(tree, pieces, add, room[: cut.stop - cut.start])
                if scale is not None:
                    scale(found)
                for target in targets:
                    target[cut] = found


def _mean(n: int, dtype: Any) -> Callable[[Any], None]:
    def divide(piece: Any) -> None:
        if isinstance(piece, np.ndarray):
            np.divide(piece, n, out=piece)
        else:
            piece.div_(n)

    return divide


def _added(tree: Sum, pieces: Sequence[Any], add: Any, out: Any) -> Any:
    """Work out a sum in ``out``."""
    if isinstance(tree, int):
        out[...] = pieces[tree]
        return out
    left, right = tree
    if not isinstance(left, int) and not isinstance(right, int):
        other = _added(right, pieces, add, out.copy() if hasattr(out, "copy") else out.clone())
        add(_added(left, pieces, add, out), other, out=out)
        return out
    first = pieces[left] if isinstance(left, int) else _added(left, pieces, add, out)
    second = pieces[right] if isinstance(right, int) else _added(right, pieces, add, out)
    add(first, second, out=out)
    return out


@lru_cache(maxsize=64)
def _recipe(collective: str, n: int, size: int, itemsize: int, root: int) -> _Recipe:
    if n == 1:
        return _Recipe([0, size], [0])
    plan = getattr(GLOO, collective).plan(n, float(size * itemsize), root)
    return _Recipe(plan.offsets(size, itemsize).tolist(), additions(plan))
