"""Memory: what the fullest rank keeps at its peak, for any micro-batch, before it is simulated."""

from __future__ import annotations

import copy
from pathlib import Path

from simdp.engine.phases import Line
from simdp.scenario.overrides import Raw, set_key
from simdp.scenario.root import build
from simdp.studies.fits import DEPTHS, lines_of_depth


def lines_of(raw: Raw, base: Path) -> list[Line]:
    """Bytes of the fullest rank, wherever the peak may be.

    Every allocator takes what is asked for or more, so that exact ones give the least.

    Parameters
    ----------
    raw : dict
        A scenario of one sample in a micro-batch, its machine taken in.
    base : Path
        Folder that relative paths start from.

    Raises
    ------
    ScenarioError
        If it cannot be.
    """
    raw = copy.deepcopy(raw)
    raw["cluster"]["allocator"] = "exact"
    whole = build(raw, base)
    model = whole.workload.model
    key, short = model.depth_key, []
    depth = int(getattr(model, key)) if key else 0
    if key and depth > DEPTHS[1]:
        for less in DEPTHS:
            fewer = copy.deepcopy(raw)
            set_key(fewer, f"workload.model.{key}", less)
            short.append(build(fewer, base))
    return list(lines_of_depth(whole, short, depth))
