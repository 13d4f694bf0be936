"""Points: what a sweep has done, in files of its own, so that one that was stopped can go on."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import simdp
from simdp.errors import ScenarioError
from simdp.files import fingerprint, put_npz, read_json, read_npz, whole_files
from simdp.results.result import Result
from simdp.results.trace_arrays import arrays_of, trace_of
from simdp.scenario import Scenario
from simdp.scenario.overrides import named_files

NOT_KEPT = ("scenario", "set", "trace", "replicas", "outputs", "state")
"""What is no part of a point's file: it follows from the scenario, has a file of its own, or is not
there in a sweep."""


class Points:
    """Finished points of a sweep in a folder: a file for each, and one for the last one's trace.

    A file is called after all that its point depends on: the scenario as resolved, what is in the
    files that it names, the clock that was asked for, and the versions of simdp and NumPy. So a
    file is never taken for another point's, whatever was changed meanwhile.

    Parameters
    ----------
    folder : Path
        Made when the first point is done.
    go_on : bool
        Whether points that are there are taken; else all are played anew.

    Attributes
    ----------
    num_found : int
        How many were taken so far.
    """

    def __init__(self, folder: Path, go_on: bool = False) -> None:
        self.folder, self.go_on, self.num_found = folder, go_on, 0

    def save(self, point: Scenario, result: Result, fabric: str) -> None:
        """Write a point that is done.

        Raises
        ------
        ScenarioError
            If the folder cannot be written to.
        """
        name = _key(point, fabric, result.trace is not None)
        kept = {
            field.name: getattr(result, field.name)
            for field in fields(result)
            if field.name not in NOT_KEPT
        }
        if result.step_ends is not None:
            kept["step_ends"] = result.step_ends.tolist()
        with whole_files(self.folder) as add:
            if result.trace is not None:  # first, since the other file says that all is there
                arrays = arrays_of(result.trace)
                add(f"{name}.npz", lambda stream: put_npz(arrays, stream))
            # With NaN, unlike result.json: plots tell it from what does not apply.
            add(f"{name}.json", lambda stream: _put(stream, json.dumps(kept)))

    def load(self, point: Scenario, fabric: str, with_trace: bool) -> Result | None:
        """Take a point that is there; None where there is none, or its files are damaged."""
        if not self.go_on:
            return None
        path = self.folder / f"{_key(point, fabric, with_trace)}.json"
        try:
            trace = trace_of(read_npz(path.with_suffix(".npz"))) if with_trace else None
            found = Result(scenario=point.resolved(), set={}, trace=trace, **read_json(path))
            found.step_ends = None if found.step_ends is None else np.array(found.step_ends)
            if not isinstance(found.metrics, dict) or not isinstance(found.network, dict):
                return None
        except (ScenarioError, LookupError, ValueError, TypeError):
            return None
        self.num_found += 1
        return found


def _key(point: Scenario, fabric: str, with_trace: bool) -> str:
    """What tells points apart; whoever looks at the trace may have another clock play."""
    import hashlib  # which only sweeps need

    raw = point.resolved()
    files = [_print_of(path) for path in named_files(raw, point.base)]
    versions = [simdp.__version__, np.__version__]
    of = json.dumps([versions, fabric, with_trace, raw, files], sort_keys=True)
    return hashlib.sha256(of.encode()).hexdigest()[:32]


@lru_cache(maxsize=64)  # the points of a sweep share their files, which stay as they are meanwhile
def _print_of(path: Path) -> str:
    return fingerprint(path)


def _put(stream: Any, text: str) -> None:
    stream.write(text.encode())
