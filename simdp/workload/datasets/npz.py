"""Arrays x and y from an npz file, and tgt for sequence to sequence, in file order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from simdp.arrays import Array, Ints
from simdp.errors import ScenarioError
from simdp.files import fingerprint, read_npz
from simdp.workload.datasets.base import Dataset
from simdp.workload.datasets.padding import reach
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models import Model


class Npz(Dataset):
    """``{kind: npz, path: data.npz}``; the path is relative to the scenario file.

    Whole numbers y mean the loss ``cross_entropy`` where a workload names none, floats ``mse``.

    Attributes
    ----------
    path : str
        A file with the arrays of the model's inputs and y, whose first axis is the samples.
    """

    kind: Literal["npz"] = "npz"
    path: str

    @classmethod
    def loss_of(cls, given: Any, base: Path) -> str:
        """Whole numbers y are classes."""
        try:
            chosen = given if isinstance(given, cls) else cls.model_validate(given)
            path = base / chosen.path
            y = _stored(path, fingerprint(path)).get("y")
        except (ValidationError, ScenarioError):  # whoever reads it next says what is wrong
            return cls.usual_loss
        return "cross_entropy" if y is not None and y.dtype.kind in "iu" else cls.usual_loss

    def length(self, base: Path) -> int:
        return len(self._read(base)["x"])

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        found = self._read(base, model.graph.inputs)
        return {name: found[name].shape[1:] for name in model.graph.inputs}

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        found = self._read(base, model.graph.inputs)
        for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
            wrong = _problem_with_shape(name, found[name], shape)
            if not wrong and model.num_tokens(name) is None:
                wrong = _problem_with_numbers(name, found[name])
            elif not wrong:
                wrong = _problem_with_tokens(name, found[name], model)
            if wrong:
                return wrong
        return loss.problem_with(found["y"], model.output_shape())

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        return self._read(base, model.graph.inputs)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        if model.padding is None:
            return {}
        arrays = self._read(base, model.graph.inputs)
        found = {}
        for name in model.graph.inputs:
            counts = arrays[name] != model.padding
            if name == model.target_follows:
                counts |= ~loss.ignored(arrays["y"])
            found[name] = reach(counts)
        return found

    def _read(self, base: Path, inputs: Sequence[str] = ("x",)) -> dict[str, Array]:
        """The arrays of a model's inputs and y: floats as they are stored, the others as int64."""
        path = base / self.path
        found = _stored(path, fingerprint(path))
        wanted = [*inputs, "y"]
        missing = [name for name in wanted if name not in found]
        if missing:
            listed = ", ".join(sorted(found)) or "nothing"
            raise ScenarioError(
                [
                    f"{path}: has no array {missing[0]!r}; it holds {listed}; "
                    f"store {', '.join(wanted[:-1])} and y."
                ]
            )
        for name in wanted:
            if found[name].dtype.kind not in "fiub":
                raise ScenarioError(
                    [f"{path}: {name} is {found[name].dtype}; store real or whole numbers."]
                )
        first = found[wanted[0]]
        for name in wanted[1:]:
            other = found[name]
            if first.ndim == 0 or other.ndim == 0 or len(first) != len(other) or not len(first):
                raise ScenarioError(
                    [
                        f"{path}: {wanted[0]} has shape {first.shape} and {name} {other.shape}; "
                        "give both as many samples."
                    ]
                )
        return {name: _widened(found[name]) for name in wanted}


@lru_cache(maxsize=1)
def _stored(path: Path, checksums: tuple[tuple[str, int], ...]) -> dict[str, Array]:
    """Read a file once for all who ask, and keep them from changing it."""
    found = read_npz(path)
    for array in found.values():
        array.setflags(write=False)
    return found


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
            f"{name} holds tokens {array.min()} ... {array.max()}, but the model knows {known}; "
            f"tokens must be 0 ... {known - 1}."
        )
    if model.padding is not None and (array == model.padding).all(axis=1).any():
        sample = int(np.argmax((array == model.padding).all(axis=1)))
        return (
            f"{name} of sample {sample} is nothing but padding, token {model.padding}; "
            "leave such samples out."
        )
    return None
