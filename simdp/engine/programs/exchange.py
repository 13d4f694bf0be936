"""Exchange: what collectives leave in real arrays, one function per collective.

Reductions are those of the plan, to the last bit. Everything else moves whole arrays, whatever the
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.collectives import Plan
from simdp.engine.programs.calls import Given
from simdp.engine.programs.folding import fold

OPS: dict[str, Any] = {
    "SUM": np.add,
    "AVG": np.add,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
"""Operations of reductions, by torch's names."""

Values = list[Sequence[Array]]
"""For every place of the group, what its outputs get."""


def _flat(arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0].reshape(-1)
    return np.concatenate([array if array.ndim == 1 else array.reshape(-1) for array in arrays])


def _reduced(given: Sequence[Given], plan: Plan, op: str) -> Array:
    """All ranks' inputs as one, shape `(num_elements,)`."""
    buffers = [_flat(each.inputs) for each in given]
    with np.errstate(all="ignore"):  # as on a GPU, what overflows is inf and nobody is told
        total = fold(plan, buffers, OPS[op])
        return total / len(given) if op == "AVG" else total


def _all_reduce(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    total, outputs = _reduced(given, plan, op), given[0].outputs
    if len(outputs) == 1:
        return [(total,)] * len(given)
    return [np.split(total, np.cumsum([array.size for array in outputs])[:-1])] * len(given)


def _reduce(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    values: Values = [()] * len(given)
    values[root] = (_reduced(given, plan, op),)
    return values


def _reduce_scatter(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    return [(piece,) for piece in np.split(_reduced(given, plan, op), len(given))]


def _broadcast(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    value = given[root].inputs[0].copy()
    return [() if place == root else (value,) for place in range(len(given))]


def _all_gather(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    whole = [each.inputs[0].copy() for each in given]
    joined = _flat(whole)
    return [whole if len(each.outputs) == len(given) else (joined,) for each in given]


def _gather(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    values: Values = [()] * len(given)
    values[root] = [each.inputs[0].copy() for each in given]
    return values


def _scatter(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    return [(piece.copy(),) for piece in given[root].inputs]


def _all_to_all(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    return [[each.inputs[place].copy() for each in given] for place in range(len(given))]


def _nothing(given: Sequence[Given], plan: Plan, op: str, root: int) -> Values:
    return [()] * len(given)


EXCHANGES: dict[str, Callable[[Sequence[Given], Plan, str, int], Values]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": _nothing,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
"""By collective: from what every place gave, with the flat plan of the group, the operation and the
root's place, to what every place gets."""


def nbytes_of(collective: str, given: Given, n: int) -> float | None:
    """The whole buffer of a collective, as `simdp.collectives.Algorithm.plan` counts it [bytes].

    Parameters
    ----------
    collective : str
        A key of `EXCHANGES`.
    given : Given
        What one of the ranks brings.
    n : int
        Ranks of the group.

    Returns
    -------
    float or None
        None for an all_to_all whose pieces differ: it is as large as what most is given away, which
        only all ranks together know.
    """
    first = sum(array.nbytes for array in given.inputs)
    if collective in ("all_gather", "gather"):
        return float(n * first)
    if collective == "scatter":
        return float(n * given.outputs[0].nbytes)
    if collective == "broadcast":
        return float(max(array.nbytes for array in (*given.inputs, *given.outputs)))
    if collective == "all_to_all":
        pieces = {array.nbytes for array in (*given.inputs, *given.outputs)}
        return float(first) if len(pieces) == 1 else None
    return float(first)


def most_given(given: Sequence[Given]) -> float:
    """What the rank gives away that gives most [bytes]."""
    return float(max(sum(array.nbytes for array in each.inputs) for each in given))
