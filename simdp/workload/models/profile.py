"""Layer times from a file, such as a profiler's: the step of a model that nobody wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import PrivateAttr

from simdp.errors import ScenarioError
from simdp.files import read_csv
from simdp.tables import Row
from simdp.workload.graph import Graph
from simdp.workload.layers.timed import TimedLayer
from simdp.workload.models.timed import TimedModel, chain

US_PER_S = 1e6

WHOLE = ("backward_us",)
SPLIT = ("weight_grad_us", "input_grad_us")
"""Two ways to write backward: in one, or cut where the layer's gradient is ready."""


class Profile(TimedModel):
    """``{kind: profile, path: layers.csv}``: times and bytes of each layer, in forward order.

    The columns are ``name, forward_us, backward_us, gradient_bytes``, and ``activation_bytes`` if
    known. In place of ``backward_us`` there may be ``weight_grad_us, input_grad_us``: a layer's
    gradient is ready after the first; then the second runs, but not for the first layer, whose
    input nobody learns. All are those of one micro-step. A layer's parameter is called as it.

    Attributes
    ----------
    path : str
        A CSV file, relative to the scenario's; lines that begin with # are comments.
    """

    kind: Literal["profile"] = "profile"
    path: str

    _layers: tuple[TimedLayer, ...] = PrivateAttr(default=())

    def read(self, base: Path, itemsize: int) -> Self:
        path = base / self.path
        rows = read_csv(
            path,
            ["name", "forward_us", "gradient_bytes"],
            [*WHOLE, *SPLIT, "activation_bytes"],
        )
        columns = _backward_columns(path, rows[0])
        layers = [_layer(path, row, columns, itemsize, k == 0) for k, row in enumerate(rows)]
        found = type(self)(path=self.path)
        found._layers = tuple(layers)
        return found

    def build(self) -> Graph:
        assert self._layers, "the file is read when a workload is settled"
        return chain(self._layers)


def _backward_columns(path: Path, row: Row) -> Sequence[str]:
    """The columns that hold backward, in the one way or the other."""
    given = [column for column in (*WHOLE, *SPLIT) if column in row.numbers]
    if tuple(given) not in (WHOLE, SPLIT):
        said = ", ".join(given) or "none of them"
        raise ScenarioError(
            [
                f"{path}: backward takes the column backward_us, or the columns weight_grad_us "
                f"and input_grad_us; given: {said}."
            ]
        )
    return given


def _layer(
    path: Path, row: Row, columns: Sequence[str], itemsize: int, is_first: bool
) -> TimedLayer:
    nbytes = row.numbers["gradient_bytes"]
    if nbytes % itemsize:
        raise ScenarioError(
            [
                f"{path}:{row.line}: gradient_bytes {nbytes:.12g} is no whole number of elements; "
                f"the workload's gradients have {itemsize} bytes each."
            ]
        )
    # Divided by a whole number, which rounds once: 5 us is 5 / 1e6, not 5 * 1e-6.
    times = [row.numbers[column] / US_PER_S for column in columns]
    return TimedLayer(
        name=row.name,
        forward_time=row.numbers["forward_us"] / US_PER_S,
        gradient_time=times[0],
        input_time=0.0 if is_first else sum(times[1:]),
        num_elements=int(nbytes // itemsize),
        activation_nbytes=row.numbers.get("activation_bytes", 0.0),
    )
