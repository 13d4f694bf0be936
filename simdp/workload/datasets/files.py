"""Datasets read from NPZ and CSV files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from simdp.arrays import Array, Ints
from simdp.errors import ScenarioError, shown
from simdp.files import fingerprint, read_npz, read_text
from simdp.tables import SampleTable, parse_samples
from simdp.workload.datasets.base import Dataset, reach
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models.base import Model


class Npz(Dataset):
    """``{kind: npz, path: data.npz}``; the path is relative to the scenario file.

    The default loss is ``cross_entropy`` if y has whole numbers, else ``mse``.
    """

    kind: Literal["npz"] = "npz"
    path: str
    """A file with the arrays of the model's inputs and y, with the samples as first axis."""

    @classmethod
    def loss_of(cls, given: object, base: Path) -> str:
        """Whole numbers y are classes."""
        try:
            chosen = given if isinstance(given, cls) else cls.model_validate(given)
            path = base / chosen.path
            y = _stored_array(path, fingerprint(path)).get("y")
        except (ValidationError, ScenarioError):  # whoever reads it next says what is wrong
            return cls.usual_loss
        return "cross_entropy" if y is not None and y.dtype.kind in "iu" else cls.usual_loss

    def length(self, base: Path) -> int:
        return len(self._read(base)["x"])

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        arrays = self._read(base, model.graph.inputs)
        return {name: arrays[name].shape[1:] for name in model.graph.inputs}

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        arrays = self._read(base, model.graph.inputs)
        for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
            wrong = _problem_with_shape(name, arrays[name], shape)
            if not wrong and model.num_tokens(name) is None:
                wrong = _problem_with_numbers(name, arrays[name])
            elif not wrong:
                wrong = _problem_with_tokens(name, arrays[name], model)
            if wrong:
                return wrong
        return loss.problem_with(arrays["y"], model.output_shape())

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        return self._read(base, model.graph.inputs)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        if model.padding is None:
            return {}
        arrays = self._read(base, model.graph.inputs)
        lengths = {}
        for name in model.graph.inputs:
            counts = arrays[name] != model.padding
            if name == model.target_follows:
                counts |= ~loss.ignored(arrays["y"])
            lengths[name] = reach(counts)
        return lengths

    def _read(self, base: Path, inputs: Sequence[str] = ("x",)) -> dict[str, Array]:
        """The arrays of a model's inputs and y: floats as stored, the others as int64."""
        path = base / self.path
        arrays = _stored_array(path, fingerprint(path))
        wanted = [*inputs, "y"]
        missing = [name for name in wanted if name not in arrays]
        if missing:
            listed = ", ".join(sorted(arrays)) or "nothing"
            raise ScenarioError(
                [
                    f"{path}: has no array {missing[0]!r}; it holds {listed}; "
                    f"store {', '.join(wanted[:-1])} and y."
                ]
            )
        for name in wanted:
            if arrays[name].dtype.kind not in "fiub":
                raise ScenarioError(
                    [f"{path}: {name} is {arrays[name].dtype}; store real or whole numbers."]
                )
        first = arrays[wanted[0]]
        for name in wanted[1:]:
            other = arrays[name]
            if first.ndim == 0 or other.ndim == 0 or len(first) != len(other) or not len(first):
                raise ScenarioError(
                    [
                        f"{path}: {wanted[0]} has shape {first.shape} and {name} {other.shape}; "
                        "give both as many samples."
                    ]
                )
        return {name: _widened(arrays[name]) for name in wanted}


@lru_cache(maxsize=1)
def _stored_array(path: Path, checksums: tuple[tuple[str, int], ...]) -> dict[str, Array]:
    """Read a file once, as read-only arrays."""
    arrays = read_npz(path)
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def _widened(array: Array) -> Array:
    return array if array.dtype.kind == "f" else array.astype(np.int64, copy=False)


def _problem_with_shape(name: str, array: Array, shape: Shape) -> str | None:
    if not array.size:
        return f"{name} has shape {array.shape}: its samples are empty; give them a length."
    if array.shape[1:] != shape:
        return f"{name} has shape {array.shape}, but the model takes samples of shape {shape}."
    return None


def _problem_with_numbers(name: str, array: Array) -> str | None:
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        return f"{name} is {array.dtype} or has values that are not finite; give finite floats."
    return None


def _problem_with_tokens(name: str, array: Array, model: Model) -> str | None:
    known = model.num_tokens(name) or 0
    if array.dtype.kind == "f":
        return f"{name} is {array.dtype}, but the model takes tokens: whole numbers."
    if array.min() < 0 or array.max() >= known:
        return (
            f"{name} holds tokens {array.min()} ... {array.max()}, but the model has {known}; "
            f"tokens must be 0 ... {known - 1}."
        )
    if model.padding is not None and (array == model.padding).all(axis=1).any():
        sample = int(np.argmax((array == model.padding).all(axis=1)))
        return (
            f"{name} of sample {sample} consists of padding only, token {model.padding}; "
            "leave such samples out."
        )
    return None


