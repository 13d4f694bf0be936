"""Arrays x and y from an npz file, in file order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.workload.datasets.base import Array, Dataset
from simdp.workload.models import Model


class Npz(Dataset):
    """``{kind: npz, path: data.npz}``; the path is relative to the scenario file."""

    kind: Literal["npz"] = "npz"
    path: str

    def length(self, base: Path) -> int:
        return len(self._read(base)["x"])

    def arrays(self, model: Model, seed: int, base: Path) -> dict[str, Array]:
        return {
            name: array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
            for name, array in self._read(base).items()
        }

    def _read(self, base: Path) -> dict[str, Array]:
        path = base / self.path
        found = read_npz(path)
        missing = [name for name in ("x", "y") if name not in found]
        if missing:
            listed = ", ".join(sorted(found)) or "nothing"
            raise ScenarioError(
                [f"{path}: has no array {missing[0]!r}; it holds {listed}; store x and y."]
            )
        x, y = found["x"], found["y"]
        for name, array in (("x", x), ("y", y)):
            if array.dtype.kind not in "fiub":
                raise ScenarioError(
                    [f"{path}: {name} is {array.dtype}; store real or whole numbers."]
                )
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or not len(x):
            raise ScenarioError(
                [f"{path}: x has shape {x.shape} and y {y.shape}; give both as many samples."]
            )
        return {"x": x, "y": y}
