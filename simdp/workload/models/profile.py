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

HOST = ("forward_host_us", "backward_host_us")

OPTIONAL = ("activation_bytes", *HOST, "products", "buffer_bytes", "counter_bytes")

COUNTER_ITEMSIZE = 8


class Profile(TimedModel):
    """``{kind: profile, path: layers.csv}``: times and bytes of each layer, in forward order.

    The columns are ``name, forward_us, backward_us, gradient_bytes``, and ``activation_bytes`` if
    known. In place of ``backward_us`` there may be ``weight_grad_us, input_grad_us``: a layer's
    gradient is ready after the first; then the second runs, but not for the first layer, whose
    input nobody learns. All are those of one micro-step. A layer's parameter is called as it; of
    several tensors each has a line, all but one of them without times.

    More columns may say what a trace of a real step does. ``forward_host_us`` and
    ``backward_host_us``: what the host needs to launch the kernels, which a layer takes at least
    (`workload.cuda_graphs` makes it nothing). ``products``: the part of a layer's time that
    products of matrices take, from 0 to 1, for other devices (`workload.compute`).
    ``buffer_bytes`` and ``counter_bytes``: of buffers that are not learned, in the workload's dtype
    and in int64.

    Attributes
    ----------
    path : str
        A CSV file, relative to the scenario's; lines that begin with # are comments.
    """

    kind: Literal["profile"] = "profile"
    path: str

    _layers: tuple[TimedLayer, ...] = PrivateAttr(default=())

    def read(self, base: Path, itemsize: int) -> Self:
        first, *others = read_layers(base / self.path, itemsize)
        found = type(self)(path=self.path)
        found._layers = (first.model_copy(update={"input_time": 0.0}), *others)
        return found

    def build(self) -> Graph:
        assert self._layers, "the file is read when a workload is settled"
        return chain(self._layers)


def read_layers(path: Path, itemsize: int) -> list[TimedLayer]:
    """Read the lines of a profile.

    Parameters
    ----------
    path : Path
        A CSV file as of `Profile`.
    itemsize : int
        Bytes of one element of a gradient.

    Returns
    -------
    list of TimedLayer
        In forward order, each with the gradient of its input.

    Raises
    ------
    ScenarioError
        If it cannot be read.
    """
    rows = read_csv(
        path,
        ["name", "forward_us", "gradient_bytes"],
        [*WHOLE, *SPLIT, *OPTIONAL],
    )
    columns = _backward_columns(path, rows[0])
    return [_layer(path, row, columns, itemsize) for row in rows]


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
    if tuple(given) == SPLIT and HOST[1] in row.numbers:
        raise ScenarioError(
            [
                f"{path}: backward_host_us goes with backward_us, not with weight_grad_us and "
                "input_grad_us; leave it out, or give backward in one."
            ]
        )
    return given


def _layer(path: Path, row: Row, columns: Sequence[str], itemsize: int) -> TimedLayer:
    # Divided by a whole number, which rounds once: 5 us is 5 / 1e6, not 5 * 1e-6.
    times = [row.numbers[column] / US_PER_S for column in columns]
    products = row.numbers.get("products", 0.0)
    if products > 1:
        raise ScenarioError(
            [f"{path}:{row.line}: products {products:.12g} is no part of a time; write 0 to 1."]
        )
    return TimedLayer(
        name=row.name,
        forward_time=row.numbers["forward_us"] / US_PER_S,
        gradient_time=times[0],
        input_time=sum(times[1:]),
        num_elements=_elements(path, row, "gradient_bytes", itemsize),
        activation_nbytes=row.numbers.get("activation_bytes", 0.0),
        forward_host=row.numbers.get(HOST[0], 0.0) / US_PER_S,
        gradient_host=row.numbers.get(HOST[1], 0.0) / US_PER_S,
        products=products,
        num_buffers=_elements(path, row, "buffer_bytes", itemsize),
        num_counters=_elements(path, row, "counter_bytes", COUNTER_ITEMSIZE),
    )


WHOSE = {
    "gradient_bytes": "the workload's gradients have",
    "buffer_bytes": "the workload's buffers have",
    "counter_bytes": "int64 has",
}


def _elements(path: Path, row: Row, column: str, itemsize: int) -> int:
    """Read a number of bytes as one of elements."""
    nbytes = row.numbers.get(column, 0.0)
    if nbytes % itemsize:
        raise ScenarioError(
            [
                f"{path}:{row.line}: {column} {nbytes:.12g} is no whole number of elements; "
                f"{WHOSE[column]} {itemsize} bytes each."
            ]
        )
    return int(nbytes // itemsize)
