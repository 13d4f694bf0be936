"""Times that the model brings along."""

from __future__ import annotations

from typing import Literal

from simdp.workload.compute.base import Compute


class FromProfile(Compute):
    """The times of each layer that stand in the file of a model of kind profile."""

    kind: Literal["profile"] = "profile"
