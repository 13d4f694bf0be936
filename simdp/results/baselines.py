"""Baselines: what a step takes on one device, as steps of several ranks tell it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Baseline:
    """A one-device step, solved from one measured step.

    Attributes
    ----------
    scenario : str
        The point's.
    microbatch : int
        Samples.
    world_size, num_nodes : int
        Where the step was measured.
    given : float
        The one-device step that the scenario has [s].
    found : float
        The one with which the simulated step takes the measured time [s].
    low, high : float
        Its 90 % interval, by how well the other constants are known [s].
    """

    scenario: str
    microbatch: int
    world_size: int
    num_nodes: int
    given: float
    found: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """Found over given, less one."""
        return self.found / self.given - 1


def to_json(baselines: Sequence[Baseline]) -> str:
    """Write them as one JSON document; times in seconds."""
    renamed = [
        {f"{k}_s" if isinstance(v, float) else k: v for k, v in asdict(one).items()}
        for one in baselines
    ]
    return json.dumps({"baselines": renamed}, indent=1, allow_nan=False) + "\n"