MAX_CSV_BYTES = 64 * 2**20
"""Store a larger table as npz, which is read a hundred times as fast."""

WHOLE = re.compile(r"[+-]?\d{1,18}")
"""A label that is a whole number."""


class Labels(NamedTuple):
    """Column of labels: whole numbers (int64), others (float64), or numbers of text classes."""

    values: Array
    classes: tuple[str, ...]


class Csv(Dataset):
    """``{kind: csv, path: data.csv, label: species}``; the path is relative to the scenario file.

    The first line of the file names its columns; lines that begin with # are comments. Features are
    finite numbers. Labels that are whole numbers are classes, counted from 0; labels that are text
    too, numbered in alphabetical order. The default loss is ``cross_entropy`` for these, and
    ``mse`` for labels with a decimal point. With ``mse``, ``l1`` and the like, whole numbers are
    targets.
    """

    kind: Literal["csv"] = "csv"
    path: str
    """A file of at most 64 MiB; store a larger one as ``npz``."""
    label: str
    """The column of the targets."""
    features: tuple[str, ...] | None = Field(None, min_length=1)
    """The columns of the model's input x, in this order; by default all but ``label``."""

    @classmethod
    def loss_of(cls, given: object, base: Path) -> str:
        """Whole numbers and text are classes."""
        try:
            chosen = given if isinstance(given, cls) else cls.model_validate(given)
            _, labels = chosen._read(base)
        except (ValidationError, ScenarioError):  # whoever reads it next says what is wrong
            return cls.usual_loss
        return "cross_entropy" if labels.values.dtype.kind == "i" else cls.usual_loss

    def length(self, base: Path) -> int:
        return len(self._read(base)[0])

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        return {"x": self._read(base)[0].shape[1:]}

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        if list(model.graph.inputs) != ["x"] or model.num_tokens("x") is not None:
            return "has real numbers x, but the model takes tokens or several inputs; use npz."
        x, labels = self._read(base)
        wanted = model.known_shapes()[0]
        if x.shape[1:] != wanted:
            return (
                f"{self.path} has {x.shape[1]} columns of features, but the model takes samples of "
                f"shape {wanted}; list them in features, or change the model."
            )
        if labels.classes and not loss.of_classes:
            return (
                f"{self.label} is text, {shown(labels.classes[0])} for example, so that samples "
                f"have classes; the loss {loss.kind} compares numbers: use cross_entropy."
            )
        return loss.problem_with(self._targets(labels, loss, model), model.output_shape())

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        x, labels = self._read(base)
        return {"x": x, "y": self._targets(labels, loss, model)}

    def _targets(self, labels: Labels, loss: Loss, model: Model) -> Array:
        """Classes unchanged; numbers in the shape of the model's output if it has one element."""
        values = labels.values
        if loss.of_classes:
            return values
        shape = model.output_shape()
        values = values.astype(np.float64)
        return values.reshape(-1, *shape) if math.prod(shape) == 1 else values

    def _read(self, base: Path) -> tuple[Array, Labels]:
        path = base / self.path
        return _stored(path, fingerprint(path), self.label, self.features)


@lru_cache(maxsize=1)
def _stored(
    path: Path, checksum: str, label: str, features: tuple[str, ...] | None
) -> tuple[Array, Labels]:
    """Read a file once, as read-only arrays."""
    text = read_text(path, "a larger table is stored as npz, by numpy.savez", MAX_CSV_BYTES)
    table = parse_samples(text, str(path), label, features)
    x = np.array(table.values, dtype=np.float64).reshape(len(table.labels), -1)
    labels = _labels(table, str(path), label)
    for array in (x, labels.values):
        array.setflags(write=False)
    return x, labels


def _labels(table: SampleTable, where: str, column: str) -> Labels:
    """Determine the type of the labels and convert them."""
    if all(WHOLE.fullmatch(cell) for cell in table.labels):
        return Labels(np.array([int(cell) for cell in table.labels], dtype=np.int64), ())
    numbers = [_number(cell) for cell in table.labels]
    if None not in numbers:
        return Labels(np.array(numbers, dtype=np.float64), ())
    if any(number is not None and not number.is_integer() for number in numbers):
        at = numbers.index(None)
        raise ScenarioError(
            [
                f"{where}:{table.lines[at]}: {column} {shown(table.labels[at])} is not a finite "
                "number, as others are; leave it out."
            ]
        )
    classes = tuple(sorted(set(table.labels)))
    place = {name: number for number, name in enumerate(classes)}
    return Labels(np.array([place[cell] for cell in table.labels], dtype=np.int64), classes)


def _number(cell: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
